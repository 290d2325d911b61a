//! Identifies processes: reads new ones, caches what was read, and checks each time that a cached process still exists.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::boot::Boot;
use super::cached::{CachedProcess, Place};
use super::directory::{self, Directory, ReadError};
use super::namespace;
use super::reader::{ABANDONED_LIMIT, PartialReading, ProcReader, ReadRequest, Reading, Timeout};
use super::record::{Stat, Status};
use super::users::Users;
use super::workload;
use crate::faults::{Faults, Reason, Source};
use crate::snapshot::{Owner, Snapshot};

/// The longest path of a cgroup that is kept, in bytes. The kernel opens none that is longer.
const PATH_LIMIT: usize = 4096;

/// Where processes are looked up.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The directory where the machine's `/proc` is mounted.
    pub procfs: PathBuf,
    /// A file in the format of `/etc/passwd`; `None` uses the machine's own name service.
    pub passwd: Option<PathBuf>,
    /// Whether to show the command line, which can contain secrets.
    pub command_line: bool,
    /// How many process directories may be held open. Beyond this number, the start time is read on each check,
    /// which takes four times as long.
    pub hold: usize,
}

/// What is known about the processes on the GPUs.
#[derive(Debug)]
pub struct Attribution {
    settings: Settings,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    boot: Boot,
    /// The exporter's own cgroup file, once it has been read.
    own_cgroup: Option<Vec<u8>>,
    users: Users,
    reader: ProcReader,
    cache: HashMap<u32, CachedProcess>,
    /// Whether it has been logged that arguments are not read because too many reads are hanging.
    logged_exhaustion: bool,
    unknown_owner: Arc<Owner>,
}

impl Attribution {
    /// An empty cache; reads nothing. Only the container names in the snapshot are used.
    pub fn new(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) -> Self {
        Self {
            boot: Boot::new(&settings.procfs),
            users: Users::new(settings.passwd.clone()),
            reader: ProcReader::new(settings.procfs.clone()),
            settings,
            snapshot,
            faults,
            own_cgroup: None,
            cache: HashMap::new(),
            logged_exhaustion: false,
            unknown_owner: Arc::default(),
        }
    }

    /// The owners of the processes that have these pids now, in the same order. [`Owner::start_ticks`] tells a process from
    /// an earlier one with its pid; every value is unknown if the process cannot be seen. Cheap for processes that are cached. New ones are
    /// read together; the caller waits for them until the pass, which ends with [`Attribution::sweep`], has used up its
    /// time. A process that could not be read in time is reported with what can be read without waiting: its pid, start
    /// time and `comm`. Never waits for a name service.
    pub fn identify_all(&mut self, pids: &[u32]) -> Vec<Arc<Owner>> {
        let requests = self.requests(pids);
        if !requests.is_empty() {
            // Checked each time, because another procfs can be mounted at the path.
            match namespace::check(&self.settings.procfs, std::process::id()) {
                Ok(()) => self.read(requests),
                Err(foreign) => self.faults.raise(Source::Attribution, Reason::ForeignProcfs, None, &foreign),
            }
        }
        for pid in self.reader.newly_stalled() {
            self.faults.raise(Source::Attribution, Reason::Stalled, None, &Stalled { pid });
        }
        self.log_exhaustion();
        pids.iter().map(|&pid| self.owner(pid)).collect()
    }

    /// What has to be read: processes that are new, were not read completely, have no resolved cgroup, or hung and
    /// can be read again.
    fn requests(&mut self, pids: &[u32]) -> Vec<ReadRequest> {
        let exhausted = self.reader.is_exhausted();
        let (mut requests, mut visited) = (Vec::new(), HashSet::new());
        // How many directories are held open. Counted only if a process has to be read, because counting visits the processes
        // of all GPUs.
        let mut held = None;
        for &pid in pids.iter().filter(|&&pid| visited.insert(pid)) {
            if let Err(error) = self.revalidate(pid) {
                self.raise_unreadable(&error);
                continue;
            }
            let cached = self.cache.get(&pid);
            let hangs = self.reader.hangs(pid, cached.map(|cached| cached.start));
            if hangs || cached.is_some_and(|cached| cached.is_complete(exhausted)) {
                continue;
            }
            let (is_held, cmdline) = cached.map_or((false, true), |cached| (cached.directory.is_held(), !cached.read));
            let held =
                held.get_or_insert_with(|| self.cache.values().filter(|cached| cached.directory.is_held()).count());
            let hold = !is_held && *held < self.settings.hold;
            *held += usize::from(hold);
            requests.push(ReadRequest { pid, hold, cmdline });
        }
        requests
    }

