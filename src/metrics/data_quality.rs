//! Whether the values of the GPUs can be trusted: how old they are, and what is left out.

use super::exposition::Exposition;
use super::family::{Cadence, Family, Section, Unit};
use super::label::Labels;
use super::settings::Settings;
use super::view::GpuView;
use crate::snapshot::{GpuProcesses, Lane, Other};

static NVML_UP: Family =
    Family::gauge("vram_exporter_nvml_up", Unit::Number, Cadence::Scrape, &[], "1 while NVML is open, else 0.");
static SAMPLE_AGE: Family = Family::gauge(
    "vram_exporter_sample_age_seconds",
    Unit::Seconds,
    Cadence::Scrape,
    &["gpu", "uuid", "lane"],
    "Seconds since the last good reading of the GPU by the sampling loop. Absent before the first one. Stays while the GPU does not answer.",
);
static PEAK_WINDOW: Family = Family::gauge(
    "vram_exporter_peak_window_seconds",
    Unit::Seconds,
    Cadence::Scrape,
    &[],
    "Length of the sliding window of all window peaks in seconds. No peak is lost while it is at least the scrape interval.",
);
static DROPPED: Family = Family::gauge(
    "vram_exporter_process_series_dropped",
    Unit::Number,
    Cadence::ProcessLane,
    &["gpu", "uuid"],
    "Process entries that process.series-limit currently leaves out; the memory of the live ones is in process=\"other\".",
);
static WORKLOADS_DROPPED: Family = Family::gauge(
    "vram_exporter_workload_series_dropped",
    Unit::Number,
    Cadence::ProcessLane,
    &["gpu", "uuid"],
    "Workload entries that process.series-limit currently leaves out; the memory of the live ones is in workload=\"other\".",
);
static INVISIBLE: Family = Family::gauge(
    "vram_exporter_processes_invisible",
    Unit::Number,
    Cadence::ProcessLane,
    &["gpu", "uuid"],
    "Processes that /proc does not show and that the driver lists for longer than it would list an exiting process: the exporter lacks the host's pid namespace, /proc is mounted with hidepid, or path.procfs belongs to another pid namespace. They have a pid and memory, but no name and no workload.",
);
static HOST_PIDS: Family = Family::gauge(
    "vram_exporter_host_pid_namespace",
    Unit::Number,
    Cadence::Scrape,
    &[],
    "1 if the exporter is in the machine's pid namespace, 0 if it is in another one: then the driver hides all processes outside of it, and their memory is unattributed. Absent where it is unknown.",
);

pub(super) static SECTION: Section = Section {
    title: "Data quality",
    intro: "Whether the values of the GPUs are recent and complete. `lane` is the sampling loop: `memory`, `process` or `telemetry`.",
    families: &[&NVML_UP, &SAMPLE_AGE, &PEAK_WINDOW, &DROPPED, &WORKLOADS_DROPPED, &INVISIBLE, &HOST_PIDS],
};

pub(super) fn collect(settings: &Settings, nvml_up: bool, gpus: &[GpuView<'_>], out: &mut Exposition<'_>) {
    out.add_one(&NVML_UP, f64::from(nvml_up));
    out.add(
        &SAMPLE_AGE,
        gpus.iter().flat_map(|gpu| {
            Lane::ALL
                .iter()
                .zip(gpu.ages)
                .filter_map(|(lane, age)| Some((gpu.labels.with_room(1).and("lane", lane.label()), age?.as_secs_f64())))
        }),
    );
    out.add_one(&PEAK_WINDOW, settings.peak_window.as_secs_f64());
    let left_out = |other: Option<Other>| other.map_or(0.0, |other| other.entries as f64);
    let mut of_processes = |family, read: &dyn Fn(&GpuProcesses) -> f64| {
        out.add(family, gpus.iter().filter_map(|gpu| Some((&gpu.labels, read(gpu.processes?)))));
    };
    if settings.process_series {
        of_processes(&DROPPED, &|part| left_out(part.other));
    }
    of_processes(&WORKLOADS_DROPPED, &|part| left_out(part.other_workloads));
    of_processes(&INVISIBLE, &|part| part.invisible as f64);
    out.add(&HOST_PIDS, settings.host_pid_namespace.map(|sees| (Labels::default(), f64::from(sees))));
}
