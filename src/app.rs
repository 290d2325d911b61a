//! Makes every part, ties them together and ends them: the one file that knows them all.

mod cluster;
mod descriptors;
mod heap;
mod logging;
mod service;
pub(crate) mod settings;
mod signals;
mod web_guard;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use web_config::Guard;

use crate::attribution::{self, Attribution};
use crate::config::{self, Config, ListenAddress};
use crate::demo::{self, SimulatedMachine};
use crate::faults::Faults;
use crate::http::{self, HttpState, Listener, Server};
use crate::lanes::Lanes;
use crate::metrics::Metrics;
use crate::nvml::Library;
use crate::snapshot::{GpuMemory, GpuState, Lane, Snapshot};

/// How long `--once` waits for a first reading of everything.
const ONCE: Duration = Duration::from_secs(10);
/// How often `--once` lists processes at least: what it waits for is shown by a list thereafter.
const ONCE_INTERVAL: Duration = Duration::from_millis(250);
/// How long `--once` waits for users' names.
const NAMES: Duration = Duration::from_secs(1);

/// The exporter without its web server.
struct Exporter {
    config: Config,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    metrics: Arc<Metrics>,
    lanes: Lanes,
    /// What follows the cluster, as long as it is held.
    _followers: JoinSet<()>,
    /// Holds the simulated `/proc` while the exporter runs.
    _machine: Option<SimulatedMachine>,
}

impl Exporter {
    /// To be called within a runtime.
    fn start(mut config: Config, faults: Arc<Faults>) -> Result<Self> {
        let machine = config.demo.as_deref().map(SimulatedMachine::prepare).transpose()?;
        let library = match (&machine, &config.nvml.library) {
            (Some(machine), _) => machine.library(),
            (None, Some(path)) => Library::At(path.clone()),
            (None, None) => Library::Search,
        };
        if let Some(machine) = &machine {
            config = machine.adapt(config);
        }
        let snapshot = Snapshot::new();
        let metrics = Arc::new(Metrics::new(snapshot.clone(), faults.clone(), metrics_settings(&config))?);
        let attribution = Attribution::new(settings::attribution(&config), snapshot.clone(), faults.clone());
        let followers = match machine.as_ref().and_then(SimulatedMachine::cluster) {
            Some(simulated) => cluster::simulate(simulated, &config.kubernetes, &snapshot),
            None => cluster::follow(&config.kubernetes, &snapshot, &faults),
        };
        let lanes = Lanes::start(settings::lanes(&config, library), attribution, snapshot.clone(), faults.clone())
            .context("the lanes could not be started")?;
        Ok(Self { config, snapshot, faults, metrics, lanes, _followers: followers, _machine: machine })
    }
}

fn metrics_settings(config: &Config) -> crate::metrics::Settings {
    if let Err(foreign) = attribution::check_procfs(&config.path.procfs, std::process::id()) {
        tracing::warn!("{foreign}");
    }
    let host_pid_namespace = attribution::sees_host_processes(&config.path.procfs);
    if host_pid_namespace == Some(false) {
        tracing::warn!(
            "the exporter has a pid namespace of its own: the driver hides all other processes from it, and what they hold is \
             shown as unattributed; give it the host's (hostPID: true, docker run --pid=host)"
        );
    }
    settings::metrics(config, host_pid_namespace)
}

