//! Listens for connections, and publishes what the processes reported.

use std::error::Error;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use super::checks::Checks;
use super::connection::Shared;
use super::credentials::StartTicks;
use super::limits;
use super::outcome::Outcomes;
use super::table::Table;
use crate::faults::{Faults, Reason, Source};
use crate::snapshot::Snapshot;
use crate::supervise::supervise;
use crate::unix_socket::{self, Access, SocketFile};

/// The shortest time between two publications.
const PUBLISH: Duration = Duration::from_millis(100);
/// How often peaks that are too old for their window are dropped, silent connections are detected, and reports are
/// compared with the driver's list.
const REVIEW: Duration = Duration::from_secs(1);
/// During the shutdown: the time between two checks whether all connections have ended.
const LOOK: Duration = Duration::from_millis(2);
/// The pause before a task that panicked is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// The settings of the module.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The length of the peak window.
    pub peak_window: Duration,
    /// Whether what the memory is, by role and call site, is taken in.
    pub sites: bool,
    /// Distinguishes processes with the same pid.
    pub start_ticks: StartTicks,
    /// Receives the outcomes of each connection. If this is set, a process is served even if that process ended before
    /// the module could read its start time.
    pub outcomes: Option<Outcomes>,
}

/// A bound socket. Its file is removed when the socket is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    _created: SocketFile,
}

