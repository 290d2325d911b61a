//! What the processes of the command reported about their memory allocators, over all their connections. Pure.
//!
//! Invariant: a value is the highest, or for a counter the last, that a process reported; nothing is added up. The number
//! of entries is bounded.

use std::sync::Arc;

use gpu_readings::allocator::Outcome;
use gpu_readings::snapshot::{FailedAllocation, ProcessId};

/// The maximum number of entries.
const MOST: usize = 4096;

/// A process, the UUID of a device, and a framework.
pub(super) type Key = (ProcessId, Arc<str>, Arc<str>);

/// What one framework in a process reported about one device. `None`: it did not report the value.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Entry {
    /// Bytes.
    pub(super) allocated_peak: Option<u64>,
    /// Bytes.
    pub(super) reserved_peak: Option<u64>,
    pub(super) retries: Option<u64>,
    /// The number of failed allocations: the counter, or the number of reported failures if that is higher.
    pub(super) failed: Option<u64>,
    /// The latest failed allocations.
    pub(super) failures: Vec<FailedAllocation>,
}

/// All that was reported.
#[derive(Debug, Default)]
pub(super) struct Reported {
    /// Why nothing could be reported.
    pub(super) problem: Option<String>,
    /// Sorted by key.
    pub(super) entries: Vec<(Key, Entry)>,
    /// Whether there was more than can be remembered.
    pub(super) left_out: bool,
    /// How often something was refused, by the label of the reason.
    pub(super) refused: Vec<(&'static str, u64)>,
}

impl Reported {
    /// Adds what one connection reported.
    pub(super) fn add(&mut self, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            let key = (outcome.process, outcome.device, outcome.framework);
            let Some(entry) = self.entry(key) else { continue };
            entry.merge(Entry {
                allocated_peak: outcome.allocated_peak,
                reserved_peak: outcome.reserved_peak,
                retries: outcome.retries,
                failed: outcome.out_of_memory,
                failures: Vec::new(),
            });
        }
    }

    /// Adds what is known at the end.
    pub(super) fn end(&mut self, failures: Vec<FailedAllocation>, refused: Vec<(&'static str, u64)>) {
        self.refused = refused;
        for failed in failures {
            let Some(framework) = failed.framework.clone() else { continue };
            let key = (failed.process, failed.device.clone(), framework);
            if let Some(entry) = self.entry(key) {
                entry.failures.push(failed);
            }
        }
        // A process whose start time is unknown on one connection may be known from another one. It is sorted before those
        // whose start time is known.
        for at in (0..self.entries.len()).rev() {
            let (process, device, framework) = self.entries[at].0.clone();
            let is_same = |(key, _): &(Key, Entry)| key.0.pid == process.pid && key.1 == device && key.2 == framework;
            let known = self.entries[at + 1..].iter().position(is_same).filter(|_| process.start_ticks.is_none());
            if let Some(after) = known {
                let entry = std::mem::take(&mut self.entries[at].1);
                self.entries[at + 1 + after].1.merge(entry);
                self.entries.remove(at);
            }
        }
        for (_, entry) in self.entries.iter_mut().filter(|(_, entry)| !entry.failures.is_empty()) {
            entry.failed = entry.failed.max(Some(entry.failures.len() as u64));
        }
    }

    fn entry(&mut self, key: Key) -> Option<&mut Entry> {
        let at = match self.entries.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(at) => at,
            Err(_) if self.entries.len() >= MOST => {
                self.left_out = true;
                return None;
            }
            Err(at) => {
                self.entries.insert(at, (key, Entry::default()));
                at
            }
        };
        Some(&mut self.entries[at].1)
    }
}

impl Entry {
    /// Takes over what the same process reported on another connection. Its counters count from its start, so the
    /// higher value is the later one.
    fn merge(&mut self, other: Self) {
        self.allocated_peak = self.allocated_peak.max(other.allocated_peak);
        self.reserved_peak = self.reserved_peak.max(other.reserved_peak);
        self.retries = self.retries.max(other.retries);
        self.failed = self.failed.max(other.failed);
        self.failures.extend(other.failures);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn process(pid: u32, start_ticks: u64) -> ProcessId {
        ProcessId { pid, start_ticks: Some(start_ticks).filter(|ticks| *ticks > 0) }
    }

    fn outcome(pid: u32, start_ticks: u64, allocated_peak: u64, retries: Option<u64>) -> Outcome {
        Outcome {
            process: process(pid, start_ticks),
            device: "GPU-1".into(),
            framework: "jax".into(),
            allocated_peak: Some(allocated_peak),
            reserved_peak: None,
            retries,
            out_of_memory: None,
        }
    }

    fn failure(pid: u32, start_ticks: u64) -> FailedAllocation {
        FailedAllocation {
            process: process(pid, start_ticks),
            at: Instant::now(),
            device: "GPU-1".into(),
            framework: Some("jax".into()),
            requested: 5,
            free: None,
            total: None,
            allocated: None,
            reserved: None,
            largest_free_block: None,
            snapshot_path: None,
            asked_by: None,
            frames: Vec::new(),
            sites: None,
        }
    }

    #[test]
    fn the_connections_of_a_process_are_one_entry_and_those_of_another_with_its_pid_are_not() {
        let mut reported = Reported::default();
        reported.add(vec![outcome(7, 1, 50, Some(2)), outcome(7, 2, 10, None)]);
        reported.add(vec![outcome(7, 1, 40, Some(3)), outcome(8, 0, 60, None)]);
        reported.add(vec![outcome(8, 9, 20, Some(1))]);
        reported.end(vec![failure(7, 2), failure(8, 0)], Vec::new());
        let shown: Vec<_> = reported
            .entries
            .iter()
            .map(|((process, ..), entry)| {
                (process.pid, process.start_ticks, entry.allocated_peak, entry.retries, entry.failed)
            })
            .collect();
        let expected = [
            (7, Some(1), Some(50), Some(3), None),
            (7, Some(2), Some(10), None, Some(1)),
            (8, Some(9), Some(60), Some(1), Some(1)),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn entries_are_limited() {
        let mut reported = Reported::default();
        for pid in 0..MOST as u32 {
            reported.add(vec![outcome(pid, 1, 1, None)]);
        }
        assert!(!reported.left_out);
        reported.add(vec![outcome(0, 1, 9, None), outcome(0, 2, 1, None)]);
        assert!(reported.left_out);
        let first = reported.entries.first();
        assert_eq!((reported.entries.len(), first.and_then(|(_, entry)| entry.allocated_peak)), (MOST, Some(9)));
    }
}
