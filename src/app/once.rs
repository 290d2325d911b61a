//! One reading of everything: the scrape that `--once` prints, or the machine as plain values for the tool `vram`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::exporter::Exporter;
use super::{cluster, runtime};
use crate::config::Config;
use crate::faults::Faults;
use crate::machine::{self, Document, Gpus};
use crate::snapshot::{GpuMemory, GpuState, Held, Lane, Snapshot};
use gpu_metrics::{Format, Parts};

/// The longest wait for a first reading of everything.
const ONCE: Duration = Duration::from_secs(10);
/// Maximum process interval under `--once`, so that the first complete list arrives quickly.
const ONCE_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum interval of the profiling samples under `--once`; the first two samples are this far apart.
const ONCE_PROFILING: Duration = Duration::from_millis(500);
/// The longest wait for the names of users.
const NAMES: Duration = Duration::from_secs(1);

/// The default log level, and the level that replaces it for plain values: they contain what the log would say.
const LEVELS: (&str, &str) = ("info", "error");

/// Reads everything once and returns the scrape. It also says whether there is a driver.
///
/// # Errors
/// When the exposition cannot be built, or the simulator of the demo cannot be opened.
pub fn once(config: Config) -> Result<Vec<u8>> {
    let scrape =
        |exporter: &Exporter| exporter.metrics.encode(Format::Text).context("the exposition could not be built");
    runtime::run(&config.log.clone(), read_once(config, scrape))
}

/// Reads everything once and returns the GPUs with their processes.
///
/// # Errors
/// When the simulator of the demo cannot be opened. [`check()`](super::check()) refuses a configuration that names something else
/// that cannot be used.
pub fn machine(mut config: Config) -> Result<Document<Gpus>> {
    if config.log.level == LEVELS.0 {
        config.log.level = LEVELS.1.to_owned();
    }
    let gpus = |exporter: &Exporter| {
        Ok(machine::gpus_with_processes(&Parts::load(&exporter.snapshot), exporter.metrics.settings()))
    };
    runtime::run(&config.log.clone(), read_once(config, gpus))
}

async fn read_once<T>(mut config: Config, answer: impl FnOnce(&Exporter) -> Result<T>) -> Result<T> {
    config.process.interval = config.process.interval.min(ONCE_INTERVAL);
    config.profiling.interval = config.profiling.interval.min(ONCE_PROFILING);
    let profiling = config.profiling.enabled;
    // A single reading has no history, so there is nothing to record.
    config.recorder.max_memory_mib = 0;
    let exporter = Exporter::start(config, Arc::new(Faults::default()))?;
    let config = &exporter.config;
    wait_until(config.kubernetes.timeout, || cluster::has_answered(config, &exporter.snapshot)).await;
    if !everything_is_read(&exporter.snapshot, profiling).await {
        tracing::warn!("not everything could be read within {ONCE:?}: values are missing from the output");
    }
    // A user name may arrive only after the process is first shown; a uid without a name never gets one.
    wait_until(NAMES, || has_names(&exporter.snapshot)).await;
    let answer = answer(&exporter);
    exporter.lanes.stop();
    answer
}

/// Waits until everything has been read once, but no longer than [`ONCE`]. Returns whether it has.
async fn everything_is_read(snapshot: &Snapshot, profiling: bool) -> bool {
    let begin = Instant::now();
    wait_until(ONCE, || has_sampled(snapshot)).await;
    // The limits of a workload come from what a pod declares and from the size of its device. Only the lists that are
    // read after both are known contain them.
    let known = Instant::now();
    wait_until(ONCE.saturating_sub(begin.elapsed()), || has_read_all(snapshot, profiling, known)).await
}

