//! The size of the ledger: what is dropped when it is too old, or when the ledger uses too much memory.

use super::Ledger;
use crate::recorder::device_history::DeviceHistory;
use crate::recorder::series::{COARSE, Micros, Series};

impl Ledger {
    /// Drops what is too old, and then the oldest entries until the rest uses at most `limit` bytes.
    pub(in crate::recorder) fn age(&mut self, now: Micros, limit: usize) {
        let oldest = now.saturating_sub(COARSE);
        self.reports.age(limit);
        for gpu in &mut self.devices {
            gpu.series().for_each(|series| series.age(now));
            while gpu.ended.front().is_some_and(|process| process.seen < oldest) {
                gpu.ended.pop_front();
            }
            gpu.workloads.retain(|workload| workload.seen >= oldest || !workload.is_over());
        }
        // A MIG device that was deleted is remembered for as long as its values are.
        self.devices.retain(|device| device.mig.is_none() || device.seen >= oldest);
        let mut bytes = self.bytes();
        while bytes > limit && self.make_room() {
            self.dropped += 1;
            bytes = self.bytes();
        }
    }

    /// Drops the processes that ended first. If none has ended, drops the older half of the largest series or, if that
    /// is not possible, the oldest event. Returns whether there was anything to drop.
    fn make_room(&mut self) -> bool {
        let first = |gpu: &DeviceHistory| gpu.ended.front().map(|process| process.seen);
        let gpus = (0..self.devices.len()).filter_map(|index| Some((first(&self.devices[index])?, index)));
        if let Some((_, index)) = gpus.min() {
            // A tenth is dropped at once. Otherwise, after many processes have ended in a burst, the sizes would be
            // added up again for each of them.
            let ended = &mut self.devices[index].ended;
            let count = ended.len().div_ceil(10);
            ended.drain(..count);
            ended.shrink_to(ended.len() * 2);
            let oldest = ended.front().map_or(Micros::MAX, |process| process.seen);
            self.devices[index].workloads.retain(|workload| workload.seen >= oldest || !workload.is_over());
            self.dropped += count as u64 - 1;
            return true;
        }
        let largest = self.devices.iter_mut().flat_map(DeviceHistory::series).max_by_key(|series| series.bytes());
        largest.is_some_and(Series::halve) || self.events.drop_oldest()
    }

    /// An upper estimate of the memory that the ledger uses: a quarter more than its values, for the gaps between them
    /// and for copies while they are read.
    pub(in crate::recorder) fn bytes(&self) -> usize {
        let values =
            self.events.bytes() + self.reports.bytes() + self.devices.iter().map(DeviceHistory::bytes).sum::<usize>();
        size_of::<Self>() + values / 4 * 5
    }

    /// The number of processes, series, events and reports that were dropped to make room.
    pub(in crate::recorder) fn dropped(&self) -> u64 {
        self.dropped + self.events.dropped() + self.reports.dropped()
    }
}
