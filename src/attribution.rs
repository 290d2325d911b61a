//! Who a process is and where it lives: its name, its user, its start, its cgroup, from `/proc`; and the name of its pod, as
//! far as the snapshot knows its container.
//!
//! Invariant: a process is (pid, start time). What is known of a pid is shown only after a look that its process still
//! lives; a pid that was given to another process is resolved anew. Nothing here waits for the network, and for files of a
//! process that hang only a bounded time.

mod boot;
mod cgroup;
mod directory;
mod interpreter;
mod known;
mod name;
mod reader;
mod record;
#[cfg(any(test, fuzzing))]
pub mod trials;
mod users;
mod workload;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use boot::Boot;
use directory::{Directory, ReadError};
use known::Known;
use reader::{Ask, CGROUP_LIMIT, Hung, Readers, Reading, Straggler};
use record::Stat;
use users::Users;

use crate::faults::{Faults, Reason, Source};
use crate::snapshot::{Home, Owner, Snapshot};

/// How many directories are held open; beyond it a start time is read at each look.
const HELD: usize = 512;
/// The pid namespace that the kernel starts with: its number is fixed (`PROC_PID_INIT_INO`).
const MACHINE_PID_NAMESPACE: &str = "pid:[4026531836]";
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
    readers: Readers,
    known: HashMap<u32, Known>,
    /// Pids whose process hangs before its start could be read.
    wedged: HashMap<u32, Straggler>,
    nobody: Arc<Owner>,
}

impl Attribution {
    /// Knows nobody yet; reads nothing. Of the snapshot only the names of containers are read.
    pub fn new(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) -> Self {
        let boot = Boot::new(&settings.procfs);
        let users = Users::new(settings.passwd.clone());
        let readers = Readers::new(settings.procfs.clone());
        Self {
            settings,
            snapshot,
            faults,
            boot,
            own_cgroup: None,
            users,
            readers,
            known: HashMap::new(),
            wedged: HashMap::new(),
            nobody: Arc::default(),
        }
    }

    /// Who has this pid now.
    pub fn identify(&mut self, pid: u32) -> Identity {
        self.identify_all(&[pid]).pop().unwrap_or_else(|| self.unseen())
    }

    /// Who has each of these pids now, in their order. Cheap for processes that are known already; new ones are read
    /// together, and one whose files hang is waited for a moment, once, and shown by what could be read of it. Never
    /// waits for a name service.
    pub fn identify_all(&mut self, pids: &[u32]) -> Vec<Identity> {
        let asks = self.asks(pids);
        if !asks.is_empty() {
            self.read(asks);
        }
        pids.iter().map(|&pid| self.identity(pid)).collect()
    }

    /// What has to be read: who is new, whose place is not known yet, and who hung and has come back.
    fn asks(&mut self, pids: &[u32]) -> Vec<Ask> {
        self.wedged.retain(|_, reader| !reader.is_back());
        let (mut asks, mut asked) = (Vec::new(), HashSet::new());
        let mut held = self.known.values().filter(|known| known.directory.is_held()).count();
        for &pid in pids {
            match self.recall(pid) {
                Ok(true) => match self.known.get(&pid) {
                    Some(known) if known.is_complete() => {}
                    _ if asked.insert(pid) => asks.push(Ask { pid, hold: false }),
                    _ => {}
                },
                Ok(false) if self.wedged.contains_key(&pid) || !asked.insert(pid) => {}
                Ok(false) => {
                    asks.push(Ask { pid, hold: held < HELD });
                    held += 1;
                }
                Err(error) => self.complain(&error),
            }
        }
        asks
    }

    fn read(&mut self, asks: Vec<Ask>) {
        let round = self.readers.read(asks);
        if let Some(error) = &round.refused {
            self.faults.report(Source::Attribution, Reason::Unreadable, None, error);
        }
        for (pid, answer) in round.answers {
            match answer {
                Ok(reading) => self.take(pid, reading),
                Err(error) => self.complain(&error),
            }
        }
        if let Some(hung) = round.hung {
            self.take_hung(hung);
        }
    }

    fn take(&mut self, pid: u32, reading: Reading) {
        let known = self.known.remove(&pid).filter(|known| known.start == reading.stat.start);
        let known = match known {
            // All but its place was read before.
            Some(known) if known.straggler.is_none() => {
                let cgroup = self.part(reading.cgroup);
                let home = cgroup.and_then(|cgroup| self.home(&cgroup, known.ended));
                known.placed_at(home)
            }
            earlier => {
                let Reading { directory, stat, uid, cgroup, cmdline } = reading;
                let (uid, cgroup) = (self.part(uid), self.part(cgroup));
                let cmdline = self.part(cmdline).unwrap_or_default();
                let directory = earlier.map_or(directory, |earlier| earlier.directory);
                self.resolve(directory, &stat, uid, cgroup, &cmdline)
            }
        };
        self.known.insert(pid, known);
    }

