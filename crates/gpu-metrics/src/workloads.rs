//! The workloads on the GPUs: what the processes of a container, a job, a unit or a user hold in total.
//!
//! Invariant: no two series of a family have the same labels. Workloads with the same labels, such as those on two MIG
//! devices that are not identified yet, are summed, so that no memory is left out.

use super::exposition::Exposition;
use super::family::{Cadence, Family, Row, Series};
use super::joined::joined;
use super::label::{Labels, distinct};
use super::openmetrics::Counted;
use super::section::{Pass, Section};
use super::view::GpuView;
use gpu_readings::snapshot::{EnergyShare, MigDevice, Other, Scheduler, Workload, WorkloadUse};

/// The labels of a workload's series.
pub(super) const LABELS: &[&str] = &["gpu", "uuid", "mig_uuid", "workload", "kind", "namespace", "pod", "container"];
const SUMS: Series = Series::new(Cadence::ProcessLane, LABELS);

static ENERGY: Family = Series::new(
    Cadence::Integrated,
    &["gpu", "uuid", "workload", "kind", "namespace", "pod", "container"],
)
.family(
    "gpu_workload_energy_joules_total",
    "Energy of the GPU in joules that is apportioned to the workload by SM time: an estimate of whose it is, not a measurement. Of the energy between two readings, a workload has the share of the time in which its kernels ran. workload=\"other\" without a kind has the energy of kernels of which the driver does not tell whose they are, or of workloads beyond process.series-limit. The increases of these series and of gpu_idle_energy_joules_total sum to that of gpu_energy_joules_total. Stays as long as gpu_workload_memory_peak_bytes. Only with telemetry.workload-energy. Absent on a GPU with MIG devices, for which the driver has no samples.",
);

/// How to read a value of a workload, and of the sum of the workloads that are left out.
type Reading = (fn(&Figures) -> Option<u64>, fn(&Other) -> Option<u64>);

static READINGS: &[Row<Reading>] = &[
    SUMS.row(
        "gpu_workload_memory_used_bytes",
        "Device memory that the workload's processes hold together in bytes. workload=\"other\" without a kind is the sum of the workloads beyond process.series-limit. Absent while the memory of any of the processes is unknown, and after the last process ended.",
        (|w| w.used, |other| other.used),
    ),
    SUMS.row(
        "gpu_workload_memory_used_at_least_bytes",
        "Device memory in bytes that those of the workload's processes hold whose memory the driver reports, while it does not report that of another: a lower bound of what the workload uses. Absent while gpu_workload_memory_used_bytes is present, and while the memory of none of the processes is known.",
        (|w| w.known.filter(|_| w.used.is_none()), |_| None),
    ),
    SUMS.row(
        "gpu_workload_memory_window_peak_bytes",
        "Highest memory of the workload in bytes within the last vram_exporter_peak_window_seconds: the peak of the sum, not the sum of the peaks. Stays for the peak window and process.linger after the last process ended.",
        (|w| w.window_peak, |_| None),
    ),
    SUMS.row(
        "gpu_workload_memory_window_peak_from_calls",
        "1 if gpu_workload_memory_window_peak_bytes is a lower bound made of calls, because no reading within the window shows as much, else 0. Absent unless memory.probes=all has told of a peak.",
        (|w| w.is_peak_of_calls.map(u64::from), |_| None),
    ),
    SUMS.row(
        "gpu_workload_memory_peak_bytes",
        "Highest memory of the workload in bytes since the exporter first saw it: the peak of the sum, not the sum of the peaks. Stays for the peak window and process.linger after the last process ended; a process of the workload that starts within that time continues it.",
        (|w| w.peak, |_| None),
    ),
    SUMS.row(
        "gpu_workload_processes",
        "Processes of the workload on the GPU. workload=\"other\" without a kind counts those of the workloads beyond process.series-limit. Absent after the last process ended.",
        (|w| living(w.processes), |other| living(other.processes)),
    ),
];

pub(super) static SECTION: Section = Section {
    title: "Workloads",
    intro: joined!(
        [
            "Sums over the processes of one workload on each GPU or MIG device; `mig_uuid` is present only under MIG. `kind` is `kubernetes` (`workload` is `namespace/pod/container`), `container` (`container:<12 digits of its id>`), `slurm` (`slurm:<job>`), `job` ("
        ],
        *Scheduler::FORMS,
        [
            "), `systemd` (`unit:<name>`), `user` (`user:<name>`) or `vgpu` (`vm:<id>`, a virtual machine with vGPUs; simulated only). No label is a pid, so a series continues when a process is restarted. A process that `/proc` does not show belongs to no workload."
        ],
    ),
    families: &[&READINGS, &ENERGY],
    collect,
};

