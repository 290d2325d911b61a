//! The symbols that NVIDIA's library does not have. Their presence tells a program that the GPUs are simulated.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use super::{Symbol, answer};
use crate::code::Code;
use crate::library::{self, Settings};

/// This library's own version.
const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version holds no NUL"),
};

pub(super) const OWN: &[Symbol] =
    &[("nvmlSimVersion", nvmlSimVersion as *const ()), ("nvmlSimConfigure", nvmlSimConfigure as *const ())];

#[unsafe(no_mangle)]
extern "C" fn nvmlSimVersion() -> *const c_char {
    VERSION.as_ptr()
}

/// Sets what to simulate, before the library is opened; it takes precedence over the environment. NULL leaves a setting
/// as it is. While the library is open, only the settings that it has are accepted.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSimConfigure(
    scenario: *const c_char,
    procfs: *const c_char,
    control: *const c_char,
) -> nvmlReturn_t {
    let bytes = |text: *const c_char| {
        // SAFETY: the caller passes NULL or a C string.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
    };
    let path = |text| bytes(text).map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)));
    answer(|| {
        let scenario = bytes(scenario).map(|name| String::from_utf8(name.to_vec())).transpose();
        let scenario = scenario.map_err(|_| Code::INVALID_ARGUMENT)?;
        if scenario.as_deref() == Some("") {
            return Err(Code::INVALID_ARGUMENT);
        }
        library::configure(Settings { scenario, procfs: path(procfs), control: path(control) })
    })
}
