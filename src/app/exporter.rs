//! Everything in the exporter except its web server.

use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use super::{cluster, settings};
use crate::attribution::{self, Attribution};
use crate::config::{Config, Probes};
use crate::demo::SimulatedMachine;
use crate::faults::Faults;
use crate::lanes::Lanes;
use crate::nvml::Library;
use crate::recorder::Recorder;
use crate::snapshot::Snapshot;
use gpu_calls::CallWatch;
use gpu_metrics::Metrics;

/// The exporter without its web server.
pub(super) struct Exporter {
    pub(super) config: Config,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) faults: Arc<Faults>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) lanes: Lanes,
    /// `None` if the recorder is switched off.
    pub(super) recorder: Option<Arc<Recorder>>,
    /// The probes end with the exporter. `None` if there are none.
    _calls: Option<CallWatch>,
    /// The followers end when this set is dropped.
    _followers: JoinSet<()>,
    /// Keeps the simulated `/proc` while the exporter runs.
    _machine: Option<SimulatedMachine>,
}

impl Exporter {
    /// Starts all parts. Call it within a runtime.
    pub(super) fn start(mut config: Config, faults: Arc<Faults>) -> Result<Self> {
        let machine = config.demo.as_deref().map(SimulatedMachine::prepare).transpose()?;
        let library = match (&machine, &config.nvml.library) {
            (Some(machine), _) => machine.library(),
            (None, Some(path)) => Library::At(path.clone()),
            (None, None) => Library::Search,
        };
        if let Some(machine) = &machine {
            config = machine.adapt(config);
            if std::mem::take(&mut config.memory.probes) != Probes::None {
                tracing::warn!("memory.probes has no effect with --demo: simulated processes call no driver");
            }
        }
        let snapshot = Snapshot::recorded(settings::feed(&config), settings::call_feed(&config));
        let metrics =
            Arc::new(Metrics::new(snapshot.clone(), faults.clone(), settings::metrics(&config, sees_host(&config)))?);
        let left_out = metrics.settings().selection.left_out().len();
        if left_out > 0 {
            tracing::info!(
                families = left_out,
                "metrics.include and metrics.exclude leave out families; docs/configuration.md lists those that alerts need"
            );
        }
        let attribution = Attribution::new(settings::attribution(&config), snapshot.clone(), faults.clone());
        let mut followers = cluster::follow(&config, &snapshot, &faults);
        if let Some(simulated) = machine.as_ref().and_then(SimulatedMachine::cluster) {
            cluster::simulate(simulated, &config.kubernetes, &snapshot, &mut followers);
        }
        if let Some(machine) = &machine {
            cluster::simulate_allocators(machine.allocators(config.memory.peak_window), &snapshot, &mut followers);
        }
        let lanes = Lanes::start(settings::lanes(&config, library), attribution, snapshot.clone(), faults.clone())
            .context("the lanes could not be started")?;
        let recorder = settings::recorder(&config)
            .map(|settings| Recorder::start(settings, snapshot.clone(), faults.clone()))
            .transpose()
            .context("the recorder could not be started")?;
        let calls = settings::calls(&config)
            .map(|settings| CallWatch::start(settings, snapshot.clone(), faults.clone()))
            .transpose()
            .context("the probes could not be started")?;
        Ok(Self {
            config,
            snapshot,
            faults,
            metrics,
            lanes,
            recorder,
            _calls: calls,
            _followers: followers,
            _machine: machine,
        })
    }
}

/// Whether the driver shows the host's processes to the exporter; `None` if that is unknown. Warns if they are hidden.
fn sees_host(config: &Config) -> Option<bool> {
    if let Err(foreign) = attribution::check_procfs(&config.path.procfs, std::process::id()) {
        tracing::warn!("{foreign}");
    }
    let sees_host = attribution::sees_host_processes(&config.path.procfs);
    if sees_host == Some(false) {
        tracing::warn!(
            "the exporter has a pid namespace of its own: the driver hides all other processes from it, and \
             their memory is shown as unattributed, or not at all on a GPU that shares the machine's memory; give it \
             the host's pid namespace (hostPID: true, docker run --pid=host)"
        );
    }
    sees_host
}
