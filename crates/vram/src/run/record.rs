//! What was measured, accumulated sample by sample and list by list. Pure: nothing here reads a clock or a device.
//!
//! Invariant: a sum over processes is taken from lists that were read at one moment: from one list, or from the lists of all
//! devices if no device changed while they were read. If the memory of any process in a sum is unknown, the sum is unknown. Times are counted from the start of the command.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use gpu_readings::snapshot::{NEARLY_FULL, ProcessId};

/// The share of the allocatable memory at or above which the time of a GPU is added up.
const FULL: f64 = NEARLY_FULL[0];
/// If the gap between two samples is longer than this, it is not counted as time at the level of the first sample.
const LONGEST_STEP: Duration = Duration::from_secs(1);
/// The maximum number of processes that are remembered for a device. Any others are included only in the sums.
const MOST_PROCESSES: usize = 4096;
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

/// What the lists of all devices, read one after the other, show together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// The state of one moment: no device changed between the first list and the last.
    OneMoment,
    /// States of several moments.
    Changed,
}

/// The memory of a GPU or MIG device at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level {
    pub(super) used: u64,
    pub(super) allocatable: u64,
}

/// One process on one GPU or MIG device.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProcessRecord {
    pub(super) membership: Membership,
    /// `None` if the driver never reported its memory.
    pub(super) peak: Option<Extreme>,
}

/// One GPU or MIG device.
#[derive(Debug, Clone, Default)]
pub(super) struct PlaceRecord {
    /// Whether the driver said that it does not report the memory of the device.
    pub(super) has_no_memory: bool,
    /// `None` if the memory of the device was never read.
    pub(super) allocatable: Option<u64>,
    /// The highest memory in use, by all processes.
    pub(super) own_peak: Option<Extreme>,
    /// The lowest free memory.
    pub(super) least_free: Option<Extreme>,
    /// The time at or above [`FULL`].
    pub(super) nearly_full: Duration,
    /// The highest memory that was in use both before and after a list was read, so that its processes are known.
    pub(super) listed_peak: Option<u64>,
    /// The highest sum of the command's processes.
    pub(super) tree_peak: Option<Extreme>,
    /// The number of the command's processes at the moment of `tree_peak`.
    pub(super) tree_processes: usize,
    /// When the last list was read, and the longest time without one until then.
    pub(super) last_list: Option<Duration>,
    pub(super) longest_list_gap: Duration,
    /// `None` before the first list.
    pub(super) processes: Option<BTreeMap<ProcessId, ProcessRecord>>,
    /// Whether there were more processes than can be remembered.
    pub(super) left_out: bool,
    /// Whether the driver listed a process of the command without its memory.
    pub(super) unknown_memory: bool,
    /// The number of failed driver calls for the device, and the first error.
    pub(super) failures: u64,
    pub(super) first_failure: Option<String>,
    /// The sum of the command's processes in the last list; `None` if it is unknown.
    tree_now: Option<u64>,
    last: Option<(Duration, bool)>,
}

/// Everything that was measured.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    pub(super) places: Vec<PlaceRecord>,
    /// The highest sum of the command's processes over all devices.
    pub(super) together: Option<Extreme>,
    /// The highest sum over lists of several moments, which is no amount that was ever held.
    changed_sum: Option<u64>,
    /// When the first sample was taken.
    pub(super) first: Option<Duration>,
    /// The number of rounds in which all devices were sampled.
    pub(super) rounds: u64,
    /// The number of rounds in which lists were read.
    pub(super) lists: u64,
    pub(super) longest_gap: Duration,
    pub(super) longest_list_gap: Duration,
    last_round: Option<Duration>,
    last_list: Option<Duration>,
}

impl Record {
    pub(super) fn new(places: usize) -> Self {
        Self { places: vec![PlaceRecord { tree_now: Some(0), ..PlaceRecord::default() }; places], ..Self::default() }
    }

    /// Begins a round of samples.
    pub(super) fn begin_round(&mut self, at: Duration) {
        self.first.get_or_insert(at);
        self.rounds += 1;
        let gap = self.last_round.replace(at).map_or(Duration::ZERO, |last| at.saturating_sub(last));
        self.longest_gap = self.longest_gap.max(gap);
    }

