//! The owners of processes: a thread that reads names and users while the processes are alive, because the processes
//! will have ended by the time the report is written.
//!
//! Invariant: the sampler never waits for this thread. A name is kept only if the process that was read is the one that
//! was listed, that is, if both have the same start time.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gpu_readings::attribution::{Attribution, Settings};
use gpu_readings::faults::Faults;
use gpu_readings::snapshot::{Owner, ProcessId, Snapshot};
use parking_lot::Mutex;
use vram_exporter::config::Config;

use super::record::Membership;

/// The kernel's `/proc`, which shows the command and its descendants.
const PROC: &str = "/proc";
/// The pause before a process without a known user is looked up again.
const RETRY: Duration = Duration::from_millis(200);
/// How long a user may stay unknown before the process is no longer looked up.
const PATIENCE: Duration = Duration::from_secs(2);

/// The owner of each process.
pub(super) type Owners = HashMap<ProcessId, Arc<Owner>>;

#[derive(Debug)]
enum Request {
    Name(ProcessId, Membership),
    /// Answered once all earlier requests have been handled.
    Flush(Sender<()>),
}

/// The names that are known.
#[derive(Debug, Clone)]
pub(super) struct Names {
    requests: Sender<Request>,
    owners: Arc<Mutex<Owners>>,
}

impl Names {
    /// Starts the thread. Processes other than the command's are looked up in the configured `/proc`, which is the
    /// simulated one if the GPUs are simulated.
    pub(super) fn start(config: &Config) -> io::Result<Self> {
        let settings = Settings {
            procfs: config.path.procfs.clone(),
            passwd: config.path.passwd.clone(),
            command_line: false,
            hold: 0,
        };
        let (requests, arriving) = channel();
        let owners = Arc::new(Mutex::new(Owners::new()));
        let shared = owners.clone();
        thread::Builder::new().name("names".into()).spawn(move || Reader::new(settings, shared).run(&arriving))?;
        Ok(Self { requests, owners })
    }

    /// Requests that a process be looked up soon.
    pub(super) fn look_up(&self, key: ProcessId, membership: Membership) {
        // If the thread has ended, there are no names.
        let _ = self.requests.send(Request::Name(key, membership));
    }

    /// The owners that are known once all requests have been handled, or after `limit` at the latest.
    pub(super) fn finish(&self, limit: Duration) -> Owners {
        let (done, flushed) = channel();
        if self.requests.send(Request::Flush(done)).is_ok() {
            let _ = flushed.recv_timeout(limit);
        }
        self.owners.lock().clone()
    }
}

struct Reader {
    tree: Attribution,
    others: Attribution,
    /// Whether processes other than the command's are looked up in a `/proc` other than the kernel's.
    other_procfs: bool,
    owners: Arc<Mutex<Owners>>,
    /// Processes without a known user, each with the time after which the process is no longer looked up.
    open: Vec<(ProcessId, Membership, Instant)>,
}

impl Reader {
    fn new(settings: Settings, owners: Arc<Mutex<Owners>>) -> Self {
        let other_procfs = settings.procfs != Path::new(PROC);
        let tree = Settings {
            procfs: PROC.into(),
            passwd: if other_procfs { None } else { settings.passwd.clone() },
            ..settings.clone()
        };
        let attribution = |settings| Attribution::new(settings, Snapshot::new(), Arc::new(Faults::default()));
        Self { tree: attribution(tree), others: attribution(settings), other_procfs, owners, open: Vec::new() }
    }

    fn run(mut self, requests: &Receiver<Request>) {
        loop {
            match requests.recv_timeout(RETRY) {
                Ok(Request::Name(key, membership)) => {
                    self.open.push((key, membership, Instant::now() + PATIENCE));
                    self.read_open();
                }
                Ok(Request::Flush(done)) => {
                    self.read_open();
                    let _ = done.send(());
                }
                Err(RecvTimeoutError::Timeout) => self.read_open(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn read_open(&mut self) {
        let open = std::mem::take(&mut self.open);
        for (key, membership, until) in open {
            let is_named = self.read(key, membership);
            if !is_named && Instant::now() < until {
                self.open.push((key, membership, until));
            }
        }
        self.tree.sweep(|_| false);
        self.others.sweep(|_| false);
    }

    /// Returns whether everything that can be learned about the process is known.
    fn read(&mut self, key: ProcessId, membership: Membership) -> bool {
        let attribution = if membership == Membership::Tree { &mut self.tree } else { &mut self.others };
        let Some(owner) = attribution.identify_all(&[key.pid]).pop() else { return true };
        if owner.start_ticks.is_none() {
            return false;
        }
        // The kernel's /proc does not show simulated processes, so it does not provide their start times.
        let is_same = key.start_ticks == owner.start_ticks || (self.other_procfs && membership != Membership::Tree);
        let is_named = owner.user.is_some();
        if is_same {
            self.owners.lock().insert(key, owner);
        }
        !is_same || is_named
    }
}
