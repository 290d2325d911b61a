//! The processes on the GPUs: their memory, their peaks, their activity and their owners.
//!
//! Invariant: no two series of a family have the same labels, even if entries in the list do. In that case, the live
//! entry is shown, or else the entry with the larger peak. The memory of several live entries is summed.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use super::exposition::Exposition;
use super::family::{Cadence, Family, Row, Series};
use super::joined::joined;
use super::label::Labels;
use super::label_cache::{self, LabeledProcess};
use super::section::{Pass, Section};
use super::view::GpuView;
use gpu_readings::snapshot::{Process, Scheduler};

/// The labels of a process's series, except those of its info, and any more.
macro_rules! process_labels {
    ($($more:literal),*) => {
        &["gpu", "uuid", "mig_uuid", "pid", "process", "namespace", "pod", "container", "type", $($more),*]
    };
}
pub(super) use process_labels;

/// The labels of a process's series, except those of its info.
pub(super) const LABELS: &[&str] = process_labels!();
const PROCESS: Series = Series::new(Cadence::ProcessLane, LABELS);
const INFO_LABELS: &[&str] = &[
    "gpu",
    "uuid",
    "mig_uuid",
    "pid",
    "process",
    "namespace",
    "pod",
    "container",
    "user",
    "uid",
    "workload",
    "kind",
    "container_id",
    "pod_uid",
    "unit",
    "slurm_job",
    "slurm_step",
    "scheduler",
    "job_id",
    "command",
];

static USED: Family = PROCESS.family(
    "gpu_process_memory_used_bytes",
    "Device memory that the process holds in bytes. process=\"other\" without a pid is the sum of the processes beyond process.series-limit. Absent where the driver does not report it (for the sum: where it does not report it for every one of these processes), and after the process has ended.",
);
/// How to read a value at a moment.
type Reading = fn(&LabeledProcess<'_>, Instant) -> Option<f64>;

static READINGS: &[Row<Reading>] = &[
    PROCESS.row(
        "gpu_process_memory_window_peak_bytes",
        "Highest memory of the process in bytes within the last vram_exporter_peak_window_seconds. Stays for the peak window and process.linger after the process ended.",
        |p, _| Some(p.process.window_peak?.max(p.at_least) as f64),
    ),
    PROCESS.row(
        "gpu_process_memory_window_peak_from_calls",
        "1 if gpu_process_memory_window_peak_bytes is a lower bound made of calls, because no reading within the window shows as much, else 0. Absent unless memory.probes=all has told of a peak.",
        |p, _| p.process.is_peak_of_calls.map(f64::from),
    ),
    PROCESS.row(
        "gpu_process_memory_peak_bytes",
        "Highest memory of the process in bytes since the exporter first saw it, or the driver's own maximum where accounting mode is on. Stays for the peak window and process.linger after the process ended.",
        |p, _| Some(p.process.peak?.max(p.at_least) as f64),
    ),
    PROCESS.row(
        "gpu_process_start_time_seconds",
        "When the process started, in seconds since the Unix epoch. Absent where /proc does not show the process, and after it ended.",
        |p, _| living(p).and(p.start),
    ),
    PROCESS.row(
        "gpu_process_sm_utilization_ratio",
        "Share of the streaming multiprocessors' time that the process used, 0 to 1. Absent where the driver has no sample, and after the process ended.",
        |p, _| living(p)?.sm_utilization,
    ),
    PROCESS.row(
        "gpu_process_idle_seconds",
        "Seconds since the process last did work on the GPU, or since the exporter first saw it if that was later. Absent where the driver does not report activity, and after the process ended.",
        |p, now| Some(milliseconds(now.saturating_duration_since(living(p)?.last_active?))),
    ),
];

static INFO: Family = Series::new(Cadence::ProcessLane, INFO_LABELS).family(
    "gpu_process_info",
    joined!(
        ["Always 1; the labels identify the owner and the workload of the process. scheduler and job_id are those of a job of "],
        *Scheduler::NAMES,
        ["; a Slurm job has slurm_job and slurm_step. command is present only with process.command-line. Stays for the peak window and process.linger after the process ended."],
    ),
);

pub(super) static SECTION: Section = Section {
    title: "Processes",
    intro: "One series for each process on each GPU or MIG device; `mig_uuid` is present only under MIG. A process is a pid with a start \
            time: a reused pid is another process. `namespace`, `pod` and `container` are present where the cluster \
            names the process's container. `type` is `compute`, `graphics` or `mps`. `process` is the \
            executable's name, or the script's for an interpreter.",
    families: &[&USED, &READINGS, &INFO],
    collect,
};

fn collect(&Pass { gpus, parts, settings, labels, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    if !settings.process_series {
        return;
    }
    let processes: Vec<_> = gpus.iter().map(label_cache::in_order).collect();
    let labels = labels.of(gpus, &processes);
    let entries =
        labels.iter().zip(&processes).flat_map(|(labels, processes)| distinct(labels.on(processes).collect()));
    let entries: Vec<_> = entries.collect();
    let others: Vec<_> = gpus.iter().filter_map(other).collect();
    let used = entries.iter().filter_map(|entry| Some((entry.labels, entry.used? as f64)));
    out.add(&USED, used.chain(others.iter().map(|(labels, used)| (labels.as_str(), *used))));
    for Row { family, read } in READINGS {
        out.add(family, entries.iter().filter_map(|entry| Some((entry.labels, read(entry, parts.now)?))));
    }
    out.add(&INFO, described(&entries).map(|entry| ([entry.untyped, entry.described], 1.0)));
}

/// The total memory that the GPU's processes beyond the limit use.
fn other(gpu: &GpuView<'_>) -> Option<(Labels, f64)> {
    Some((gpu.labels.with_room(1).and("process", "other"), gpu.processes?.other?.used? as f64))
}

fn living<'a>(entry: &LabeledProcess<'a>) -> Option<&'a Process> {
    entry.process.alive.then_some(entry.process)
}

