//! The reports that are final and still kept in memory.
//!
//! Invariant: the number of reports is bounded, and those of units and users cannot push out all others.

use std::collections::VecDeque;
use std::sync::Arc;

use super::job_report::JobReport;

/// The maximum number of reports.
pub(super) const MAX_KEPT: usize = 512;

/// The reports, oldest first.
#[derive(Debug, Default)]
pub(super) struct Kept {
    reports: VecDeque<Arc<JobReport>>,
    bytes: usize,
    dropped: u64,
}

impl Kept {
    pub(super) fn push(&mut self, report: Arc<JobReport>) {
        self.bytes += report.bytes();
        self.reports.push_back(report);
        if self.reports.len() > MAX_KEPT {
            self.drop_oldest();
        }
    }

    /// Drops the oldest report, or the oldest about a unit or a user if these are more than half. Returns whether there
    /// was one.
    pub(super) fn drop_oldest(&mut self) -> bool {
        let is_casual = |report: &Arc<JobReport>| report.kind.is_casual();
        let are_many = self.reports.iter().filter(|report| is_casual(report)).count() > self.reports.len() / 2;
        let position = self.reports.iter().position(|report| !are_many || is_casual(report));
        let Some(report) = position.and_then(|position| self.reports.remove(position)) else { return false };
        self.bytes -= report.bytes();
        self.dropped += 1;
        true
    }

    /// Frees the unused capacity.
    pub(super) fn trim(&mut self) {
        self.reports.shrink_to(self.reports.len() * 2);
    }

    /// The reports, newest first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = &Arc<JobReport>> {
        self.reports.iter().rev()
    }

    /// An upper estimate of the memory that the reports use.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.reports.capacity() * size_of::<Arc<JobReport>>()
    }

    /// The number of reports that were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}
