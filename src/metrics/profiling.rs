//! The profiling counters of GPUs and GPU instances: engine and pipe activity, memory bandwidth and link traffic.

use super::exposition::Exposition;
use super::family::{Cadence, Family, Section, Unit};
use super::mig::{self, MIG};
use super::openmetrics::Counted;
use super::view::GpuView;
use crate::snapshot::{ProfilingFigures, ProfilingMetric};

const GPU: &[&str] = &["gpu", "uuid"];
const MIG_ENGINE: &[&str] = &["gpu", "uuid", "mig_uuid", "gpu_instance", "compute_instance", "profile", "engine"];
const MIG_PIPE: &[&str] = &["gpu", "uuid", "mig_uuid", "gpu_instance", "compute_instance", "profile", "pipe"];

/// Declares a family for GPUs, and the same family for GPU instances.
macro_rules! both {
    ($gpu:ident, $mig:ident, $make:ident, $unit:ident, $name:literal, $labels:expr, $mig_labels:expr, $help:literal) => {
        static $gpu: Family = Family::$make(
            concat!("gpu_", $name),
            Unit::$unit,
            Cadence::Profiling,
            $labels,
            concat!($help, " Absent on GPUs without profiling counters (before Hopper)."),
        );
        static $mig: Family = Family::$make(
            concat!("gpu_mig_", $name),
            Unit::$unit,
            Cadence::Profiling,
            $mig_labels,
            concat!("For a MIG GPU instance: ", $help),
        );
    };
}

both!(
    ENGINE,
    MIG_OF_ENGINE,
    counter,
    Seconds,
    "engine_active_seconds_total",
    &["gpu", "uuid", "engine"],
    MIG_ENGINE,
    "Seconds of engine activity. graphics: the graphics or compute engine was active. sm: SMs were active, as the mean over all SMs. The rate is the mean share, 0 to 1."
);
both!(
    PIPE,
    MIG_OF_PIPE,
    counter,
    Seconds,
    "pipe_active_seconds_total",
    &["gpu", "uuid", "pipe"],
    MIG_PIPE,
    "Seconds of pipe activity, weighted by the share of the pipe's peak. tensor covers all tensor operations; fp16, fp32 and fp64 exclude them. The rate is the mean share, 0 to 1."
);
both!(
    BANDWIDTH,
    MIG_BANDWIDTH,
    counter,
    Seconds,
    "memory_bandwidth_active_seconds_total",
    GPU,
    MIG,
    "Seconds of device memory traffic, weighted by the share of the peak bandwidth. The rate is the mean share of the peak bandwidth, 0 to 1."
);
both!(
    OCCUPANCY,
    MIG_OCCUPANCY,
    gauge,
    Ratio,
    "sm_occupancy_ratio",
    GPU,
    MIG,
    "Resident warps as a share of the most that the SMs can hold, 0 to 1, over the last profiling.interval."
);
both!(
    PCIE_OUT,
    MIG_PCIE_OUT,
    counter,
    Bytes,
    "pcie_transmitted_bytes_total",
    GPU,
    MIG,
    "Bytes from the GPU over PCIe, including the overhead of the link."
);
both!(
    PCIE_IN,
    MIG_PCIE_IN,
    counter,
    Bytes,
    "pcie_received_bytes_total",
    GPU,
    MIG,
    "Bytes to the GPU over PCIe, including the overhead of the link."
);
both!(
    NVLINK_OUT,
    MIG_NVLINK_OUT,
    counter,
    Bytes,
    "nvlink_transmitted_bytes_total",
    GPU,
    MIG,
    "Bytes from the GPU over all NVLinks. An H200 without such a link reports 0."
);
both!(
    NVLINK_IN,
    MIG_NVLINK_IN,
    counter,
    Bytes,
    "nvlink_received_bytes_total",
    GPU,
    MIG,
    "Bytes to the GPU over all NVLinks. An H200 without such a link reports 0."
);
both!(
    C2C_OUT,
    MIG_C2C_OUT,
    counter,
    Bytes,
    "c2c_transmitted_bytes_total",
    GPU,
    MIG,
    "Bytes from the GPU over its chip-to-chip link, in total. An H200 without such a link reports 0."
);
both!(
    C2C_IN,
    MIG_C2C_IN,
    counter,
    Bytes,
    "c2c_received_bytes_total",
    GPU,
    MIG,
    "Bytes to the GPU over its chip-to-chip link, in total. An H200 without such a link reports 0."
);

pub(super) static SECTION: Section = Section {
    title: "Profiling counters",
    intro: "The driver's profiling counters (GPM), integrated by the exporter, on Hopper and later GPUs if \
            `profiling.enabled` is on. `rate()` of seconds is the mean share over any range. An interval that was \
            not measured (a failed call, a closed driver, a suspended system) adds nothing. A metric that the GPU \
            never filled is absent. `engine` is `graphics` or `sm`; `pipe` is `tensor`, `fp16`, `fp32`, `fp64` or \
            `integer`. A `gpu_mig_` family has one series for each GPU instance, with the labels of its first MIG \
            device: compute instances of one GPU instance share its counters.",
    families: &[
        &ENGINE,
        &PIPE,
        &BANDWIDTH,
        &OCCUPANCY,
        &PCIE_OUT,
        &PCIE_IN,
        &NVLINK_OUT,
        &NVLINK_IN,
        &C2C_OUT,
        &C2C_IN,
        &MIG_OF_ENGINE,
        &MIG_OF_PIPE,
        &MIG_BANDWIDTH,
        &MIG_OCCUPANCY,
        &MIG_PCIE_OUT,
        &MIG_PCIE_IN,
        &MIG_NVLINK_OUT,
        &MIG_NVLINK_IN,
        &MIG_C2C_OUT,
        &MIG_C2C_IN,
    ],
};