    /// A process is shown by what was read of it before it hung. It is read again when the read that hangs has come back.
    fn take_hung(&mut self, Hung { pid, glimpse, reader }: Hung) {
        let error = Stalled { pid, exhausted: self.readers.are_exhausted() };
        self.faults.report(Source::Attribution, Reason::Stalled, None, &error);
        if let Some(known) = self.known.get_mut(&pid) {
            known.straggler = Some(reader);
            return;
        }
        let hold = self.known.values().filter(|known| known.directory.is_held()).count() < HELD;
        let found = glimpse.and_then(|glimpse| {
            let directory = Directory::open(&self.settings.procfs, pid, hold).ok()?;
            // The file that was read once without hanging; the directory may be another process' by now.
            (directory.stat().ok()?.start == glimpse.stat.start).then_some((directory, glimpse))
        });
        match found {
            Some((directory, glimpse)) => {
                let mut known = self.resolve(directory, &glimpse.stat, glimpse.uid, glimpse.cgroup, &[]);
                known.straggler = Some(reader);
                self.known.insert(pid, known);
            }
            None => {
                self.wedged.insert(pid, reader);
            }
        }
    }

    fn identity(&mut self, pid: u32) -> Identity {
        let Some(known) = self.known.get_mut(&pid) else { return self.unseen() };
        known.wanted = true;
        // The names may have come, or changed, since the process was resolved.
        let user = known.owner.uid.and_then(|uid| self.users.name(uid, &self.faults));
        known.name(user, &self.snapshot);
        Identity { start: StartTime::Ticks(known.start), owner: known.owner.clone() }
    }

    fn unseen(&self) -> Identity {
        Identity { start: StartTime::Unknown, owner: self.nobody.clone() }
    }

    /// [`sees_host_processes`] of the procfs that is read here.
    pub fn sees_host_processes(&self) -> Option<bool> {
        sees_host_processes(&self.settings.procfs)
    }

    /// Forgets the pids that were not identified since the last sweep. To be called after a pass over all GPUs.
    pub fn sweep(&mut self) {
        self.known.retain(|_, known| std::mem::take(&mut known.wanted));
    }

    /// Whether it is known who has the pid. Another one who had it is forgotten.
    fn recall(&mut self, pid: u32) -> Result<bool, ReadError> {
        let Some(known) = self.known.get_mut(&pid) else { return Ok(false) };
        let still = known.directory.is_still(known.start);
        if !matches!(still, Ok(true)) {
            self.known.remove(&pid);
        }
        still
    }

    fn resolve(
        &mut self,
        directory: Directory,
        stat: &Stat,
        uid: Option<u32>,
        cgroup: Option<Vec<u8>>,
        cmdline: &[u8],
    ) -> Known {
        let home = cgroup.and_then(|cgroup| self.home(&cgroup, stat.ended));
        let start = self.boot.at(stat.start).unwrap_or_else(|error| {
            self.faults.report(Source::Attribution, Reason::Unreadable, None, &error);
            None
        });
        let owner = Owner {
            name: name::name(&stat.comm, cmdline),
            uid,
            user: None,
            start,
            command: self.settings.command_line.then(|| command(cmdline)).flatten(),
            home: home.clone().unwrap_or_default(),
            workload: None,
        };
        Known::new(directory, stat, owner, home.is_some())
    }

    /// Where a process lives. `None` where the kernel may have taken an `ended` one out of its place already.
    fn home(&mut self, cgroup: &[u8], ended: bool) -> Option<Home> {
        let home = cgroup::home(cgroup, self.own_cgroup());
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
        read.inspect_err(|error| self.complain(error)).ok()
    }

    /// A process that has ended is no fault.
    fn complain(&self, error: &ReadError) {
        if !error.is_gone() {
            self.faults.report(Source::Attribution, Reason::Unreadable, None, error);
        }
    }
}

/// A read of a process' files has not come back.
#[derive(Debug, thiserror::Error)]
#[error("reading /proc/{pid} does not come back: the process is shown without what could not be read{}", also(*exhausted))]
struct Stalled {
    pid: u32,
    exhausted: bool,
}

fn also(exhausted: bool) -> &'static str {
    if exhausted { "; so many hang that new processes are not read until one comes back" } else { "" }
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
