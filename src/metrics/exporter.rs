//! The exporter about its own work: its lanes, its faults and what it left out.

use std::sync::LazyLock;

use super::exposition::Exposition;
use super::family::{Family, Section, Unit, When};
use super::label::Labels;
use super::settings::Settings;
use super::view::GpuView;
use crate::faults::{Faults, Reason, Source};
use crate::snapshot::{DURATION_BUCKETS, GpuProcesses, Lane, Other, Vitals};

static NVML_UP: Family =
    Family::gauge("vram_exporter_nvml_up", Unit::Number, When::Scrape, &[], "1 while NVML is open, else 0.");
static SAMPLE_AGE: Family = Family::gauge(
    "vram_exporter_sample_age_seconds",
    Unit::Seconds,
    When::Scrape,
    &["gpu", "uuid", "lane"],
    "Seconds since the lane's last good reading of the GPU. Absent before the first one. Stays while the GPU does not answer.",
);
static LANE_DURATION: Family = Family::histogram(
    "vram_exporter_lane_duration_seconds",
    Unit::Seconds,
    When::Scrape,
    &["lane"],
    "How long the passes of the lane took in seconds, over all GPUs.",
);
static MISSED_TICKS: Family = Family::counter(
    "vram_exporter_missed_ticks_total",
    Unit::Number,
    When::Scrape,
    &["lane"],
    "Ticks that the lane could not keep; they are skipped and never caught up.",
);
static FAULTS: Family = Family::counter(
    "vram_exporter_faults_total",
    Unit::Number,
    When::Scrape,
    &["source", "reason"],
    "Faults by the part that met them and the reason. Every pair exists from the start at 0.",
);
static STUCK: Family = Family::gauge(
    "vram_exporter_stuck_threads",
    Unit::Number,
    When::Scrape,
    &[],
    "Threads that hang in a driver call. Their GPU is not asked until the call returns. From 32 on no thread replaces another one that hangs, the driver is not opened, and /healthz is bad.",
);
static PEAK_WINDOW: Family = Family::gauge(
    "vram_exporter_peak_window_seconds",
    Unit::Seconds,
    When::Scrape,
    &[],
    "Length of the sliding window of all window peaks in seconds. No peak is lost while it is at least the scrape interval.",
);
static DROPPED: Family = Family::gauge(
    "vram_exporter_process_series_dropped",
    Unit::Number,
    When::ProcessLane,
    &["gpu", "uuid"],
    "Process entries that the limit on series leaves out at present; the memory of those that live is in process=\"other\".",
);
static WORKLOADS_DROPPED: Family = Family::gauge(
    "vram_exporter_workload_series_dropped",
    Unit::Number,
    When::ProcessLane,
    &["gpu", "uuid"],
    "Workload entries that the limit on series leaves out at present; the memory of those that live is in workload=\"other\".",
);
static OUT_OF_SIGHT: Family = Family::gauge(
    "vram_exporter_processes_invisible",
    Unit::Number,
    When::ProcessLane,
    &["gpu", "uuid"],
    "Processes on the GPU that /proc does not show, for longer than an end takes: the exporter lacks the host's pid namespace, /proc is mounted with hidepid, or path.procfs is of another pid namespace. They have a pid and memory, and neither name nor workload.",
);
static HOST_PIDS: Family = Family::gauge(
    "vram_exporter_host_pid_namespace",
    Unit::Number,
    When::Scrape,
    &[],
    "1 where the exporter is in the machine's pid namespace, 0 where it has another: then the driver hides all processes outside of it, and their memory is unattributed. Absent where it cannot be told.",
);
pub(super) static SECTION: Section = Section {
    title: "The exporter itself",
    intro: "`lane` is `memory`, `process` or `telemetry`.",
    families: &[
        &NVML_UP,
        &SAMPLE_AGE,
        &LANE_DURATION,
        &MISSED_TICKS,
        &FAULTS,
        &STUCK,
        &PEAK_WINDOW,
        &DROPPED,
        &WORKLOADS_DROPPED,
        &OUT_OF_SIGHT,
        &HOST_PIDS,
    ],
};

/// The labels of every fault, in the order of [`Faults::counts`]. They are a third of what a small machine has to say.
static FAULT_LABELS: LazyLock<Vec<Labels>> = LazyLock::new(|| {
    let none = Faults::default();
    let labels = |(source, reason, _): (Source, Reason, u64)| {
        Labels::default().and("source", source.label()).and("reason", reason.label())
    };
    none.counts().map(labels).collect()
});

/// The bounds of the lanes' durations, as they are written.
static BOUNDS: LazyLock<Vec<String>> = LazyLock::new(|| DURATION_BUCKETS.iter().map(f64::to_string).collect());

/// What the exporter knows of itself outside the snapshot's parts.
pub(super) struct ExporterStats<'a> {
    pub(super) settings: &'a Settings,
    pub(super) vitals: &'a Vitals,
    pub(super) faults: &'a Faults,
    pub(super) nvml_up: bool,
}

pub(super) fn collect(stats: &ExporterStats<'_>, gpus: &[GpuView<'_>], out: &mut Exposition<'_>) {
    out.add_one(&NVML_UP, f64::from(stats.nvml_up));
    out.add_one(&STUCK, stats.vitals.stuck() as f64);
    out.add_one(&PEAK_WINDOW, stats.settings.peak_window.as_secs_f64());
    out.add(
        &FAULTS,
        FAULT_LABELS.iter().zip(stats.faults.counts()).map(|(labels, (_, _, count))| (labels, count as f64)),
    );
    let host_pids = stats.settings.host_pid_namespace;
    out.add(&HOST_PIDS, host_pids.map(|sees| (Labels::default(), f64::from(sees))));
    lanes(stats.vitals, out);
    out.add(
        &SAMPLE_AGE,
        gpus.iter().flat_map(|gpu| {
            Lane::ALL
                .iter()
                .zip(gpu.ages)
                .filter_map(|(lane, age)| Some((gpu.labels.with_room(1).and("lane", lane.label()), age?.as_secs_f64())))
        }),
    );
    let left_out = |other: Option<Other>| other.map_or(0.0, |other| other.entries as f64);
    let mut of_processes = |family, read: &dyn Fn(&GpuProcesses) -> f64| {
        out.add(family, gpus.iter().filter_map(|gpu| Some((&gpu.labels, read(gpu.processes?)))));
    };
    if stats.settings.process_series {
        of_processes(&DROPPED, &|part| left_out(part.other));
    }
    of_processes(&WORKLOADS_DROPPED, &|part| left_out(part.other_workloads));
    of_processes(&OUT_OF_SIGHT, &|part| part.invisible as f64);
}

fn lanes(vitals: &Vitals, out: &mut Exposition<'_>) {
    let named = |lane: Lane| Labels::default().and("lane", lane.label());
    out.add(&MISSED_TICKS, Lane::ALL.map(|lane| (named(lane), vitals.missed(lane) as f64)));
    let durations = Lane::ALL.map(|lane| (lane, vitals.durations(lane)));
    out.add_histogram(
        &LANE_DURATION,
        &BOUNDS,
        durations.iter().map(|(lane, took)| (named(*lane), &took.buckets[..], took.sum)),
    );
}
