//! The listener that serves dcgm-exporter's families.

use std::sync::Arc;

use super::exporter::Exporter;
use super::settings;
use crate::config::Config;
use crate::dcgm::{self, Families};

/// How many names of fields are logged.
const NAMED: usize = 50;

/// The settings of the families; `None` if they are not served. Logs once what is not served and why.
///
/// # Errors
/// When the collectors file is refused.
pub(super) fn settings(config: &Config) -> Result<Option<dcgm::Settings>, dcgm::Error> {
    if config.dcgm.listen_addresses.is_empty() {
        return Ok(None);
    }
    let settings = settings::dcgm(config)?;
    // The user did not write the default list, so its fields need no warning.
    let listed = settings.collectors.names().filter(|_| config.dcgm.collectors_file.is_some());
    let switched_off = listed.filter_map(|name| Some((name, missing_key(config, name)?)));
    let unserved: Vec<_> = settings.collectors.unserved().chain(switched_off).collect();
    if !unserved.is_empty() {
        let named = unserved.iter().take(NAMED).map(|(name, why)| format!("{name} ({why})"));
        let mut fields = named.collect::<Vec<_>>().join(", ");
        if unserved.len() > NAMED {
            fields.push_str(&format!(", and {} more", unserved.len() - NAMED));
        }
        tracing::warn!(
            fields,
            "dcgm.collectors-file: these fields are not served; remove their lines, set the named keys, or see docs/from-dcgm.md"
        );
    }
    if settings.collectors.is_empty() {
        tracing::warn!(
            "dcgm.collectors-file: it lists no family that is served, so /metrics of dcgm.listen-address is empty"
        );
    }
    tracing::info!(fields = settings.collectors.len(), "serving the families of dcgm-exporter");
    Ok(Some(settings))
}

/// Which key must be set for the field to have a value; `None` if no key is missing.
fn missing_key(config: &Config, name: &str) -> Option<&'static str> {
    if name.ends_with("_TOTAL_ENERGY_CONSUMPTION") && !config.telemetry.energy {
        return Some("it needs telemetry.energy=true");
    }
    (name.starts_with("DCGM_FI_PROF_") && !config.profiling.enabled).then_some("it needs profiling.enabled=true")
}

/// The families that the exporter serves.
pub(super) fn families(settings: dcgm::Settings, exporter: &Exporter) -> Arc<Families> {
    Families::new(exporter.snapshot.clone(), exporter.metrics.settings().clone(), settings)
}
