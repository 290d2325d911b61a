//! Checks the files that the configuration names, and the names of families, before anything starts.

use web_config::Guard;

use crate::config::Config;
use crate::dcgm::{self, Collectors};
use crate::demo;
use crate::otlp;

use super::selection::{self, SelectionError};

/// A file or a family that the configuration names is invalid.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The web-config file, or a file that it names.
    #[error(transparent)]
    WebConfig(#[from] web_config::Error),
    /// The scenario of the demo.
    #[error(transparent)]
    Demo(#[from] demo::Error),
    /// The list of fields for dcgm-exporter's families.
    #[error(transparent)]
    Collectors(#[from] dcgm::Error),
    /// The headers, the certificates or the attributes for the OTLP receiver.
    #[error(transparent)]
    Otlp(#[from] otlp::Error),
    /// The patterns that choose the families.
    #[error(transparent)]
    Families(#[from] SelectionError),
}

/// Checks the web-config file, the demo's scenario, the collectors file, the names of families and the files for the OTLP receiver.
/// Returns a summary of the web-config file, which is empty if no file is configured.
///
/// # Errors
/// When one of them is invalid.
pub fn check(config: &Config) -> Result<String, CheckError> {
    config.demo.as_deref().map(demo::check).transpose()?;
    config.dcgm.collectors_file.as_deref().map(Collectors::from_file).transpose()?;
    selection::check(config)?;
    super::otlp::settings(config)?.as_ref().map(otlp::check).transpose()?;
    let guarded = config.web.config_file.as_deref().map(Guard::check).transpose()?;
    Ok(guarded.map(|summary| format!("; web-config: {summary}")).unwrap_or_default())
}
