//! What a workload may hold on one device, and how long it held that much.
//!
//! Invariant: time counts from a list that shows at least as much memory as the limit at that moment, until the next
//! list.

use crate::recorder::history::Micros;
use crate::snapshot::{BudgetSource, WorkloadUse};

/// The budget of a workload on one device.
#[derive(Debug, Default)]
pub(super) struct BudgetUse {
    /// The lowest limit when one was last known, in bytes, with its source.
    lowest: Option<(u64, BudgetSource)>,
    /// Whether the memory reached it in the last list.
    is_reached: bool,
    reached: Micros,
}

impl BudgetUse {
    /// Records what a list shows about the workload. A share is not a limit.
    pub(super) fn see(&mut self, listed: &WorkloadUse) {
        let limits = listed.limits.iter().filter(|limit| !limit.source.is_share());
        let lowest = limits.filter_map(|limit| Some((limit.bytes?, limit.source))).min();
        self.is_reached = lowest.zip(listed.used).is_some_and(|((bytes, _), used)| used >= bytes);
        self.lowest = lowest.or(self.lowest);
    }

    /// Adds the time since the last list.
    pub(super) fn pass(&mut self, passed: Micros) {
        if self.is_reached {
            self.reached += passed;
        }
    }

    /// Records that the workload is not known to be on the device.
    pub(super) fn leave(&mut self) {
        self.is_reached = false;
    }

    /// Adds the time of a part of the workload that had another name.
    pub(super) fn absorb(&mut self, other: &Self) {
        self.lowest = self.lowest.or(other.lowest);
        self.reached += other.reached;
    }

    /// The limit in bytes; `None` if none was known.
    pub(super) fn bytes(&self) -> Option<u64> {
        Some(self.lowest?.0)
    }

    /// What declares the limit.
    pub(super) fn source(&self) -> Option<BudgetSource> {
        Some(self.lowest?.1)
    }

    /// The time for which the memory was at or above the limit; `None` if none was known.
    pub(super) fn reached(&self) -> Option<Micros> {
        self.lowest.map(|_| self.reached)
    }
}