    /// Records the memory of a device.
    pub(super) fn sample(&mut self, place: usize, at: Duration, level: Level) {
        let place = &mut self.places[place];
        place.allocatable = Some(level.allocatable);
        place.close_step(at);
        place.last = Some((at, level.used as f64 >= FULL * level.allocatable as f64));
        raise(&mut place.own_peak, level.used, at);
        let free = level.allocatable.saturating_sub(level.used);
        if place.least_free.is_none_or(|least| free < least.bytes) {
            place.least_free = Some(Extreme { bytes: free, at });
        }
    }

    /// Records that the memory of a device could not be read and is therefore unknown until the next sample.
    pub(super) fn no_sample(&mut self, place: usize, at: Duration, error: &dyn Display) {
        let place = &mut self.places[place];
        place.fail(error);
        place.close_step(at);
    }

    /// Records that the processes of a device could not be read and that their sum is therefore unknown until the next
    /// list.
    pub(super) fn no_list(&mut self, place: usize, error: &dyn Display) {
        let place = &mut self.places[place];
        place.fail(error);
        place.tree_now = None;
    }

    /// Records the processes of a device. `level` is the memory in use before or after the list was read, whichever is
    /// lower.
    pub(super) fn list(&mut self, place: usize, at: Duration, entries: &[Entry], level: Option<u64>) {
        let place = &mut self.places[place];
        let gap = at.saturating_sub(place.last_list.replace(at).unwrap_or_default());
        place.longest_list_gap = place.longest_list_gap.max(gap);
        place.listed_peak = place.listed_peak.max(level);
        let (mut sum, mut count) = (Some(0_u64), 0);
        let processes = place.processes.get_or_insert_default();
        for entry in entries {
            if processes.len() < MOST_PROCESSES || processes.contains_key(&entry.key) {
                let new = ProcessRecord { membership: entry.membership, peak: None };
                let process = processes.entry(entry.key).or_insert(new);
                if let Some(used) = entry.used {
                    raise(&mut process.peak, used, at);
                }
            } else {
                place.left_out = true;
            }
            if entry.membership == Membership::Tree {
                count += 1;
                sum = sum.zip(entry.used).map(|(sum, used)| sum.saturating_add(used));
            }
        }
        place.unknown_memory |= sum.is_none();
        place.tree_now = sum;
        if let Some(sum) = sum.filter(|_| count > 0)
            && raise(&mut place.tree_peak, sum, at)
        {
            place.tree_processes = count;
        }
    }

    /// Ends a round after all its lists have been read, and adds up the sums of all devices.
    pub(super) fn end_lists(&mut self, at: Duration, pass: Pass) {
        self.lists += 1;
        let gap = self.last_list.replace(at).map_or(Duration::ZERO, |last| at.saturating_sub(last));
        self.longest_list_gap = self.longest_list_gap.max(gap);
        let sum = self.places.iter().try_fold(0_u64, |sum, place| Some(sum.saturating_add(place.tree_now?)));
        match (sum.filter(|&sum| sum > 0), pass) {
            (Some(sum), Pass::OneMoment) => {
                raise(&mut self.together, sum, at);
            }
            (sum, Pass::Changed) => self.changed_sum = self.changed_sum.max(sum),
            (None, Pass::OneMoment) => {}
        }
    }

    /// Whether the devices together may have held more than `together`.
    pub(super) fn together_is_at_least(&self) -> bool {
        self.changed_sum > self.together.map(|peak| peak.bytes)
    }

    /// Ends the measurement.
    pub(super) fn end(&mut self, at: Duration) {
        self.places.iter_mut().for_each(|place| place.close_step(at));
    }
}

impl PlaceRecord {
    /// The peak of the device, if it was too short for the processes to be listed.
    pub(super) fn spike(&self) -> Option<Extreme> {
        self.own_peak.filter(|peak| peak.bytes > self.listed_peak.unwrap_or(0).saturating_add(SPIKE))
    }

    fn fail(&mut self, error: &dyn Display) {
        self.failures += 1;
        self.first_failure.get_or_insert_with(|| error.to_string());
    }

    fn close_step(&mut self, at: Duration) {
        if let Some((since, true)) = self.last.take() {
            let step = at.saturating_sub(since);
            self.nearly_full += if step <= LONGEST_STEP { step } else { Duration::ZERO };
        }
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
