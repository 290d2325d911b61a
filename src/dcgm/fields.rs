//! The table of the DCGM fields that the snapshot can answer.
//!
//! Invariant: a field has the unit and the type that dcgm-exporter gives it. The names, numbers, types and levels are
//! those in `dcgm_fields.h` and `dcgm_fields.cpp` of DCGM 4.5.3 and 4.6.0; a field has the same number in both, so a
//! renamed field is the same value.

mod extra;
mod listed;

use crate::config::DcgmNames;
use crate::snapshot::{
    ClockDomain, Driver, FastTelemetry, Gpu, MemoryFigures, ProfilingMetric, ProfilingValues, SlowTelemetry,
};
use extra::EXTRA;
use gpu_metrics::Kind;
pub(super) use listed::LABEL;
use listed::LISTED;

fn all() -> impl Iterator<Item = &'static Field> {
    LISTED.iter().chain(EXTRA)
}

/// The field with this name, in any version of DCGM.
pub(super) fn find(name: &str) -> Option<&'static Field> {
    all().find(|field| field.name == name || field.new_name == name)
}

/// The fields that are served without a collectors file.
pub(super) fn listed() -> impl Iterator<Item = (&'static Field, Kind, &'static str)> {
    all().filter_map(|field| field.listed.map(|(kind, help)| (field, kind, help)))
}

/// The names of every field that can be served, up to DCGM 4.5 and in DCGM 4.6.
pub fn served() -> impl Iterator<Item = (&'static str, &'static str)> {
    all().map(|field| (field.name, field.new_name))
}

impl DcgmNames {
    /// The label with the machine's name.
    pub(super) fn hostname_label(self) -> &'static str {
        match self {
            Self::Exporter48 => "Hostname",
            Self::ExporterMain | Self::Dcgm46 => "hostname",
        }
    }

    /// The name of a field.
    pub(super) fn of(self, field: &Field) -> &'static str {
        match self {
            Self::Exporter48 | Self::ExporterMain => field.name,
            Self::Dcgm46 => field.new_name,
        }
    }
}

/// Where DCGM measures a field, which determines what series it has on a GPU with MIG instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
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
pub(super) struct Reading<'a> {
    /// The driver.
    pub(super) driver: &'a Driver,
    /// The GPU.
    pub(super) gpu: &'a Gpu,
    /// The memory of the device: for a MIG instance, the instance's own.
    pub(super) memory: Option<&'a MemoryFigures>,
    /// The fast telemetry of the GPU.
    pub(super) fast: Option<&'a FastTelemetry>,
    /// The slow telemetry of the GPU.
    pub(super) slow: Option<&'a SlowTelemetry>,
    /// The profiling figures of the device over the last interval: for a MIG instance, the instance's own.
    pub(super) profiling: Option<&'a ProfilingValues>,
    /// The profiling figures of the whole GPU over the last interval.
    pub(super) whole_profiling: Option<&'a ProfilingValues>,
    /// The last Xid error of the GPU, 0 before the first one. `None` if the GPU does not report them.
    pub(super) xid: Option<u64>,
}

