//! The owners of processes: a thread that reads names and users while the processes live, because the processes have
//! ended when the report is written.
//!
//! Invariant: the sampler never waits for this thread. A name is kept only if the process that was read is the one that
//! was listed, with the same start time.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::record::{Membership, ProcessKey};
use crate::attribution::{Attribution, Settings, StartTime};
use crate::config::Config;
use crate::faults::Faults;
use crate::snapshot::{Owner, Snapshot};

/// The `/proc` of the kernel, which shows the command and its descendants.
const PROC: &str = "/proc";
/// How often a process is looked up again whose user is not known yet.
const RETRY: Duration = Duration::from_millis(200);
/// How long a user may stay unknown before the process is no longer looked up.
const PATIENCE: Duration = Duration::from_secs(2);

/// The owners by process.
pub(super) type Owners = HashMap<ProcessKey, Arc<Owner>>;

#[derive(Debug)]
enum Request {
    Name(ProcessKey, Membership),
    /// Answered when everything requested before has been done.
    Flush(Sender<()>),
}

/// The names that are known.
#[derive(Debug, Clone)]
pub(super) struct Names {
    requests: Sender<Request>,
    owners: Arc<Mutex<Owners>>,
}

impl Names {
    /// Starts the thread. The processes of others are looked up where the configuration says, which is the simulated
    /// `/proc` for simulated GPUs.
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

    /// Looks up a process soon.
    pub(super) fn look_up(&self, key: ProcessKey, membership: Membership) {
        // Without the thread there are no names.
        let _ = self.requests.send(Request::Name(key, membership));
    }

    /// The owners that are known, after at most `limit`.
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
    /// Whether the processes of others are looked up in another `/proc` than the kernel's.
    other_procfs: bool,
    owners: Arc<Mutex<Owners>>,
    /// Processes whose users are not known yet, with the time until which they are looked up.
    open: Vec<(ProcessKey, Membership, Instant)>,
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
        self.tree.sweep();
        self.others.sweep();
    }

    /// Returns whether everything that can be known is known.
    fn read(&mut self, key: ProcessKey, membership: Membership) -> bool {
        let attribution = if membership == Membership::Tree { &mut self.tree } else { &mut self.others };
        let Some(identity) = attribution.identify_all(&[key.pid]).pop() else { return true };
        let StartTime::Ticks(read) = identity.start else { return false };
        // The kernel's /proc does not show a simulated process, so that its start time is not known from there.
        let is_same = key.start == Some(read) || (self.other_procfs && membership != Membership::Tree);
        if is_same {
            self.owners.lock().insert(key, identity.owner.clone());
        }
        !is_same || identity.owner.user.is_some()
    }
}
