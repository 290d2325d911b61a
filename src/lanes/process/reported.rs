//! The refusal of a call that was reported last.

use crate::faults::Reason;

/// The reason for the refusal of a call on one GPU, as it was last reported. It is kept while the driver is open and
/// forgotten when the call is answered.
#[derive(Debug, Default)]
pub(super) struct ReportedReason(Option<Reason>);

impl ReportedReason {
    /// The call was refused. Returns whether the reason is to be reported as new.
    pub(super) fn is_new(&mut self, reason: Reason) -> bool {
        self.0.replace(reason) != Some(reason)
    }

    /// The call was answered.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}
