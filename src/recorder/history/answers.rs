//! Answers to queries about the recorded time span. Every answer is bounded in size. The series of a history are drawn
//! one after the other, so that no more than one of them is in memory.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use serde_with_macros::skip_serializing_none;

use super::series::Series;
use super::{
    COARSE, Chart, DeviceHistory, DeviceKey, Event, Exit, Histories, Holding, Micros, Now, ProcessHistory, ProcessRef,
    RecordedPeak, SECOND, chart, unix,
};
use crate::snapshot::{MigDevice, Process, ProcessId, Workload};

/// The maximum number of points in a series.
pub(crate) const MAX_POINTS: u64 = 2_000;
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
    pub of: &'static [SeriesKind],
}

/// The kinds of series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeriesKind {
    /// GPUs and MIG devices.
    Gpus,
    /// Processes.
    Processes,
    /// Workloads.
    Workloads,
}

impl SeriesKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Gpus, Self::Processes, Self::Workloads];
}

/// The beginning of an answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HistoryHead {
    /// Unix time in seconds: the beginning of the time span.
    pub from: f64,
    /// The end of the time span.
    pub to: f64,
    /// When the recorder started: nothing before this time is known.
    pub recorded_since: f64,
}

/// What an answer contains. For processes and workloads, the series with the highest memory use come first.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) head: HistoryHead,
    /// The series, the last one first.
    pub(crate) left: Vec<Drawn>,
    span: Span,
    /// The number of series that were left out.
    pub(crate) more_series: usize,
    /// The number of workloads among them.
    pub(crate) more_workloads: usize,
}

/// A series that is to be drawn, by what identifies it while the recorder goes on.
#[derive(Debug)]
pub(crate) struct Drawn {
    device: DeviceKey,
    what: Identity,
}

#[derive(Debug)]
enum Identity {
    Device,
    Process(Holding),
    /// A workload, and the MIG device that it uses.
    Workload(Arc<Workload>, Option<Arc<MigDevice>>),
}

impl Drawn {
    pub(crate) fn is_workload(&self) -> bool {
        matches!(self.what, Identity::Workload(..))
    }
}

/// The values of one GPU, MIG device, process or workload.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct HistorySeries {
    /// NVML's index of the GPU.
    pub gpu: u32,
    /// The GPU's UUID.
    pub uuid: String,
    /// The UUID of the MIG device.
    pub mig_uuid: Option<String>,
    /// What else identifies the MIG device, for the series of a MIG device.
    #[serde(flatten)]
    pub mig: Option<MigIdentity>,
    /// The allocatable memory in bytes, for the series of a GPU or MIG device.
    pub allocatable_bytes: Option<u64>,
    /// The process, for the series of a process.
    pub process: Option<ProcessRef>,
    /// When the process started, in Unix seconds, which tells it from an earlier one with its pid.
    pub started_at: Option<f64>,
    /// The workload, for the series of a workload.
    pub workload: Option<String>,
    /// The kind of the workload.
    pub workload_kind: Option<&'static str>,
    /// Used memory.
    pub memory: Chart,
    /// Moments (Unix times in seconds) at which it held at least this many bytes, as the driver's memory calls tell: more than
    /// any reading within a second of them shows. The memory was held a moment before, usually within 0.2 s. At most one for
    /// each second and each part. One appears 2 to 3 s later.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peaks_from_calls: Vec<(f64, u64)>,
    /// The highest use of each minute, for the series of a GPU or MIG device, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peaks: Vec<RecordedPeak>,
}

/// What identifies a MIG device besides its UUID. It stays known after the device is gone.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MigIdentity {
    /// The index on the GPU.
    pub mig_index: u32,
    /// The GPU instance's id.
    pub gpu_instance: u32,
    /// The compute instance's id.
    pub compute_instance: u32,
    /// The profile.
    pub profile: Option<String>,
}

/// A time span and the length of the parts that it is divided into.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: Micros,
    to: Micros,
    step: Micros,
}

/// What the answer to a query contains.
pub(crate) fn plan(histories: &Histories, query: &HistoryQuery, now: Now) -> Plan {
    let to = query.to.map_or(now.micros, |to| now.moment(to).min(now.micros));
    let from = query.from.map_or(to.saturating_sub(DEFAULT_SPAN), |from| now.moment(from));
    let from = from.max(to.saturating_sub(COARSE)).min(to);
    let step = query.step.map_or(0, |seconds| (seconds * 1e6) as Micros);
    let span = Span { from, to, step: step.max(LEAST_STEP).max((to - from).div_ceil(MAX_POINTS)) };
    let head = HistoryHead { from: now.unix(from), to: now.unix(to), recorded_since: now.unix(0) };
    let mut plan = Plan { head, left: Vec::new(), span, more_series: 0, more_workloads: 0 };
    for &kind in query.of {
        let mut found = series_of(histories, kind, query.uuid.as_deref(), span);
        if kind != SeriesKind::Gpus {
            found.sort_by_key(|(highest, _)| Reverse(*highest));
        }
        let more = found.len().saturating_sub(MAX_SERIES);
        plan.more_series += more;
        plan.more_workloads += if kind == SeriesKind::Workloads { more } else { 0 };
        plan.left.extend(found.into_iter().take(MAX_SERIES).map(|(_, series)| series));
    }
    plan.left.reverse();
    plan
}