/// The families of GPUs, or those of GPU instances, in the order of the section.
struct Families {
    engine: &'static Family,
    pipe: &'static Family,
    occupancy: &'static Family,
    plain: [(&'static Family, ProfilingMetric); 7],
}

/// The values of `engine` and `pipe`, as the text that follows the labels of a GPU or GPU instance.
const ENGINES: [(&str, ProfilingMetric); 2] =
    [(",engine=\"graphics\"", ProfilingMetric::Graphics), (",engine=\"sm\"", ProfilingMetric::Sm)];
const PIPES: [(&str, ProfilingMetric); 5] = [
    (",pipe=\"tensor\"", ProfilingMetric::Tensor),
    (",pipe=\"fp16\"", ProfilingMetric::Fp16),
    (",pipe=\"fp32\"", ProfilingMetric::Fp32),
    (",pipe=\"fp64\"", ProfilingMetric::Fp64),
    (",pipe=\"integer\"", ProfilingMetric::Integer),
];

static OF_GPUS: Families = Families {
    engine: &ENGINE,
    pipe: &PIPE,
    occupancy: &OCCUPANCY,
    plain: [
        (&BANDWIDTH, ProfilingMetric::MemoryBandwidth),
        (&PCIE_OUT, ProfilingMetric::PcieTransmitted),
        (&PCIE_IN, ProfilingMetric::PcieReceived),
        (&NVLINK_OUT, ProfilingMetric::NvlinkTransmitted),
        (&NVLINK_IN, ProfilingMetric::NvlinkReceived),
        (&C2C_OUT, ProfilingMetric::C2cTransmitted),
        (&C2C_IN, ProfilingMetric::C2cReceived),
    ],
};
static OF_INSTANCES: Families = Families {
    engine: &MIG_OF_ENGINE,
    pipe: &MIG_OF_PIPE,
    occupancy: &MIG_OCCUPANCY,
    plain: [
        (&MIG_BANDWIDTH, ProfilingMetric::MemoryBandwidth),
        (&MIG_PCIE_OUT, ProfilingMetric::PcieTransmitted),
        (&MIG_PCIE_IN, ProfilingMetric::PcieReceived),
        (&MIG_NVLINK_OUT, ProfilingMetric::NvlinkTransmitted),
        (&MIG_NVLINK_IN, ProfilingMetric::NvlinkReceived),
        (&MIG_C2C_OUT, ProfilingMetric::C2cTransmitted),
        (&MIG_C2C_IN, ProfilingMetric::C2cReceived),
    ],
};

/// The labels of a GPU or GPU instance, and its figures.
type Shown<'a> = (&'a str, &'a ProfilingFigures);

pub(super) fn collect(gpus: &[GpuView<'_>], out: &mut Exposition<'_>) {
    let whole: Vec<Shown<'_>> = gpus.iter().filter_map(|gpu| Some((gpu.labels.as_str(), gpu.profiling?))).collect();
    write(&OF_GPUS, &whole, out);
    let instances = gpus.iter().flat_map(|gpu| gpu.mig_profiling.iter().map(move |of| (gpu, of)));
    let instances: Vec<_> = instances.map(|(gpu, of)| (mig::labels(gpu, &of.device), &of.figures)).collect();
    let instances: Vec<Shown<'_>> = instances.iter().map(|(labels, figures)| (labels.as_str(), *figures)).collect();
    write(&OF_INSTANCES, &instances, out);
}

fn write(families: &Families, shown: &[Shown<'_>], out: &mut Exposition<'_>) {
    if shown.is_empty() {
        return;
    }
    split(families.engine, &ENGINES, shown, out);
    split(families.pipe, &PIPES, shown, out);
    let occupancy =
        shown.iter().filter_map(|(labels, f)| Some(([*labels, ""], f.latest.get(ProfilingMetric::Occupancy)?)));
    out.add(families.occupancy, occupancy);
    for (family, metric) in &families.plain {
        out.add(family, shown.iter().filter_map(|(labels, figures)| Some(([*labels, ""], counted(figures, *metric)?))));
    }
}

fn split(family: &'static Family, values: &[(&str, ProfilingMetric)], shown: &[Shown<'_>], out: &mut Exposition<'_>) {
    let series = shown.iter().flat_map(|(labels, figures)| {
        values.iter().filter_map(|(own, metric)| Some(([*labels, *own], counted(figures, *metric)?)))
    });
    out.add(family, series);
}

fn counted(figures: &ProfilingFigures, metric: ProfilingMetric) -> Option<Counted<'static>> {
    Some(Counted::since(figures.counted_since, figures.total(metric)?))
}
