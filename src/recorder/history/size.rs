//! The size of the histories: entries are dropped when they are too old, or when the recorder uses too much memory.
//!
//! Invariant: entries are given up in this order: processes that have ended and workloads that are over, those of the
//! longest ago first; the older parts of the longest histories of processes and workloads; running processes, idle ones
//! first and then those with the least memory; running workloads with the least memory. The histories of devices and
//! the events have shares that they do not exceed. So a storm of processes costs no history of a device and no Xid,
//! loss or incident.

use std::cmp::Reverse;

use super::series::Series;
use super::{COARSE, DeviceHistory, Histories, Micros};

/// A series that is smaller than this is not worth shortening.
const SMALL: usize = 2048;
/// Of what is given up, this part is given up at once. Otherwise the sizes would be added up for each entry.
const PART: usize = 8;

impl Histories {
    /// Drops what is too old.
    pub(crate) fn age(&mut self, now: Micros) {
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

    /// Gives up events until they use at most `share` bytes, and older parts of the devices' own histories until all of
    /// them together use at most as many.
    pub(crate) fn bound(&mut self, share: usize) {
        self.events.bound(share);
        let each = share / self.devices.len().max(1);
        self.devices.iter_mut().for_each(|device| device.bound_own(each));
    }

    /// Gives up a part of what can be given up. Returns whether there was anything.
    pub(crate) fn make_room(&mut self) -> bool {
        let steps = [Self::drop_ended, Self::drop_over, Self::shorten, Self::unfollow, Self::drop_workloads];
        let dropped = steps.iter().map(|step| step(self)).find(|dropped| *dropped > 0).unwrap_or(0);
        self.dropped += dropped as u64;
        dropped > 0
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
        device.most_workloads = Some(device.workloads.len());
        count
    }

    fn workloads(&self) -> usize {
        self.devices.iter().map(|device| device.workloads.len()).sum()
    }

    /// The memory that the events and the histories use.
    pub(crate) fn bytes(&self) -> usize {
        self.events.bytes() + self.devices.iter().map(DeviceHistory::bytes).sum::<usize>()
    }

    /// The number of processes, series and events that were dropped to make room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped + self.events.dropped()
    }
}
