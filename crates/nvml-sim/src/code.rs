//! NVML's return codes: number, name without prefix, and the text of `nvmlErrorString`.

use std::ffi::CStr;

use nvml_wrapper_sys::bindings as sys;

/// A code other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) sys::nvmlReturn_t);

/// The result of a call that does not write a value itself.
pub(crate) type Answer<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $symbol:ident, $text:literal;)*) => {
        #[allow(dead_code, reason = "the list is NVML's; a scenario may use any of them")]
        impl Code {
            $(pub(crate) const $name: Self = Self(sys::$symbol);)*
        }
        /// Every code with its name and text.
        const ALL: &[(Code, &str, &CStr)] = &[$((Code::$name, stringify!($name), $text)),*];
    };
}

codes! {
    UNINITIALIZED = nvmlReturn_enum_NVML_ERROR_UNINITIALIZED, c"Uninitialized";
    INVALID_ARGUMENT = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT, c"Invalid Argument";
    NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED, c"Not Supported";
    NO_PERMISSION = nvmlReturn_enum_NVML_ERROR_NO_PERMISSION, c"Insufficient Permissions";
    ALREADY_INITIALIZED = nvmlReturn_enum_NVML_ERROR_ALREADY_INITIALIZED, c"Already Initialized";
    NOT_FOUND = nvmlReturn_enum_NVML_ERROR_NOT_FOUND, c"Not Found";
    INSUFFICIENT_SIZE = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE, c"Insufficient Size";
    INSUFFICIENT_POWER = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_POWER, c"Insufficient External Power";
    DRIVER_NOT_LOADED = nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED, c"Driver Not Loaded";
    TIMEOUT = nvmlReturn_enum_NVML_ERROR_TIMEOUT, c"Timeout";
    IRQ_ISSUE = nvmlReturn_enum_NVML_ERROR_IRQ_ISSUE, c"Interrupt Request Issue";
    LIBRARY_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_LIBRARY_NOT_FOUND, c"NVML Shared Library Not Found";
    FUNCTION_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND, c"Function Not Found";
    CORRUPTED_INFOROM = nvmlReturn_enum_NVML_ERROR_CORRUPTED_INFOROM, c"Corrupted infoROM";
    GPU_IS_LOST = nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST, c"GPU is lost";
    RESET_REQUIRED = nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED, c"GPU requires reset";
    OPERATING_SYSTEM = nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM, c"GPU access blocked by the operating system";
    LIB_RM_VERSION_MISMATCH = nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH, c"Driver/library version mismatch";
    IN_USE = nvmlReturn_enum_NVML_ERROR_IN_USE, c"In use by another client";
    MEMORY = nvmlReturn_enum_NVML_ERROR_MEMORY, c"Insufficient Memory";
    NO_DATA = nvmlReturn_enum_NVML_ERROR_NO_DATA, c"No data";
    VGPU_ECC_NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, c"vGPU ECC not supported";
    INSUFFICIENT_RESOURCES = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES, c"Insufficient Resources";
    FREQ_NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_FREQ_NOT_SUPPORTED, c"Invalid Frequency";
    ARGUMENT_VERSION_MISMATCH = nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH, c"Argument version mismatch";
    DEPRECATED = nvmlReturn_enum_NVML_ERROR_DEPRECATED, c"Requested functionality has been deprecated";
    NOT_READY = nvmlReturn_enum_NVML_ERROR_NOT_READY, c"System is not in ready state";
    GPU_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND, c"No supported GPUs were found";
    INVALID_STATE = nvmlReturn_enum_NVML_ERROR_INVALID_STATE,
        c"Resource not in correct state to perform requested operation";
    RESET_TYPE_NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_RESET_TYPE_NOT_SUPPORTED,
        c"Reset type is not supported for given device";
    UNKNOWN = nvmlReturn_enum_NVML_ERROR_UNKNOWN, c"Unknown Error";
}

impl Code {
    /// The code with this name, written as in `nvml.h`, with or without `NVML_ERROR_`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let name = name.strip_prefix("NVML_ERROR_").unwrap_or(name);
        ALL.iter().find(|(_, known, _)| *known == name).map(|(code, _, _)| *code)
    }

    /// All names.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        ALL.iter().map(|(_, name, _)| *name)
    }
}

/// The text of `nvmlErrorString`.
pub(crate) fn text(code: sys::nvmlReturn_t) -> &'static CStr {
    if code == sys::nvmlReturn_enum_NVML_SUCCESS {
        return c"Success";
    }
    ALL.iter().find(|(known, _, _)| known.0 == code).map_or(c"Unknown Error", |(_, _, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_bear_its_prefix() {
        assert_eq!(Code::named("GPU_IS_LOST"), Some(Code(15)));
        assert_eq!(Code::named("NVML_ERROR_GPU_IS_LOST"), Some(Code(15)));
        assert_eq!(Code::named("SUCCESS"), None);
        assert_eq!(text(999), c"Unknown Error");
        assert_eq!(text(12345), c"Unknown Error");
    }
}