/// Seconds, rounded down to milliseconds. More precision is pointless, because a scrape is delayed by more than a
/// millisecond.
fn milliseconds(time: Duration) -> f64 {
    (1000 * time.as_secs() + u64::from(time.subsec_millis())) as f64 / 1e3
}

/// A GPU's processes, sorted by pid and then by their labels, with each set of labels once.
fn distinct(mut entries: Vec<LabeledProcess<'_>>) -> Vec<LabeledProcess<'_>> {
    // Entries with equal labels have the same pid, and few entries share a pid, so label text is rarely compared.
    entries.sort_unstable_by(|a, b| {
        let by_labels = || a.labels.cmp(b.labels).then_with(|| preference(a.process).cmp(&preference(b.process)));
        a.process.pid.cmp(&b.process.pid).then_with(by_labels)
    });
    entries.dedup_by(|later, first| {
        let same = later.process.pid == first.process.pid && later.labels == first.labels;
        if same && later.process.alive {
            first.used = first.used.zip(later.used).map(|(used, more)| used.saturating_add(more));
            first.at_least = first.used.unwrap_or(0);
        }
        same
    });
    entries
}

/// The sort key for entries with the same labels. The entry with the smallest key is shown.
fn preference(process: &Process) -> Reverse<(bool, Option<u64>)> {
    Reverse((process.alive, process.peak))
}

/// One entry for each process, even if it has entries of several types, because the info family has no `type` label, so
/// that other families can be joined with it on the pid.
fn described<'e, 'a>(entries: &'e [LabeledProcess<'a>]) -> impl Iterator<Item = &'e LabeledProcess<'a>> {
    // Entries that differ only in the type are neighbours.
    let alike = entries.chunk_by(|a, b| a.process.pid == b.process.pid && a.untyped == b.untyped);
    alike.filter_map(|alike| alike.iter().min_by_key(|entry| preference(entry.process)))
}
