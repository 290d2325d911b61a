//! Reads the files of processes on a thread of its own, because a read can hang: the kernel generates `cmdline` and `environ` under
//! one of the process's own locks, and a process that is wedged with this lock held blocks every reader until it ends.
//!
//! Invariant: the caller waits a bounded time, in one round and in all rounds of a pass together. A reader that hangs
//! is abandoned, and its process is not read again before that reader has returned. The number of abandoned readers is
//! bounded: at the limit, one more reader may read everything except the arguments, and if it hangs too, nothing is
//! read.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::directory::{Directory, ReadError};
use super::environment::{InvalidLimit, memory_limit};
use super::record::{Stat, Status};
use crate::faults::Reason;

/// How long the caller may wait for all rounds of a pass together.
const PASS: Duration = Duration::from_millis(400);
/// Additional wait for a reader that is late, since all threads of the exporter may have been stopped together.
const GRACE: Duration = Duration::from_millis(20);
/// A process counts as hanging if reading its files takes this long. Normally it takes 0.1 ms; a lack of CPU time on
/// the machine must not look like a hang.
const STALLED: Duration = Duration::from_millis(300);
/// With this many abandoned readers or more, arguments are not read.
pub(super) const ABANDONED_LIMIT: usize = 4;
/// A process that hung is not read again until this long after the read that hung began, because it may respond briefly
/// and hang again.
const RETRY: Duration = Duration::from_secs(10);
/// How long reading pauses after a reader has panicked.
const PAUSE: Duration = Duration::from_secs(10);

/// A process to be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadRequest {
    pub(super) pid: u32,
    /// Whether its directory is to be held open.
    pub(super) hold: bool,
    /// Whether its arguments and its environment are to be read. Only the files that hold them make their reader hang if
    /// the process is wedged.
    pub(super) cmdline: bool,
}

/// The files of a process.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) directory: Directory,
    pub(super) stat: Stat,
    pub(super) status: Result<Status, ReadError>,
    pub(super) cgroup: Result<Vec<u8>, ReadError>,
    /// `None` if it was not read.
    pub(super) cmdline: Option<Result<Vec<u8>, ReadError>>,
    /// The limit in bytes that its environment declares; `None` if there is none or it may not be read.
    pub(super) memory_limit: Result<Option<u64>, InvalidLimit>,
}

/// What was read about a process before a read hung.
#[derive(Debug, Clone)]
pub(super) struct PartialReading {
    pub(super) stat: Stat,
    pub(super) status: Option<Status>,
    pub(super) cgroup: Option<Vec<u8>>,
}

/// A process for which the reader had not returned when its round ended.
#[derive(Debug)]
pub(super) struct Timeout {
    pub(super) pid: u32,
    /// `None` if not even `stat` and `status` were read.
    pub(super) partial: Option<PartialReading>,
    since: Instant,
    thread: JoinHandle<()>,
}

/// The result of a round. A process that is in neither `answers` nor `timeout` may be requested again in the next pass.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) answers: HashMap<u32, Result<Reading, ReadError>>,
    pub(super) timeout: Option<Timeout>,
    /// The thread could not be started, or it panicked.
    pub(super) failure: Option<(Reason, io::Error)>,
}

/// A reader that is no longer waited for.
#[derive(Debug)]
struct AbandonedReader {
    pid: u32,
    /// The start time of the process; `None` if it is unknown.
    start: Option<u64>,
    since: Instant,
    thread: JoinHandle<()>,
    /// Whether it was reported as stalled.
    stalled: bool,
}

impl AbandonedReader {
    /// Whether it has returned and its process may therefore be read again.
    fn is_back(&self) -> bool {
        self.thread.is_finished() && (!self.stalled || self.since.elapsed() >= RETRY)
    }
}

/// What the caller and the reader of a round share.
#[derive(Debug, Default)]
struct Progress {
    answers: HashMap<u32, Result<Reading, ReadError>>,
    current: Option<(u32, Instant)>,
    partial: Option<PartialReading>,
    /// The caller no longer waits, so the reader ends after the current process, and its answer is not used: by the
    /// next round, another process may have the pid.
    over: bool,
}

/// Reads one process, and records in `Progress` what it has read so far.
type Read = fn(ReadRequest, &Path, &Mutex<Progress>) -> Result<Reading, ReadError>;

/// Reads processes, one thread for each round.
#[derive(Debug)]
pub(super) struct ProcReader {
    procfs: PathBuf,
    read: Read,
    abandoned: Vec<AbandonedReader>,
    /// How much longer this pass may wait.
    left: Duration,
    paused_until: Option<Instant>,
}

impl ProcReader {
    pub(super) fn new(procfs: PathBuf) -> Self {
        Self { procfs, read: read_process, abandoned: Vec::new(), left: PASS, paused_until: None }
    }

    /// Begins a pass: its rounds may wait for [`PASS`] in total.
    pub(super) fn begin_pass(&mut self) {
        self.left = PASS;
        self.abandoned.retain(|reader| !reader.is_back());
    }

