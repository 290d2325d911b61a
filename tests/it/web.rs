//! The web server over real sockets, and a client that writes HTTP by hand.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gpu_metrics::{Metrics, Settings};
use gpu_readings::faults::Faults;
use gpu_readings::snapshot::*;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use vram_exporter::config::Config;
use vram_exporter::http::{HttpState, Limits, Listener, Server, router};
use vram_exporter::internals::metrics_settings;
use web_config::Guard;

use crate::harness::{Answer, PATIENCE, connect};

/// A server on a free loopback port.
pub(crate) struct Served {
    pub(crate) runtime: Runtime,
    pub(crate) server: Arc<Server>,
    pub(crate) address: SocketAddr,
    pub(crate) stop: oneshot::Sender<()>,
    pub(crate) ended: JoinHandle<()>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) faults: Arc<Faults>,
    thread_name: String,
}

/// The exporter's defaults.
pub(crate) const LIMITS: Limits = Limits {
    max_requests: 40,
    max_connections: 512,
    read_timeout: Duration::from_secs(10),
    // Longer than any test takes on a busy machine. Tests of timeouts set their own.
    write_timeout: Duration::from_secs(600),
    idle_timeout: Duration::from_secs(300),
};

impl Served {
    pub(crate) fn start() -> Self {
        Self::with("/metrics", |_| ())
    }

    pub(crate) fn with(telemetry_path: &str, change: impl FnOnce(&mut HttpState)) -> Self {
        Self::within(LIMITS, telemetry_path, change)
    }

    pub(crate) fn within(limits: Limits, telemetry_path: &str, change: impl FnOnce(&mut HttpState)) -> Self {
        let (snapshot, faults) = (Snapshot::new(), Arc::new(Faults::default()));
        let settings =
            Settings { stale_after: Duration::from_secs(600), ..metrics_settings(&Config::default(), Some(true)) };
        let metrics = Arc::new(Metrics::new(snapshot.clone(), faults.clone(), settings).unwrap());
        let mut state = HttpState::new(metrics, snapshot.clone(), faults.clone(), telemetry_path);
        // No lane is started here, so none may count as dead, however long a test takes.
        state.alive_within = Duration::from_secs(3600);
        change(&mut state);
        let thread_name = thread_name();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).thread_name(&thread_name).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let listener: Listener = listener.try_into().unwrap();
        let address = listener.name().parse().unwrap();
        let (stop, stopped) = oneshot::channel();
        let guard = Arc::new(Guard::open(None, |_| ()).unwrap());
        let server = Server::new(router(state), guard, limits, faults.clone());
        let ended = runtime.spawn(server.clone().serve(listener, async move {
            let _ = stopped.await;
        }));
        Self { runtime, server, address, stop, ended, snapshot, faults, thread_name }
    }

    /// How many threads this server has.
    pub(crate) fn threads(&self) -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        // A thread may end after it is listed and before its name is read.
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name.trim_end() == self.thread_name).count()
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "")
    }

    pub(crate) fn ask(&self, method: &str, path: &str, headers: &str) -> Answer {
        ask(self.address, method, path, headers)
    }

    /// Serves with another server of this process, which ends with the runtime, and returns its address.
    pub(crate) fn beside(&self, server: Arc<Server>) -> SocketAddr {
        let listener = self.runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let listener: Listener = listener.try_into().unwrap();
        let address = listener.name().parse().unwrap();
        self.runtime.spawn(server.serve(listener, std::future::pending()));
        address
    }

    /// Publishes one GPU, whose memory sampling is in this state.
    pub(crate) fn show(&self, state: GpuState, name: &str, processes: Vec<Process>) {
        let gpu = Arc::new(Gpu { uuid: "GPU-0".to_owned(), name: Some(name.to_owned()), ..Gpu::default() });
        let figures = MemoryFigures {
            total: 80 << 30,
            used: 20 << 30,
            free: Some(60 << 30),
            window_peak: 40 << 30,
            peak: 50 << 30,
            ..MemoryFigures::default()
        };
        let memory =
            GpuMemory { state, at: Some(Instant::now()), figures: Some(figures), ..GpuMemory::unsampled(gpu.clone()) };
        let at = Some(Instant::now());
        let list = GpuProcesses { gpu: gpu.clone(), at, processes, ..GpuProcesses::default() };
        self.snapshot.memory.store(Arc::new(MemoryPart { gpus: vec![memory] }));
        self.snapshot.processes.store(Arc::new(ProcessPart { gpus: vec![Arc::new(list)] }));
        self.snapshot.driver.store(Arc::new(Driver { up: true, gpus: vec![gpu], ..Driver::default() }));
    }
}

/// A name that no other server in this process has, because tests run concurrently.
fn thread_name() -> String {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    format!("served-{}", STARTED.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn process(pid: u32, name: &str, used: u64) -> Process {
    let owner = Owner { name: Some(name.to_owned()), ..Owner::default() };
    Process { used: Some(used), ..Process::for_tests(pid, owner) }
}

pub(crate) fn ask(address: SocketAddr, method: &str, path: &str, headers: &str) -> Answer {
    Answer::ask(connect(address).unwrap(), method, path, headers).unwrap()
}

/// A client with this address that sends a request and reads nothing of the response.
pub(crate) fn deaf(server: SocketAddr, from: [u8; 4], request: &[u8]) -> TcpStream {
    let mut stream = connect_from(server, from);
    stream.write_all(request).unwrap();
    stream
}

/// Connects from a loopback address, with a small receive buffer: a larger one would take a whole response.
pub(crate) fn connect_from(server: SocketAddr, from: [u8; 4]) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&server.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub(crate) fn gunzip(bytes: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes).read_to_string(&mut text).unwrap();
    text
}
