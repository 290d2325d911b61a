//! Which families OpenTelemetry's semantic conventions for hardware name, and under which names and attributes.
//!
//! The names are those of the conventions' version 1.44. `docs/collectors.md` has the same table, which a test
//! compares.

/// How the values of a metric behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Gauge,
    /// A sum that goes up and down.
    UpDown,
    /// A sum that only increases.
    Counter,
    Histogram,
}

/// A metric of the conventions.
#[derive(Debug)]
pub(super) struct Instrument {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) shape: Shape,
    pub(super) description: &'static str,
}

/// The component that a value belongs to, which determines the attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Component {
    /// The GPU, in a metric of the conventions for GPUs.
    Gpu,
    /// The GPU, in a metric of the conventions for all hardware.
    Any,
    /// A temperature sensor of the GPU, at this place.
    Sensor(&'static str),
}

/// How a family is named in the conventions.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) family: &'static str,
    pub(super) instrument: &'static Instrument,
    pub(super) component: Component,
    /// An attribute with a fixed value.
    pub(super) fixed: Option<(&'static str, &'static str)>,
    /// A label of the family and the attribute that has its value.
    pub(super) renamed: Option<(&'static str, &'static str)>,
}

static LIMIT: Instrument =
    instrument("hw.gpu.memory.limit", "By", Shape::UpDown, "All device memory of the GPU in bytes.");
static USAGE: Instrument =
    instrument("hw.gpu.memory.usage", "By", Shape::UpDown, "Allocated device memory of the GPU in bytes.");
/// Computed from the families [`TOTAL`] and [`USED`].
pub(super) static MEMORY_UTILIZATION: Instrument = instrument(
    "hw.gpu.memory.utilization",
    "1",
    Shape::Gauge,
    "Allocated device memory as a share of all device memory.",
);
static UTILIZATION: Instrument =
    instrument("hw.gpu.utilization", "1", Shape::Gauge, "Share of time in which the part of the GPU was busy.");
static IO: Instrument = instrument("hw.gpu.io", "By", Shape::Counter, "Bytes that the GPU transferred over PCIe.");
static ERRORS: Instrument = instrument("hw.errors", "{error}", Shape::Counter, "ECC memory errors of the GPU.");
static POWER: Instrument = instrument("hw.power", "W", Shape::Gauge, "Power draw of the GPU in watts.");
static ENERGY: Instrument = instrument(
    "hw.energy",
    "J",
    Shape::Counter,
    "Energy used by the GPU in joules, integrated from readings of its power.",
);
static TEMPERATURE: Instrument =
    instrument("hw.temperature", "Cel", Shape::Gauge, "Temperature of a part of the GPU in degrees Celsius.");

/// Every metric of the conventions that is pushed.
pub(super) static INSTRUMENTS: [&Instrument; 9] =
    [&LIMIT, &USAGE, &MEMORY_UTILIZATION, &UTILIZATION, &IO, &ERRORS, &POWER, &ENERGY, &TEMPERATURE];

/// The family whose value the used memory is divided by.
pub(super) const TOTAL: &str = "gpu_memory_total_bytes";
/// The family with the used memory.
pub(super) const USED: &str = "gpu_memory_used_bytes";

/// Every family that the conventions name.
pub(super) static RULES: [Rule; 12] = [
    Rule::of(TOTAL, &LIMIT),
    Rule::of(USED, &USAGE),
    Rule::of("gpu_utilization_ratio", &UTILIZATION).with("hw.gpu.task", "general"),
    Rule::of("gpu_encoder_utilization_ratio", &UTILIZATION).with("hw.gpu.task", "encoder"),
    Rule::of("gpu_decoder_utilization_ratio", &UTILIZATION).with("hw.gpu.task", "decoder"),
    Rule::of("gpu_pcie_received_bytes_total", &IO).with("network.io.direction", "receive"),
    Rule::of("gpu_pcie_transmitted_bytes_total", &IO).with("network.io.direction", "transmit"),
    Rule { renamed: Some(("type", "error.type")), ..Rule::of("gpu_ecc_errors_total", &ERRORS) },
    Rule { component: Component::Any, ..Rule::of("gpu_power_watts", &POWER) },
    Rule { component: Component::Any, ..Rule::of("gpu_energy_joules_total", &ENERGY) },
    Rule { component: Component::Sensor("die"), ..Rule::of("gpu_temperature_celsius", &TEMPERATURE) },
    Rule { component: Component::Sensor("memory"), ..Rule::of("gpu_memory_temperature_celsius", &TEMPERATURE) },
];

const fn instrument(name: &'static str, unit: &'static str, shape: Shape, description: &'static str) -> Instrument {
    Instrument { name, unit, shape, description }
}

impl Instrument {
    /// Whether the values are integers: those of every instrument here that counts bytes or errors, by `metric_value_type` in
    /// the conventions' model (`model/hardware/*.yaml`).
    pub(super) fn is_integer(&self) -> bool {
        matches!(self.unit, "By" | "{error}")
    }
}

impl Rule {
    const fn of(family: &'static str, instrument: &'static Instrument) -> Self {
        Self { family, instrument, component: Component::Gpu, fixed: None, renamed: None }
    }

    const fn with(self, attribute: &'static str, value: &'static str) -> Self {
        Self { fixed: Some((attribute, value)), ..self }
    }

    /// The rule for a family; `None` if the conventions do not name it.
    pub(super) fn find(family: &str) -> Option<&'static Self> {
        RULES.iter().find(|rule| rule.family == family)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_metrics::{Kind, families};

    #[test]
    fn every_rule_fits_its_family() {
        for rule in &RULES {
            let family = families().find(|family| family.name == rule.family).unwrap();
            assert!(INSTRUMENTS.iter().any(|known| known.name == rule.instrument.name), "{rule:?}");
            assert_eq!(family.kind == Kind::Counter, rule.instrument.shape == Shape::Counter, "{rule:?}");
            assert_eq!(family.labels[..2], ["gpu", "uuid"], "{rule:?}");
            let own: Vec<_> = rule.renamed.iter().map(|(label, _)| *label).collect();
            assert_eq!(family.labels[2..], own, "{rule:?}");
        }
    }

    #[test]
    fn integers_are_those_of_the_conventions() {
        let integers: Vec<_> = INSTRUMENTS.iter().filter(|known| known.is_integer()).map(|known| known.name).collect();
        assert_eq!(integers, ["hw.gpu.memory.limit", "hw.gpu.memory.usage", "hw.gpu.io", "hw.errors"]);
    }

    #[test]
    fn no_name_of_the_conventions_is_a_name_of_a_scrape() {
        let translated = |name: &str| name.replace('.', "_");
        for instrument in INSTRUMENTS {
            assert!(families().all(|family| !family.name.starts_with(&translated(instrument.name))));
        }
    }

    #[test]
    fn the_page_lists_every_rule() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/collectors.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| `hw.")).collect();
        assert_eq!(rows.len(), RULES.len() + 1, "{rows:?}");
        for rule in &RULES {
            let attribute = rule.fixed.map_or(String::new(), |(name, value)| format!("`{name}=\"{value}\"`"));
            let found = rows.iter().any(|row| {
                let cells = [rule.instrument.name, rule.instrument.unit, rule.family].map(|cell| format!("`{cell}`"));
                cells.iter().all(|cell| row.contains(cell)) && row.contains(&attribute)
            });
            assert!(found, "{rule:?}");
        }
    }
}
