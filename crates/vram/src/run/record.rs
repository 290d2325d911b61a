//! What was measured, accumulated sample by sample and list by list. Pure: nothing here reads a clock or a device.
//!
//! Invariant: a sum over processes is taken from lists that show one moment: from one list, or from the last lists of all
//! devices if the memory of each of them stayed the same from its list to the latest one. If the memory of any process in a
//! sum is unknown, the sum is unknown. Times are counted from the start of the command.

use std::collections::BTreeMap;
use std::time::Duration;

use gpu_readings::snapshot::{MemoryFigures, ProcessId, allocatable};

/// The maximum number of processes that are remembered for a device. Any others are included only in the sums.
const MOST_PROCESSES: usize = 4096;
/// The maximum number of sums that wait for readings of other devices.
const MOST_SUMS: usize = 1024;
/// A peak counts as a spike that no list shows if it exceeds every level with known processes by more than this number
/// of bytes.
const SPIKE: u64 = 32 << 20;

/// An extreme value and when it was first measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extreme {
    pub(super) bytes: u64,
    pub(super) at: Duration,
}

/// Whether a process belongs to the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Membership {
    /// The command, or a descendant of it.
    Tree,
    /// A process that the command did not start.
    Other,
    /// `/proc` does not show the process, so its ancestors are unknown.
    Unidentified,
}

/// A process in a list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) key: ProcessId,
    pub(super) membership: Membership,
    /// Bytes; `None` if the driver does not report them.
    pub(super) used: Option<u64>,
}

/// How often something was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Rhythm {
    pub(super) count: u64,
    pub(super) last: Option<Duration>,
    pub(super) longest_gap: Duration,
}

/// One process on one GPU or MIG device.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProcessRecord {
    pub(super) membership: Membership,
    /// `None` if the driver never reported its memory.
    pub(super) peak: Option<Extreme>,
    /// The most that the driver's memory calls tell that it held, beyond a list.
    pub(super) call_peak: Option<Extreme>,
}

/// One GPU or MIG device.
#[derive(Debug, Clone, Default)]
pub(super) struct PlaceRecord {
    /// Whether the device answered without its memory.
    pub(super) has_no_memory: bool,
    /// `None` if the memory of the device was never read.
    pub(super) allocatable: Option<u64>,
    /// The highest memory in use, by all processes.
    pub(super) own_peak: Option<Extreme>,
    /// The most that the driver's memory calls tell of all processes, beyond a reading.
    pub(super) own_call_peak: Option<Extreme>,
    /// Whether the memory of a process became unknown on a device of which only the processes tell what is in use.
    has_lost_sum: bool,
    /// The lowest free memory.
    pub(super) least_free: Option<Extreme>,
    /// The time at or above [`NEARLY_FULL`](gpu_readings::snapshot::NEARLY_FULL).
    pub(super) nearly_full: Duration,
    /// The highest memory that was in use both before and after a list was read, so that its processes are known.
    pub(super) listed_peak: Option<u64>,
    /// The highest sum of the command's processes.
    pub(super) tree_peak: Option<Extreme>,
    /// The number of the command's processes at the moment of `tree_peak`.
    pub(super) tree_processes: usize,
    pub(super) samples: Rhythm,
    pub(super) lists: Rhythm,
    /// `None` before the first list.
    pub(super) processes: Option<BTreeMap<ProcessId, ProcessRecord>>,
    /// Whether there were more processes than can be remembered.
    pub(super) left_out: bool,
    /// Whether the driver listed a process of the command without its memory.
    pub(super) unknown_memory: bool,
    /// The sum of the command's processes in the last list; `None` if it is unknown.
    tree_now: Option<u64>,
    /// The memory in use at the moment of the last list; `None` if it changed while the list was read.
    level: Option<u64>,
    /// Up to when the memory is known to be at that level.
    holds_until: Option<Duration>,
    /// Whether the memory has changed since the last list.
    has_changed: bool,
}

/// Everything that was measured.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    pub(super) places: Vec<PlaceRecord>,
    /// The highest sum of the command's processes over all devices.
    pub(super) together: Option<Extreme>,
    /// The highest sum over lists of several moments, which is no amount that was ever held.
    changed_sum: Option<u64>,
    /// Sums that are of one moment if the memory of no other device turns out to have changed before it.
    waiting: Vec<Extreme>,
    /// Sums since all devices were last at the levels of their lists.
    mixed: Vec<u64>,
}

