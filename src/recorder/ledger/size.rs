//! The size of the ledger: what is dropped when it is too old, or when the ledger uses too much memory.
//!
//! Invariant: after each round the ledger uses at most its limit. What is given up, in this order: processes that have
//! ended and workloads that are over, those of the longest ago first; the older parts of the longest histories of
//! processes and workloads; running processes, idle ones first and then those with the least memory; running workloads
//! with the least memory. The histories of devices, events and reports have shares that they do not exceed. So a storm
//! of processes costs no history of a device and no Xid, loss or incident.

use std::cmp::Reverse;

use super::Ledger;
use crate::recorder::history::clock::Now;
use crate::recorder::history::device_history::DeviceHistory;
use crate::recorder::history::series::{COARSE, Micros, Series};

/// The reports, the events, and the histories of all devices together may each use the limit divided by this number.
const SHARE: usize = 4;
/// A series that is smaller than this is not worth shortening.
const SMALL: usize = 2048;
/// Of what is given up, this part is given up at once. Otherwise the sizes would be added up for each entry.
const PART: usize = 8;

impl Ledger {
    /// Drops what is too old.
    pub(in crate::recorder) fn age(&mut self, now: Micros) {
        let oldest = now.saturating_sub(COARSE);
        for device in &mut self.devices {
            device.series().for_each(|series| series.age(now));
            device.peaks.roll(now, device.memory.last());
            device.peaks.age(now);
            while device.ended.front().is_some_and(|process| process.seen < oldest) {
                device.ended.pop_front();
            }
            device.workloads.retain(|workload| workload.seen >= oldest || !workload.is_over());
        }
        // A MIG device that was deleted is remembered for as long as its values are.
        self.devices.retain(|device| device.mig.is_none() || device.seen >= oldest);
    }

    /// Gives up as much as is needed for the rest to use at most `limit` bytes.
    pub(in crate::recorder) fn bound(&mut self, now: Now, limit: usize) {
        // A quarter more is counted for everything.
        let share = limit / 5 * 4 / SHARE;
        self.jobs.bound(now, share);
        self.events.bound(share);
        let each = share / self.devices.len().max(1);
        self.devices.iter_mut().for_each(|device| device.bound_own(each));
        while self.bytes() > limit {
            let dropped = self.make_room();
            self.dropped += dropped as u64;
            if dropped == 0 {
                break;
            }
        }
    }

    /// Returns how much was given up; 0 if there is nothing left.
    fn make_room(&mut self) -> usize {
        let steps = [Self::drop_ended, Self::drop_over, Self::shorten, Self::unfollow, Self::drop_workloads];
        steps.iter().map(|step| step(self)).find(|dropped| *dropped > 0).unwrap_or(0)
    }

    /// Drops the processes that ended first, of the device whose first one ended first.
    fn drop_ended(&mut self) -> usize {
        let first = |device: &DeviceHistory| device.ended.front().map_or(Micros::MAX, |process| process.seen);
        let Some(device) = self.devices.iter_mut().filter(|device| !device.ended.is_empty()).min_by_key(|d| first(d))
        else {
            return 0;
        };
        let count = device.ended.len().div_ceil(PART);
        device.ended.drain(..count);
        device.ended.shrink_to(device.ended.len() * 2);
        // The workloads that were over when the first remaining process was last seen go with their processes.
        let oldest = first(device);
        device.workloads.retain(|workload| workload.seen >= oldest || !workload.is_over());
        device.workloads.shrink_to(device.workloads.len() * 2);
        count
    }

    /// Drops the workloads that are over.
    fn drop_over(&mut self) -> usize {
        let before = self.workloads();
        for device in &mut self.devices {
            device.workloads.retain(|workload| !workload.is_over());
            device.workloads.shrink_to(device.workloads.len() * 2);
        }
        before - self.workloads()
    }

    /// Drops the older half of each process's and workload's series that is more than half as large as the largest.
    fn shorten(&mut self) -> usize {
        let largest =
            self.devices.iter_mut().flat_map(DeviceHistory::holders_series).map(|series| series.bytes()).max();
        let least = largest.unwrap_or(0) / 2;
        let long = self.devices.iter_mut().flat_map(DeviceHistory::holders_series);
        long.filter(|series| series.bytes() >= least.max(SMALL)).map(|series| usize::from(Series::halve(series))).sum()
    }

    /// Gives up running processes on the device that has the most: idle ones first, then those with the least memory.
    fn unfollow(&mut self) -> usize {
        let device = self.devices.iter_mut().max_by_key(|device| device.living.len());
        device.map_or(0, |device| device.unfollow(device.living.len().div_ceil(PART)))
    }

    /// Drops the running workloads with the least memory on the device that has the most.
    fn drop_workloads(&mut self) -> usize {
        let Some(device) = self.devices.iter_mut().max_by_key(|device| device.workloads.len()) else { return 0 };
        let count = device.workloads.len().div_ceil(PART);
        device.workloads.make_contiguous().sort_by_key(|workload| Reverse(workload.series.last()));
        device.workloads.truncate(device.workloads.len() - count);
        device.workloads.shrink_to(device.workloads.len() * 2);
        device.most_workloads = device.workloads.len();
        count
    }

    fn workloads(&self) -> usize {
        self.devices.iter().map(|device| device.workloads.len()).sum()
    }

    /// An upper estimate of the memory that the ledger uses: a quarter more than its values, for the gaps between them
    /// and for copies while they are read.
    pub(in crate::recorder) fn bytes(&self) -> usize {
        let values =
            self.events.bytes() + self.jobs.bytes() + self.devices.iter().map(DeviceHistory::bytes).sum::<usize>();
        size_of::<Self>() + values / 4 * 5
    }

    /// The number of processes, series, events and reports that were dropped to make room.
    pub(in crate::recorder) fn dropped(&self) -> u64 {
        self.dropped + self.events.dropped() + self.jobs.dropped()
    }
}

#[cfg(test)]
mod tests;
