//! The log: on standard error, as key=value lines or JSON objects.

use anyhow::{Context, Result};
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::log_output::LogOutput;
use crate::config::{Log, LogFormat};

/// Initialises logging. A second call in the same process (in a test) changes nothing.
pub(super) fn start(log: &Log) -> Result<()> {
    let filter = filter(&log.level).with_context(|| format!("log.level {:?} is not a valid level", log.level))?;
    let registry = tracing_subscriber::registry().with(filter);
    let output = LogOutput::new();
    let started = match log.format {
        LogFormat::Logfmt => registry.with(tracing_logfmt::builder().layer().with_writer(output)).try_init(),
        LogFormat::Json => {
            registry.with(tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(output)).try_init()
        }
    };
    let _ = started;
    Ok(())
}

/// The filter for `log.level`. The crate that reads the GPUs is a part of the exporter, so what is set for the exporter's target
/// `vram_exporter`, or for a module in it, is also set for that crate, unless the level names the crate itself.
fn filter(level: &str) -> Result<Targets, ParseError> {
    let parts = level.split(',').map(str::trim);
    let readings = parts.clone().filter_map(|part| part.strip_prefix("vram_exporter"));
    let readings = readings.map(|rest| format!("gpu_readings{rest}"));
    readings.chain(parts.map(str::to_owned)).collect::<Vec<_>>().join(",").parse()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn the_most_exact_target_decides_before_the_bare_level() {
        let filter = filter("warn, vram_exporter=debug,vram_exporter::lanes=off").unwrap();
        assert!(filter.would_enable("vram_exporter::app", &Level::DEBUG));
        assert!(!filter.would_enable("gpu_readings::lanes::memory", &Level::ERROR));
        assert!(filter.would_enable("gpu_readings::faults", &Level::DEBUG));
        let named = super::filter("gpu_readings=info,vram_exporter=debug").unwrap();
        assert!(!named.would_enable("gpu_readings::faults", &Level::DEBUG));
        assert!(filter.would_enable("hyper", &Level::WARN) && !filter.would_enable("hyper", &Level::INFO));
        assert!(super::filter("vram_exporter=loud").is_err());
    }
}
