//! The reason for which a call was last refused, so that a repeated refusal is no new fault.

use crate::faults::Reason;

/// The reason for the refusal of a call on one GPU, as it was last raised. It is kept while the driver is open and
/// forgotten when the call succeeds.
#[derive(Debug, Default)]
pub(super) struct RaisedReason(Option<Reason>);

impl RaisedReason {
    /// Records that the call was refused. Returns whether the reason is new and must be raised.
    pub(super) fn is_new(&mut self, reason: Reason) -> bool {
        self.0.replace(reason) != Some(reason)
    }

    /// Records that the call succeeded.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}
