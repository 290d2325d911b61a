//! Listens, and publishes what the processes reported.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};

use super::checks::Checks;
use super::connection::Shared;
use super::credentials::StartTicks;
use super::table::Table;
use crate::faults::{Faults, Reason, Source};
use crate::snapshot::Snapshot;
use crate::supervise::supervise;
use crate::unix_socket::{self, Access, SocketFile};

/// The shortest time between two publications.
const PUBLISH: Duration = Duration::from_millis(100);
/// How often peaks that are too old for their window are dropped, silence is noticed, and reports are compared with the
/// driver's list.
const REVIEW: Duration = Duration::from_secs(1);
/// The pause before a task that panicked is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// The pause after a failed accept, while the system is out of resources.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The settings of the module.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The length of the peak window.
    pub peak_window: Duration,
    /// Tells processes with the same pid apart.
    pub start_ticks: StartTicks,
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
}

/// The running module. Dropping it ends all connections and removes the socket.
#[derive(Debug)]
pub struct Allocator {
    _tasks: JoinSet<()>,
}

impl Allocator {
    /// Starts to accept connections. Must be called within a runtime.
    pub fn start(listener: Listener, settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) -> Self {
        let shared = Arc::new(Shared {
            table: Mutex::new(Table::new(settings.peak_window)),
            changed: Notify::new(),
            snapshot,
            faults,
            start_ticks: settings.start_ticks,
        });
        let mut tasks = JoinSet::new();
        let (listener, accepting) = (Arc::new(listener), shared.clone());
        let start = move || accept(listener.clone(), accepting.clone());
        tasks.spawn(supervise(start, panicked(&shared), RESTART_PAUSE));
        let publishing = shared.clone();
        tasks.spawn(supervise(move || publish(publishing.clone()), panicked(&shared), RESTART_PAUSE));
        Self { _tasks: tasks }
    }
}

/// Counts a panic of a task as a fault.
fn panicked(shared: &Shared) -> impl Fn(JoinError) + Send + use<> {
    let faults = shared.faults.clone();
    move |error| faults.report(Source::Allocator, Reason::Panicked, None, &error)
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
                    shared.faults.report(Source::Allocator, Reason::Connection, None, &error);
                    tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                }
            },
            Some(ended) = connections.join_next() => if let Err(panicked) = ended {
                shared.faults.report(Source::Allocator, Reason::Panicked, None, &panicked);
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
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_a_fault() {
        let faults = Arc::new(Faults::default());
        let shared = Shared {
            table: Mutex::new(Table::new(Duration::from_secs(60))),
            changed: Notify::new(),
            snapshot: Snapshot::new(),
            faults: faults.clone(),
            start_ticks: StartTicks::new(|_| None),
        };
        let error = tokio::spawn(async { panic!("on purpose") }).await.unwrap_err();
        panicked(&shared)(error);
        assert_eq!(faults.count(Source::Allocator, Reason::Panicked), 1);
    }
}
