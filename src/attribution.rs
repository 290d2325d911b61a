//! Who a process is and where it lives: its name, its user, its start, its cgroup, from `/proc`; and the name of its pod, as
//! far as the snapshot knows its container.
//!
//! Invariant: a process is (pid, start time). What is known of a pid is shown only after a look that its process still
//! lives; a pid that was given to another process is resolved again. Nobody is identified by a procfs of another pid namespace.
//! Nothing here waits for the network, and for files of a process that hang only a bounded time.

mod boot;
mod directory;
mod interpreter;
mod known;
pub(crate) mod name;
mod namespace;
mod reader;
pub(crate) mod record;
pub(crate) mod users;
mod workload;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use boot::Boot;
use directory::{Directory, ReadError};
use known::Known;
use reader::{Ask, CGROUP_LIMIT, Glimpse, Hung, Readers, Reading, Straggler};
use record::Stat;
use users::Users;

use crate::faults::{Faults, Reason, Source};
use crate::snapshot::{CgroupLocation, Owner, Snapshot};

pub use namespace::{ForeignProcfs, check as check_procfs, sees_host_processes};

/// Where to look.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The directory that `/proc` of the machine is mounted at.
    pub procfs: PathBuf,
    /// A file in the format of `/etc/passwd`; `None` asks the machine's own name service.
    pub passwd: Option<PathBuf>,
    /// Whether to tell the command line, which can hold secrets.
    pub command_line: bool,
    /// How many directories of processes may be held open. Beyond it a start time is read at each look, which takes four
    /// times as long.
    pub hold: usize,
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
    /// Whether it was told that so many reads hang that arguments are left out.
    told_exhausted: bool,
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
            told_exhausted: false,
            nobody: Arc::default(),
        }
    }

    /// Who has this pid now.
    pub fn identify(&mut self, pid: u32) -> Identity {
        self.identify_all(&[pid]).pop().unwrap_or_else(|| self.unseen())
    }

    /// Who has each of these pids now, in their order. Cheap for processes that are known already; new ones are read
    /// together, and waited for until a pass (up to [`Attribution::sweep`]) has waited its share. Who was not read by then
    /// is shown by what the kernel tells at once: that he is there, since when, and the kernel's name of him. Never waits
    /// for a name service.
    pub fn identify_all(&mut self, pids: &[u32]) -> Vec<Identity> {
        let asks = self.asks(pids);
        if !asks.is_empty() {
            // Looked at each time: another procfs can be mounted there meanwhile.
            match check_procfs(&self.settings.procfs, std::process::id()) {
                Ok(()) => self.read(asks),
                Err(foreign) => self.faults.report(Source::Attribution, Reason::ForeignProcfs, None, &foreign),
            }
        }
        self.tell_exhaustion();
        pids.iter().map(|&pid| self.identity(pid)).collect()
    }

    /// What has to be read: who is new or was not read yet, whose place is not known yet, and who hung and has come back.
    fn asks(&mut self, pids: &[u32]) -> Vec<Ask> {
        self.wedged.retain(|_, reader| !reader.is_back());
        let exhausted = self.readers.are_exhausted();
        let (mut asks, mut looked_at) = (Vec::new(), HashSet::new());
        // Counted only when somebody new has come, because the processes of all GPUs are walked for it.
        let mut held = None;
        for &pid in pids.iter().filter(|&&pid| looked_at.insert(pid)) {
            let (held_already, cmdline) = match self.recall(pid) {
                Ok(true) => match self.known.get(&pid) {
                    Some(known) if known.is_complete(exhausted) => continue,
                    Some(known) => (known.directory.is_held(), !known.read),
                    None => (false, true),
                },
                Ok(false) if self.wedged.contains_key(&pid) => continue,
                Ok(false) => (false, true),
                Err(error) => {
                    self.complain(&error);
                    continue;
                }
            };
            let held = held.get_or_insert_with(|| self.held());
            let hold = !held_already && *held < self.settings.hold;
            *held += usize::from(hold);
            asks.push(Ask { pid, hold, cmdline });
        }
        asks
    }

    /// How many directories are held open.
    fn held(&self) -> usize {
        self.known.values().filter(|known| known.directory.is_held()).count()
    }

    fn read(&mut self, asks: Vec<Ask>) {
        let mut unread: HashSet<u32> = asks.iter().map(|ask| ask.pid).collect();
        let round = self.readers.read(asks);
        if let Some(error) = &round.refused {
            self.faults.report(Source::Attribution, Reason::Unreadable, None, error);
        }
        if round.died {
            let error = std::io::Error::other("the thread that reads the files of processes ended by a panic");
            self.faults.report(Source::Attribution, Reason::Panicked, None, &error);
        }
        for (pid, answer) in round.answers {
            unread.remove(&pid);
            match answer {
                Ok(reading) => self.take(pid, reading),
                Err(error) => self.complain(&error),
            }
        }
        if let Some(hung) = round.hung {
            unread.remove(&hung.pid);
            self.take_hung(hung);
        }
        // Nobody's memory is shown as that of who had his pid before, only because he was not read.
        for pid in unread {
            if !self.known.contains_key(&pid) {
                self.glance(pid, None);
            }
        }
    }

    fn take(&mut self, pid: u32, reading: Reading) {
        let Reading { directory, stat, uid, cgroup, cmdline } = reading;
        let earlier = self.known.remove(&pid).filter(|known| known.start == stat.start);
        let cgroup = self.part(cgroup);
        let known = match earlier {
            // All but its place was read before.
            Some(known) if known.read => {
                let location = cgroup.and_then(|cgroup| self.locate(&cgroup, known.ended));
                known.placed_at(location)
            }
            earlier => {
                let (uid, read) = (self.part(uid), cmdline.is_some());
                let cmdline = cmdline.and_then(|cmdline| self.part(cmdline)).unwrap_or_default();
                let held = earlier.map(|earlier| earlier.directory).filter(Directory::is_held);
                let mut known = self.resolve(held.unwrap_or(directory), &stat, uid, cgroup, &cmdline);
                known.read = read;
                known
            }
        };
        self.known.insert(pid, known);
    }

    /// A process is shown by what was read of it before it hung. It is read again when the read that hangs has come back.
    fn take_hung(&mut self, Hung { pid, glimpse, reader }: Hung) {
        self.faults.report(Source::Attribution, Reason::Stalled, None, &Stalled { pid });
        if !self.known.contains_key(&pid) {
            self.glance(pid, glimpse);
        }
        match self.known.get_mut(&pid) {
            Some(known) => known.straggler = Some(reader),
            None => {
                self.wedged.insert(pid, reader);
            }
        }
    }

    /// Takes what can be known of a process without waiting for it: its `stat`, which the kernel composes without a lock
    /// that the process may be wedged with; and what was seen of the same process before.
    fn glance(&mut self, pid: u32, glimpse: Option<Glimpse>) {
        let directory = Directory::open(&self.settings.procfs, pid, false);
        match directory.and_then(|directory| Ok((directory.stat()?, directory))) {
            Ok((stat, directory)) => {
                let seen = glimpse.filter(|glimpse| glimpse.stat.start == stat.start);
                let (uid, cgroup) = seen.map_or((None, None), |glimpse| (glimpse.uid, glimpse.cgroup));
                let known = self.resolve(directory, &stat, uid, cgroup, &[]);
                self.known.insert(pid, known);
            }
            Err(error) => self.complain(&error),
        }
    }

    /// Says once when it begins, and once when it ends.
    fn tell_exhaustion(&mut self) {
        let exhausted = self.readers.are_exhausted();
        match (std::mem::replace(&mut self.told_exhausted, exhausted), exhausted) {
            (false, true) => tracing::error!(
                "so many processes hang when their files in /proc are read that new ones are shown without their arguments"
            ),
            (true, false) => tracing::info!("processes are read whole again"),
            _ => {}
        }
    }

    fn identity(&mut self, pid: u32) -> Identity {
        let Some(known) = self.known.get_mut(&pid) else { return self.unseen() };
        known.wanted = true;
        if !known.sighted {
            return self.unseen();
        }
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

    /// Forgets the pids that were not identified since the last sweep, but for those that hang: read again, they would
    /// hang again. To be called after a pass over all GPUs; the next one may wait again.
    pub fn sweep(&mut self) {
        self.known.retain(|_, known| std::mem::take(&mut known.wanted) || known.hangs());
        self.readers.begin_pass();
    }

    /// Whether it is known who has the pid. Another one who had it is forgotten. One that hangs is kept where the look
    /// itself fails, and not shown.
    fn recall(&mut self, pid: u32) -> Result<bool, ReadError> {
        let Some(known) = self.known.get_mut(&pid) else { return Ok(false) };
        let still = known.directory.is_still(known.start);
        known.sighted = matches!(still, Ok(true));
        let keep = known.sighted || still.is_err() && known.hangs();
        if !keep {
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
        let location = cgroup.and_then(|cgroup| self.locate(&cgroup, stat.ended));
        let start = self.boot.at(stat.start).unwrap_or_else(|error| {
            self.faults.report(Source::Attribution, Reason::Unreadable, None, &error);
            None
        });
        let owner = Owner {
            name: name::name(&stat.comm, cmdline),
            uid,
            user: None,
            start,
            command: self.settings.command_line.then(|| name::command(cmdline)).flatten(),
            location: location.clone().unwrap_or_default(),
            workload: None,
        };
        Known::new(directory, stat, owner, location.is_some())
    }

    /// Where a process lives. `None` where the kernel may have taken an `ended` one out of its place already.
    fn locate(&mut self, cgroup: &[u8], ended: bool) -> Option<CgroupLocation> {
        let location = cgroup_owner::locate(cgroup, self.own_cgroup());
        (!ended || location.boundary.is_some()).then_some(location)
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
#[error("reading /proc/{pid} does not come back: the process is shown without what could not be read")]
struct Stalled {
    pid: u32,
}
