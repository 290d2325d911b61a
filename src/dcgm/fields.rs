//! The table of the DCGM fields that the snapshot can answer.
//!
//! Invariant: a field has the unit and the type that dcgm-exporter gives it. The names, numbers, types and levels are
//! those in `dcgm_fields.h` and `dcgm_fields.cpp` of DCGM 4.5.3 and 4.6.0; a field has the same number in both, so a
//! renamed field is the same value. A field in another unit, which DCGM 4.7 adds, has a number and an entry of its own.

mod base_units;
mod extra;
mod listed;
mod missing;

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::config::{Config, DcgmNames};
use crate::snapshot::{
    ClockDomain, ClockLimit, Driver, FastTelemetry, Gpu, MemoryFigures, ProfilingMetric, ProfilingValues, SlowTelemetry,
};
use base_units::BASE_UNITS;
use extra::EXTRA;
use gpu_metrics::Kind;
use listed::{LABEL, LISTED};
pub use missing::{MISSING, Missing};

fn all() -> impl Iterator<Item = &'static Field> {
    LISTED.iter().chain(EXTRA).chain(BASE_UNITS)
}

/// The field with this name, in any version of DCGM, or in a list for dcgm-exporter 1.x.
pub(super) fn find(name: &str) -> Option<&'static Field> {
    all().find(|field| field.names().any(|known| known == name))
}

/// Why a field is not served.
pub(super) fn why_missing(name: &str) -> &'static str {
    missing::reason(name).unwrap_or("no field of DCGM is known by this name")
}

/// The fields that are served without a collectors file, with the names and units of a naming.
pub(super) fn listed(naming: DcgmNames) -> impl Iterator<Item = (&'static str, &'static Field, Kind, &'static str)> {
    LISTED.iter().chain(EXTRA).filter_map(move |field| {
        let (name, field) = naming.of(field);
        field.listed.map(|(kind, help)| (name, field, kind, help))
    })
}

/// The name of the label that is served without a collectors file, and how it is read.
pub(super) fn listed_label(naming: DcgmNames) -> Option<(&'static str, &'static Field)> {
    find(LABEL).map(|field| naming.of(field))
}

/// The fields that are served only if a collectors file lists them, each with its names up to DCGM 4.5 and in
/// dcgm-exporter 4.9.
pub fn on_request() -> impl Iterator<Item = (&'static str, &'static str)> {
    let names = |field: &'static Field| [DcgmNames::Exporter48, DcgmNames::Exporter49].map(|naming| naming.of(field));
    EXTRA.iter().map(move |field| names(field).map(|(name, _)| name).into())
}

/// The names of every field that can be served, in any version of DCGM and in dcgm-exporter 1.x.
pub fn served() -> impl Iterator<Item = &'static str> {
    all().flat_map(Field::names)
}

