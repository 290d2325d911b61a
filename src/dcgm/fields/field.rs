//! What a DCGM field is: its names, where it is measured, and how it is read.

use crate::metrics::Kind;
use crate::snapshot::{
    ClockDomain, Driver, FastTelemetry, Gpu, MemoryFigures, ProfilingMetric, ProfilingValues, SlowTelemetry,
};

/// The names of families and labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// dcgm-exporter 4.5 to 4.8: the field names of DCGM up to 4.5, and the label `Hostname`.
    Exporter48,
    /// dcgm-exporter's main branch: the same field names, and the label `hostname`.
    ExporterMain,
    /// The field names of DCGM 4.6, and the label `hostname`.
    Dcgm46,
}

impl Naming {
    /// The label with the machine's name.
    pub(in crate::dcgm) fn hostname_label(self) -> &'static str {
        match self {
            Self::Exporter48 => "Hostname",
            Self::ExporterMain | Self::Dcgm46 => "hostname",
        }
    }

    /// The name of a field.
    pub(in crate::dcgm) fn of(self, field: &Field) -> &'static str {
        match self {
            Self::Exporter48 | Self::ExporterMain => field.name,
            Self::Dcgm46 => field.new_name,
        }
    }
}

/// Where DCGM measures a field, which determines what series it has on a GPU with MIG instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dcgm) enum Level {
    /// On the GPU only: each instance shows the value of its GPU, as in dcgm-exporter.
    Gpu,
    /// On each instance.
    Instance,
    /// DCGM has a value for each instance, but the snapshot holds only that of the whole GPU: one series for the GPU,
    /// without the labels of an instance.
    WholeGpu,
}

/// What a field can be read from: a GPU or a MIG instance.
#[derive(Debug, Clone, Copy)]
pub(in crate::dcgm) struct Reading<'a> {
    /// The driver.
    pub(in crate::dcgm) driver: &'a Driver,
    /// The GPU.
    pub(in crate::dcgm) gpu: &'a Gpu,
    /// The memory of the device: for a MIG instance, the instance's own.
    pub(in crate::dcgm) memory: Option<&'a MemoryFigures>,
    /// The fast telemetry of the GPU.
    pub(in crate::dcgm) fast: Option<&'a FastTelemetry>,
    /// The slow telemetry of the GPU.
    pub(in crate::dcgm) slow: Option<&'a SlowTelemetry>,
    /// The profiling figures of the device over the last interval: for a MIG instance, the instance's own.
    pub(in crate::dcgm) profiling: Option<&'a ProfilingValues>,
    /// The profiling figures of the whole GPU over the last interval.
    pub(in crate::dcgm) whole_profiling: Option<&'a ProfilingValues>,
    /// The last Xid error of the GPU, 0 before the first one. `None` if the GPU does not report them.
    pub(in crate::dcgm) xid: Option<u64>,
}

/// How a field is read.
#[derive(Debug, Clone, Copy)]
pub(in crate::dcgm) enum Read {
    /// A number, for a gauge or a counter.
    Number(fn(&Reading<'_>) -> Option<f64>),
    /// Text, for a label on the other families.
    Text(for<'a> fn(&Reading<'a>) -> Option<&'a str>),
}

/// One field.
#[derive(Debug)]
pub(in crate::dcgm) struct Field {
    /// The name in DCGM up to 4.5.
    pub(in crate::dcgm) name: &'static str,
    /// The name in DCGM 4.6.
    pub(in crate::dcgm) new_name: &'static str,
    /// Where it is measured.
    pub(in crate::dcgm) level: Level,
    /// How it is read.
    pub(in crate::dcgm) read: Read,
    /// Its type and help in the list that is served without a collectors file; `None` if it is not in that list.
    pub(in crate::dcgm) listed: Option<(Kind, &'static str)>,
}

impl Field {
    /// Whether a container that shares the GPU has a value of its own, from its processes.
    pub(in crate::dcgm) fn share(&self) -> Option<Share> {
        match self.name {
            FB_USED => Some(Share::Memory),
            GPU_UTIL => Some(Share::Utilization),
            _ => None,
        }
    }

    /// Whether the value of the field is the last Xid.
    pub(in crate::dcgm) fn is_xid(&self) -> bool {
        self.name == XID_ERRORS
    }
}

/// A value that a container has of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dcgm) enum Share {
    /// MiB that its processes hold.
    Memory,
    /// Percent of the streaming multiprocessors' time that its processes used.
    Utilization,
}

pub(in crate::dcgm) const FB_USED: &str = "DCGM_FI_DEV_FB_USED";
pub(in crate::dcgm) const GPU_UTIL: &str = "DCGM_FI_DEV_GPU_UTIL";
pub(in crate::dcgm) const XID_ERRORS: &str = "DCGM_FI_DEV_XID_ERRORS";

/// Bytes as whole MiB, rounded down as in DCGM.
pub(in crate::dcgm) fn mib(bytes: u64) -> f64 {
    (bytes >> 20) as f64
}

/// A ratio as a whole number of percent.
pub(in crate::dcgm) fn percent(ratio: Option<f64>) -> Option<f64> {
    ratio.map(|ratio| (ratio * 100.0).round())
}

pub(in crate::dcgm) fn count(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

/// A share of the last interval, 0 to 1.
pub(in crate::dcgm) fn share(reading: &Reading<'_>, metric: ProfilingMetric) -> Option<f64> {
    reading.profiling?.get(metric)
}

/// The traffic of a link of the GPU in the last interval, in whole bytes a second.
pub(in crate::dcgm) fn traffic(reading: &Reading<'_>, metric: ProfilingMetric) -> Option<f64> {
    reading.whole_profiling?.get(metric).map(f64::round)
}

/// A clock in MHz.
pub(in crate::dcgm) fn mhz(reading: &Reading<'_>, domain: ClockDomain) -> Option<f64> {
    let at = ClockDomain::ALL.iter().position(|known| *known == domain)?;
    reading.fast?.clocks[at].map(|hertz| (hertz / 1e6).round())
}

/// A number that is in the list of dcgm-exporter.
pub(in crate::dcgm) const fn gauge(
    name: &'static str,
    new_name: &'static str,
    level: Level,
    read: fn(&Reading<'_>) -> Option<f64>,
    help: &'static str,
) -> Field {
    Field { name, new_name, level, read: Read::Number(read), listed: Some((Kind::Gauge, help)) }
}

/// A counter that is in the list of dcgm-exporter.
pub(in crate::dcgm) const fn counter(
    name: &'static str,
    new_name: &'static str,
    level: Level,
    read: fn(&Reading<'_>) -> Option<f64>,
    help: &'static str,
) -> Field {
    Field { name, new_name, level, read: Read::Number(read), listed: Some((Kind::Counter, help)) }
}

/// A number that is served only if a collectors file lists it.
pub(in crate::dcgm) const fn extra(
    name: &'static str,
    new_name: &'static str,
    level: Level,
    read: fn(&Reading<'_>) -> Option<f64>,
) -> Field {
    Field { name, new_name, level, read: Read::Number(read), listed: None }
}

/// Text for a label.
pub(in crate::dcgm) const fn label(
    name: &'static str,
    new_name: &'static str,
    read: for<'a> fn(&Reading<'a>) -> Option<&'a str>,
) -> Field {
    Field { name, new_name, level: Level::Gpu, read: Read::Text(read), listed: None }
}
