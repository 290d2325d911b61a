//! Reads the files of processes, on a thread of its own, since a read can hang: the kernel composes `cmdline` under a lock
//! of the process itself, and one that is wedged with that lock held makes every reader wait until it ends.
//!
//! Invariant: whoever asks waits a bounded time. A reader that hangs is left behind, nobody asks for its process again
//! before it has come back, and only so many are left behind at once: beyond that nobody new is read.

mod desk;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::directory::{Directory, ReadError};
use super::record::Stat;
use desk::Desk;

/// How long one round of questions is waited for.
const ROUND: Duration = Duration::from_millis(400);
/// A process whose files take so long hangs. One takes 0.1 ms; a machine that is short of processors must not look like it.
const HANGS: Duration = Duration::from_millis(300);
/// How many readers may be left behind.
const LEFT_BEHIND: usize = 4;
/// Bytes of the arguments that are looked at; a process may have megabytes of them.
const CMDLINE_LIMIT: u64 = 64 * 1024;
/// Bytes of the cgroup file: a dozen hierarchies with paths of the longest kind.
pub(super) const CGROUP_LIMIT: u64 = 64 * 1024;

/// A process to be read, and whether its directory is to be held open.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) pid: u32,
    pub(super) hold: bool,
}

/// All files of a process.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) directory: Directory,
    pub(super) stat: Stat,
    pub(super) uid: Result<u32, ReadError>,
    pub(super) cgroup: Result<Vec<u8>, ReadError>,
    pub(super) cmdline: Result<Vec<u8>, ReadError>,
}

/// What was read of a process before a read hung.
#[derive(Debug, Clone)]
pub(super) struct Glimpse {
    pub(super) stat: Stat,
    pub(super) uid: Option<u32>,
    pub(super) cgroup: Option<Vec<u8>>,
}

/// A process whose files hang.
#[derive(Debug)]
pub(super) struct Hung {
    pub(super) pid: u32,
    /// `None` where not even its start could be read.
    pub(super) glimpse: Option<Glimpse>,
    pub(super) reader: Straggler,
}

/// A reader that was left behind.
#[derive(Debug, Clone)]
pub(super) struct Straggler(Arc<Desk>);

impl Straggler {
    /// Whether what hung has come back, so that it may be asked for again.
    pub(super) fn is_back(&self) -> bool {
        self.0.has_ended()
    }
}

/// What became of a round of questions. Who is neither answered nor hung may be asked for again at once.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) answers: HashMap<u32, Result<Reading, ReadError>>,
    pub(super) hung: Option<Hung>,
    /// The system gave no thread.
    pub(super) refused: Option<std::io::Error>,
}

/// The reader at work and those left behind.
#[derive(Debug)]
pub(super) struct Readers {
    procfs: PathBuf,
    current: Option<Arc<Desk>>,
    left_behind: Vec<Straggler>,
}

impl Readers {
    pub(super) fn new(procfs: PathBuf) -> Self {
        Self { procfs, current: None, left_behind: Vec::new() }
    }

    /// Whether so many readers hang that nobody new is read.
    pub(super) fn are_exhausted(&self) -> bool {
        self.left_behind.len() >= LEFT_BEHIND
    }

    /// Hands all questions over at once and waits for the answers, for [`ROUND`] at the longest.
    pub(super) fn read(&mut self, asks: Vec<Ask>) -> Round {
        self.left_behind.retain(|reader| !reader.is_back());
        self.current.take_if(|desk| desk.has_ended());
        let desk = match &self.current {
            Some(desk) => desk,
            None if self.are_exhausted() => return Round::default(),
            None => match self.start() {
                Ok(desk) => self.current.insert(desk),
                Err(error) => return Round { refused: Some(error), ..Round::default() },
            },
        };
        let (answers, hung) = desk.ask(asks, Instant::now() + ROUND, HANGS);
        let hung = hung.map(|(pid, glimpse)| Hung { pid, glimpse, reader: Straggler(desk.clone()) });
        if let Some(hung) = &hung {
            self.left_behind.push(hung.reader.clone());
            self.current = None;
        }
        Round { answers: answers.into_iter().collect(), hung, refused: None }
    }

    fn start(&self) -> std::io::Result<Arc<Desk>> {
        let desk = Arc::new(Desk::default());
        let (side, procfs) = (desk.clone(), self.procfs.clone());
        std::thread::Builder::new().name("proc-reader".into()).spawn(move || {
            let _end = desk::End(&side);
            while let Some(ask) = side.next() {
                side.answer(ask.pid, read(ask, &procfs, &side));
            }
        })?;
        Ok(desk)
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        if let Some(desk) = &self.current {
            desk.close();
        }
    }
}

fn read(ask: Ask, procfs: &Path, desk: &Desk) -> Result<Reading, ReadError> {
    let mut directory = Directory::open(procfs, ask.pid, ask.hold)?;
    let stat = directory.stat()?;
    let uid = directory.effective_uid();
    let mut glimpse = Glimpse { stat: stat.clone(), uid: uid.as_ref().ok().copied(), cgroup: None };
    desk.note(glimpse.clone());
    let cgroup = directory.cgroup(CGROUP_LIMIT);
    glimpse.cgroup = cgroup.as_ref().ok().cloned();
    desk.note(glimpse);
    let cmdline = directory.cmdline(CMDLINE_LIMIT);
    // Read by path, the files may belong to two processes that followed one another.
    if !directory.is_held() && !directory.is_still(stat.start)? {
        return Err(ReadError::gone(procfs.join(ask.pid.to_string())));
    }
    Ok(Reading { directory, stat, uid, cgroup, cmdline })
}

#[cfg(test)]
mod tests;