fn living(processes: u64) -> Option<u64> {
    (processes > 0).then_some(processes)
}

fn collect(&Pass { gpus, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    let entries: Vec<_> = gpus.iter().flat_map(entries).collect();
    let others = gpus.iter().filter_map(|gpu| {
        let other = gpu.processes?.other_workloads.as_ref()?;
        Some((gpu.labels.with_room(1).and("workload", "other"), other))
    });
    let others: Vec<_> = others.collect();
    for Row { family, read: (read, read_other) } in READINGS {
        let other = others.iter().filter_map(|(labels, other)| Some((labels, read_other(other)?)));
        out.add(family, entries.iter().filter_map(|(labels, w)| Some((labels, read(w)?))).chain(other));
    }
    let counted = |share: EnergyShare| Counted::since(Some(share.counted_since), share.joules);
    let of_others = gpus.iter().filter_map(|gpu| {
        let rest = gpu.rest_of_energy()?;
        let share = EnergyShare { counted_since: rest.counted_since, joules: rest.other };
        Some((gpu.labels.with_room(1).and("workload", "other"), counted(share)))
    });
    let of_workloads = entries.into_iter().filter_map(|(labels, w)| Some((labels, counted(w.energy?))));
    out.add(&ENERGY, of_workloads.chain(of_others));
}

/// The GPU's workloads, sorted by their labels, with each set of labels once.
fn entries(gpu: &GpuView<'_>) -> Vec<(Labels, Figures)> {
    let workloads = gpu.processes.map_or(&[][..], |part| &part.workloads);
    let has_energy = gpu.rest_of_energy().is_some();
    let entry = |w: &WorkloadUse| {
        let figures = Figures::of(w);
        let figures = Figures { energy: figures.energy.filter(|_| has_energy), ..figures };
        (labels(&gpu.labels, &w.workload, w.mig.as_deref()), figures)
    };
    distinct(workloads.iter().map(entry).collect(), Figures::add)
}

/// The values of a workload.
struct Figures {
    processes: u64,
    used: Option<u64>,
    /// What the processes hold of which this is known.
    known: Option<u64>,
    window_peak: Option<u64>,
    is_peak_of_calls: Option<bool>,
    peak: Option<u64>,
    energy: Option<EnergyShare>,
}

impl Figures {
    fn of(workload: &WorkloadUse) -> Self {
        let WorkloadUse { processes, used, at_least, window_peak, is_peak_of_calls, peak, energy, .. } = *workload;
        Self { processes, used, known: used.or(at_least), window_peak, is_peak_of_calls, peak, energy }
    }

    /// Adds a workload with the same labels. The times of the peaks are unknown, so the peak of the sum is taken to be
    /// its lower bound: the larger of the two peaks, or the memory in use now if that is more.
    fn add(&mut self, other: &Self) {
        self.used = match (self.processes, other.processes) {
            (_, 0) => self.used,
            (0, _) => other.used,
            _ => self.used.zip(other.used).map(|(used, more)| used.saturating_add(more)),
        };
        self.known = other.known.map(|more| self.known.unwrap_or(0).saturating_add(more)).or(self.known);
        self.processes += other.processes;
        // That of the larger one; if the memory in use now is more, a reading shows as much.
        let theirs = other.is_peak_of_calls.filter(|_| other.window_peak > self.window_peak);
        self.is_peak_of_calls = theirs.or(self.is_peak_of_calls);
        if self.used > self.window_peak.max(other.window_peak) {
            self.is_peak_of_calls = self.is_peak_of_calls.map(|_| false);
        }
        for (peak, others) in [(&mut self.window_peak, other.window_peak), (&mut self.peak, other.peak)] {
            *peak = (*peak).max(others).max(self.used);
        }
        self.energy = self.energy.zip(other.energy).map(|(one, other)| EnergyShare {
            counted_since: one.counted_since.min(other.counted_since),
            joules: one.joules + other.joules,
        });
    }
}

/// The labels of a workload on a GPU or MIG device.
pub(super) fn labels(base: &Labels, workload: &Workload, mig: Option<&MigDevice>) -> Labels {
    base.with_room(6)
        .and_known("mig_uuid", mig.map(|mig| mig.uuid.as_str()))
        .and("workload", &workload.name)
        .and("kind", workload.kind.label())
        .and_pod(workload.pod.as_deref())
}
