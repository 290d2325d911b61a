//! Reads the files of processes, on a thread of its own, since a read can hang: the kernel composes `cmdline` under a lock
//! of the process itself, and one that is wedged with that lock held makes every reader wait until it ends.
//!
//! Invariant: whoever asks waits a bounded time, for one round and for all rounds of a pass. A reader that hangs is left
//! behind, nobody asks for its process again before it has come back, and only so many are left behind at once: beyond that
//! one more reads all but the arguments, and if it hangs too nobody is read.

mod desk;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::directory::{Directory, ReadError};
use super::record::Stat;
use desk::Desk;

/// How long the rounds of one pass are waited for together.
const ROUND: Duration = Duration::from_millis(400);
/// A process whose files take so long hangs. One takes 0.1 ms; a machine that is short of processors must not look like it.
const HANGS: Duration = Duration::from_millis(300);
/// How many readers may be left behind before arguments are left out. One more may be left behind after that.
const LEFT_BEHIND: usize = 4;
/// A process that hung is not read again before this has passed: it may come back for a moment, and hang again.
const AGAIN: Duration = Duration::from_secs(10);
/// After a reader ended by a panic nobody is read for so long.
const PAUSE: Duration = Duration::from_secs(10);
/// Bytes of the arguments that are looked at; a process may have megabytes of them.
const CMDLINE_LIMIT: u64 = 64 * 1024;
/// Bytes of the cgroup file: a dozen hierarchies with paths of the longest kind.
pub(super) const CGROUP_LIMIT: u64 = 64 * 1024;

/// A process to be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) pid: u32,
    /// Whether its directory is to be held open.
    pub(super) hold: bool,
    /// Whether its arguments are wanted: the one file that a wedged process makes hang.
    pub(super) cmdline: bool,
}

/// The files of a process.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) directory: Directory,
    pub(super) stat: Stat,
    pub(super) uid: Result<u32, ReadError>,
    pub(super) cgroup: Result<Vec<u8>, ReadError>,
    /// `None` where it was not read.
    pub(super) cmdline: Option<Result<Vec<u8>, ReadError>>,
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
pub(super) struct Straggler {
    desk: Arc<Desk>,
    since: Instant,
}

impl Straggler {
    /// Whether what hung has come back, and may be asked for again.
    pub(super) fn is_back(&self) -> bool {
        self.since.elapsed() >= AGAIN && self.desk.has_ended()
    }
}

/// What became of a round of questions. Who is neither answered nor hung may be asked for again at the next pass.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) answers: HashMap<u32, Result<Reading, ReadError>>,
    pub(super) hung: Option<Hung>,
    /// The system gave no thread.
    pub(super) refused: Option<std::io::Error>,
    /// The reader of the round before ended by a panic.
    pub(super) died: bool,
}

/// The reader at work and those left behind.
#[derive(Debug)]
pub(super) struct Readers {
    procfs: PathBuf,
    current: Option<Arc<Desk>>,
    left_behind: Vec<Straggler>,
    /// What is left of the time that may be waited in this pass.
    left: Duration,
    paused_until: Option<Instant>,
}

impl Readers {
    pub(super) fn new(procfs: PathBuf) -> Self {
        Self { procfs, current: None, left_behind: Vec::new(), left: ROUND, paused_until: None }
    }

    /// From now on it may be waited again.
    pub(super) fn begin_pass(&mut self) {
        self.left = ROUND;
    }

    /// Whether so many readers hang that arguments are not read.
    pub(super) fn are_exhausted(&mut self) -> bool {
        self.left_behind.retain(|reader| !reader.desk.has_ended());
        self.left_behind.len() >= LEFT_BEHIND
    }

    /// Hands all questions over at once and waits for the answers, for as long as the pass allows it.
    pub(super) fn read(&mut self, mut asks: Vec<Ask>) -> Round {
        if self.current.take_if(|desk| desk.has_ended()).is_some() {
            self.paused_until = Some(Instant::now() + PAUSE);
            return Round { died: true, ..Round::default() };
        }
        if self.left.is_zero() || self.paused_until.is_some_and(|until| Instant::now() < until) {
            return Round::default();
        }
        if self.are_exhausted() {
            asks.iter_mut().for_each(|ask| ask.cmdline = false);
        }
        let desk = match &self.current {
            Some(desk) => desk,
            None if self.left_behind.len() > LEFT_BEHIND => return Round::default(),
            None => match self.start() {
                Ok(desk) => self.current.insert(desk),
                Err(error) => return Round { refused: Some(error), ..Round::default() },
            },
        };
        let began = Instant::now();
        let (answers, hung) = desk.ask(asks, began + self.left, HANGS);
        self.left = self.left.saturating_sub(began.elapsed());
        let reader = Straggler { desk: desk.clone(), since: Instant::now() };
        let hung = hung.map(|(pid, glimpse)| Hung { pid, glimpse, reader });
        if let Some(hung) = &hung {
            self.left_behind.push(hung.reader.clone());
            self.current = None;
        }
        Round { answers: answers.into_iter().collect(), hung, ..Round::default() }
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
    let cmdline = ask.cmdline.then(|| directory.cmdline(CMDLINE_LIMIT));
    // Read by path, the files may belong to two processes that followed one another.
    if !directory.is_held() && !directory.is_still(stat.start)? {
        return Err(ReadError::gone(procfs.join(ask.pid.to_string())));
    }
    Ok(Reading { directory, stat, uid, cgroup, cmdline })
}

#[cfg(test)]
mod tests;
