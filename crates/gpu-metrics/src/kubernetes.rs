//! What the kubelet and Slurm have allocated, and whether the kubelet and the API server respond.
//!
//! Invariant: no two series of a family have the same labels. A device whose GPU the driver does not list is shown by
//! its UUID if the cluster reports one, and is left out otherwise.

use std::collections::HashSet;

use super::exposition::Exposition;
use super::family::{Cadence, Family, Rows, Series};
use super::label::{Labels, distinct};
use super::section::{Pass, Section};
use super::view::Parts;
use gpu_readings::snapshot::{Allocations, Device, DeviceName, Driver, Gpu, MigDevice, PodLabels, Workload};

/// Stands in the reference for the labels of pods, whose names the configuration determines.
pub(super) const POD_LABEL: &str = "label_*";

/// Slurm's name for GPUs as a resource (`AccountingStorageTRES` in slurm.conf).
const GRES: &str = "gres/gpu";

const HELD: Series = Series::new(
    Cadence::Allocations,
    &[
        "gpu",
        "uuid",
        "mig_uuid",
        "namespace",
        "pod",
        "container",
        "resource",
        "replica",
        "claim",
        "claim_namespace",
        "driver",
        "pool",
        "device",
        "workload",
        "kind",
    ],
);

static ALLOCATION: Family = HELD.family(
    "gpu_allocation_info",
    "Always 1; the kubelet has allocated this GPU, MIG device or shared replica to the container, the container may use it through its claim, or Slurm has allocated this GPU or MIG device to the job in workload, whether or not it is used.",
);
static ALLOCATABLE: Family = Series::new(Cadence::PodResources, &["gpu", "uuid", "mig_uuid", "resource"]).family(
    "gpu_allocatable_devices",
    "How many times the kubelet can allocate this GPU or MIG device in total, current allocations included: 1, or the number of shared replicas. Absent where the kubelet does not report it.",
);
static POD_LABELS: Family = Series::new(Cadence::Scrape, &["namespace", "pod", POD_LABEL]).family(
    "gpu_pod_labels_info",
    "Always 1; the labels of the pod that kubernetes.pod-labels names, each as label_ and its key, as kube_pod_labels of kube-state-metrics has them. Only of pods that have a GPU or have a process in the list of a GPU. Stays for ten minutes after the pod was deleted, if such a process does.",
);

static ANSWERS: Rows<Parts> = &[
    Series::ONE.row(
        "vram_exporter_pod_resources_up",
        "1 while the kubelet answers on its pod-resources socket, else 0. Absent where the exporter does not use the socket.",
        |parts| parts.allocations.up.map(f64::from),
    ),
    Series::ONE.row(
        "vram_exporter_kubernetes_api_up",
        "1 while the exporter follows the API server, else 0. Absent where the exporter does not use it.",
        |parts| parts.pods.up.map(f64::from),
    ),
    Series::ONE.row(
        "vram_exporter_kubernetes_containers",
        "Containers of this node that the API server has named, including recently ended ones. Absent where the exporter does not use the API server.",
        |parts| parts.pods.up.map(|_| parts.pods.containers.len() as f64),
    ),
];

pub(super) static SECTION: Section = Section {
    title: "Kubernetes and Slurm",
    intro: "`namespace`, `pod` and `container` are those of the holder; a job of Slurm has `workload` and `kind` instead, and the resource `gres/gpu`. `replica` is present under time-slicing and MPS. A device of a claim (dynamic resource allocation) has the claim and its device in \
            the driver's pool instead of a resource; each container of a claim is shown with every device of it, and a claim for monitoring only (adminAccess) holds none. If \
            the kubelet does not answer for three intervals, its families are absent; what Slurm has allocated is absent if it could not be read for 30 s. A pod that has ended according to the API server holds \
            nothing, whatever the kubelet lists.",
    families: &[&ALLOCATION, &ALLOCATABLE, &POD_LABELS, &ANSWERS],
    collect,
};

