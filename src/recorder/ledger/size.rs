//! The size of the ledger, and its limit.
//!
//! Invariant: after each round the ledger uses at most its limit. The incidents have a share of their own; the jobs,
//! the events and the histories of devices share the rest. If that is still too much, histories of processes and
//! workloads are given up.

use std::collections::HashSet;

use super::{EXIT_WITHIN, Ledger};
use crate::recorder::history::Now;

/// The jobs, the events, and the histories of all devices together may each use the limit divided by this number.
const SHARE: usize = 4;

impl Ledger {
    /// Drops what is too old.
    pub(super) fn age(&mut self, now: Now) {
        let present: HashSet<_> = self.histories.present(now.micros.saturating_sub(EXIT_WITHIN)).collect();
        self.exits.retain(|process| present.contains(process));
        self.jobs.close(now);
        self.incidents.forget_mig(|uuid| self.histories.knows_mig(uuid));
        self.histories.age(now.micros);
    }

    /// Gives up as much as is needed for the rest to use at most `limit` bytes.
    pub(super) fn bound(&mut self, now: Now, limit: usize) {
        // A quarter more is counted for everything.
        let share = limit.saturating_sub(self.incidents.bytes()) / 5 * 4 / SHARE;
        self.jobs.bound(now, share);
        self.histories.bound(share);
        while self.bytes() > limit && self.histories.make_room() {}
    }

    /// An upper estimate of the memory that the ledger uses: that of the incidents, and a quarter more than the other
    /// values, for the gaps between them and for copies while they are read.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.incidents.bytes() + (self.histories.bytes() + self.jobs.bytes()) / 4 * 5
    }

    /// The number of processes, series, events and reports that were dropped to make room.
    pub(crate) fn dropped(&self) -> u64 {
        self.histories.dropped() + self.jobs.dropped()
    }
}

#[cfg(test)]
mod tests;
