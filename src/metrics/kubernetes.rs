//! What the kubelet has allocated, and whether the kubelet and the API server respond.
//!
//! Invariant: no two series of a family have the same labels. A device whose GPU the driver does not list is shown by
//! its UUID if the cluster reports one, and is left out otherwise.

use super::exposition::Exposition;
use super::family::{Family, Section, Unit, When};
use super::label::Labels;
use super::settings::Settings;
use super::view::Parts;
use crate::snapshot::{Device, DeviceName, Driver, Gpu, MigDevice};

static ALLOCATION: Family = Family::gauge(
    "gpu_allocation_info",
    Unit::Info,
    When::PodResources,
    &["gpu", "uuid", "mig_uuid", "namespace", "pod", "container", "resource", "replica"],
    "Always 1; the kubelet has allocated this GPU, MIG device or shared replica to the container, whether or not the container uses it.",
);
static ALLOCATABLE: Family = Family::gauge(
    "gpu_allocatable_devices",
    Unit::Number,
    When::PodResources,
    &["gpu", "uuid", "mig_uuid", "resource"],
    "How many times the kubelet can allocate this GPU or MIG device in total, current allocations included: 1, or the number of shared replicas. Absent where the kubelet does not report it.",
);
static POD_RESOURCES_UP: Family = Family::gauge(
    "vram_exporter_pod_resources_up",
    Unit::Number,
    When::Scrape,
    &[],
    "1 while the kubelet answers on its pod-resources socket, else 0. Absent where the exporter does not use the socket.",
);
static API_UP: Family = Family::gauge(
    "vram_exporter_kubernetes_api_up",
    Unit::Number,
    When::Scrape,
    &[],
    "1 while the exporter follows the API server, else 0. Absent where the exporter does not use it.",
);
static CONTAINERS: Family = Family::gauge(
    "vram_exporter_kubernetes_containers",
    Unit::Number,
    When::Scrape,
    &[],
    "Containers of this node that the API server has named, including recently ended ones. Absent where the exporter does not use the API server.",
);

pub(super) static SECTION: Section = Section {
    title: "Kubernetes",
    intro: "`namespace`, `pod` and `container` are those of the holder. `replica` is present under time-slicing and MPS. If \
            the kubelet does not answer for three intervals, its families are absent. A pod that has ended according to the API server holds \
            nothing, whatever the kubelet lists.",
    families: &[&ALLOCATION, &ALLOCATABLE, &POD_RESOURCES_UP, &API_UP, &CONTAINERS],
};

pub(super) fn collect(parts: &Parts, settings: &Settings, out: &mut Exposition<'_>) {
    let number = |up: Option<bool>| up.map(f64::from);
    out.add(&POD_RESOURCES_UP, number(parts.allocations.up).map(|up| (Labels::default(), up)));
    out.add(&API_UP, number(parts.pods.up).map(|up| (Labels::default(), up)));
    let named = parts.pods.up.map(|_| parts.pods.containers.len() as f64);
    out.add(&CONTAINERS, named.map(|count| (Labels::default(), count)));
    let Some(allocations) = parts.fresh_allocations(settings) else { return };
    // Kubelets before Kubernetes 1.34 list the devices of pods that have ended until another pod needs them.
    let holders = allocations.allocated.iter().filter(|allocation| !parts.pods.has_ended(&allocation.holder));
    let held = holders.filter_map(|allocation| {
        let device = &allocation.device;
        let labels = place(&parts.driver, &device.device)?.and_pod(Some(&allocation.holder));
        Some((labels.and("resource", &device.resource).and_known("replica", device.replica.as_deref()), 1.0))
    });
    out.add(&ALLOCATION, distinct(held.collect(), |_, second| second));
    let all = allocations.allocatable.as_deref().map_or(&[][..], |devices| devices);
    let free = |device: &Device| Some((place(&parts.driver, &device.device)?.and("resource", &device.resource), 1.0));
    out.add(&ALLOCATABLE, distinct(all.iter().filter_map(free).collect(), |first, second| first + second));
}

/// Each set of labels once, with the values of equal sets combined.
fn distinct(mut series: Vec<(Labels, f64)>, together: impl Fn(f64, f64) -> f64) -> Vec<(Labels, f64)> {
    series.sort_by(|(a, _), (b, _)| a.cmp(b));
    series.dedup_by(|(later, value), (first, sum)| {
        let same = later == first;
        if same {
            *sum = together(*sum, *value);
        }
        same
    });
    series
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
    let labels = Labels::default().with_room(8).and_number("gpu", gpu.index).and("uuid", &gpu.uuid);
    labels.and_known("mig_uuid", mig.map(|mig| mig.uuid.as_str()))
}

fn unknown(label: &str, uuid: &str) -> Labels {
    Labels::default().with_room(6).and(label, uuid)
}