fn collect(&Pass { parts, settings, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    out.add_rows(ANSWERS, [("", parts)]);
    let allocations = parts.fresh_allocations(settings);
    // Kubelets before Kubernetes 1.34 list the devices of pods that have ended until another pod needs them.
    let holders = allocations.iter().flat_map(|allocations| &*allocations.allocated);
    let holders = holders.filter(|allocation| !parts.pods.has_ended(&allocation.holder));
    let held = holders.filter_map(|allocation| {
        let device = &allocation.device;
        let labels = place(&parts.driver, &device.device)?.and_pod(Some(&allocation.holder));
        Some((labels.and("resource", &device.resource).and_known("replica", device.replica.as_deref()), 1.0))
    });
    let claimed = allocations.iter().flat_map(|allocations| &*allocations.claimed);
    let claimed = claimed.filter(|allocation| !parts.pods.has_ended(&allocation.holder)).filter_map(|allocation| {
        let labels = place(&parts.driver, &allocation.device)?.and_pod(Some(&allocation.holder));
        let (claim, name) = (&allocation.claim, &allocation.name);
        let labels = labels.and("claim", &claim.name).and("claim_namespace", &claim.namespace);
        Some((labels.and("driver", &name.driver).and("pool", &name.pool).and("device", &name.device), 1.0))
    });
    let jobs = parts.fresh_jobs(settings).into_iter().flat_map(|jobs| &*jobs.allocated).filter_map(|allocation| {
        let Workload { name, kind, .. } = Workload::of_slurm_job(&allocation.job);
        // A whole GPU with MIG on cannot be used, so Slurm counts something else: MIG devices whose UUIDs it does not know.
        let is_countable =
            !matches!(parts.driver.find(&allocation.device), Some((gpu, None)) if gpu.mig_mode == Some(true));
        let labels = place(&parts.driver, &allocation.device).filter(|_| is_countable)?.and("resource", GRES);
        Some((labels.and("workload", &name).and("kind", kind.label()), 1.0))
    });
    out.add(&ALLOCATION, distinct(held.chain(claimed).chain(jobs).collect(), |_, _| ()));
    let all = allocations.and_then(|allocations| allocations.allocatable.as_deref()).map_or(&[][..], |devices| devices);
    let free = |device: &Device| Some((place(&parts.driver, &device.device)?.and("resource", &device.resource), 1.0));
    out.add(&ALLOCATABLE, distinct(all.iter().filter_map(free).collect(), |count, more| *count += more));
    if !parts.pods.labels.is_empty() {
        let held = allocations.into_iter().flat_map(Allocations::held).map(|(holder, _)| holder);
        let pods: HashSet<_> = held.chain(parts.owners()).map(|of| (&*of.namespace, &*of.pod)).collect();
        let shown = parts.pods.labels.iter().filter(|of| pods.contains(&(&*of.namespace, &*of.pod)));
        let series = shown.map(|PodLabels { namespace, pod, labels }| {
            let begin = Labels::default().with_room(2 + labels.len()).and("namespace", namespace).and("pod", pod);
            (labels.iter().fold(begin, |all, (name, value)| all.and(name, value)), 1.0)
        });
        out.add(&POD_LABELS, series.collect::<Vec<_>>());
    }
}

/// The labels of the GPU and the MIG device that the kubelet names.
fn place(driver: &Driver, device: &DeviceName) -> Option<Labels> {
    match (driver.find(device), device) {
        (Some((gpu, mig)), _) => Some(labels(gpu, mig)),
        (None, DeviceName::Gpu(uuid)) => Some(unknown("uuid", uuid)),
        (None, DeviceName::Mig(uuid)) => Some(unknown("mig_uuid", uuid)),
        (None, _) => None,
    }
}

fn labels(gpu: &Gpu, mig: Option<&MigDevice>) -> Labels {
    let labels = Labels::default().with_room(8).and_gpu(gpu.index, &gpu.uuid);
    labels.and_known("mig_uuid", mig.map(|mig| mig.uuid.as_str()))
}

fn unknown(label: &str, uuid: &str) -> Labels {
    Labels::default().with_room(6).and(label, uuid)
}
