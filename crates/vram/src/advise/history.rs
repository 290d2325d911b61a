//! The history of each run: a workload on a GPU or MIG device.
//!
//! Invariant: a value that no sample shows is absent. Copies of a series, such as those of a replica, change nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::clients;
use super::prometheus::Series;
use super::queries::Answers;
use super::run_key::RunKey;
use super::span::Span;

/// The workload that all series without a kind are summed into.
const OTHER: &str = "other";

/// How many series of peaks belong to no run, and what is wrong with them.
pub(super) fn unusable(peaks: &[Series]) -> (usize, String) {
    let mut found: BTreeMap<_, usize> = BTreeMap::new();
    for why in peaks.iter().filter_map(what_is_wrong) {
        *found.entry(why).or_default() += 1;
    }
    let reasons: Vec<_> = found.iter().map(|(what, number)| format!("{number} {what}")).collect();
    (found.values().sum(), reasons.join(", "))
}

fn what_is_wrong(series: &Series) -> Option<&'static str> {
    if series.value().is_none() {
        return Some("with a value that is no amount (NaN, Inf, negative or above 2^53)");
    }
    if RunKey::of(series).is_some() || series.label("workload") == Some(OTHER) {
        return None;
    }
    let has_workload = series.label("workload").is_some() && series.label("kind").is_some();
    Some(if has_workload { "without the label uuid" } else { "without the labels workload and kind" })
}

/// What happened in an interval in which the run held memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Interval {
    /// The highest window peak in bytes, above 0.
    pub(super) peak: u64,
    pub(super) samples: u64,
}

/// A run.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The highest window peak in bytes.
    pub(super) driver_peak: u64,
    /// By the index of the interval. Intervals without a window peak above 0 are absent.
    pub(super) intervals: BTreeMap<u32, Interval>,
    /// The highest number of processes at the same time; 0 if it is not known.
    pub(super) processes: u64,
    /// Whether it has processes at the end of the range.
    pub(super) is_now: bool,
    /// The lowest of its budgets in bytes, and its source.
    pub(super) budget: Option<(u64, String)>,
    /// The names of its processes.
    pub(super) names: BTreeSet<String>,
    pub(super) users: BTreeSet<String>,
    /// When it was last short of memory, in Unix seconds; `None` if it was not.
    pub(super) shortage: Option<u64>,
    /// What its clients reported; `None` without a client.
    pub(super) clients: Option<clients::Reported>,
}

impl Run {
    pub(super) fn samples(&self) -> u64 {
        self.intervals.values().map(|interval| interval.samples).sum()
    }

    /// The index of the last interval with a sample.
    pub(super) fn last(&self) -> Option<u32> {
        self.intervals.last_key_value().map(|(index, _)| *index)
    }

    /// What it needs at most, in bytes: what its clients say, but no more than its window peak.
    pub(super) fn need(&self) -> u64 {
        self.clients.as_ref().map_or(self.driver_peak, |clients| clients.need.min(self.driver_peak))
    }
}

/// All runs.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) runs: BTreeMap<RunKey, Run>,
    /// The number of series that are the sum of workloads beyond the exporter's limit.
    pub(super) others: u64,
}

impl History {
    pub(super) fn new(answers: &Answers, span: Span) -> Self {
        let mut history = Self::default();
        let runs = &mut history.runs;
        for series in &answers.peaks {
            let value = series.value();
            match (RunKey::of(series), value) {
                (Some(key), Some(peak)) if peak > 0 => runs.entry(key).or_default().driver_peak = peak,
                (None, Some(_)) if series.label("workload") == Some(OTHER) => history.others += 1,
                _ => {}
            }
        }
        for series in &answers.interval_peaks {
            let Some(run) = RunKey::of(series).and_then(|key| runs.get_mut(&key)) else { continue };
            for point in series.points.iter().filter(|point| point.value > 0) {
                if let Some(index) = span.index(point.time) {
                    run.intervals.entry(index).or_default().peak = point.value;
                }
            }
        }
        for series in &answers.interval_samples {
            let Some(run) = RunKey::of(series).and_then(|key| runs.get_mut(&key)) else { continue };
            for point in &series.points {
                // An interval without memory is none of the run's: it had ended, and the exporter still showed it.
                if let Some(interval) = span.index(point.time).and_then(|index| run.intervals.get_mut(&index)) {
                    interval.samples = point.value;
                }
            }
        }
        let mut each = |series: &[Series], take: fn(&mut Run, &Series, u64)| {
            for series in series {
                let (Some(key), Some(value)) = (RunKey::of(series), series.value()) else { continue };
                if let Some(run) = runs.get_mut(&key) {
                    take(run, series, value);
                }
            }
        };
        each(&answers.processes, |run, _, value| run.processes = value);
        each(&answers.shortages, |run, _, value| run.shortage = Some(value));
        each(&answers.processes_now, |run, _, value| run.is_now = value > 0);
        each(&answers.budgets, |run, series, value| {
            let source = series.label("source").unwrap_or_default().to_owned();
            let lowest = run.budget.take().into_iter().chain([(value, source)]).min();
            run.budget = lowest;
        });
        each(&answers.owners, |run, series, _| {
            run.names.extend(series.label("process").map(str::to_lowercase));
            run.users.extend(series.label("user").map(str::to_owned));
        });
        let at_once = |key: &RunKey| runs.get(key).map(|run| run.processes);
        for (key, reported) in clients::reported(answers, span.begin, at_once) {
            if let Some(run) = runs.get_mut(&key) {
                run.clients = Some(reported);
            }
        }
        history
    }
}
