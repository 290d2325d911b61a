//! The memory of the jobs.

use std::sync::Arc;

use super::meter::Meter;
use super::open::Open;
use super::{Jobs, MAX_OPEN};
use crate::recorder::history::Now;
use crate::snapshot::Workload;

impl Jobs {
    /// Drops complete reports, completes those of workloads that have left, and in the end gives up those of the
    /// workloads with the least memory, until the rest uses at most `bytes`.
    pub(crate) fn bound(&mut self, now: Now, bytes: usize) {
        self.gpus.iter_mut().flat_map(|gpu| &mut gpu.meters).for_each(Meter::trim);
        self.kept.trim();
        self.open.shrink_to(self.open.len());
        let used = |jobs: &Self| jobs.bytes().saturating_sub(jobs.complete_bytes());
        while used(self) > bytes && self.kept.drop_oldest() {}
        while used(self) > bytes && self.close_first_left(now) {
            while self.kept.drop_oldest() {}
        }
        if used(self) <= bytes {
            // Room for another one is left only if there is some.
            self.most_open = if used(self) <= bytes / 2 { MAX_OPEN } else { self.most_open };
            return;
        }
        let mut sizes: Vec<_> =
            (self.open.iter().map(|(name, open)| (open.peak(), open.bytes(), name.clone()))).collect();
        sizes.sort_unstable_by_key(|(peak, _, _)| *peak);
        let mut excess = used(self) - bytes;
        for (_, size, name) in sizes {
            if excess == 0 {
                break;
            }
            self.open.remove(&name);
            self.dropped += 1;
            excess = excess.saturating_sub(size);
        }
        self.open.shrink_to_fit();
        self.most_open = self.open.len();
    }

    /// The reports that wait to be written are written in this round.
    fn complete_bytes(&self) -> usize {
        self.complete.capacity() * size_of::<usize>()
    }

    /// An upper estimate of the memory that the reports use.
    pub(crate) fn bytes(&self) -> usize {
        let unused = (self.open.capacity() * 8 / 7 - self.open.len()) * size_of::<(Arc<Workload>, Open)>();
        let open = self.open.values().map(Open::bytes).sum::<usize>() + unused;
        let meters: usize = self.gpus.iter().flat_map(|gpu| &gpu.meters).map(Meter::bytes).sum();
        open + meters + self.complete_bytes() + self.kept.bytes()
    }

    /// The number of reports that were dropped to make room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped + self.kept.dropped()
    }
}
