//! A metric of a push: where it comes from, its unit, and how its values behave.

use super::conventions::{Instrument, Shape};
use gpu_metrics::{Cadence, Family, Kind, Unit};

/// Where a metric comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    Family(&'static Family),
    /// A metric of the conventions, whose value is that of a family.
    Convention(&'static Instrument, &'static Family),
}

impl Origin {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Family(family) => family.name,
            Self::Convention(instrument, _) => instrument.name,
        }
    }

    /// The unit in UCUM. A family that is a plain number has none: with the unit `1`, a receiver would add `_ratio`.
    pub(super) fn unit(&self) -> &'static str {
        match self {
            Self::Convention(instrument, _) => instrument.unit,
            Self::Family(family) => match family.unit {
                Unit::Bytes => "By",
                Unit::Seconds => "s",
                Unit::Ratio => "1",
                Unit::Celsius => "Cel",
                Unit::Watts => "W",
                Unit::Joules => "J",
                Unit::Hertz => "Hz",
                Unit::Info | Unit::Number => "",
            },
        }
    }

    pub(super) fn shape(&self) -> Shape {
        match self {
            Self::Convention(instrument, _) => instrument.shape,
            Self::Family(family) => match family.kind {
                Kind::Gauge => Shape::Gauge,
                Kind::Counter => Shape::Counter,
                Kind::Histogram => Shape::Histogram,
            },
        }
    }

    /// Whether the values are pushed as integers: for an instrument as the conventions say; of a family those in bytes, counts
    /// and states. A fraction of a byte, which an integrated rate has, is left out. A stream never changes its type.
    pub(super) fn is_integer(&self) -> bool {
        match self {
            Self::Convention(instrument, _) => instrument.is_integer(),
            Self::Family(family) => matches!(family.unit, Unit::Bytes | Unit::Info | Unit::Number),
        }
    }

    pub(super) fn description(&self) -> String {
        match self {
            Self::Family(family) => family.help(),
            Self::Convention(instrument, _) => instrument.description.to_owned(),
        }
    }

    pub(super) fn is_monotonic(&self) -> bool {
        matches!(self.shape(), Shape::Counter | Shape::Histogram)
    }

    /// Whether the exporter itself has counted since it started. Other counts began when the driver was loaded or a process
    /// started.
    pub(super) fn is_counted_here(&self) -> bool {
        let (Self::Family(family) | Self::Convention(_, family)) = self;
        !matches!(family.cadence, Cadence::Fast | Cadence::Slow | Cadence::Reported)
    }
}

#[cfg(test)]
mod tests {
    use super::super::conventions::RULES;
    use super::*;
    use gpu_metrics::families;

    #[test]
    fn a_convention_has_the_unit_and_the_shape_of_its_family() {
        for rule in &RULES {
            let family = families().find(|family| family.name == rule.family).unwrap();
            let (own, named) = (Origin::Family(family), Origin::Convention(rule.instrument, family));
            assert!(own.unit() == named.unit() || own.unit().is_empty(), "{rule:?}");
            assert_eq!(own.is_monotonic(), named.is_monotonic(), "{rule:?}");
        }
    }

    #[test]
    fn counters_that_the_driver_or_a_process_counts_have_no_known_start() {
        let counters = families().filter(|family| family.kind == Kind::Counter);
        let others: Vec<_> =
            counters.filter(|family| !Origin::Family(family).is_counted_here()).map(|family| family.name).collect();
        let expected = [
            "gpu_process_allocator_retries_total",
            "gpu_process_allocator_out_of_memory_total",
            "gpu_pcie_replays_total",
            "gpu_driver_energy_joules_total",
            "gpu_clock_limited_seconds_total",
            "gpu_ecc_errors_total",
            "gpu_nvlink_payload_transmitted_bytes_total",
            "gpu_nvlink_payload_received_bytes_total",
            "gpu_nvlink_errors_total",
            "gpu_nvlink_link_errors_total",
        ];
        assert_eq!(others, expected);
    }

    /// A receiver that adds suffixes takes the words of the unit and of the type from a name and adds them at its end.
    #[test]
    fn a_receiver_that_adds_suffixes_keeps_the_names_of_a_scrape() {
        for family in families() {
            let origin = Origin::Family(family);
            let unit = match origin.unit() {
                "By" => "bytes",
                "s" => "seconds",
                "1" => "ratio",
                "Cel" => "celsius",
                "W" => "watts",
                "J" => "joules",
                "Hz" => "hertz",
                "" => "",
                other => panic!("{other}"),
            };
            let counter = family.kind == Kind::Counter;
            let name = if counter { family.name.strip_suffix("_total").unwrap() } else { family.name };
            assert!(unit.is_empty() || name.ends_with(&format!("_{unit}")), "{name}: {unit}");
            assert!(!counter || !name.contains("total"), "{name}");
            assert!(!family.name.contains("__"), "{name}");
        }
    }
}
