//! Looks for driver libraries in the maps of processes, on a thread of its own, because that can hang: the kernel writes the
//! maps under a lock of the process, and the file system of a library can wait for a program or for a network.
//!
//! Invariants: the caller never waits. A thread that hangs is abandoned with the process at which it hangs, and another one
//! looks at the rest. While [`ABANDONED`] threads hang, no process is looked at.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cuda_probe::{Found, LibraryId, find_libraries};

/// A look at one process takes 1 ms. A lack of CPU time must not look like a hang.
const HANGS: Duration = Duration::from_secs(10);
/// The maximum number of threads that hang at a time.
const ABANDONED: usize = 4;

/// The processes that wait to be looked at, and the thread that looks.
#[derive(Debug)]
pub(super) struct Finder {
    procfs: PathBuf,
    waiting: VecDeque<u32>,
    look: Option<Look>,
    abandoned: Vec<JoinHandle<()>>,
}

/// A thread, and the processes at which it has yet to look, in order.
#[derive(Debug)]
struct Look {
    left: VecDeque<u32>,
    answers: Receiver<Found>,
    /// When it began or last answered.
    moved: Instant,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// What has been found since the last time.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// With the process in which it was found.
    pub(super) found: Vec<(u32, Found)>,
    /// The process at which a thread hangs.
    pub(super) hanging: Option<u32>,
}

impl Finder {
    pub(super) fn new(procfs: PathBuf) -> Self {
        Self { procfs, waiting: VecDeque::new(), look: None, abandoned: Vec::new() }
    }

    /// What is read of a process first.
    pub(super) fn maps(&self, pid: u32) -> PathBuf {
        self.procfs.join(pid.to_string()).join("maps")
    }

    /// Asks for a look at these processes.
    pub(super) fn add(&mut self, pids: impl IntoIterator<Item = u32>) {
        self.waiting.extend(pids);
    }

    /// Forgets the processes that wait and are not among these.
    pub(super) fn retain(&mut self, listed: &HashSet<u32>) {
        self.waiting.retain(|pid| listed.contains(pid));
    }

    /// Whether nothing is waiting or being looked at.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.look.is_none()
    }

    /// Takes what has been found, and goes on with what waits. `known`: the files that need not be opened.
    pub(super) fn poll(&mut self, now: Instant, known: impl FnOnce() -> BTreeSet<LibraryId>) -> Answers {
        let mut answers = Answers::default();
        if let Some(mut look) = self.look.take() {
            let is_done = look.take(now, &mut answers.found);
            if !is_done && now.saturating_duration_since(look.moved) < HANGS {
                self.look = Some(look);
            } else if !is_done {
                answers.hanging = look.left.pop_front();
                look.is_over.store(true, Ordering::Relaxed);
                look.left.into_iter().rev().for_each(|pid| self.waiting.push_front(pid));
                self.abandoned.push(look.thread);
            }
        }
        self.abandoned.retain(|thread| !thread.is_finished());
        if self.look.is_none() && !self.waiting.is_empty() && self.abandoned.len() < ABANDONED {
            self.look = Look::begin(&self.procfs, std::mem::take(&mut self.waiting), now, known());
        }
        answers
    }
}

impl Drop for Finder {
    fn drop(&mut self) {
        self.look.iter().for_each(|look| look.is_over.store(true, Ordering::Relaxed));
    }
}