/// Waits until `done` returns `true`, but no longer than `limit`. Returns whether it did.
async fn wait_until(limit: Duration, done: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !done() {
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

/// Whether every GPU of the open driver, with its MIG devices, has been sampled or found unreadable, or the driver cannot
/// be opened.
fn has_sampled(snapshot: &Snapshot) -> bool {
    let driver = snapshot.driver.load();
    let memory = snapshot.memory.load();
    let is_sampled = |gpu: &GpuMemory| gpu.state == GpuState::Unreadable || gpu.at.is_some();
    let complete = driver.up && memory.gpus.len() == driver.gpus.len();
    (complete && memory.gpus.iter().all(is_sampled)) || driver.problem.is_some()
}

/// Whether every known uid of a process has a name.
fn has_names(snapshot: &Snapshot) -> bool {
    let processes = snapshot.processes.load();
    let mut owners = processes.gpus.iter().flat_map(|gpu| &gpu.processes).map(|process| &process.owner);
    owners.all(|owner| owner.uid.is_none() || owner.user.is_some())
}

/// Whether every lane has read every GPU that responds (the process lane at or after `since`; with `profiling`, two
/// samples of each GPU that has profiling counters), or the driver cannot be opened.
fn has_read_all(snapshot: &Snapshot, profiling: bool, since: Instant) -> bool {
    let driver = snapshot.driver.load();
    let memory = snapshot.memory.load();
    let processes = snapshot.processes.load();
    let sampled = snapshot.profiling.load();
    // The first round of telemetry includes the slow readings.
    let telemetry = snapshot.vitals.durations(Lane::Telemetry).buckets.iter().any(|&rounds| rounds > 0);
    let read = |(index, gpu): (usize, &GpuMemory)| {
        let list = processes.gpus.get(index).filter(|list| list.at.is_some_and(|at| at >= since));
        // The memory lane takes what the processes hold from the list, where the driver does not report the sum.
        let listed = list.is_some_and(|list| list.held.and_then(Held::exactly).is_none() || gpu.figures.is_some());
        let profiled = !profiling || sampled.gpus.get(index).is_some_and(|gpu| gpu.settled);
        gpu.state == GpuState::Unreadable || (listed && profiled)
    };
    let xids = snapshot.xids.load().gpus.len() == driver.gpus.len();
    let complete = has_sampled(snapshot) && telemetry && xids;
    (complete && memory.gpus.iter().enumerate().all(read)) || driver.problem.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Driver, Gpu, GpuProcesses, GpuXids, MemoryPart, ProcessPart, XidPart};

    #[tokio::test]
    async fn a_list_from_before_the_first_sample_does_not_count() {
        let (snapshot, gpu) = (Snapshot::new(), Arc::new(Gpu::default()));
        let list = |at| {
            let list = GpuProcesses { gpu: gpu.clone(), at: Some(at), ..GpuProcesses::default() };
            snapshot.processes.store(Arc::new(ProcessPart { gpus: vec![Arc::new(list)] }));
        };
        let memory = |at| {
            let memory = GpuMemory { at, ..GpuMemory::unsampled(gpu.clone()) };
            snapshot.memory.store(Arc::new(MemoryPart { gpus: vec![memory] }));
        };
        snapshot.driver.store(Arc::new(Driver { up: true, gpus: vec![gpu.clone()], ..Driver::default() }));
        let xids = GpuXids { gpu: gpu.clone(), errors: None, counted_since: None, last: None };
        snapshot.xids.store(Arc::new(XidPart { gpus: vec![xids] }));
        snapshot.vitals.observe(Lane::Telemetry, Duration::ZERO);
        memory(None);
        let mut waiting = std::pin::pin!(everything_is_read(&snapshot, false));
        let brief = Duration::from_millis(100);
        assert!(tokio::time::timeout(brief, &mut waiting).await.is_err(), "nothing has been read");
        list(Instant::now());
        memory(Some(Instant::now()));
        assert!(tokio::time::timeout(brief, &mut waiting).await.is_err(), "the list is older than the sample");
        list(Instant::now());
        assert!(waiting.await);
    }
}
