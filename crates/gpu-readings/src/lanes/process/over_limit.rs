//! How long a workload held more memory than a source allows.
//!
//! Invariant: time counts from one list of processes to the next if the first shows more memory than the limit at that
//! moment. Of a time without lists that is longer than [`longest_gap`](crate::snapshot::longest_gap), nothing is known,
//! so it does not count. A time never decreases, and begins at 0 when the source first declares a limit.

use std::time::{Duration, Instant, SystemTime};

use super::limits::Limits;
use crate::snapshot::{BudgetSource, WorkloadLimit};

/// The limits of one workload on one device over time.
#[derive(Debug, Clone, Default)]
pub(super) struct OverLimits {
    /// Sorted by source; empty if no source has ever declared a limit.
    limits: Vec<OverLimit>,
    /// When the memory was last compared with the limits; `None` while the workload is not on the device.
    at: Option<Instant>,
}

#[derive(Debug, Clone)]
struct OverLimit {
    source: BudgetSource,
    /// `None` while the source declares no limit.
    bytes: Option<u64>,
    /// Whether the memory was above the limit at the last comparison.
    exceeded: bool,
    over: Duration,
    /// When `over` was 0.
    since: SystemTime,
}

impl OverLimits {
    /// Records what the workload holds and may hold from now on. `used` is `None` if it is unknown.
    pub(super) fn see(&mut self, limits: &Limits, used: Option<u64>, now: Instant, gap: Duration) {
        self.pass(now, gap);
        for (source, bytes) in BudgetSource::ALL.into_iter().zip(*limits) {
            match self.limits.binary_search_by_key(&source, |limit| limit.source) {
                Ok(known) => self.limits[known].bytes = bytes,
                Err(at) if bytes.is_some() => {
                    let (over, since) = (Duration::ZERO, SystemTime::now());
                    self.limits.insert(at, OverLimit { source, bytes, exceeded: false, over, since });
                }
                Err(_) => {}
            }
        }
        for limit in &mut self.limits {
            limit.exceeded = limit.bytes.zip(used).is_some_and(|(bytes, used)| used > bytes);
        }
        self.at = Some(now);
    }

    /// Records that the workload is no longer on the device.
    pub(super) fn end(&mut self, now: Instant, gap: Duration) {
        self.pass(now, gap);
        for limit in &mut self.limits {
            (limit.bytes, limit.exceeded) = (None, false);
        }
        self.at = None;
    }

    /// Adds the time since the last comparison.
    fn pass(&mut self, now: Instant, gap: Duration) {
        let Some(passed) = self.at.map(|at| now.saturating_duration_since(at)).filter(|passed| *passed <= gap) else {
            return;
        };
        for limit in self.limits.iter_mut().filter(|limit| limit.exceeded) {
            limit.over += passed;
        }
    }

    /// Takes over the times of an entry that turned out to be the same workload. Both saw part of the same time, so the
    /// longer time counts.
    pub(super) fn absorb(&mut self, other: &Self) {
        for theirs in &other.limits {
            match self.limits.binary_search_by_key(&theirs.source, |limit| limit.source) {
                Ok(known) => {
                    let own = &mut self.limits[known];
                    (own.over, own.since) = (own.over.max(theirs.over), own.since.min(theirs.since));
                }
                Err(at) => self.limits.insert(at, theirs.clone()),
            }
        }
    }

    /// What is published.
    pub(super) fn show(&self) -> Vec<WorkloadLimit> {
        let shown = |limit: &OverLimit| WorkloadLimit {
            source: limit.source,
            bytes: limit.bytes,
            over: (!limit.source.is_share()).then_some(limit.over),
            since: limit.since,
        };
        self.limits.iter().map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: Duration = Duration::from_secs(5);

    fn limits(of: &[(BudgetSource, u64)]) -> Limits {
        let mut limits = Limits::default();
        for &(source, bytes) in of {
            limits[source as usize] = Some(bytes);
        }
        limits
    }

    /// `source bytes seconds`.
    fn shown(over: &OverLimits) -> Vec<String> {
        let text = |limit: WorkloadLimit| {
            let seconds = limit.over.map_or("-".to_owned(), |over| over.as_secs_f64().to_string());
            format!(
                "{} {} {seconds}",
                limit.source.label(),
                limit.bytes.map_or("-".to_owned(), |bytes| bytes.to_string())
            )
        };
        over.show().into_iter().map(text).collect()
    }

    #[test]
    fn time_counts_while_the_memory_is_above_the_limit() {
        let (mut over, begin) = (OverLimits::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let limit = limits(&[(BudgetSource::Kai, 10)]);
        for (second, used) in [(0, 10), (1, 11), (3, 11), (4, 10), (5, 99), (6, 9)] {
            over.see(&limit, Some(used), at(second), GAP);
        }
        assert_eq!(shown(&over), ["kai 10 4"], "1 to 4 and 5 to 6; the limit itself is within the limit");
        over.see(&limit, None, at(7), GAP);
        over.see(&limit, Some(99), at(8), GAP);
        over.see(&limit, Some(99), at(14), GAP);
        over.see(&limit, Some(9), at(19), GAP);
        assert_eq!(shown(&over), ["kai 10 9"], "8 to 14 is longer than the gap");
        over.see(&limit, Some(99), at(20), GAP);
        over.end(at(21), GAP);
        assert_eq!(shown(&over), ["kai - 10"]);
        over.see(&limit, Some(99), at(22), GAP);
        over.see(&limit, Some(99), at(23), GAP);
        assert_eq!(shown(&over), ["kai 10 11"], "a container that restarts continues");
    }

    #[test]
    fn a_limit_that_changes_counts_from_then_on() {
        let (mut over, begin) = (OverLimits::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        over.see(&Limits::default(), Some(7), at(0), GAP);
        assert_eq!(shown(&over), Vec::<String>::new());
        over.see(&limits(&[(BudgetSource::Mig, 5)]), Some(7), at(1), GAP);
        over.see(&limits(&[(BudgetSource::Mig, 9), (BudgetSource::Annotation, 6)]), Some(7), at(2), GAP);
        over.see(&limits(&[(BudgetSource::Annotation, 6)]), Some(7), at(5), GAP);
        assert_eq!(shown(&over), ["annotation 6 3", "mig - 1"]);
    }

    #[test]
    fn a_share_has_no_time_and_two_entries_become_one() {
        let (mut over, mut other, begin) = (OverLimits::default(), OverLimits::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let both = limits(&[(BudgetSource::TimeSlicing, 5), (BudgetSource::Hami, 5)]);
        for second in [0, 2] {
            over.see(&both, Some(7), at(second), GAP);
            other.see(
                &limits(&[(BudgetSource::Environment, 1), (BudgetSource::Hami, 1)]),
                Some(7),
                at(second * 2),
                GAP,
            );
        }
        over.absorb(&other);
        assert_eq!(shown(&over), ["environment 1 4", "hami 5 4", "time_slicing 5 -"]);
    }
}
