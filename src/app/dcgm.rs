//! The listener that serves dcgm-exporter's families.

use std::sync::Arc;

use super::exporter::Exporter;
use super::settings;
use crate::config::Config;
use crate::dcgm::{self, Collectors, Families};

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
    for warning in warnings_about(config, &settings.collectors) {
        tracing::warn!("{warning}");
    }
    tracing::info!(fields = settings.collectors.len(), "serving the families of dcgm-exporter");
    Ok(Some(settings))
}

/// What a list would not serve; empty without a list of the user's own.
///
/// # Errors
/// When the collectors file is refused.
pub(super) fn warnings(config: &Config) -> Result<Vec<String>, dcgm::Error> {
    let list = config.dcgm.collectors_file.as_deref().map(Collectors::from_file).transpose()?;
    Ok(list.map(|list| warnings_about(config, &list)).unwrap_or_default())
}

fn warnings_about(config: &Config, list: &Collectors) -> Vec<String> {
    let mut warnings = Vec::new();
    // The user did not write the default list, so its fields need no warning.
    let listed = list.names().filter(|_| config.dcgm.collectors_file.is_some());
    let switched_off = listed.filter_map(|name| Some((name, missing_key(config, name)?)));
    let unserved: Vec<_> = list.unserved().chain(switched_off).collect();
    if !unserved.is_empty() {
        let named = unserved.iter().take(NAMED).map(|(name, why)| format!("{name} ({why})"));
        let mut fields = named.collect::<Vec<_>>().join(", ");
        if unserved.len() > NAMED {
            fields.push_str(&format!(", and {} more", unserved.len() - NAMED));
        }
        warnings.push(format!(
            "dcgm.collectors-file: these fields are not served; remove their lines, set the named keys, or see \
             docs/from-dcgm.md: {fields}"
        ));
    }
    if list.is_empty() {
        warnings.push(
            "dcgm.collectors-file: it lists no family that is served, so /metrics of dcgm.listen-address is empty"
                .to_owned(),
        );
    }
    warnings
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