    /// Checks whether the process cached for the pid still exists, and drops it if not. If the check itself fails, a
    /// process with files that hang is kept but not shown.
    fn revalidate(&mut self, pid: u32) -> Result<(), ReadError> {
        let Some(cached) = self.cache.get_mut(&pid) else { return Ok(()) };
        let exists = cached.directory.is_still(cached.start);
        cached.seen = matches!(exists, Ok(true));
        let keep = cached.seen || exists.is_err() && self.reader.hangs(pid, Some(cached.start));
        if !keep {
            self.cache.remove(&pid);
        }
        exists.map(drop)
    }

    fn read(&mut self, requests: Vec<ReadRequest>) {
        let mut unread: HashSet<u32> = requests.iter().map(|request| request.pid).collect();
        let round = self.reader.read(requests);
        if let Some((reason, error)) = &round.failure {
            self.faults.raise(Source::Attribution, *reason, None, error);
        }
        for (pid, answer) in round.answers {
            unread.remove(&pid);
            match answer {
                Ok(reading) => self.store(pid, reading),
                Err(error) => self.raise_unreadable(&error),
            }
        }
        if let Some(timeout) = round.timeout {
            unread.remove(&timeout.pid);
            self.store_timeout(timeout);
        }
        // Never attribute memory to the pid's previous process just because the new one has not been read yet.
        for pid in unread {
            if !self.cache.contains_key(&pid) {
                self.store_partial(pid, None);
            }
        }
    }

    fn store(&mut self, pid: u32, reading: Reading) {
        let Reading { directory, stat, status, cgroup, cmdline, memory_limit } = reading;
        let earlier = self.cache.remove(&pid).filter(|cached| cached.start == stat.start);
        let cgroup = self.known(cgroup);
        let process = match earlier {
            // Everything except its cgroup was read before.
            Some(mut cached) if cached.read => {
                if let Some(place) = self.locate(cgroup.as_deref(), &stat) {
                    cached.resolve_cgroup(place);
                }
                cached
            }
            earlier => {
                let (status, read) = (self.known(status), cmdline.is_some());
                let cmdline = cmdline.and_then(|cmdline| self.known(cmdline)).unwrap_or_default();
                let held = earlier.map(|earlier| earlier.directory).filter(Directory::is_held);
                let mut process = self.resolve(held.unwrap_or(directory), &stat, status, cgroup.as_deref(), &cmdline);
                process.read = read;
                match memory_limit {
                    Ok(limit) => Arc::make_mut(&mut process.owner).memory_limit = limit,
                    Err(error) => self.faults.raise(Source::Budget, Reason::Malformed, None, &error),
                }
                process
            }
        };
        self.cache.insert(pid, process);
    }

    /// Shows a process with what was read before its reader hung. It is read again once that reader has returned.
    fn store_timeout(&mut self, mut timeout: Timeout) {
        let pid = timeout.pid;
        if !self.cache.contains_key(&pid) {
            self.store_partial(pid, timeout.partial.take());
        }
        self.reader.abandon(timeout, self.cache.get(&pid).map(|cached| cached.start));
    }

    /// Stores what can be known about a process without waiting: its `stat`, which the kernel generates without taking
    /// any lock that a wedged process may hold, and what was read from the files of the same process before.
    fn store_partial(&mut self, pid: u32, partial: Option<PartialReading>) {
        let directory = Directory::open(&self.settings.procfs, pid, false);
        match directory.and_then(|directory| Ok((directory.stat()?, directory))) {
            Ok((stat, directory)) => {
                let same = partial.filter(|partial| partial.stat.start == stat.start);
                let (status, cgroup) = same.map_or((None, None), |partial| (partial.status, partial.cgroup));
                let process = self.resolve(directory, &stat, status, cgroup.as_deref(), &[]);
                self.cache.insert(pid, process);
            }
            Err(error) => self.raise_unreadable(&error),
        }
    }

