//! A failed NVML call: its name, its error code, and what the failure means for the exporter.

use nvml_wrapper::error::NvmlError;

use crate::faults::Reason;

/// nvml-wrapper returns NVML's newer codes as [`NvmlError::UnexpectedVariant`].
const ARGUMENT_VERSION_MISMATCH: u32 = 25;

/// A failed driver call.
#[derive(Debug, thiserror::Error)]
#[error("{call} failed")]
pub struct Error {
    /// NVML's name for the call.
    pub call: &'static str,
    #[source]
    cause: Cause,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    #[error("the driver's answer cannot be true: {0}")]
    Implausible(String),
}

/// What a failed call means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// This GPU or driver does not provide the value. Nothing is wrong, and a retry is pointless.
    Absent,
    /// The call failed this time; the next one may succeed.
    Passing,
    /// The GPU is out of reach.
    Gpu,
    /// The driver is out of reach, so the library must be reopened.
    Driver,
}

impl Severity {
    /// What a call that failed for this reason means.
    pub fn of(reason: Reason) -> Self {
        match reason {
            Reason::NotSupported
            | Reason::NoPermission
            | Reason::FunctionNotFound
            | Reason::ArgumentVersionMismatch => Self::Absent,
            Reason::GpuIsLost | Reason::ResetRequired => Self::Gpu,
            Reason::Uninitialized | Reason::DriverNotLoaded | Reason::LibRmVersionMismatch => Self::Driver,
            _ => Self::Passing,
        }
    }
}

impl Error {
    pub(super) fn new(call: &'static str, cause: NvmlError) -> Self {
        Self { call, cause: Cause::Nvml(cause) }
    }

    pub(super) fn implausible(call: &'static str, what: String) -> Self {
        Self { call, cause: Cause::Implausible(what) }
    }

    /// The reason under which the failure is counted.
    pub fn reason(&self) -> Reason {
        let Cause::Nvml(error) = &self.cause else { return Reason::Implausible };
        match error {
            NvmlError::Uninitialized => Reason::Uninitialized,
            NvmlError::InvalidArg => Reason::InvalidArgument,
            NvmlError::NotSupported => Reason::NotSupported,
            NvmlError::NoPermission | NvmlError::OperatingSystem => Reason::NoPermission,
            NvmlError::NotFound | NvmlError::NoData => Reason::NotFound,
            NvmlError::InsufficientSize(_) => Reason::InsufficientSize,
            NvmlError::DriverNotLoaded => Reason::DriverNotLoaded,
            NvmlError::Timeout => Reason::Timeout,
            NvmlError::IrqIssue => Reason::IrqIssue,
            NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => Reason::FunctionNotFound,
            NvmlError::GpuLost => Reason::GpuIsLost,
            NvmlError::ResetRequired => Reason::ResetRequired,
            NvmlError::LibRmVersionMismatch => Reason::LibRmVersionMismatch,
            NvmlError::LibraryNotFound | NvmlError::LibloadingError(_) => Reason::FunctionNotFound,
            NvmlError::UnexpectedVariant(ARGUMENT_VERSION_MISMATCH) => Reason::ArgumentVersionMismatch,
            _ => Reason::Unknown,
        }
    }

    /// What the failure means for the exporter.
    pub fn severity(&self) -> Severity {
        Severity::of(self.reason())
    }

    /// Whether the driver may not have what the call asks for at all, as far as one call tells: some drivers refuse a list or a
    /// metric that they do not know as an invalid argument.
    pub fn is_unavailable(&self) -> bool {
        self.severity() == Severity::Absent || self.reason() == Reason::InvalidArgument
    }

    /// Whether the library or the driver lacks this version of the call.
    pub(super) fn is_missing_call(&self) -> bool {
        matches!(self.reason(), Reason::FunctionNotFound | Reason::ArgumentVersionMismatch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_end_a_session_differ_from_those_of_a_gpu() {
        let severity = |cause| Error::new("call", cause).severity();
        assert_eq!(severity(NvmlError::LibRmVersionMismatch), Severity::Driver);
        assert_eq!(severity(NvmlError::GpuLost), Severity::Gpu);
        assert_eq!(severity(NvmlError::NotSupported), Severity::Absent);
        assert_eq!(severity(NvmlError::UnexpectedVariant(25)), Severity::Absent);
        assert_eq!(severity(NvmlError::UnexpectedVariant(77)), Severity::Passing);
        assert_eq!(Error::implausible("call", "used above total".into()).reason(), Reason::Implausible);
    }
}
