//! Answers to queries about the recorded time span. Every answer is bounded in size.

use serde::Serialize;

use super::clock::unix;
use super::event::{Event, Who};
use super::freeze::chart;
use super::gpu_history::GpuHistory;
use super::incident::Chart;
use super::ledger::Ledger;
use super::process_history::ProcessHistory;
use super::series::{COARSE, Micros, SECOND};

/// The maximum number of points in a series.
pub(super) const MAX_POINTS: u64 = 2_000;
/// The time span of an answer if the query does not specify one: five minutes.
const DEFAULT_SPAN: Micros = 300 * SECOND;
/// The minimum length of a part of a chart.
const LEAST_STEP: Micros = SECOND / 100;
/// The maximum number of series in an answer.
const MAX_SERIES: usize = 128;

/// Which recorded values are requested. Times are Unix times in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryQuery {
    /// The beginning; if absent, five minutes before the end.
    pub from: Option<f64>,
    /// The end; if absent, the current time.
    pub to: Option<f64>,
    /// The length of a part in seconds; if it is absent, parts are as short as the maximum number of points allows.
    pub step: Option<f64>,
    /// The UUID of the GPU; if absent, all GPUs are included.
    pub uuid: Option<String>,
    /// The kinds of series that are requested.
    pub of: &'static [Of],
}

/// The kinds of series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// GPUs and MIG devices.
    Gpus,
    /// Processes.
    Processes,
    /// Workloads.
    Workloads,
}

impl Of {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Gpus, Self::Processes, Self::Workloads];
}

/// Recorded values.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HistoryAnswer {
    /// Unix time in seconds: the beginning of the time span.
    pub from: f64,
    /// The end of the time span.
    pub to: f64,
    /// When the recorder started: nothing before this time is known.
    pub recorded_since: f64,
    /// The series. For processes and workloads, those with the highest memory use come first.
    pub series: Vec<HistorySeries>,
    /// The number of series that were left out.
    pub more_series: usize,
    /// The number of workloads among them.
    pub more_workloads: usize,
}

/// The values of one GPU, MIG device, process or workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HistorySeries {
    /// NVML's index of the GPU.
    pub gpu: u32,
    /// The GPU's UUID.
    pub uuid: String,
    /// The UUID of the MIG device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_uuid: Option<String>,
    /// The GPU's allocatable memory in bytes, for the series of a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocatable_bytes: Option<u64>,
    /// The process, for the series of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<Who>,
    /// When the process started, in Unix seconds, which tells it from an earlier one with its pid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<f64>,
    /// The workload, for the series of a workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The kind of the workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload_kind: Option<&'static str>,
    /// Used memory.
    pub memory: Chart,
}

/// A time span and the length of the parts that it is divided into.
#[derive(Clone, Copy)]
struct Span {
    from: Micros,
    to: Micros,
    step: Micros,
}

/// The recorded values of a time span.
pub(super) fn history(ledger: &Ledger, query: &HistoryQuery) -> HistoryAnswer {
    let now = ledger.now();
    let to = query.to.map_or(now.micros, |to| now.moment(to).min(now.micros));
    let from = query.from.map_or(to.saturating_sub(DEFAULT_SPAN), |from| now.moment(from));
    let from = from.max(to.saturating_sub(COARSE)).min(to);
    let step = query.step.map_or(0, |seconds| (seconds * 1e6) as Micros);
    let span = Span { from, to, step: step.max(LEAST_STEP).max((to - from).div_ceil(MAX_POINTS)) };
    let mut answer = HistoryAnswer {
        from: now.unix(from),
        to: now.unix(to),
        recorded_since: now.unix(0),
        series: Vec::new(),
        more_series: 0,
        more_workloads: 0,
    };
    for &kind in query.of {
        let (series, more) = series_of(ledger, kind, query.uuid.as_deref(), span);
        answer.series.extend(series);
        answer.more_series += more;
        answer.more_workloads += if kind == Of::Workloads { more } else { 0 };
    }
    answer
}

/// The series of one kind, at most [`MAX_SERIES`] of them, and the number of series that were left out.
fn series_of(ledger: &Ledger, kind: Of, uuid: Option<&str>, span: Span) -> (Vec<HistorySeries>, usize) {
    let (now, Span { from, to, step }) = (ledger.now(), span);
    let gpus = ledger.gpus.iter().filter(|gpu| uuid.is_none_or(|uuid| gpu.gpu.uuid == uuid));
    let mut series: Vec<(u64, HistorySeries)> = Vec::new();
    let mut more = 0;
    for gpu in gpus {
        let draw = |values: &super::series::Series| chart(values, from, to, step, now);
        match kind {
            Of::Gpus => {
                let entire = HistorySeries { allocatable_bytes: Some(gpu.allocatable), ..of(gpu, draw(&gpu.memory)) };
                series.push((0, entire));
                series.extend(gpu.mig.iter().map(|(device, values)| {
                    (0, HistorySeries { mig_uuid: Some(device.uuid.clone()), ..of(gpu, draw(values)) })
                }));
            }
            Of::Processes => {
                let within =
                    |process: &&ProcessHistory| process.first <= to && process.ended.is_none_or(|(_, by)| by >= from);
                let mut found: Vec<_> = gpu.processes().filter(within).collect();
                found.sort_by_key(|process| std::cmp::Reverse(process.peak));
                more += found.len().saturating_sub(MAX_SERIES);
                found.truncate(MAX_SERIES);
                series.extend(found.into_iter().map(|process| {
                    let peak = process.peak.map_or(0, |(peak, _)| peak);
                    let started_at = process.start().and_then(unix);
                    let memory = draw(&process.series);
                    (peak, HistorySeries { process: Some(process.who()), started_at, ..of(gpu, memory) })
                }));
            }
            Of::Workloads => series.extend(gpu.workloads.iter().map(|workload| {
                let highest = workload.series.highest(from, to).map_or(0, |(_, highest)| highest);
                let named = HistorySeries {
                    mig_uuid: workload.mig.as_ref().map(|device| device.uuid.clone()),
                    workload: Some(workload.workload.name.clone()),
                    workload_kind: Some(workload.workload.kind.label()),
                    ..of(gpu, draw(&workload.series))
                };
                (highest, named)
            })),
        }
    }
    if kind != Of::Gpus {
        series.sort_by_key(|(highest, _)| std::cmp::Reverse(*highest));
    }
    more += series.len().saturating_sub(MAX_SERIES);
    series.truncate(MAX_SERIES);
    (series.into_iter().map(|(_, series)| series).collect(), more)
}

fn of(gpu: &GpuHistory, memory: Chart) -> HistorySeries {
    HistorySeries {
        gpu: gpu.gpu.index,
        uuid: gpu.gpu.uuid.clone(),
        mig_uuid: None,
        allocatable_bytes: None,
        process: None,
        started_at: None,
        workload: None,
        workload_kind: None,
        memory,
    }
}

/// The latest events in a time span, oldest first.
pub(super) fn events(ledger: &Ledger, from: Option<f64>, to: Option<f64>, limit: usize) -> Vec<Event> {
    let now = ledger.now();
    let (from, to) = (from.map_or(0, |from| now.moment(from)), to.map_or(Micros::MAX, |to| now.moment(to)));
    ledger.events.latest(from, to, limit, now, |_| true)
}
