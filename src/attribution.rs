//! Who a process is and where it lives: its name, its user, its start, its cgroup, from `/proc`; and the name of its pod, as
//! far as the snapshot knows its container.
//!
//! Invariant: a process is (pid, start time). What is known of a pid is shown only after a look that its process still
//! lives; a pid that was given to another process is resolved anew. Nothing here waits for the network.

mod boot;
mod cgroup;
mod directory;
mod interpreter;
mod name;
mod record;
mod users;
mod workload;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use boot::Boot;
use directory::{Directory, ReadError};
use users::Users;

use crate::faults::{Faults, Reason, Source};
use crate::snapshot::{Home, Owner, Snapshot};

/// How many directories are held open; beyond it a start time is read at each look.
const HELD: usize = 512;
/// The pid namespace that the kernel starts with: its number is fixed (`PROC_PID_INIT_INO`).
const MACHINE_PID_NAMESPACE: &str = "pid:[4026531836]";
/// Bytes of the arguments that are looked at.
const CMDLINE_LIMIT: u64 = 64 * 1024;
/// Bytes of the cgroup file: a dozen hierarchies with paths of the longest kind.
const CGROUP_LIMIT: u64 = 64 * 1024;
/// Bytes of the arguments that are shown where the configuration asks for them.
const COMMAND_LIMIT: usize = 4096;

/// Where to look.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The directory that `/proc` of the machine is mounted at.
    pub procfs: PathBuf,
    /// A file in the format of `/etc/passwd`; `None` asks the machine's own name service.
    pub passwd: Option<PathBuf>,
    /// Whether to tell the command line, which can hold secrets.
    pub command_line: bool,
}

/// When a process started: with the pid, what makes it this process and no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StartTime {
    /// Clock ticks since boot.
    Ticks(u64),
    /// The process cannot be seen: it lives in another pid namespace, it is hidden, or it has ended.
    Unknown,
}

/// Who has a pid now.
#[derive(Debug, Clone)]
pub struct Identity {
    /// When it started.
    pub start: StartTime,
    /// Whose it is; all unknown where the process cannot be seen.
    pub owner: Arc<Owner>,
}

/// What is known of the processes on the GPUs.
#[derive(Debug)]
pub struct Attribution {
    settings: Settings,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    boot: Boot,
    /// The exporter's own cgroups, once they were read.
    own_cgroup: Option<Vec<u8>>,
    users: Users,
    known: HashMap<u32, Known>,
    nobody: Arc<Owner>,
}

/// One process, resolved.
#[derive(Debug)]
struct Known {
    directory: Directory,
    start: u64,
    owner: Arc<Owner>,
    /// Whether it is known where the process lives; until then it is asked at each look.
    placed: bool,
    /// Whether it had ended already when it was resolved.
    ended: bool,
    /// Identified since the last sweep.
    wanted: bool,
}

impl Attribution {
    /// Knows nobody yet; reads nothing. Of the snapshot only the names of containers are read.
    pub fn new(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) -> Self {
        let boot = Boot::new(&settings.procfs);
        let users = Users::new(settings.passwd.clone());
        Self {
            settings,
            snapshot,
            faults,
            boot,
            own_cgroup: None,
            users,
            known: HashMap::new(),
            nobody: Arc::default(),
        }
    }

    /// Who has this pid now. Cheap for a process that is known already; never waits for a name service.
    pub fn identify(&mut self, pid: u32) -> Identity {
        let mut known = match self.recall(pid).and_then(|known| known.map_or_else(|| self.resolve(pid), Ok)) {
            Ok(known) => known,
            Err(error) => {
                if !error.is_gone() {
                    self.faults.report(Source::Attribution, Reason::Unreadable, None, &error);
                }
                return Identity { start: StartTime::Unknown, owner: self.nobody.clone() };
            }
        };
        if !known.placed
            && let Some(home) = self.home(&known.directory, known.ended)
        {
            known.placed = true;
            known.owner = Arc::new(Owner { home, ..(*known.owner).clone() });
        }
        let known = self.known.entry(pid).insert_entry(known).into_mut();
        known.wanted = true;
        // The names may have come, or changed, since the process was resolved.
        let user = known.owner.uid.and_then(|uid| self.users.name(uid, &self.faults));
        known.name(user, &self.snapshot);
        Identity { start: StartTime::Ticks(known.start), owner: known.owner.clone() }
    }

    /// [`sees_host_processes`] of the procfs that is read here.
    pub fn sees_host_processes(&self) -> Option<bool> {
        sees_host_processes(&self.settings.procfs)
    }

    /// Forgets the pids that were not identified since the last sweep. To be called after a pass over all GPUs.
    pub fn sweep(&mut self) {
        self.known.retain(|_, known| std::mem::take(&mut known.wanted));
    }

