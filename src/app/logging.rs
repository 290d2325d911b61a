//! The log: on standard error, as key=value lines or JSON objects.

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{Log, LogFormat};

/// Starts the log. A second start in one process (a test) leaves the first in place.
pub(super) fn start(log: &Log) -> Result<()> {
    let filter = EnvFilter::try_new(&log.level).with_context(|| format!("log.level {:?} is no level", log.level))?;
    let registry = tracing_subscriber::registry().with(filter);
    let started = match log.format {
        LogFormat::Logfmt => registry.with(tracing_logfmt::builder().layer().with_writer(std::io::stderr)).try_init(),
        LogFormat::Json => registry
            .with(tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(std::io::stderr))
            .try_init(),
    };
    let _ = started;
    Ok(())
}
