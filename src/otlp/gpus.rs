//! The attributes that the semantic conventions require of a GPU's metrics.

use super::conventions::{Component, Rule};
use crate::snapshot::Driver;
use gpu_metrics::{Labels, pairs};

/// The attributes of every GPU, as text.
pub(super) struct Gpus(Vec<Gpu>);

struct Gpu {
    /// The value of the label `gpu`.
    index: String,
    id: String,
    name: String,
    full: Labels,
    common: Labels,
}

impl Gpus {
    pub(super) fn new(driver: &Driver) -> Self {
        let of = |gpu: &crate::snapshot::Gpu| {
            let (id, name) = (gpu.key(), format!("GPU {}", gpu.index));
            let common = Labels::default().and("hw.id", &id).and("hw.name", &name).and("hw.type", "gpu");
            let full = common
                .clone()
                .and("hw.vendor", "NVIDIA")
                .and_known("hw.model", gpu.name.as_deref())
                .and_known("hw.driver_version", driver.driver_version.as_deref())
                .and_known("hw.firmware_version", gpu.vbios.as_deref());
            Gpu { index: gpu.index.to_string(), id, name, full, common }
        };
        Self(driver.gpus.iter().map(|gpu| of(gpu)).collect())
    }

    /// The attributes, as text, of the value that has these labels; `None` if they name no known GPU.
    pub(super) fn attributes(&self, rule: &Rule, labels: &str) -> Option<Labels> {
        let label = |name: &str| pairs(labels).find(|(known, _)| *known == name).map(|(_, value)| value);
        let index = label("gpu")?;
        let gpu = self.0.iter().find(|gpu| gpu.index == index)?;
        let mut attributes = match rule.component {
            Component::Gpu => gpu.full.clone(),
            Component::Any => gpu.common.clone(),
            Component::Sensor(place) => Labels::default()
                .and("hw.id", &format!("{}/{place}", gpu.id))
                .and("hw.name", &format!("{} {place}", gpu.name))
                .and("hw.parent", &gpu.id)
                .and("hw.sensor_location", place),
        };
        if let Some((attribute, value)) = rule.fixed {
            attributes = attributes.and(attribute, value);
        }
        if let Some((own, attribute)) = rule.renamed {
            attributes = attributes.and_known(attribute, label(own).as_deref());
        }
        Some(attributes)
    }
}
