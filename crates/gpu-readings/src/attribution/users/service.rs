//! User names from the machine's name service, looked up on a thread of its own.
//!
//! The name service may be a directory server on the network that does not answer for minutes. Only this thread waits
//! for it. It looks up one uid at a time. A uid whose lookup is pending is not requested again.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::{Uid, User};

use crate::faults::{Faults, Reason, Source};

/// The time after which a uid without a name is looked up again.
const RETRY: Duration = Duration::from_secs(5 * 60);
/// The maximum number of cached uids: a process that may change its uid at will must not be able to exhaust memory.
const REMEMBERED: usize = 4096;

/// Looks up one uid; `Ok(None)` if it has no name.
pub(crate) type Lookup = fn(u32) -> Result<Option<String>, Errno>;

/// The answers of the name service, and the thread that queries it.
#[derive(Debug)]
pub(crate) struct Service {
    lookup: Lookup,
    thread: Option<Thread>,
    cache: HashMap<u32, Answer>,
}

/// The channels to the thread, which ends when `requests` is dropped.
#[derive(Debug)]
struct Thread {
    requests: Sender<u32>,
    answers: Receiver<(u32, Result<Option<String>, Errno>)>,
}

#[derive(Debug)]
enum Answer {
    Pending,
    Named(String),
    Nameless { since: Instant },
}

#[derive(Debug, thiserror::Error)]
enum ServiceError {
    #[error("cannot look up the name of user {uid}")]
    Lookup { uid: u32, source: Errno },
    #[error("cannot start the thread that looks up user names")]
    Thread(#[source] io::Error),
}

/// Queries the C library, which uses the sources in `nsswitch.conf`.
pub(crate) fn from_system(uid: u32) -> Result<Option<String>, Errno> {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(user) => Ok(user.map(|user| user.name)),
        // Some services return this for an unknown uid, and the C library returns it for a missing file.
        Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Service {
    pub(crate) fn new(lookup: Lookup) -> Self {
        Self { lookup, thread: None, cache: HashMap::new() }
    }

    pub(crate) fn name(&mut self, uid: u32, now: Instant, faults: &Faults) -> Option<&str> {
        self.collect(now, faults);
        let is_due = match self.cache.get(&uid) {
            None => true,
            Some(Answer::Nameless { since }) => now.saturating_duration_since(*since) >= RETRY,
            Some(Answer::Pending | Answer::Named(_)) => false,
        };
        if is_due {
            self.request(uid, now, faults);
        }
        match self.cache.get(&uid) {
            Some(Answer::Named(name)) => Some(name),
            _ => None,
        }
    }

    fn collect(&mut self, now: Instant, faults: &Faults) {
        let Some(thread) = &self.thread else { return };
        for (uid, answer) in thread.answers.try_iter() {
            let answer = match answer {
                Ok(Some(name)) => Answer::Named(name),
                Ok(None) => Answer::Nameless { since: now },
                Err(source) => {
                    let error = ServiceError::Lookup { uid, source };
                    faults.raise(Source::Attribution, Reason::UserUnknown, None, &error);
                    Answer::Nameless { since: now }
                }
            };
            self.cache.insert(uid, answer);
        }
    }

    fn request(&mut self, uid: u32, now: Instant, faults: &Faults) {
        if self.cache.len() >= REMEMBERED {
            self.cache.retain(|_, answer| matches!(answer, Answer::Pending));
            if self.cache.len() >= REMEMBERED {
                return;
            }
        }
        let answer = match self.send(uid) {
            Ok(()) => Answer::Pending,
            Err(error) => {
                faults.raise(Source::Attribution, Reason::UserUnknown, None, &ServiceError::Thread(error));
                Answer::Nameless { since: now }
            }
        };
        self.cache.insert(uid, answer);
    }

    fn send(&mut self, uid: u32) -> io::Result<()> {
        if self.thread.as_ref().is_some_and(|thread| thread.requests.send(uid).is_ok()) {
            return Ok(());
        }
        let thread = Thread::start(self.lookup)?;
        // Lookups that a thread left unanswered when it ended are repeated when they are next needed.
        self.cache.retain(|_, answer| !matches!(answer, Answer::Pending));
        thread.requests.send(uid).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        self.thread = Some(thread);
        Ok(())
    }
}

impl Thread {
    fn start(lookup: Lookup) -> io::Result<Self> {
        let (requests, queue) = channel::<u32>();
        let (replies, answers) = channel();
        std::thread::Builder::new().name("user-names".into()).spawn(move || {
            for uid in queue {
                if replies.send((uid, lookup(uid))).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { requests, answers })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = what() {
                return found;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "no answer in 10 s");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_service_that_hangs_blocks_no_caller() {
        static GATE: Mutex<()> = Mutex::new(());
        fn lookup(uid: u32) -> Result<Option<String>, Errno> {
            drop(GATE.lock());
            Ok(Some(format!("user{uid}")))
        }
        let faults = Faults::default();
        let mut service = Service::new(lookup);
        let closed = GATE.lock().unwrap();
        let start = Instant::now();
        assert_eq!(service.name(1, start, &faults), None);
        assert_eq!(service.name(2, start, &faults), None);
        assert!(start.elapsed() < Duration::from_secs(5));
        drop(closed);
        let name = wait_for(|| service.name(2, start, &faults).map(str::to_owned));
        assert_eq!(name, "user2");
        assert_eq!(service.name(1, start, &faults), Some("user1"));
    }

    #[test]
    fn a_uid_without_a_name_is_looked_up_again_after_five_minutes() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        fn lookup(_: u32) -> Result<Option<String>, Errno> {
            let earlier = ASKED.fetch_add(1, Ordering::SeqCst);
            Ok((earlier > 0).then(|| "late".to_owned()))
        }
        let faults = Faults::default();
        let mut service = Service::new(lookup);
        let start = Instant::now();
        assert_eq!(service.name(9, start, &faults), None);
        wait_for(|| {
            service.collect(start, &faults);
            matches!(service.cache.get(&9), Some(Answer::Nameless { .. })).then_some(())
        });
        assert_eq!(service.name(9, start + Duration::from_secs(299), &faults), None);
        assert_eq!(ASKED.load(Ordering::SeqCst), 1);
        let later = start + RETRY;
        assert_eq!(wait_for(|| service.name(9, later, &faults).map(str::to_owned)), "late");
        assert_eq!(faults.count(Source::Attribution, Reason::UserUnknown), 0);
    }

    #[test]
    fn a_failed_lookup_is_a_fault() {
        let faults = Faults::default();
        let mut service = Service::new(|_| Err(Errno::EIO));
        let now = Instant::now();
        wait_for(|| {
            assert_eq!(service.name(3, now, &faults), None);
            (faults.count(Source::Attribution, Reason::UserUnknown) == 1).then_some(())
        });
    }

    #[test]
    fn the_cache_of_uids_is_bounded() {
        let faults = Faults::default();
        let mut service = Service::new(|_| Ok(None));
        let now = Instant::now();
        for uid in 0..3 * REMEMBERED as u32 {
            assert_eq!(service.name(uid, now, &faults), None);
            assert!(service.cache.len() <= REMEMBERED);
        }
    }

    #[test]
    fn the_system_knows_root() {
        assert_eq!(from_system(0), Ok(Some("root".to_owned())));
    }
}
