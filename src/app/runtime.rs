//! Sets up the process before its work, with the log on standard error, and shuts it down afterwards.

use std::future::Future;

use anyhow::{Context, Result};
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::heap;
use super::log_output::LogOutput;
use crate::config::{Log, LogFormat};

/// Starts logging and a runtime, and runs `work` on the runtime.
///
/// One thread is enough: a response takes a tenth of a millisecond, and what takes longer (a long scrape, a password, a
/// file that hangs) has its own thread. A connection is served on the thread that accepted it, without waking
/// another.
pub(super) fn run<T>(log: &Log, work: impl Future<Output = Result<T>>) -> Result<T> {
    start_logging(log)?;
    heap::share();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.thread_name("aside").enable_all().build().context("the web server could not be started")?;
    let outcome = runtime.block_on(work);
    // Does not wait for the runtime's threads, because one may hang forever on a file or a name service.
    runtime.shutdown_background();
    outcome
}

/// Initialises logging. A second call in the same process (in a test) changes nothing.
fn start_logging(log: &Log) -> Result<()> {
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