impl Listener {
    /// Binds the socket. Must be called within a runtime.
    ///
    /// # Errors
    /// When the path cannot be bound, or its mode or group cannot be set. The socket of an exporter that was killed is
    /// replaced; any other file is kept.
    pub async fn bind(path: &Path, mode: u32, group: Option<u32>) -> io::Result<Self> {
        let (socket, created) = unix_socket::bind(path, &Access { mode, group }).await?;
        Ok(Self { socket, path: path.to_owned(), _created: created })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a connection is waiting to be accepted.
    fn is_waited_for(&self) -> bool {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

/// The running module. Dropping it ends all connections and removes the socket.
#[derive(Debug)]
pub struct Allocator {
    tasks: JoinSet<()>,
    listener: Arc<Listener>,
    shared: Arc<Shared>,
}

impl Allocator {
    /// Starts to accept connections. Must be called within a runtime.
    pub fn start(listener: Listener, settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) -> Self {
        let shared = Arc::new(Shared {
            table: Mutex::new(Table::new(settings.peak_window)),
            questions: Mutex::default(),
            changed: Notify::new(),
            snapshot,
            faults,
            sites: settings.sites,
            start_ticks: settings.start_ticks,
            identifying: Arc::new(Semaphore::new(limits::IDENTIFIED_AT_ONCE)),
            outcomes: settings.outcomes,
        });
        let mut tasks = JoinSet::new();
        let (listener, accepting) = (Arc::new(listener), shared.clone());
        let socket = listener.clone();
        let start = move || accept(socket.clone(), accepting.clone());
        tasks.spawn(supervise(start, panicked(&shared), RESTART_PAUSE));
        let publishing = shared.clone();
        tasks.spawn(supervise(move || publish(publishing.clone()), panicked(&shared), RESTART_PAUSE));
        Self { tasks, listener, shared }
    }

    /// Reads every connection until its client has ended it, for `limit` at most, then ends the module. Afterwards all
    /// outcomes have been handed over. Must be called on a runtime with a single thread, because a connection that another
    /// thread is just accepting would be overlooked.
    pub async fn finish(self, limit: Duration) {
        let Self { tasks, listener, shared } = self;
        let read = async {
            while !shared.table.lock().is_empty() || listener.is_waited_for() {
                tokio::time::sleep(LOOK).await;
            }
        };
        if tokio::time::timeout(limit, read).await.is_err() {
            tracing::debug!("connections that are still open are ended");
        }
        drop(tasks);
        let open = shared.table.lock().ids();
        open.into_iter().for_each(|id| shared.close(id));
    }
}

/// Counts a panic of a task as a fault.
fn panicked(shared: &Shared) -> impl Fn(&dyn Error) + Send + use<> {
    let faults = shared.faults.clone();
    move |error: &dyn Error| faults.raise(Source::Allocator, Reason::Panicked, None, error)
}

async fn accept(listener: Arc<Listener>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.socket.accept() => match accepted {
                Ok((stream, _)) => {
                    if let Some((slot, peer)) = shared.admit(&stream) {
                        connections.spawn(shared.clone().serve(stream, slot, peer));
                    }
                }
                Err(error) => {
                    shared.faults.raise(Source::Allocator, Reason::Connection, None, &error);
                    tokio::time::sleep(unix_socket::ACCEPT_RETRY_PAUSE).await;
                }
            },
            Some(ended) = connections.join_next() => if let Err(panicked) = ended {
                shared.faults.raise(Source::Allocator, Reason::Panicked, None, &panicked);
            },
        }
    }
}

/// Publishes changes, and reviews all values once a second while there is a connection.
async fn publish(shared: Arc<Shared>) {
    let mut checks = Checks::default();
    let mut reviewed = Instant::now();
    loop {
        let is_idle = shared.table.lock().is_empty();
        if is_idle {
            shared.changed.notified().await;
        } else {
            // Either way the values are reviewed below.
            let _ = tokio::time::timeout(REVIEW, shared.changed.notified()).await;
        }
        let now = Instant::now();
        let part = shared.table.lock().part(now);
        if **shared.snapshot.allocator.load() != part {
            shared.snapshot.allocator.store(Arc::new(part));
        }
        if now.saturating_duration_since(reviewed) >= REVIEW {
            reviewed = now;
            shared.table.lock().forget_users(now);
            let part = shared.snapshot.allocator.load_full();
            for (reason, process, device) in checks.look(&part, &shared.snapshot, now) {
                let why = match reason {
                    Reason::Inconsistent => format!("it reports more reserved memory on {device} than it uses"),
                    _ => format!("the driver does not list it on {device}, about which it reports"),
                };
                shared.complain(Some(process.pid), reason, &why);
            }
        }
        tokio::time::sleep(PUBLISH).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::outcome::Outcome;
    use super::*;
    use crate::snapshot::AllocatorPart;
    use crate::snapshot::ProcessId;

    #[test]
    fn a_task_that_panics_is_a_fault() {
        let faults = Arc::new(Faults::default());
        let shared = Shared {
            table: Mutex::new(Table::new(Duration::from_secs(60))),
            questions: Mutex::default(),
            changed: Notify::new(),
            snapshot: Snapshot::new(),
            faults: faults.clone(),
            sites: false,
            start_ticks: StartTicks::new(|_| None),
            identifying: Arc::new(Semaphore::new(limits::IDENTIFIED_AT_ONCE)),
            outcomes: None,
        };
        panicked(&shared)(&std::fmt::Error);
        assert_eq!(faults.count(Source::Allocator, Reason::Panicked), 1);
    }

    const LINES: &str = concat!(
        r#"{"type":"hello","version":1}"#,
        "\n",
        r#"{"type":"report","framework":"jax","device":"GPU-1","allocated_bytes":3}"#,
        "\n",
        r#"{"type":"report","framework":"jax","device":"GPU-1","allocated_bytes":5}"#,
        "\n",
    );

    /// The running module, its outcomes, and clients of this process that have sent [`LINES`]. Nothing has been read yet.
    async fn with_clients(clients: usize) -> (Allocator, Arc<Snapshot>, Arc<Mutex<Vec<Outcome>>>, Vec<UnixStream>) {
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&folder.path().join("s"), 0o600, None).await.unwrap();
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let taking = outcomes.clone();
        let settings = Settings {
            peak_window: Duration::from_secs(60),
            sites: false,
            start_ticks: StartTicks::new(|pid| Some(ProcessId { pid, start_ticks: Some(1) })),
            outcomes: Some(Outcomes::new(move |more| taking.lock().extend(more))),
        };
        let path = listener.path().to_owned();
        let snapshot = Snapshot::new();
        let allocator = Allocator::start(listener, settings, snapshot.clone(), Arc::default());
        let connect = |_| {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(LINES.as_bytes()).unwrap();
            stream
        };
        (allocator, snapshot, outcomes, (0..clients).map(connect).collect())
    }

    fn peaks(outcomes: &Mutex<Vec<Outcome>>) -> Vec<Option<u64>> {
        outcomes.lock().iter().map(|outcome| outcome.allocated_peak).collect()
    }

    #[tokio::test]
    async fn what_ended_clients_sent_is_read_to_its_end() {
        let (allocator, _, outcomes, clients) = with_clients(3).await;
        drop(clients);
        assert_eq!(peaks(&outcomes), []);
        allocator.finish(Duration::from_secs(30)).await;
        assert_eq!(peaks(&outcomes), [Some(5); 3]);
    }

    #[tokio::test]
    async fn reads_that_hang_take_a_bounded_number_of_threads() {
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&folder.path().join("s"), 0o600, None).await.unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (released, running) = (Mutex::new(released), Arc::new(AtomicUsize::new(0)));
        let counted = running.clone();
        let start_ticks = StartTicks::new(move |pid| {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = released.lock().recv();
            Some(ProcessId { pid, start_ticks: Some(1) })
        });
        let settings = Settings { peak_window: Duration::from_secs(60), sites: false, start_ticks, outcomes: None };
        let path = listener.path().to_owned();
        let (snapshot, faults) = (Snapshot::new(), Arc::new(Faults::default()));
        let allocator = Allocator::start(listener, settings, snapshot, faults.clone());
        let _clients: Vec<_> = (0..20).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let refused = async {
            while faults.count(Source::Allocator, Reason::UnknownProcess) < 20 {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), refused).await.expect("each of them is refused in time");
        assert_eq!(running.load(Ordering::SeqCst), 1, "one user has one thread");
        drop(release);
        drop(allocator);
    }

    #[tokio::test]
    async fn a_client_that_stays_is_not_waited_for_and_its_values_are_handed_over() {
        let (allocator, snapshot, outcomes, _clients) = with_clients(1).await;
        let is_read = |part: &AllocatorPart| {
            part.processes.iter().flat_map(|process| &process.reports).any(|report| report.figures.allocated == Some(5))
        };
        let read = async {
            while !is_read(&snapshot.allocator.load()) {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), read).await.expect("in time");
        assert_eq!(peaks(&outcomes), []);
        allocator.finish(Duration::ZERO).await;
        assert_eq!(peaks(&outcomes), [Some(5)]);
    }
}