impl Record {
    /// Makes room for this many devices.
    pub(super) fn has_places(&mut self, count: usize) {
        let count = count.max(self.places.len());
        self.places.resize_with(count, PlaceRecord::default);
    }

    /// Records the memory of a device; `None` if it does not report it. `available`: what can still be allocated, if the
    /// device shares the machine's memory. `nearly_full` is the time up to now at or above that ratio.
    pub(super) fn sample(
        &mut self,
        place: usize,
        at: Duration,
        memory: Option<MemoryFigures>,
        available: Option<u64>,
        nearly_full: Duration,
    ) {
        let record = &mut self.places[place];
        // A reading may be seen again while the next one takes long.
        if record.samples.last == Some(at) {
            return;
        }
        record.samples.beat(at);
        // The sum over the processes of a GPU without memory of its own ended, because the memory of one is unknown: the highest
        // sum before that is not the peak of the run.
        if memory.is_none() && available.is_some() && record.own_peak.take().is_some() {
            (record.allocatable, record.least_free, record.nearly_full) = (None, None, Duration::ZERO);
            record.has_lost_sum = true;
        }
        let memory = memory.filter(|_| !record.has_lost_sum);
        record.has_no_memory = memory.is_none();
        if let Some(MemoryFigures { total, reserved, used, .. }) = memory {
            let allocatable = allocatable(total, reserved);
            (record.allocatable, record.nearly_full) = (Some(allocatable), nearly_full);
            raise(&mut record.own_peak, used, at);
            let free = available.unwrap_or(allocatable.saturating_sub(used));
            if record.least_free.is_none_or(|least| free < least.bytes) {
                record.least_free = Some(Extreme { bytes: free, at });
            }
        }
        self.see_level(place, at, memory.map(|memory| memory.used));
    }

    /// Records the processes of a device. `around` is the memory in use before and after the list was read.
    pub(super) fn list(&mut self, place: usize, at: Duration, entries: &[Entry], around: [Option<u64>; 2]) {
        let [before, after] = around;
        let level = before.filter(|_| before == after);
        // The list shows as well whether the one before it held until now.
        self.see_level(place, at, level);
        let record = &mut self.places[place];
        record.lists.beat(at);
        record.listed_peak = record.listed_peak.max(before.zip(after).map(|(before, after)| before.min(after)));
        let (mut sum, mut count) = (Some(0_u64), 0);
        let processes = record.processes.get_or_insert_default();
        for entry in entries {
            if processes.len() < MOST_PROCESSES || processes.contains_key(&entry.key) {
                let new = ProcessRecord { membership: entry.membership, peak: None, call_peak: None };
                let process = processes.entry(entry.key).or_insert(new);
                if let Some(used) = entry.used {
                    raise(&mut process.peak, used, at);
                }
            } else {
                record.left_out = true;
            }
            if entry.membership == Membership::Tree {
                count += 1;
                sum = sum.zip(entry.used).map(|(sum, used)| sum.saturating_add(used));
            }
        }
        record.unknown_memory |= sum.is_none();
        (record.tree_now, record.level, record.holds_until) = (sum, level, Some(at));
        record.has_changed = level.is_none();
        if let Some(sum) = sum.filter(|_| count > 0)
            && raise(&mut record.tree_peak, sum, at)
        {
            record.tree_processes = count;
        }
        self.add_up(at);
    }

    /// Records that calls tell that a process, or the device as a whole, held at least this many bytes.
    pub(super) fn see_call(&mut self, place: usize, at: Duration, process: Option<ProcessId>, bytes: u64) {
        let record = &mut self.places[place];
        let Some(key) = process else {
            raise(&mut record.own_call_peak, bytes, at);
            return;
        };
        if let Some(process) = record.processes.as_mut().and_then(|processes| processes.get_mut(&key)) {
            raise(&mut process.call_peak, bytes, at);
        }
    }

    /// Whether any sample was taken.
    pub(super) fn has_samples(&self) -> bool {
        self.places.iter().any(|place| place.samples.count > 0)
    }

    /// Whether the devices together may have held more than `together`.
    pub(super) fn together_is_at_least(&self) -> bool {
        self.changed_sum > self.together.map(|peak| peak.bytes)
    }

