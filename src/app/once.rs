//! `--once`: one reading of everything, and its exposition.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::exporter::Exporter;
use super::{cluster, runtime};
use crate::config::Config;
use crate::faults::Faults;
use crate::snapshot::{GpuMemory, GpuState, Lane, Snapshot};

/// The longest wait for a first reading of everything.
const ONCE: Duration = Duration::from_secs(10);
/// Maximum process interval under `--once`, so that the first complete list comes quickly.
const ONCE_INTERVAL: Duration = Duration::from_millis(250);
/// The longest wait for the names of users.
const NAMES: Duration = Duration::from_secs(1);

/// Reads everything once and returns the exposition.
///
/// # Errors
/// When the exposition cannot be built, or the demo has no simulator.
pub fn once(config: Config) -> Result<Vec<u8>> {
    runtime::run(&config.log.clone(), read_once(config))
}

async fn read_once(mut config: Config) -> Result<Vec<u8>> {
    config.process.interval = config.process.interval.min(ONCE_INTERVAL);
    let exporter = Exporter::start(config, Arc::new(Faults::default()))?;
    let kubernetes = &exporter.config.kubernetes;
    wait_until(kubernetes.timeout, || cluster::has_answered(kubernetes, &exporter.snapshot)).await;
    let answered = Instant::now();
    wait_until(ONCE, || has_read_all(&exporter.snapshot, answered)).await;
    // A user name may arrive only after the process is first shown; a uid without a name never gets one.
    wait_until(NAMES, || has_names(&exporter.snapshot)).await;
    let exposition = exporter.metrics.encode().context("the exposition could not be built");
    exporter.lanes.stop();
    exposition
}

async fn wait_until(limit: Duration, done: impl Fn() -> bool) {
    let deadline = Instant::now() + limit;
    while !done() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether every known uid of a process has a name.
fn has_names(snapshot: &Snapshot) -> bool {
    let processes = snapshot.processes.load();
    let mut owners = processes.gpus.iter().flat_map(|gpu| &gpu.processes).map(|process| &process.owner);
    owners.all(|owner| owner.uid.is_none() || owner.user.is_some())
}

/// Whether every lane has read every GPU that answers (the process lane at or after `since`), or the driver
/// cannot be opened.
fn has_read_all(snapshot: &Snapshot, since: Instant) -> bool {
    let driver = snapshot.driver.load();
    let memory = snapshot.memory.load();
    let processes = snapshot.processes.load();
    // The first round of telemetry includes the slow readings.
    let telemetry = snapshot.vitals.durations(Lane::Telemetry).buckets.iter().any(|&rounds| rounds > 0);
    let read = |(index, gpu): (usize, &GpuMemory)| {
        let listed = processes.gpus.get(index).is_some_and(|gpu| gpu.at.is_some_and(|at| at >= since));
        gpu.state == GpuState::Unreadable || (gpu.at.is_some() && listed)
    };
    let xids = snapshot.xids.load().gpus.len() == driver.gpus.len();
    let complete = driver.up && telemetry && xids && memory.gpus.len() == driver.gpus.len();
    (complete && memory.gpus.iter().enumerate().all(read)) || driver.problem.is_some()
}
