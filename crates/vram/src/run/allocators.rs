//! The part of the report about memory allocators: what frameworks such as PyTorch reported, process by process.
//!
//! Invariant: a process that reported nothing is left out, and a value that was not reported is absent.

use std::time::Duration;

use gpu_readings::snapshot::ProcessId;
use serde::Serialize;
use serde_with_macros::skip_serializing_none;
use text_and_sizes::format::bytes;

use super::facts::Facts;
use super::names::Owners;
use super::places::Place;
use super::reported::{Entry, Key};

/// Memory that was reserved and not allocated is worth a note if it is at least this many bytes, and at least one part
/// in [`SLACK_SHARE`] of what was reserved.
const SLACK: u64 = 1 << 30;
const SLACK_SHARE: u64 = 5;

/// What one framework in a process reported about one device.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub(super) struct AllocatorUse {
    #[serde(skip)]
    pub(super) process: ProcessId,
    pub(super) pid: u32,
    pub(super) name: Option<String>,
    /// The UUID of the GPU or MIG device.
    pub(super) device: String,
    /// The index of the GPU; `None` if the device was not measured.
    gpu: Option<u32>,
    mig_index: Option<u32>,
    framework: String,
    allocated_peak_bytes: Option<u64>,
    reserved_peak_bytes: Option<u64>,
    retries: Option<u64>,
    failed_allocations: Option<u64>,
    /// The latest failed allocations, the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failures: Vec<Failure>,
}

/// A failed allocation.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
struct Failure {
    seconds: f64,
    requested_bytes: u64,
    free_bytes: Option<u64>,
    allocated_bytes: Option<u64>,
    reserved_bytes: Option<u64>,
}

/// All that was reported, sorted by pid.
pub(super) fn of(facts: &Facts, places: &[Place], owners: &Owners) -> Vec<AllocatorUse> {
    facts.reported.entries.iter().map(|(key, entry)| describe(key, entry, facts, places, owners)).collect()
}

fn describe(key: &Key, entry: &Entry, facts: &Facts, places: &[Place], owners: &Owners) -> AllocatorUse {
    let (process, device, framework) = key;
    let place = places.iter().find(|place| place.uuid() == &**device);
    // A report can be read after the process that sent it has ended.
    let end = facts.duration + facts.followed.as_ref().map_or(Duration::ZERO, |followed| followed.time);
    let failures = entry.failures.iter().map(|failed| Failure {
        seconds: failed.at.saturating_duration_since(facts.start).min(end).as_secs_f64(),
        requested_bytes: failed.requested,
        free_bytes: failed.free,
        allocated_bytes: failed.allocated,
        reserved_bytes: failed.reserved,
    });
    AllocatorUse {
        process: *process,
        pid: process.pid,
        name: owners.get(process).and_then(|owner| owner.name.clone()),
        device: device.to_string(),
        gpu: place.map(|place| place.gpu.index),
        mig_index: place.and_then(|place| Some(place.mig.as_ref()?.index)),
        framework: framework.to_string(),
        allocated_peak_bytes: entry.allocated_peak,
        reserved_peak_bytes: entry.reserved_peak,
        retries: entry.retries,
        failed_allocations: entry.failed,
        failures: failures.collect(),
    }
}

/// The notes about what was reported.
pub(super) fn notes(facts: &Facts, uses: &[AllocatorUse]) -> Vec<String> {
    let mut notes = Vec::new();
    let reported = &facts.reported;
    if let Some(problem) = &reported.problem {
        notes.push(format!("no process could report about its allocator: {problem}"));
    }
    if !reported.refused.is_empty() {
        let count: u64 = reported.refused.iter().map(|(_, count)| count).sum();
        let reasons: Vec<&str> = reported.refused.iter().map(|(reason, _)| *reason).collect();
        notes.push(format!(
            "what processes reported about their allocators was refused {} ({})",
            plural(count, "time", "times"),
            reasons.join(", ")
        ));
    }
    if reported.left_out {
        notes.push("more processes reported about their allocators than are listed here".to_owned());
    }
    let worth = uses.iter().filter(|used| used.slack() >= SLACK && used.slack() >= used.reserved() / SLACK_SHARE);
    if let Some(most) = worth.max_by_key(|used| used.slack()) {
        notes.push(format!(
            "{} in process {} reserved up to {} and had at most {} of it allocated: the peak and \"fits in\" can include \
             memory that the allocator kept without need",
            most.framework,
            most.pid,
            bytes(most.reserved()),
            bytes(most.allocated_peak_bytes.unwrap_or(0)),
        ));
    }
    notes
}

