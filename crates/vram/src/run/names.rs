//! The owners of processes: a thread reads names and users while the processes are alive, because the processes will have
//! ended by the time the report is written.
//!
//! Invariant: neither the lanes nor the socket wait for this thread. A name is kept only if the process that was read is the
//! one that was listed, that is, if both have the same start time.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gpu_readings::attribution::{Attribution, Settings};
use gpu_readings::faults::Faults;
use gpu_readings::snapshot::{GpuProcesses, Owner, ProcessId, Snapshot};
use parking_lot::Mutex;
use vram_exporter::config::Config;

use super::record::Membership;
use super::tree::{Found, Tree};

/// The kernel's `/proc`, which shows the command and its descendants.
const PROC: &str = "/proc";
/// The maximum number of owners that are remembered.
const MOST: usize = 8192;

/// The owner of each process.
pub(super) type Owners = HashMap<ProcessId, Arc<Owner>>;

#[derive(Debug)]
enum Request {
    Name(ProcessId),
    /// Answered once all earlier requests have been handled.
    Flush(Sender<()>),
}

/// Which processes belong to the command, and the names that are known.
#[derive(Debug, Clone)]
pub(super) struct Names {
    requests: Sender<Request>,
    known: Arc<Mutex<Known>>,
}

#[derive(Debug)]
struct Known {
    tree: Tree,
    owners: Owners,
    /// The processes whose names have been requested.
    requested: HashSet<ProcessId>,
    /// Whether the lanes look processes up in a `/proc` other than the kernel's, such as the simulated one. The kernel's does
    /// not show simulated processes, so it does not provide their start times.
    other_procfs: bool,
}

impl Names {
    /// Starts the thread. If there can be none, the report shows pids.
    pub(super) fn start(config: &Config) -> Self {
        let other_procfs = config.path.procfs != Path::new(PROC);
        let passwd = config.path.passwd.clone().filter(|_| !other_procfs);
        let settings = Settings { procfs: PROC.into(), passwd, command_line: false, hold: 0 };
        let attribution = Attribution::new(settings, Snapshot::new(), Arc::new(Faults::default()));
        let tree = Tree::below(std::process::id());
        let known = Known { tree, owners: Owners::new(), requested: HashSet::new(), other_procfs };
        let (known, (requests, arriving)) = (Arc::new(Mutex::new(known)), channel());
        let shared = known.clone();
        let _ = thread::Builder::new().name("names".into()).spawn(move || read(attribution, &arriving, &shared));
        Self { requests, known }
    }

    /// The process that has the pid now. Unless the command did not start it, its name is read soon.
    pub(super) fn find(&self, pid: u32, now: Instant) -> Found {
        let known = &mut *self.known.lock();
        let found = known.tree.find(pid, now);
        let may_belong = found.membership != Membership::Other && found.key.start_ticks.is_some();
        let is_known = known.owners.get(&found.key).is_some_and(|owner| owner.user.is_some());
        if may_belong && !is_known && known.owners.len() < MOST && known.requested.insert(found.key) {
            // If the thread has ended, there are no names.
            let _ = self.requests.send(Request::Name(found.key));
        }
        found
    }

    /// Takes over the names of the processes in a list that the command did not start.
    pub(super) fn learn(&self, list: &GpuProcesses) {
        let Some(at) = list.at else { return };
        let known = &mut *self.known.lock();
        for process in list.processes.iter().filter(|process| process.alive) {
            let found = known.tree.find(process.pid, at);
            if found.membership != Membership::Tree {
                known.remember(found.key, &process.owner, known.other_procfs);
            }
        }
    }

    /// The owners that are known once all requests have been handled, or after `limit` at the latest.
    pub(super) fn finish(&self, limit: Duration) -> Owners {
        let (done, flushed) = channel();
        if self.requests.send(Request::Flush(done)).is_ok() {
            let _ = flushed.recv_timeout(limit);
        }
        self.known.lock().owners.clone()
    }
}

impl Known {
    /// Remembers the owner, if it is known to be that of the process.
    fn remember(&mut self, key: ProcessId, owner: &Arc<Owner>, is_same: bool) {
        let has_room = self.owners.len() < MOST || self.owners.contains_key(&key);
        if has_room && (is_same || owner.start_ticks == key.start_ticks) {
            self.owners.insert(key, owner.clone());
        }
    }
}

/// Reads names until nobody can request any.
fn read(mut attribution: Attribution, requests: &Receiver<Request>, known: &Mutex<Known>) {
    for request in requests {
        match request {
            Request::Name(key) => {
                let owners = attribution.identify_all(&[key.pid]);
                attribution.sweep(|_| true);
                let mut known = known.lock();
                // A user who is not known yet is looked for again when the process is found again.
                known.requested.remove(&key);
                owners.iter().for_each(|owner| known.remember(key, owner, false));
            }
            Request::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}