    /// Whether so many readers are hanging that arguments are no longer read.
    pub(super) fn is_exhausted(&self) -> bool {
        self.hanging() >= ABANDONED_LIMIT
    }

    fn hanging(&self) -> usize {
        self.abandoned.iter().filter(|reader| !reader.thread.is_finished()).count()
    }

    /// Whether a read of this process is hanging, or was until recently. `start` is `None` for a process that is
    /// not cached.
    pub(super) fn hangs(&self, pid: u32, start: Option<u64>) -> bool {
        self.abandoned.iter().any(|reader| reader.pid == pid && reader.start == start && !reader.is_back())
    }

    /// The processes with hanging readers that have not been reported yet.
    pub(super) fn newly_stalled(&mut self) -> Vec<u32> {
        let hangs = |reader: &&mut AbandonedReader| {
            !reader.stalled && reader.since.elapsed() >= STALLED && !reader.thread.is_finished()
        };
        let stall = |reader: &mut AbandonedReader| {
            reader.stalled = true;
            reader.pid
        };
        self.abandoned.iter_mut().filter(hangs).map(stall).collect()
    }

    /// Reads all requested processes and waits for the results, for as long as the pass allows. The caller passes a
    /// [`Timeout`] to [`ProcReader::abandon`].
    pub(super) fn read(&mut self, mut requests: Vec<ReadRequest>) -> Round {
        let paused = self.paused_until.is_some_and(|until| Instant::now() < until);
        if paused || self.left.is_zero() || self.hanging() > ABANDONED_LIMIT {
            return Round::default();
        }
        if self.is_exhausted() {
            requests.iter_mut().for_each(|request| request.cmdline = false);
        }
        let progress = Arc::new(Mutex::new(Progress::default()));
        // Nothing is sent: the channel closes when the reader ends, even if it panics.
        let (open, closed) = channel();
        let thread = match self.start(requests, progress.clone(), open) {
            Ok(thread) => thread,
            Err(error) => return Round { failure: Some((Reason::Unreadable, error)), ..Round::default() },
        };
        let begin = Instant::now();
        let has_ended = |wait| closed.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected);
        let ended = has_ended(self.left) || has_ended(GRACE);
        self.left = self.left.saturating_sub(begin.elapsed());

        let mut progress = progress.lock();
        progress.over = true;
        let mut round = Round { answers: std::mem::take(&mut progress.answers), ..Round::default() };
        let (current, partial) = (progress.current, progress.partial.take());
        drop(progress);
        if ended {
            if thread.join().is_err() {
                self.paused_until = Some(Instant::now() + PAUSE);
                round.failure = Some((Reason::Panicked, io::Error::other("the thread that reads /proc panicked")));
            }
        } else if let Some((pid, since)) = current {
            round.timeout = Some(Timeout { pid, partial, since, thread });
        }
        round
    }

    /// Remembers a reader that did not return. `start` is the start time of its process, if that is cached.
    pub(super) fn abandon(&mut self, timeout: Timeout, start: Option<u64>) {
        let Timeout { pid, since, thread, .. } = timeout;
        self.abandoned.push(AbandonedReader { pid, start, since, thread, stalled: false });
    }

    fn start(
        &self,
        requests: Vec<ReadRequest>,
        progress: Arc<Mutex<Progress>>,
        open: Sender<()>,
    ) -> io::Result<JoinHandle<()>> {
        let (procfs, read) = (self.procfs.clone(), self.read);
        std::thread::Builder::new().name("proc-reader".into()).spawn(move || {
            let _open = open;
            for request in requests {
                let mut before = progress.lock();
                if before.over {
                    return;
                }
                before.current = Some((request.pid, Instant::now()));
                drop(before);
                let answer = read(request, &procfs, &progress);
                let mut after = progress.lock();
                (after.current, after.partial) = (None, None);
                after.answers.insert(request.pid, answer);
            }
        })
    }
}

fn read_process(request: ReadRequest, procfs: &Path, progress: &Mutex<Progress>) -> Result<Reading, ReadError> {
    let mut directory = Directory::open(procfs, request.pid, request.hold)?;
    let stat = directory.stat()?;
    let status = directory.status();
    let mut partial = PartialReading { stat: stat.clone(), status: status.as_ref().ok().copied(), cgroup: None };
    progress.lock().partial = Some(partial.clone());
    let cgroup = directory.cgroup();
    partial.cgroup = cgroup.as_ref().ok().cloned();
    progress.lock().partial = Some(partial);
    let cmdline = request.cmdline.then(|| directory.cmdline());
    // Without the right to read it, there is no limit; this is no fault.
    let environ = request.cmdline.then(|| directory.environ().ok()).flatten();
    let memory_limit = environ.map_or(Ok(None), |environ| memory_limit(request.pid, &environ));
    // Files read by path may belong to two processes that had the pid one after the other.
    if !directory.is_held() && !directory.is_still(stat.start)? {
        return Err(ReadError::gone(procfs.join(request.pid.to_string())));
    }
    Ok(Reading { directory, stat, status, cgroup, cmdline, memory_limit })
}

#[cfg(test)]
mod tests;
