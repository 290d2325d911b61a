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
    let unserved: Vec<_> = settings.collectors.unserved().collect();
    if !unserved.is_empty() {
        let named = unserved.iter().take(NAMED).map(|(name, why)| format!("{name} ({why})"));
        let mut fields = named.collect::<Vec<_>>().join(", ");
        if unserved.len() > NAMED {
            fields.push_str(&format!(", and {} more", unserved.len() - NAMED));
        }
        tracing::warn!(
            fields,
            "dcgm.collectors-file: these fields are not served; remove their lines, or see docs/from-dcgm.md for the reasons"
        );
    }
    tracing::info!(fields = settings.collectors.len(), "serving the families of dcgm-exporter");
    Ok(Some(settings))
}

/// The families that the exporter serves.
pub(super) fn families(settings: dcgm::Settings, exporter: &Exporter) -> Arc<Families> {
    Families::new(exporter.snapshot.clone(), exporter.metrics.settings().clone(), settings)
}
