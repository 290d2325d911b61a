//! The last reported refusal of a call.

use crate::faults::Reason;

/// The reason for the refusal of a call on one GPU, as it was last reported. It is kept while the driver is open and
/// forgotten when the call succeeds.
#[derive(Debug, Default)]
pub(super) struct ReportedReason(Option<Reason>);

impl ReportedReason {
    /// Records that the call was refused. Returns whether the reason is new and must be reported.
    pub(super) fn is_new(&mut self, reason: Reason) -> bool {
        self.0.replace(reason) != Some(reason)
    }

    /// Records that the call succeeded.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}