impl Look {
    /// `None` if the system cannot create a thread.
    fn begin(procfs: &Path, left: VecDeque<u32>, now: Instant, known: BTreeSet<LibraryId>) -> Option<Self> {
        let (sender, answers) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let (procfs, pids, stop) = (procfs.to_owned(), left.clone(), is_over.clone());
        let look = move || {
            for pid in pids {
                let found = find_libraries(&procfs, [pid], |id| known.contains(&id));
                // The receiver of the answer closes the files.
                if stop.load(Ordering::Relaxed) || sender.send(found).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("call-finder".into()).spawn(look).ok()?;
        Some(Self { left, answers, moved: now, is_over, thread })
    }

    /// Takes the answers. Returns whether the thread has ended.
    fn take(&mut self, now: Instant, found: &mut Vec<(u32, Found)>) -> bool {
        loop {
            match self.answers.try_recv() {
                Ok(answer) => {
                    self.moved = now;
                    found.extend(self.left.pop_front().map(|pid| (pid, answer)));
                }
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::stat::Mode;

    use super::*;

    /// A procfs with these processes, each of which has mapped a library; the maps of those that hang are a pipe that nobody
    /// writes to.
    fn procfs(pids: u32, hanging: &[u32]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for pid in 1..=pids {
            let process = folder.path().join(pid.to_string());
            fs::create_dir_all(process.join("map_files")).unwrap();
            fs::write(process.join("map_files/1000-2000"), "").unwrap();
            if hanging.contains(&pid) {
                nix::unistd::mkfifo(&process.join("maps"), Mode::S_IRWXU).unwrap();
            } else {
                fs::write(process.join("maps"), format!("1000-2000 r-xp 0 0:2d {pid} /{pid}/libcuda.so.1\n")).unwrap();
            }
        }
        folder
    }

    /// Polls until nothing is left to do. The time passes at once when a thread is at one of the processes that hang. Returns
    /// the inodes that were found, and the processes that hung.
    fn all(finder: &mut Finder, hanging: &[u32]) -> (Vec<u64>, Vec<u32>) {
        let (mut inodes, mut hung) = (Vec::new(), Vec::new());
        let began = Instant::now();
        let mut now = began;
        while !finder.is_idle() && finder.abandoned.len() < ABANDONED {
            assert!(began.elapsed() < Duration::from_secs(60), "{finder:?}");
            let next = finder.look.as_ref().and_then(|look| look.left.front());
            if next.is_some_and(|pid| hanging.contains(pid)) {
                now += HANGS;
            }
            let answers = finder.poll(now, || [LibraryId { device: (0, 0x2d), inode: 1 }].into());
            let libraries = answers.found.iter().flat_map(|(_, found)| &found.libraries);
            inodes.extend(libraries.map(|library| library.id.inode));
            hung.extend(answers.hanging);
            thread::sleep(Duration::from_millis(1));
        }
        (inodes, hung)
    }

    /// Lets the threads that hang go on: what they read is empty.
    fn release(procfs: &Path, pid: u32) {
        drop(fs::File::options().write(true).open(procfs.join(format!("{pid}/maps"))).unwrap());
    }

    #[test]
    fn a_process_whose_files_hang_costs_the_others_nothing() {
        let procfs = procfs(9, &[3, 6]);
        let mut finder = Finder::new(procfs.path().to_owned());
        finder.add(1..=9);
        // The first file is known.
        assert_eq!(all(&mut finder, &[3, 6]), (vec![2, 4, 5, 7, 8, 9], vec![3, 6]));
        assert_eq!(finder.abandoned.len(), 2);
        [3, 6].into_iter().for_each(|pid| release(procfs.path(), pid));
        while !finder.abandoned.is_empty() {
            finder.poll(Instant::now(), BTreeSet::new);
        }
    }

    #[test]
    fn while_four_threads_hang_no_process_is_looked_at() {
        let procfs = procfs(6, &[1, 2, 3, 4]);
        let mut finder = Finder::new(procfs.path().to_owned());
        finder.add(1..=6);
        assert_eq!(all(&mut finder, &[1, 2, 3, 4]), (vec![], vec![1, 2, 3, 4]));
        for _ in 0..3 {
            assert!(finder.poll(Instant::now(), BTreeSet::new).found.is_empty() && finder.look.is_none());
        }
        assert_eq!(finder.waiting, [5, 6]);
        // One of them goes on.
        release(procfs.path(), 2);
        while finder.abandoned.len() == ABANDONED {
            finder.poll(Instant::now(), BTreeSet::new);
        }
        assert_eq!(all(&mut finder, &[]).0, [5, 6]);
        finder.add([5, 6]);
        finder.retain(&[6].into());
        assert_eq!(finder.waiting, [6]);
        [1, 3, 4].into_iter().for_each(|pid| release(procfs.path(), pid));
    }
}
