//! The log: on standard error, as key=value lines or JSON objects.

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{Log, LogFormat};

/// The Kubernetes client tells each failed request as an error, and may print a whole answer. What matters of it is a
/// fault of ours and told once; who wants more names these targets in `log.level`.
const QUIET: &str = "kube_client=off,kube_runtime=off";

/// Starts the log. A second start in one process (a test) leaves the first in place.
pub(super) fn start(log: &Log) -> Result<()> {
    // What is named later wins over the same target named before.
    let filter = EnvFilter::try_new(format!("{QUIET},{}", log.level));
    let filter = filter.with_context(|| format!("log.level {:?} is no level", log.level))?;
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
