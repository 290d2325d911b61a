//! What identifies a process.
//!
//! Invariant: two processes with the same pid are told apart by their start times, and only by these. Where a start time
//! is unknown, the lists tell them apart: a process that one list does not contain has ended, so a later list that
//! contains the pid again shows another process.

use std::time::{Duration, SystemTime};

/// The time of day at which a process started is only as precise as the machine's boot time, which is known to the
/// second.
const START_IS_KNOWN_WITHIN: Duration = Duration::from_secs(2);

/// A process. A pid can be used again, but not with the same start time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// The pid in the exporter's pid namespace.
    pub pid: u32,
    /// When the process started, in clock ticks since boot. `None` if `/proc` does not show the process: it is in another
    /// pid namespace, it is hidden, or it has ended.
    pub start_ticks: Option<u64>,
}

impl ProcessId {
    /// Whether both can be the same process: the pids are equal, and no two known start times differ.
    pub fn may_be(self, other: Self) -> bool {
        self.pid == other.pid
            && !matches!((self.start_ticks, other.start_ticks), (Some(own), Some(other)) if own != other)
    }

    /// Whether the process that has this pid now, and started at `started`, is another one than this process, which was
    /// first seen at `first_seen`. A process that was seen before its start time could be read did not start after that.
    pub fn is_former_of(self, now: Self, started: Option<SystemTime>, first_seen: SystemTime) -> bool {
        match (self.start_ticks, now.start_ticks) {
            (None, Some(_)) => started.is_some_and(|started| started > first_seen + START_IS_KNOWN_WITHIN),
            _ => !self.may_be(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(start_ticks: Option<u64>) -> ProcessId {
        ProcessId { pid: 7, start_ticks }
    }

    #[test]
    fn known_start_times_tell_processes_apart_and_unknown_ones_do_not() {
        assert!(id(Some(1)).may_be(id(Some(1))) && !id(Some(1)).may_be(id(Some(2))));
        assert!(id(None).may_be(id(Some(2))) && id(Some(2)).may_be(id(None)) && id(None).may_be(id(None)));
        assert!(!ProcessId { pid: 8, start_ticks: None }.may_be(id(None)));
    }

    #[test]
    fn a_process_that_was_seen_first_did_not_start_later() {
        let seen = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let after = |seconds| Some(seen + Duration::from_secs(seconds));
        assert!(id(Some(1)).is_former_of(id(Some(2)), after(0), seen));
        assert!(id(None).is_former_of(id(Some(2)), after(3), seen));
        assert!(!id(None).is_former_of(id(Some(2)), after(2), seen), "within the precision of the boot time");
        assert!(!id(None).is_former_of(id(Some(2)), None, seen) && !id(Some(1)).is_former_of(id(None), after(9), seen));
    }
}