impl DcgmNames {
    /// The labels with the machine's name. dcgm-exporter 4.8.3 renamed the label, so programs that were made for 4.8
    /// ask for either.
    pub(super) fn hostname_labels(self) -> &'static [&'static str] {
        match self {
            Self::Exporter48 => &["Hostname", "hostname"],
            Self::Exporter49 => &["hostname"],
        }
    }

    /// The name of a field, and the field that has this name: with the names of 4.9, the one in base units, if there is
    /// one.
    pub(super) fn of(self, field: &'static Field) -> (&'static str, &'static Field) {
        match self {
            Self::Exporter48 => (field.name, field),
            Self::Exporter49 => match field.in_base_units.and_then(find) {
                Some(field) => (field.name, field),
                None => (field.new_name, field),
            },
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
    /// The number of Xid errors of the GPU since the exporter started, by code.
    pub(super) xid_errors: Option<&'a BTreeMap<u64, u64>>,
    /// The last Xid error of the GPU, 0 before the first one. `None` if the GPU does not report them.
    pub(super) xid: Option<u64>,
}

/// How a field is read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Read {
    /// A number, for a gauge or a counter.
    Number(fn(&Reading<'_>) -> Option<f64>),
    /// A whole number that belongs to the GPU or the driver and does not change, for a gauge, a counter or a label.
    Constant(fn(&Reading<'_>) -> Option<u64>),
    /// The number of Xid errors by code, for a counter with a series for each code that has occurred.
    XidTotals,
    /// Text, for a label on the other families.
    Text(for<'a> fn(&Reading<'a>) -> Option<&'a str>),
}

impl Read {
    /// The value of a label; `None` also for a number that changes.
    pub(super) fn text<'a>(self, reading: &Reading<'a>) -> Option<Cow<'a, str>> {
        match self {
            Self::Text(read) => read(reading).map(Cow::Borrowed),
            Self::Constant(read) => read(reading).map(|number| Cow::Owned(number.to_string())),
            Self::Number(_) | Self::XidTotals => None,
        }
    }

    /// The value of a gauge or a counter; `None` also for text.
    pub(super) fn number(self, reading: &Reading<'_>) -> Option<f64> {
        match self {
            Self::Number(read) => read(reading),
            Self::Constant(read) => count(read(reading)),
            Self::Text(_) | Self::XidTotals => None,
        }
    }
}

/// One field.
#[derive(Debug)]
pub(super) struct Field {
    /// The name in DCGM up to 4.5.
    pub(super) name: &'static str,
    /// The name since DCGM 4.6.
    pub(super) new_name: &'static str,
    /// The name in dcgm-exporter 1.x, which later releases still accept in a list; `None` if it had none.
    pub(super) name_in_1x: Option<&'static str>,
    /// The name of the field of DCGM 4.7 that has the same value in a base unit; `None` if there is none.
    pub(super) in_base_units: Option<&'static str>,
    /// Where it is measured.
    pub(super) level: Level,
    /// How it is read.
    pub(super) read: Read,
    /// The key without which it has no value; `None` if it needs none.
    pub(super) needs: Option<Switch>,
    /// The value of its own that a container has which shares the GPU, from its processes; `None` if it has none.
    pub(super) share: Option<Share>,
    /// Its type and help in the list that is served without a collectors file; `None` if it is not in that list.
    pub(super) listed: Option<(Kind, &'static str)>,
}

impl Field {
    fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        [self.name, self.new_name].into_iter().chain(self.name_in_1x)
    }

    /// The field with this name in dcgm-exporter 1.x.
    pub(super) const fn in_1x(self, name: &'static str) -> Self {
        Self { name_in_1x: Some(name), ..self }
    }

    /// The field with another name since DCGM 4.6.
    pub(super) const fn renamed(self, new_name: &'static str) -> Self {
        Self { new_name, ..self }
    }

    /// The field, of which DCGM 4.7 has another in a base unit.
    pub(super) const fn then(self, in_base_units: &'static str) -> Self {
        Self { in_base_units: Some(in_base_units), ..self }
    }

    /// The field, which has no value without this key.
    pub(super) const fn needs(self, key: Switch) -> Self {
        Self { needs: Some(key), ..self }
    }

    /// The field, of which a container that shares the GPU has a value of its own.
    pub(super) const fn shared(self, share: Share) -> Self {
        Self { share: Some(share), ..self }
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

    /// Whether the value of the field is the last Xid.
    pub(super) fn is_xid(&self) -> bool {
        self.name == XID_ERRORS
    }
}

/// A key of the configuration that is on or off.
#[derive(Debug, Clone, Copy)]
pub struct Switch {
    /// The key.
    pub key: &'static str,
    /// Whether it is on.
    pub is_on: fn(&Config) -> bool,
}

pub(super) const ENERGY: Switch = Switch { key: "telemetry.energy", is_on: |config| config.telemetry.energy };
pub(super) const PERFORMANCE_STATE: Switch =
    Switch { key: "telemetry.performance-state", is_on: |config| config.telemetry.performance_state };
pub(super) const PROFILING: Switch = Switch { key: "profiling.enabled", is_on: |config| config.profiling.enabled };

/// A value that a container has of its own, with its unit.
#[derive(Debug, Clone, Copy)]
pub(super) enum Share {
    /// What its processes hold, from bytes.
    Memory(fn(u64) -> f64),
    /// The share of the streaming multiprocessors' time that its processes used, from a ratio.
    Utilization(fn(f64) -> f64),
}

pub(super) const XID_ERRORS: &str = "DCGM_FI_DEV_XID_ERRORS";

/// Bytes as whole MiB, rounded down as in DCGM.
pub(super) fn mib(bytes: u64) -> f64 {
    (bytes >> 20) as f64
}

/// A ratio as a whole number of percent.
pub(super) fn percent(ratio: f64) -> f64 {
    (ratio * 100.0).round()
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

/// A clock in hertz.
pub(super) fn hertz(reading: &Reading<'_>, domain: ClockDomain) -> Option<f64> {
    reading.fast?.clocks[domain as usize]
}

/// Nanoseconds for which a reason has limited the clocks.
pub(super) fn limited(reading: &Reading<'_>, by: ClockLimit) -> Option<f64> {
    count(reading.slow?.clock_limited[by as usize])
}

/// A clock in MHz.
pub(super) fn mhz(reading: &Reading<'_>, domain: ClockDomain) -> Option<f64> {
    hertz(reading, domain).map(mega)
}

/// Hertz as MHz.
pub(super) fn mega(hertz: f64) -> f64 {
    (hertz / 1e6).round()
}

/// A number, which only a collectors file lists. Its name and its unit are the same in every version of DCGM, and it is
/// measured on the GPU.
pub(super) const fn number(name: &'static str, read: fn(&Reading<'_>) -> Option<f64>) -> Field {
    field(name, Read::Number(read))
}

/// A number from the profiling counters, with the same properties.
pub(super) const fn profiled(name: &'static str, read: fn(&Reading<'_>) -> Option<f64>) -> Field {
    number(name, read).needs(PROFILING)
}

/// Text for a label, with the same properties.
pub(super) const fn label(name: &'static str, read: for<'a> fn(&Reading<'a>) -> Option<&'a str>) -> Field {
    field(name, Read::Text(read))
}

/// A whole number that does not change, with the same properties.
pub(super) const fn constant(name: &'static str, read: fn(&Reading<'_>) -> Option<u64>) -> Field {
    field(name, Read::Constant(read))
}

/// The totals of Xid errors.
pub(super) const fn xid_totals(name: &'static str) -> Field {
    field(name, Read::XidTotals).on(Level::WholeGpu)
}

const fn field(name: &'static str, read: Read) -> Field {
    Field {
        name,
        new_name: name,
        name_in_1x: None,
        in_base_units: None,
        level: Level::Gpu,
        read,
        needs: None,
        share: None,
        listed: None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_name_means_one_field() {
        // The deprecated name of the reasons has the same new name.
        let fields = || all().filter(|field| field.name != "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS");
        let names: Vec<_> = fields().flat_map(|field| field.names().collect::<BTreeSet<_>>()).collect();
        assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len(), "{names:?}");
        assert!(all().all(|field| find(field.name).is_some_and(|found| std::ptr::eq(found, field))));
        assert!([XID_ERRORS, LABEL].iter().all(|name| find(name).is_some()));
    }

    #[test]
    fn a_field_in_base_units_is_in_the_table_and_at_the_same_level() {
        for field in all() {
            let Some(name) = field.in_base_units else { continue };
            let base = find(name).unwrap_or_else(|| panic!("{name} is not in the table"));
            assert_eq!((base.name, base.level), (name, field.level), "{}", field.name);
            assert_eq!(base.share.is_some(), field.share.is_some(), "{}", field.name);
            let kind = |field: &Field| field.listed.map(|(kind, _)| kind);
            assert!(field.listed.is_none() || kind(field) == kind(base), "{}", field.name);
        }
    }

    #[test]
    fn every_field_of_dcgm_is_served_or_has_a_reason() {
        let facts = include_str!("../../tests/fixtures/dcgm/fields.csv");
        let mut names = BTreeSet::new();
        for line in facts.lines().filter(|line| !line.starts_with('#')) {
            let of_field: Vec<_> = line.split(", ").skip(1).collect();
            let found: Vec<_> = of_field.iter().filter_map(|name| find(name)).collect();
            for name in &of_field {
                let reason = missing::reason(name);
                assert!(find(name).is_some() != reason.is_some(), "{name}: served or missing, one of both: {reason:?}");
            }
            // A field is served under all its names, or under none.
            assert!(found.is_empty() || found.len() == of_field.len(), "{of_field:?}");
            names.extend(of_field);
        }
        assert!(served().all(|name| names.contains(name)), "{:?}", served().find(|name| !names.contains(name)));
        for pattern in MISSING.iter().flat_map(|missing| missing.names) {
            let pattern = glob::Pattern::new(pattern).expect("a pattern");
            assert!(names.iter().any(|name| pattern.matches(name)), "{pattern} matches no field");
        }
    }
}