/// How a field is read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Read {
    /// A number, for a gauge or a counter.
    Number(fn(&Reading<'_>) -> Option<f64>),
    /// Text, for a label on the other families.
    Text(for<'a> fn(&Reading<'a>) -> Option<&'a str>),
}

/// One field.
#[derive(Debug)]
pub(super) struct Field {
    /// The name in DCGM up to 4.5.
    pub(super) name: &'static str,
    /// The name in DCGM 4.6.
    pub(super) new_name: &'static str,
    /// Where it is measured.
    pub(super) level: Level,
    /// How it is read.
    pub(super) read: Read,
    /// Its type and help in the list that is served without a collectors file; `None` if it is not in that list.
    pub(super) listed: Option<(Kind, &'static str)>,
}

impl Field {
    /// The field with another name in DCGM 4.6.
    pub(super) const fn renamed(self, new_name: &'static str) -> Self {
        Self { new_name, ..self }
    }

    /// The field, measured at another level.
    pub(super) const fn on(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// The field as a gauge in the list of dcgm-exporter.
    pub(super) const fn gauge(self, help: &'static str) -> Self {
        Self { listed: Some((Kind::Gauge, help)), ..self }
    }

    /// The field as a counter in that list.
    pub(super) const fn counter(self, help: &'static str) -> Self {
        Self { listed: Some((Kind::Counter, help)), ..self }
    }

    /// Whether a container that shares the GPU has a value of its own, from its processes.
    pub(super) fn share(&self) -> Option<Share> {
        match self.name {
            FB_USED => Some(Share::Memory),
            GPU_UTIL => Some(Share::Utilization),
            _ => None,
        }
    }

    /// Whether the value of the field is the last Xid.
    pub(super) fn is_xid(&self) -> bool {
        self.name == XID_ERRORS
    }
}

/// A value that a container has of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// MiB that its processes hold.
    Memory,
    /// Percent of the streaming multiprocessors' time that its processes used.
    Utilization,
}

pub(super) const FB_USED: &str = "DCGM_FI_DEV_FB_USED";
pub(super) const GPU_UTIL: &str = "DCGM_FI_DEV_GPU_UTIL";
pub(super) const XID_ERRORS: &str = "DCGM_FI_DEV_XID_ERRORS";

/// Bytes as whole MiB, rounded down as in DCGM.
pub(super) fn mib(bytes: u64) -> f64 {
    (bytes >> 20) as f64
}

/// A ratio as a whole number of percent.
pub(super) fn percent(ratio: Option<f64>) -> Option<f64> {
    ratio.map(|ratio| (ratio * 100.0).round())
}

pub(super) fn count(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

/// A share of the last interval, 0 to 1.
pub(super) fn share(reading: &Reading<'_>, metric: ProfilingMetric) -> Option<f64> {
    reading.profiling?.get(metric)
}

/// The traffic of a link of the GPU in the last interval, in whole bytes a second.
pub(super) fn traffic(reading: &Reading<'_>, metric: ProfilingMetric) -> Option<f64> {
    reading.whole_profiling?.get(metric).map(f64::round)
}

/// A clock in MHz.
pub(super) fn mhz(reading: &Reading<'_>, domain: ClockDomain) -> Option<f64> {
    let at = ClockDomain::ALL.iter().position(|known| *known == domain)?;
    reading.fast?.clocks[at].map(|hertz| (hertz / 1e6).round())
}

/// A number, which only a collectors file lists. Its name is the same in DCGM 4.6, and it is measured on the GPU.
pub(super) const fn number(name: &'static str, read: fn(&Reading<'_>) -> Option<f64>) -> Field {
    Field { name, new_name: name, level: Level::Gpu, read: Read::Number(read), listed: None }
}

/// Text for a label, with the same properties.
pub(super) const fn label(name: &'static str, read: for<'a> fn(&Reading<'a>) -> Option<&'a str>) -> Field {
    Field { name, new_name: name, level: Level::Gpu, read: Read::Text(read), listed: None }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_name_means_one_field() {
        // The deprecated name of the reasons has the same new name.
        let fields = || all().filter(|field| field.name != "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS");
        let names: Vec<_> = fields().flat_map(|field| BTreeSet::from([field.name, field.new_name])).collect();
        assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len(), "{names:?}");
        assert!(all().all(|field| find(field.name).is_some_and(|found| std::ptr::eq(found, field))));
        assert!(find("DCGM_FI_DEV_GPU_UTIL_RATIO").is_some_and(|field| field.name == GPU_UTIL));
        assert!([FB_USED, GPU_UTIL, XID_ERRORS, LABEL].iter().all(|name| find(name).is_some()));
    }
}