    /// Ends the measurement.
    pub(super) fn end(&mut self) {
        let unknown = self.waiting.drain(..).map(|sum| sum.bytes).chain(self.mixed.drain(..)).max();
        self.changed_sum = self.changed_sum.max(unknown);
    }

    /// Adds up the last lists of all devices, one of which was read at `at`.
    fn add_up(&mut self, at: Duration) {
        let sum = self.places.iter().try_fold(0_u64, |sum, place| Some(sum.saturating_add(place.tree_now?)));
        let Some(bytes) = sum.filter(|&sum| sum > 0) else { return };
        // One list is of one moment by itself.
        if self.places.len() > 1 && self.places.iter().any(|place| place.has_changed) {
            // The devices that have changed are listed next.
            self.mixed.push(bytes);
            if self.mixed.len() >= self.places.len() {
                self.changed_sum = self.changed_sum.max(self.mixed.drain(..).max());
            }
            return;
        }
        self.mixed.clear();
        if self.waiting.len() >= MOST_SUMS {
            self.changed_sum = self.changed_sum.max(self.waiting.drain(..).map(|sum| sum.bytes).max());
        }
        self.waiting.push(Extreme { bytes, at });
        self.settle();
    }

    /// Learns the memory in use on a device after its last list.
    fn see_level(&mut self, place: usize, at: Duration, used: Option<u64>) {
        let record = &mut self.places[place];
        let Some(until) = record.holds_until.filter(|until| at > *until && !record.has_changed) else { return };
        if used.is_some() && used == record.level {
            record.holds_until = Some(at);
            return self.settle();
        }
        record.has_changed = true;
        let (known, unknown): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(|sum| sum.at <= until);
        self.waiting = known;
        self.changed_sum = self.changed_sum.max(unknown.iter().map(|sum| sum.bytes).max());
    }

    /// Takes the sums that are known to be of one moment.
    fn settle(&mut self) {
        let until = self.places.iter().map(|place| place.holds_until).min().flatten();
        let together = &mut self.together;
        self.waiting.retain(|sum| {
            let is_known = Some(sum.at) <= until;
            if is_known {
                raise(together, sum.bytes, sum.at);
            }
            !is_known
        });
    }
}

impl PlaceRecord {
    /// The command's processes.
    fn tree(&self) -> impl Iterator<Item = &ProcessRecord> {
        let processes = self.processes.iter().flatten().map(|(_, process)| process);
        processes.filter(|process| process.membership == Membership::Tree)
    }

    /// The highest of the command's processes that calls tell: all of them together held at least as much.
    pub(super) fn tree_call_peak(&self) -> Option<Extreme> {
        self.tree().filter_map(|process| process.call_peak).max_by_key(|peak| peak.bytes)
    }

    /// Whether calls tell that a process of the command, or all processes together, held more than was read.
    pub(super) fn has_higher_calls(&self) -> bool {
        Extreme::or_bound(self.own_peak, self.own_call_peak).1
            || self.tree().any(|process| Extreme::or_bound(process.peak, process.call_peak).1)
    }

    /// The peak of the device, if it was too short for the processes to be listed.
    pub(super) fn spike(&self) -> Option<Extreme> {
        self.own_peak.filter(|peak| peak.bytes > self.listed_peak.unwrap_or(0).saturating_add(SPIKE))
    }
}

impl Extreme {
    /// The higher of a peak that was read and one that calls tell, which is a lower bound, and whether it is that bound.
    pub(super) fn or_bound(read: Option<Self>, calls: Option<Self>) -> (Option<Self>, bool) {
        let bound = calls.filter(|bound| read.is_none_or(|read| bound.bytes > read.bytes));
        (bound.or(read), bound.is_some())
    }
}

impl Rhythm {
    fn beat(&mut self, at: Duration) {
        let gap = self.last.replace(at).map_or(Duration::ZERO, |last| at.saturating_sub(last));
        self.longest_gap = self.longest_gap.max(gap);
        self.count += 1;
    }
}

/// Replaces the extreme if the value is higher. Returns whether it was.
fn raise(peak: &mut Option<Extreme>, bytes: u64, at: Duration) -> bool {
    let higher = peak.is_none_or(|peak| bytes > peak.bytes);
    if higher {
        *peak = Some(Extreme { bytes, at });
    }
    higher
}

#[cfg(test)]
mod tests;