impl AllocatorUse {
    /// Whether it belongs to this process. An unknown start time does not rule that out.
    pub(super) fn is_of(&self, process: ProcessId, device: &str) -> bool {
        self.process.may_be(process) && self.device == device
    }

    /// `pytorch: at most 9.10 GiB allocated, 11.80 GiB reserved; 2 retries, 1 failed allocation (asked for 2.00 GiB with
    /// 1.31 GiB free)`.
    pub(super) fn sentence(&self) -> String {
        let amounts = [(self.allocated_peak_bytes, "allocated"), (self.reserved_peak_bytes, "reserved")];
        let amounts: Vec<_> =
            amounts.iter().filter_map(|(amount, what)| Some(format!("{} {what}", bytes((*amount)?)))).collect();
        let mut counts: Vec<_> =
            self.retries.filter(|&n| n > 0).map(|n| plural(n, "retry", "retries")).into_iter().collect();
        if let Some(failed) = self.failed_allocations.filter(|&failed| failed > 0) {
            let which = if failed > 1 { "the last " } else { "" };
            let last = self.failures.last().map(|last| {
                let free = last.free_bytes.map(|free| format!(" with {} free", bytes(free))).unwrap_or_default();
                format!(" ({which}asked for {}{free})", bytes(last.requested_bytes))
            });
            counts.push(plural(failed, "failed allocation", "failed allocations") + &last.unwrap_or_default());
        }
        let amounts = if amounts.is_empty() { String::new() } else { format!("at most {}", amounts.join(", ")) };
        let parts: Vec<_> = [amounts, counts.join(", ")].into_iter().filter(|part| !part.is_empty()).collect();
        format!(
            "{}: {}",
            self.framework,
            if parts.is_empty() { "no amount was reported".to_owned() } else { parts.join("; ") }
        )
    }

    fn reserved(&self) -> u64 {
        self.reserved_peak_bytes.unwrap_or(0)
    }

    /// Bytes by which the highest reserved exceeds the highest allocated; 0 if either is unknown.
    fn slack(&self) -> u64 {
        self.allocated_peak_bytes.map_or(0, |allocated| self.reserved().saturating_sub(allocated))
    }
}

fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn used(allocated: Option<u64>, reserved: Option<u64>) -> AllocatorUse {
        AllocatorUse {
            process: ProcessId { pid: 7, start_ticks: Some(1) },
            pid: 7,
            name: None,
            device: "GPU-1".to_owned(),
            gpu: None,
            mig_index: None,
            framework: "pytorch".to_owned(),
            allocated_peak_bytes: allocated,
            reserved_peak_bytes: reserved,
            retries: None,
            failed_allocations: None,
            failures: Vec::new(),
        }
    }

    #[test]
    fn a_sentence_contains_what_was_reported_and_nothing_else() {
        let failure = |free_bytes| Failure {
            seconds: 1.0,
            requested_bytes: 2 * GIB,
            free_bytes,
            allocated_bytes: None,
            reserved_bytes: None,
        };
        let full = AllocatorUse {
            retries: Some(2),
            failed_allocations: Some(1),
            failures: vec![failure(Some(GIB))],
            ..used(Some(9 * GIB), Some(12 * GIB))
        };
        let two = AllocatorUse {
            retries: Some(1),
            failed_allocations: Some(2),
            failures: vec![failure(Some(GIB)), failure(None)],
            ..used(None, None)
        };
        let counted = AllocatorUse { failed_allocations: Some(3), retries: Some(0), ..used(Some(GIB), None) };
        let cases = [
            (
                full,
                "pytorch: at most 9.00 GiB allocated, 12.00 GiB reserved; 2 retries, 1 failed allocation (asked for 2.00 GiB \
                 with 1.00 GiB free)",
            ),
            (two, "pytorch: 1 retry, 2 failed allocations (the last asked for 2.00 GiB)"),
            (counted, "pytorch: at most 1.00 GiB allocated; 3 failed allocations"),
            (used(None, Some(GIB)), "pytorch: at most 1.00 GiB reserved"),
            (AllocatorUse { retries: Some(0), ..used(None, None) }, "pytorch: no amount was reported"),
        ];
        for (used, sentence) in cases {
            assert_eq!(used.sentence(), sentence);
        }
    }

    #[test]
    fn a_use_belongs_to_a_process_unless_pid_start_or_device_differ() {
        let own = used(None, None);
        let key = |pid, start| ProcessId { pid, start_ticks: start };
        assert!(own.is_of(key(7, Some(1)), "GPU-1") && own.is_of(key(7, None), "GPU-1"));
        assert!(!own.is_of(key(7, Some(2)), "GPU-1") && !own.is_of(key(8, Some(1)), "GPU-1"));
        assert!(!own.is_of(key(7, Some(1)), "GPU-2"));
    }
}