    /// Takes what is known of the pid out, if it is still the same process.
    fn recall(&mut self, pid: u32) -> Result<Option<Known>, ReadError> {
        let Some(mut known) = self.known.remove(&pid) else { return Ok(None) };
        Ok(known.directory.is_still(known.start)?.then_some(known))
    }

    fn resolve(&mut self, pid: u32) -> Result<Known, ReadError> {
        let hold = self.known.values().filter(|known| known.directory.is_held()).count() < HELD;
        let mut directory = Directory::open(&self.settings.procfs, pid, hold)?;
        let stat = directory.stat()?;
        let uid = self.part(directory.effective_uid());
        let cmdline = self.part(directory.cmdline(CMDLINE_LIMIT)).unwrap_or_default();
        let home = self.home(&directory, stat.ended);
        let start = self.boot.at(stat.start).unwrap_or_else(|error| {
            self.faults.report(Source::Attribution, Reason::Unreadable, None, &error);
            None
        });
        let owner = Owner {
            name: name::name(&stat.comm, &cmdline),
            uid,
            user: None,
            start,
            command: self.settings.command_line.then(|| command(&cmdline)).flatten(),
            home: home.clone().unwrap_or_default(),
            workload: None,
        };
        // Read by path, the files may belong to two processes that followed one another.
        if !directory.is_held() && !directory.is_still(stat.start)? {
            let path = self.settings.procfs.join(pid.to_string());
            return Err(ReadError::Io { path, source: std::io::ErrorKind::NotFound.into() });
        }
        Ok(Known {
            directory,
            start: stat.start,
            owner: Arc::new(owner),
            placed: home.is_some(),
            ended: stat.ended,
            wanted: true,
        })
    }

    /// Where a process lives. `None` where that cannot be read, or where the kernel may have taken an `ended` one out of
    /// its place already.
    fn home(&mut self, directory: &Directory, ended: bool) -> Option<Home> {
        let cgroup = self.part(directory.cgroup(CGROUP_LIMIT))?;
        let home = cgroup::home(&cgroup, self.own_cgroup());
        (!ended || home.boundary.is_some()).then_some(home)
    }

    /// The exporter's own cgroups; empty where they cannot be read, as in a simulated `/proc`.
    fn own_cgroup(&mut self) -> &[u8] {
        let path = self.settings.procfs.join("self/cgroup");
        self.own_cgroup.get_or_insert_with(|| {
            let file = std::fs::File::open(path).ok();
            file.and_then(|file| directory::read_bounded(file, CGROUP_LIMIT).ok()).unwrap_or_default()
        })
    }

    /// One thing that may be unknown without making the rest so.
    fn part<T>(&self, read: Result<T, ReadError>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(error) => {
                if !error.is_gone() {
                    self.faults.report(Source::Attribution, Reason::Unreadable, None, &error);
                }
                None
            }
        }
    }
}

impl Known {
    /// Fills in what others know of the process by now: its user's name and its pod's.
    fn name(&mut self, user: Option<&str>, snapshot: &Snapshot) {
        let owner = &self.owner;
        // A container id is never given twice, so a pod that was once named stays.
        let named = owner.workload.as_ref().and_then(|workload| workload.pod.clone());
        let pod = named.clone().or_else(|| {
            let container = workload::cluster_container(&owner.home)?;
            snapshot.pods.load().containers.get(container).cloned()
        });
        let known = owner.workload.is_some() || !self.placed;
        if known && owner.user.as_deref() == user && pod == named {
            return;
        }
        let workload = workload::workload(&owner.home, owner.uid, user, pod.as_ref()).filter(|_| self.placed);
        // The same workload stays the same object, so that it can be told apart at a glance.
        let workload = match &owner.workload {
            Some(before) if workload.as_ref() == Some(before) => Some(before.clone()),
            _ => workload.map(Arc::new),
        };
        self.owner = Arc::new(Owner { user: user.map(str::to_owned), workload, ..(**owner).clone() });
    }
}

/// Whether the exporter is in the machine's own pid namespace. In another one it sees the processes of that one only, and
/// the driver lists no others to it. `None` where the procfs does not tell, as a simulated one.
pub fn sees_host_processes(procfs: &Path) -> Option<bool> {
    let namespace = std::fs::read_link(procfs.join("self/ns/pid")).ok()?;
    Some(namespace.as_os_str() == MACHINE_PID_NAMESPACE)
}

/// The arguments parted by spaces; `None` where there are none.
fn command(cmdline: &[u8]) -> Option<String> {
    let joined = name::arguments(cmdline).join(&b' ');
    let mut text = String::from_utf8_lossy(&joined).into_owned();
    if let Some((end, _)) = text.char_indices().take_while(|(at, _)| *at <= COMMAND_LIMIT).last()
        && text.len() > COMMAND_LIMIT
    {
        text.truncate(end);
    }
    (!text.is_empty()).then_some(text)
}
