//! Checks the files that the configuration names, and the names of families, before anything starts.

mod places;

use anyhow::Result;
use web_config::Guard;

use super::selection;
use crate::config::Config;
use crate::demo;
use crate::otlp;

/// What was found out about a configuration that is valid.
#[derive(Debug, Default)]
pub struct Checked {
    /// A summary of the web-config file, which is empty if no file is configured.
    pub web_config: String,
    /// What would not work on this machine at present, one line each. The exporter starts all the same, or refuses to listen.
    pub warnings: Vec<String>,
}

/// Checks the web-config file, the demo's scenario, the collectors file, the names of families and the files for the OTLP
/// receiver: what the exporter refuses to start with.
///
/// # Errors
/// When one of them is invalid.
pub fn check(config: &Config) -> Result<Checked> {
    config.demo.as_deref().map(demo::check).transpose()?;
    let warnings = super::dcgm_fields::warnings(config)?;
    selection::check(config)?;
    super::settings::otlp(config)?.as_ref().map(otlp::check).transpose()?;
    let guarded = config.web.config_file.as_deref().map(Guard::check).transpose()?;
    let web_config = guarded.map(|summary| format!("; web-config: {summary}")).unwrap_or_default();
    Ok(Checked { web_config, warnings })
}

/// The same, and the folders and files of this machine. A running exporter tries those again, so it does not wait for them
/// when it starts.
///
/// # Errors
/// As [`check`], and when something else is in the place of a folder.
pub fn check_places(config: &Config) -> Result<Checked> {
    let mut checked = check(config)?;
    checked.warnings.extend(places::check(config)?);
    Ok(checked)
}