/// The series of one kind, with their highest memory use.
fn series_of(histories: &Histories, kind: SeriesKind, uuid: Option<&str>, span: Span) -> Vec<(u64, Drawn)> {
    let Span { from, to, .. } = span;
    let is_wanted =
        |history: &&DeviceHistory| uuid.is_none_or(|uuid| history.gpu.uuid == uuid || history.uuid() == uuid);
    let mut devices: Vec<_> = histories.devices.iter().filter(is_wanted).collect();
    devices.sort_by_key(|history| (history.gpu.index, history.mig.as_ref().map(|device| device.index)));
    let mut found = Vec::new();
    for history in devices {
        let drawn = |what| Drawn { device: history.key(), what };
        match kind {
            SeriesKind::Gpus => found.push((0, drawn(Identity::Device))),
            SeriesKind::Processes => {
                let within =
                    |process: &&ProcessHistory| process.first <= to && process.ended.is_none_or(|(_, by)| by >= from);
                found.extend(history.processes().filter(within).map(|process| {
                    let peak = process.peak.map_or(0, |(peak, _)| peak);
                    (peak, drawn(Identity::Process(process.holding())))
                }));
            }
            SeriesKind::Workloads => found.extend(history.workloads.iter().map(|workload| {
                let highest = workload.series.highest(from, to).map_or(0, |(_, highest)| highest);
                (highest, drawn(Identity::Workload(workload.workload.clone(), workload.mig.clone())))
            })),
        }
    }
    found
}

/// Draws a series; `None` if the recorder has dropped it in the meantime.
pub(crate) fn draw(histories: &Histories, plan: &Plan, drawn: &Drawn, now: Now) -> Option<HistorySeries> {
    let Span { from, to, step } = plan.span;
    let draw = |values: &Series| {
        let calls = values.call_peaks(from, to, step).into_iter().map(|(at, bytes)| (now.unix(at), bytes)).collect();
        (chart(values, from, to, step, now), calls)
    };
    let device = histories.device(&drawn.device)?;
    Some(match &drawn.what {
        Identity::Device => HistorySeries {
            allocatable_bytes: Some(device.allocatable).filter(|bytes| *bytes > 0),
            mig_uuid: device.mig_uuid().map(str::to_owned),
            mig: device.mig.as_deref().map(identity),
            peaks: device.peaks.within(from, to).map(|peak| peak.shown(now)).collect(),
            ..of(device, draw(&device.memory))
        },
        Identity::Process(holding) => {
            let process = device.processes().find(|process| process.holding() == *holding)?;
            let started_at = process.start().and_then(unix);
            HistorySeries { process: Some(process.who()), started_at, ..of(device, draw(&process.series)) }
        }
        Identity::Workload(workload, mig) => {
            let mut all = device.workloads.iter();
            let is_there = |found: &Option<Arc<MigDevice>>| MigDevice::are_same(found.as_deref(), mig.as_deref());
            let found = all.find(|found| found.workload == *workload && is_there(&found.mig))?;
            HistorySeries {
                mig_uuid: mig.as_ref().map(|device| device.uuid.clone()),
                workload: Some(workload.name.clone()),
                workload_kind: Some(workload.kind.label()),
                ..of(device, draw(&found.series))
            }
        }
    })
}

fn of(device: &DeviceHistory, (memory, peaks_from_calls): (Chart, Vec<(f64, u64)>)) -> HistorySeries {
    let uuid = device.gpu.uuid.clone();
    HistorySeries { gpu: device.gpu.index, uuid, memory, peaks_from_calls, ..HistorySeries::default() }
}

fn identity(device: &MigDevice) -> MigIdentity {
    MigIdentity {
        mig_index: device.index,
        gpu_instance: device.gpu_instance,
        compute_instance: device.compute_instance,
        profile: device.profile.clone(),
    }
}

/// The latest events in a time span, oldest first.
pub(crate) fn events(histories: &Histories, from: Option<f64>, to: Option<f64>, limit: usize, now: Now) -> Vec<Event> {
    let (from, to) = (from.map_or(0, |from| now.moment(from)), to.map_or(Micros::MAX, |to| now.moment(to)));
    histories.events.latest(from, to, limit, now, |_| true)
}

/// The recorded data about the time that a process spent on a GPU (or MIG device).
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Visit {
    /// Unix time in seconds: when the exporter first listed the process on the GPU.
    pub first_seen_at: f64,
    /// Unix time in seconds: when it reached its highest memory use; absent if its memory use was never known.
    pub peak_at: Option<f64>,
    /// How it ended.
    #[serde(flatten)]
    pub exit: Exit,
}

/// A process, whether it is running, and the UUID of the GPU or MIG device. Only processes whose start time is unknown
/// are told apart by whether they are running; of those that have ended, the last one is remembered.
type Key = (ProcessId, bool, String);

/// The visits of the processes that the recorder remembers.
#[derive(Debug, Default)]
pub struct Visits(HashMap<Key, Visit>);

impl Visits {
    pub(crate) fn new(histories: &Histories, now: Now) -> Self {
        let visit = |gpu: &DeviceHistory, process: &ProcessHistory| {
            let key = key(&gpu.gpu.uuid, process.mig.as_deref(), process.id(), process.ended.is_none());
            let peak_at = process.peak.map(|(_, at)| now.unix(at));
            (key, Visit { first_seen_at: now.unix(process.first), peak_at, exit: process.exit })
        };
        Self(histories.devices.iter().flat_map(|gpu| gpu.processes().map(move |process| visit(gpu, process))).collect())
    }

    /// The visit of a process to the GPU with that UUID; `None` if the recorder has dropped it or has not seen it yet.
    pub fn of(&self, uuid: &str, process: &Process) -> Option<Visit> {
        self.0.get(&key(uuid, process.mig.as_deref(), process.id(), process.alive)).copied()
    }
}

fn key(uuid: &str, mig: Option<&MigDevice>, process: ProcessId, is_running: bool) -> Key {
    (process, is_running && process.start_ticks.is_none(), mig.map_or(uuid, |device| &device.uuid).to_owned())
}
