//! Whether the values of the GPUs can be trusted: how old they are, and what is left out.

use super::exposition::Exposition;
use super::family::{Cadence, Family, GPU, Rows, Series};
use super::label::Labels;
use super::section::{Pass, Section};
use gpu_readings::snapshot::{GpuProcesses, Lane};

const LIST: Series = Series::new(Cadence::ProcessLane, GPU);

static NVML_UP: Family = Series::ONE.family("vram_exporter_nvml_up", "1 while NVML is open, else 0.");
static SAMPLE_AGE: Family = Series::new(Cadence::Scrape, &["gpu", "uuid", "lane"]).family(
    "vram_exporter_sample_age_seconds",
    "Seconds since the last good reading of the GPU by the sampling loop. Absent before the first one. Stays while the GPU does not answer.",
);
static PEAK_WINDOW: Family = Series::ONE.family(
    "vram_exporter_peak_window_seconds",
    "Length of the sliding window of all window peaks in seconds. No peak is lost while it is at least the scrape interval.",
);
/// Only if processes are shown.
static DROPPED: Rows<GpuProcesses, u64> = &[
    LIST.row(
        "vram_exporter_process_series_dropped",
        "Process entries that process.series-limit currently leaves out; the memory of the live ones is in process=\"other\".",
        |list| Some(list.other.map_or(0, |other| other.entries)),
    ),
];
static LISTS: Rows<GpuProcesses, u64> = &[
    LIST.row(
        "vram_exporter_workload_series_dropped",
        "Workload entries that process.series-limit currently leaves out; the memory of the live ones is in workload=\"other\".",
        |list| Some(list.other_workloads.map_or(0, |other| other.entries)),
    ),
    LIST.row(
        "vram_exporter_processes_invisible",
        "Processes that /proc does not show and that the driver lists for longer than it would list an exiting process: the exporter lacks the host's pid namespace, /proc is mounted with hidepid, or path.procfs belongs to another pid namespace. They have a pid and memory, but no name and no workload.",
        |list| Some(list.invisible),
    ),
];
static HOST_PIDS: Family = Series::ONE.family(
    "vram_exporter_host_pid_namespace",
    "1 if the exporter is in the machine's pid namespace, 0 if it is in another one: then the driver hides all processes outside of it, and their memory is unattributed. Absent where it is unknown.",
);

pub(super) static SECTION: Section = Section {
    title: "Data quality",
    intro: "Whether the values of the GPUs are recent and complete. `lane` is the sampling loop: `memory`, `process` or `telemetry`.",
    families: &[&NVML_UP, &SAMPLE_AGE, &PEAK_WINDOW, &DROPPED, &LISTS, &HOST_PIDS],
    collect,
};

fn collect(&Pass { parts, gpus, settings, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    out.add_one(&NVML_UP, f64::from(parts.driver.up));
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
    let lists = gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.processes?)));
    if settings.process_series {
        out.add_rows(DROPPED, lists.clone());
    }
    out.add_rows(LISTS, lists);
    out.add(&HOST_PIDS, settings.host_pid_namespace.map(|sees| (Labels::default(), f64::from(sees))));
}