/// What is wrong with something that the configuration names.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The web-config file, or a file that it names.
    #[error(transparent)]
    WebConfig(#[from] web_config::Error),
    /// The scenario of the demo.
    #[error(transparent)]
    Demo(#[from] demo::Error),
}

/// Checks what the configuration names and what must be right before anything starts: the web-config file and the demo's
/// scenario. Says what the file asks for, or nothing.
///
/// # Errors
/// When one of them cannot be taken.
pub fn check(config: &Config) -> Result<String, CheckError> {
    config.demo.as_deref().map(demo::check).transpose()?;
    let guarded = config.web.config_file.as_deref().map(Guard::check).transpose()?;
    Ok(guarded.map(|summary| format!("; web-config: {summary}")).unwrap_or_default())
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// When an address cannot be listened on, or the demo has no simulator.
pub fn serve(config: Config) -> Result<()> {
    logging::start(&config.log)?;
    heap::share();
    descriptors::take();
    let runtime = runtime()?;
    let served = runtime.block_on(run(config));
    leave(runtime);
    served
}

async fn run(config: Config) -> Result<()> {
    let stop = signals::stop_signal()?;
    let reread = signals::reread_signal()?;
    let release = signals::release_signal()?;
    let faults = Arc::new(Faults::default());
    let guard = Arc::new(web_guard::open(config.web.config_file.as_deref(), faults.clone())?);
    // Bound before anything is opened, so that a wrong address costs nothing.
    let listeners = listen(&config.web).await?;
    let health = bind(&config.web.health_addresses, "web.health-address").await?;
    health.iter().for_each(|listener| tracing::info!(address = listener.name(), "listening for probes"));
    let exporter = Exporter::start(config, faults)?;
    tokio::spawn(signals::follow_release_signal(
        release,
        exporter.lanes.driver_lease(),
        exporter.config.nvml.release_duration,
    ));
    let state = HttpState::new(
        exporter.metrics.clone(),
        exporter.snapshot.clone(),
        exporter.faults.clone(),
        &exporter.config.web.telemetry_path,
    );
    service::ready();
    let living = state.clone();
    let life_signs = tokio::spawn(service::life_signs(move || living.unhealthy()));
    let limits = settings::limits(&exporter.config.web);
    let server = |router, guard| Server::new(router, guard, limits.clone(), exporter.faults.clone());
    // Probes have neither certificate nor password.
    let open = Arc::new(Guard::open(None, |_| ())?);
    let probes = server(http::health_router(state.clone()), open);
    tokio::spawn(signals::follow_reread(reread, guard.clone()));
    let watching = tokio::spawn(guard.clone().watch());
    serve_until(vec![(server(http::router(state), guard), listeners), (probes, health)], stop).await;
    watching.abort();
    life_signs.abort();
    tokio::task::spawn_blocking(move || exporter.lanes.stop()).await.context("the lanes did not end")
}

/// One thread is enough: an answer takes a tenth of a millisecond, and whatever takes longer (a long scrape, a password, a file
/// that hangs) has a thread of its own. A connection is answered on the thread that took it in, without waking another one.
fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .thread_name("aside")
        .enable_all()
        .build()
        .context("the web server could not be started")
}

/// Ends without its threads: one that hangs in a file or a name service would be waited for for ever.
fn leave(runtime: Runtime) {
    runtime.shutdown_background();
}

/// Reads everything once and ends: the exposition.
///
/// # Errors
/// When the exposition cannot be built, or the demo has no simulator.
pub fn once(config: Config) -> Result<Vec<u8>> {
    logging::start(&config.log)?;
    heap::share();
    let runtime = runtime()?;
    let exposition = runtime.block_on(read_once(config));
    leave(runtime);
    exposition
}

async fn read_once(mut config: Config) -> Result<Vec<u8>> {
    config.process.interval = config.process.interval.min(ONCE_INTERVAL);
    let exporter = Exporter::start(config, Arc::new(Faults::default()))?;
    let kubernetes = &exporter.config.kubernetes;
    wait_until(kubernetes.timeout, || cluster::has_answered(kubernetes, &exporter.snapshot)).await;
    let answered = Instant::now();
    wait_until(ONCE, || has_read_all(&exporter.snapshot, answered)).await;
    // A name service answers after its process was shown, and a uid without a name never.
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

/// Whether every process whose user is known by number is known by name too.
fn has_names(snapshot: &Snapshot) -> bool {
    let processes = snapshot.processes.load();
    let mut owners = processes.gpus.iter().flat_map(|gpu| &gpu.processes).map(|process| &process.owner);
    owners.all(|owner| owner.uid.is_none() || owner.user.is_some())
}

/// Whether every lane has asked every GPU that answers, the processes not before `since`, or the driver cannot be opened.
fn has_read_all(snapshot: &Snapshot, since: Instant) -> bool {
    let driver = snapshot.driver.load();
    let memory = snapshot.memory.load();
    let processes = snapshot.processes.load();
    // A first round of telemetry holds the slow readings too.
    let telemetry = snapshot.vitals.durations(Lane::Telemetry).buckets.iter().any(|&rounds| rounds > 0);
    let read = |(index, gpu): (usize, &GpuMemory)| {
        let listed = processes.gpus.get(index).is_some_and(|gpu| gpu.at.is_some_and(|at| at >= since));
        gpu.state == GpuState::Unreadable || (gpu.at.is_some() && listed)
    };
    let xids = snapshot.xids.load().gpus.len() == driver.gpus.len();
    let complete = driver.up && telemetry && xids && memory.gpus.len() == driver.gpus.len();
    (complete && memory.gpus.iter().enumerate().all(read)) || driver.problem.is_some()
}

async fn listen(web: &config::Web) -> Result<Vec<Listener>> {
    let listeners = match web.systemd_socket {
        true => Listener::inherited()
            .context("--web.systemd-socket takes the sockets of a systemd .socket unit; without one, leave it out")?,
        false => bind(&web.listen_addresses, "web.listen-address").await?,
    };
    listeners.iter().for_each(|listener| tracing::info!(address = listener.name(), "listening"));
    Ok(listeners)
}

async fn bind(addresses: &[ListenAddress], key: &str) -> Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        let listener = Listener::bind(address).await;
        let listener =
            listener.with_context(|| format!("cannot listen on {address}; another address is chosen with --{key}"))?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Serves on every listener until `stop` is ready.
async fn serve_until(servers: Vec<(Arc<Server>, Vec<Listener>)>, stop: impl Future<Output = ()>) {
    let (ending, _) = watch::channel(false);
    let mut serving = JoinSet::new();
    for (server, listeners) in servers {
        for listener in listeners {
            let mut told = ending.subscribe();
            let end = async move {
                // An error means that the sender is gone: that is an end too.
                let _ = told.wait_for(|ending| *ending).await;
            };
            serving.spawn(server.clone().serve(listener, end));
        }
    }
    stop.await;
    service::stopping();
    ending.send_replace(true);
    // Each server bounds its own end.
    while serving.join_next().await.is_some() {}
}
