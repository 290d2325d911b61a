//! The answer to a query about the recorded time span, drawn piece by piece.
//!
//! Invariant: the recorder is locked while one series is drawn, and not between two of them.

use std::sync::Arc;

use super::Shared;
use crate::recorder::history::answers::{self, Drawn, HistoryHead, HistoryQuery, HistorySeries, Plan};

/// The answer to a [`HistoryQuery`]: an iterator over its series. Each one is drawn when it is asked for.
#[derive(Debug)]
pub struct History {
    shared: Arc<Shared>,
    plan: Plan,
    /// The beginning of the answer.
    pub head: HistoryHead,
    /// The number of series that were left out. Final after the last series: the recorder may drop some before they are
    /// drawn.
    pub more_series: usize,
    /// The number of workloads among them.
    pub more_workloads: usize,
}

impl History {
    pub(super) fn new(shared: Arc<Shared>, query: &HistoryQuery) -> Self {
        let plan = {
            let ledger = shared.ledger.lock();
            answers::plan(ledger.histories(), query, ledger.now())
        };
        let (head, more_series, more_workloads) = (plan.head.clone(), plan.more_series, plan.more_workloads);
        Self { shared, plan, head, more_series, more_workloads }
    }

    /// The bytes that the answer and one series in it use.
    pub fn bytes(&self) -> usize {
        const SERIES: usize = 256 << 10;
        SERIES + self.plan.left.capacity() * size_of::<Drawn>()
    }
}

impl Iterator for History {
    type Item = HistorySeries;

    fn next(&mut self) -> Option<HistorySeries> {
        loop {
            let next = self.plan.left.pop()?;
            let drawn = {
                let ledger = self.shared.ledger.lock();
                answers::draw(ledger.histories(), &self.plan, &next, ledger.now())
            };
            if drawn.is_some() {
                return drawn;
            }
            self.more_series += 1;
            self.more_workloads += usize::from(next.is_workload());
        }
    }
}