    fn resolve(
        &mut self,
        directory: Directory,
        stat: &Stat,
        status: Option<Status>,
        cgroup: Option<&[u8]>,
        cmdline: &[u8],
    ) -> CachedProcess {
        let start = self.boot.at(stat.start).unwrap_or_else(|error| {
            self.faults.raise(Source::Attribution, Reason::Unreadable, None, &error);
            None
        });
        let command = self.settings.command_line.then(|| process_name::command(cmdline)).flatten();
        let owner = Owner {
            name: process_name::name(&stat.comm, cmdline),
            uid: status.map(|status| status.uid),
            namespace_pid: status.and_then(|status| status.namespace_pid),
            start,
            start_ticks: Some(stat.start),
            command,
            ..Owner::default()
        };
        CachedProcess::new(directory, stat, owner, self.locate(cgroup, stat))
    }

    /// Where a process runs. `None` if the cgroup is unknown, or if the process has ended and the kernel may already
    /// have moved it to the root.
    fn locate(&mut self, cgroup: Option<&[u8]>, stat: &Stat) -> Option<Place> {
        let procfs = &self.settings.procfs;
        let own = self.own_cgroup.get_or_insert_with(|| directory::own_cgroup(procfs));
        let location = cgroup_owner::locate(cgroup?, own);
        if stat.ended && location.boundary.is_none() {
            return None;
        }
        let path = cgroup_owner::boundary_path(cgroup?, own).filter(|path| path.len() <= PATH_LIMIT);
        Some(Place { location, cgroup: path.map(|path| PathBuf::from(OsString::from_vec(path)).into()) })
    }

    /// Logs once when too many readers are hanging, and once when this is no longer the case.
    fn log_exhaustion(&mut self) {
        let exhausted = self.reader.is_exhausted();
        match (std::mem::replace(&mut self.logged_exhaustion, exhausted), exhausted) {
            (false, true) => {
                tracing::error!("/proc: {ABANDONED_LIMIT} reads hang, new processes are shown without their arguments");
            }
            (true, false) => tracing::info!("/proc: arguments of processes are read again"),
            _ => {}
        }
    }

    fn owner(&mut self, pid: u32) -> Arc<Owner> {
        let Some(cached) = self.cache.get_mut(&pid) else { return self.unknown_owner.clone() };
        cached.used_since_sweep = true;
        if !cached.seen {
            return self.unknown_owner.clone();
        }
        // Names may have become known, or changed, since the process was resolved.
        let uid = cached.owner.uid;
        let belongs_to = workload::user_id(&cached.owner.location, uid);
        let is_renamed = cached.rename(belongs_to.and_then(|uid| self.users.name(uid, &self.faults)));
        let user = uid.and_then(|uid| self.users.name(uid, &self.faults));
        cached.fill_names(user, is_renamed, &self.snapshot);
        cached.owner.clone()
    }

    /// [`sees_host_processes`](namespace::sees_host_processes) for the procfs that is read here.
    pub fn sees_host_processes(&self) -> Option<bool> {
        namespace::sees_host_processes(&self.settings.procfs)
    }

    /// Drops the processes that have not been identified since the last sweep, except those that are listed elsewhere
    /// (`is_listed`: by pid), and those that hang, because another read of their files would hang too. To be called after a
    /// pass. The next pass may use its full waiting time again.
    pub fn sweep(&mut self, is_listed: impl Fn(u32) -> bool) {
        let reader = &self.reader;
        self.cache.retain(|&pid, cached| {
            let is_used = std::mem::take(&mut cached.used_since_sweep) || is_listed(pid);
            is_used || reader.hangs(pid, Some(cached.start))
        });
        self.reader.begin_pass();
    }

    /// The value, if it could be read. A value that could not be read does not affect the others.
    fn known<T>(&self, read: Result<T, ReadError>) -> Option<T> {
        read.inspect_err(|error| self.raise_unreadable(error)).ok()
    }

    /// A process that has ended is not a fault.
    fn raise_unreadable(&self, error: &ReadError) {
        if !error.is_gone() {
            self.faults.raise(Source::Attribution, Reason::Unreadable, None, error);
        }
    }
}

/// A read of a process's files has not returned.
#[derive(Debug, thiserror::Error)]
#[error("reading /proc/{pid} hangs: the process is shown without what could not be read")]
struct Stalled {
    pid: u32,
}
