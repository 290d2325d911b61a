//! Who a process is: its name, its user, its start, from `/proc`.
//!
//! Invariant: a process is (pid, start time). What is known of a pid is shown only after a look that its process still
//! lives; a pid that was given to another process is resolved anew. Nothing here waits for the network.

mod boot;
#[allow(dead_code, reason = "its caller comes with the workloads")]
mod cgroup;
mod directory;
mod interpreter;
mod name;
mod record;
mod users;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use boot::Boot;
use directory::{Directory, ReadError};
use users::Users;

use crate::faults::{Faults, Reason, Source};
use crate::snapshot::Owner;

/// How many directories are held open; beyond it a start time is read at each look.
const HELD: usize = 512;
/// Bytes of the arguments that are looked at.
const CMDLINE_LIMIT: u64 = 64 * 1024;
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
    faults: Arc<Faults>,
    boot: Boot,
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
    /// Identified since the last sweep.
    wanted: bool,
}

impl Attribution {
    /// Knows nobody yet; reads nothing.
    pub fn new(settings: Settings, faults: Arc<Faults>) -> Self {
        let boot = Boot::new(&settings.procfs);
        let users = Users::new(settings.passwd.clone());
        Self { settings, faults, boot, users, known: HashMap::new(), nobody: Arc::default() }
    }

    /// Who has this pid now. Cheap for a process that is known already; never waits for a name service.
    pub fn identify(&mut self, pid: u32) -> Identity {
        let known = match self.recall(pid).and_then(|known| known.map_or_else(|| self.resolve(pid), Ok)) {
            Ok(known) => known,
            Err(error) => {
                if !error.is_gone() {
                    self.faults.report(Source::Attribution, Reason::Unreadable, None, &error);
                }
                return Identity { start: StartTime::Unknown, owner: self.nobody.clone() };
            }
        };
        let known = self.known.entry(pid).insert_entry(known).into_mut();
        known.wanted = true;
        // The name may have come, or changed, since the process was resolved.
        let user = known.owner.uid.and_then(|uid| self.users.name(uid, &self.faults));
        if known.owner.user.as_deref() != user {
            known.owner = Arc::new(Owner { user: user.map(str::to_owned), ..(*known.owner).clone() });
        }
        Identity { start: StartTime::Ticks(known.start), owner: known.owner.clone() }
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
            ..Owner::default()
        };
        // Read by path, the files may belong to two processes that followed one another.
        if !directory.is_held() && !directory.is_still(stat.start)? {
            let path = self.settings.procfs.join(pid.to_string());
            return Err(ReadError::Io { path, source: std::io::ErrorKind::NotFound.into() });
        }
        Ok(Known { directory, start: stat.start, owner: Arc::new(owner), wanted: true })
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
