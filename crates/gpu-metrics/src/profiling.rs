//! The profiling counters of GPUs and GPU instances: engine and pipe activity, memory bandwidth and link traffic.

use super::exposition::Exposition;
use super::family::{Cadence, Family, Kind, Row, Series, Split};
use super::mig;
use super::openmetrics::Counted;
use super::section::{Pass, Section};
use gpu_readings::snapshot::{ProfilingFigures, ProfilingMetric};

type Metrics = Split<ProfilingMetric>;

const ENGINES: Metrics =
    &[(",engine=\"graphics\"", ProfilingMetric::Graphics), (",engine=\"sm\"", ProfilingMetric::Sm)];
const PIPES: Metrics = &[
    (",pipe=\"tensor\"", ProfilingMetric::Tensor),
    (",pipe=\"fp16\"", ProfilingMetric::Fp16),
    (",pipe=\"fp32\"", ProfilingMetric::Fp32),
    (",pipe=\"fp64\"", ProfilingMetric::Fp64),
    (",pipe=\"integer\"", ProfilingMetric::Integer),
];

/// Declares a table of families for GPUs, and a table of the same families for GPU instances. A row is a name, the
/// family's own label, the metrics and the meaning.
macro_rules! both {
    ($gpus:ident, $instances:ident { $($name:literal [$($own:literal)?] $metrics:expr, $meaning:literal;)+ }) => {
        static $gpus: &[Row<Metrics>] = &[$(
            Series::new(Cadence::Profiling, &["gpu", "uuid" $(, $own)?]).row(
                concat!("gpu_", $name),
                concat!($meaning, " Absent on GPUs without profiling counters (before Hopper)."),
                $metrics,
            )
        ),+];
        static $instances: &[Row<Metrics>] = &[$(
            Series::new(
                Cadence::Profiling,
                &["gpu", "uuid", "mig_uuid", "gpu_instance", "compute_instance", "profile" $(, $own)?],
            )
            .row(concat!("gpu_mig_", $name), concat!("For a MIG GPU instance: ", $meaning), $metrics)
        ),+];
    };
}

both! { SHARES, MIG_SHARES {
    "engine_active_seconds_total" ["engine"] ENGINES,
        "Seconds of engine activity. graphics: the graphics or compute engine was active. sm: SMs were active, as the mean over all SMs. The rate is the mean share, 0 to 1.";
    "pipe_active_seconds_total" ["pipe"] PIPES,
        "Seconds of pipe activity, weighted by the share of the pipe's peak. tensor covers all tensor operations; fp16, fp32 and fp64 exclude them. The rate is the mean share, 0 to 1.";
} }
both! { BANDWIDTH, MIG_BANDWIDTH {
    "memory_bandwidth_active_seconds_total" [] &[("", ProfilingMetric::MemoryBandwidth)],
        "Seconds of device memory traffic, weighted by the share of the peak bandwidth. The rate is the mean share of the peak bandwidth, 0 to 1.";
} }
both! { OCCUPANCY, MIG_OCCUPANCY {
    "sm_occupancy_ratio" [] &[("", ProfilingMetric::Occupancy)],
        "Resident warps as a share of the most that the SMs can hold, 0 to 1, over the last profiling.interval.";
} }
both! { LINKS, MIG_LINKS {
    "pcie_transmitted_bytes_total" [] &[("", ProfilingMetric::PcieTransmitted)],
        "Bytes from the GPU over PCIe, including the overhead of the link.";
    "pcie_received_bytes_total" [] &[("", ProfilingMetric::PcieReceived)],
        "Bytes to the GPU over PCIe, including the overhead of the link.";
    "nvlink_transmitted_bytes_total" [] &[("", ProfilingMetric::NvlinkTransmitted)],
        "Bytes from the GPU over all NVLinks. An H200 without such a link reports 0.";
    "nvlink_received_bytes_total" [] &[("", ProfilingMetric::NvlinkReceived)],
        "Bytes to the GPU over all NVLinks. An H200 without such a link reports 0.";
    "c2c_transmitted_bytes_total" [] &[("", ProfilingMetric::C2cTransmitted)],
        "Bytes from the GPU over its chip-to-chip link, in total. An H200 without such a link reports 0.";
    "c2c_received_bytes_total" [] &[("", ProfilingMetric::C2cReceived)],
        "Bytes to the GPU over its chip-to-chip link, in total. An H200 without such a link reports 0.";
} }

pub(super) static SECTION: Section = Section {
    title: "Profiling counters",
    intro: "The driver's profiling counters (GPM), integrated by the exporter, on Hopper and later GPUs if \
            `profiling.enabled` is on. `rate()` of seconds is the mean share over any range. An interval that was \
            not measured (a failed call, a closed driver, a suspended system) adds nothing. A metric that the GPU \
            never filled is absent. `engine` is `graphics` or `sm`; `pipe` is `tensor`, `fp16`, `fp32`, `fp64` or \
            `integer`. A `gpu_mig_` family has one series for each GPU instance, with the labels of its first MIG \
            device: compute instances of one GPU instance share its counters.",
    families: &[&SHARES, &BANDWIDTH, &OCCUPANCY, &LINKS, &MIG_SHARES, &MIG_BANDWIDTH, &MIG_OCCUPANCY, &MIG_LINKS],
    collect,
};

fn collect(&Pass { gpus, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    let whole: Vec<_> = gpus.iter().filter_map(|gpu| Some((gpu.labels.as_str(), gpu.profiling?))).collect();
    for table in [SHARES, OCCUPANCY, BANDWIDTH, LINKS] {
        out.add_split(table, whole.iter().copied(), value);
    }
    let instances = gpus.iter().flat_map(|gpu| gpu.mig_profiling.iter().map(move |of| (gpu, of)));
    let instances: Vec<_> = instances.map(|(gpu, of)| (mig::labels(gpu, &of.device), &of.figures)).collect();
    for table in [MIG_SHARES, MIG_OCCUPANCY, MIG_BANDWIDTH, MIG_LINKS] {
        out.add_split(table, instances.iter().map(|(labels, figures)| (labels.as_str(), *figures)), value);
    }
}

/// A gauge shows the last interval, a counter the sum of all.
fn value(family: &Family, figures: &ProfilingFigures, metric: &ProfilingMetric) -> Option<Counted<'static>> {
    Some(match family.kind {
        Kind::Counter => Counted::since(figures.counted_since, figures.total(*metric)?),
        _ => Counted::since(None, figures.latest.get(*metric)?),
    })
}
