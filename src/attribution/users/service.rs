//! User names from the machine's name service, asked on a thread of its own.
//!
//! The name service may be a directory across the network that does not answer for minutes. Whoever waits for it is
//! this thread alone; one uid is asked for at a time, and never twice at once.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::{Uid, User};

use crate::faults::{Faults, Reason, Source};

/// When a uid without an answer is asked for again.
const RETRY: Duration = Duration::from_secs(5 * 60);
/// How many uids are remembered. A process that may change its uid at will must not fill the memory.
const REMEMBERED: usize = 4096;

/// Looks up one uid; `Ok(None)` where it has no name.
pub(crate) type Lookup = fn(u32) -> Result<Option<String>, Errno>;

/// The names that the service gave, and its thread.
#[derive(Debug)]
pub(crate) struct Service {
    lookup: Lookup,
    thread: Option<Thread>,
    known: HashMap<u32, Knowledge>,
}

/// The ends of the channels to the thread. The thread ends when `asks` is dropped.
#[derive(Debug)]
struct Thread {
    asks: Sender<u32>,
    answers: Receiver<(u32, Result<Option<String>, Errno>)>,
}

#[derive(Debug)]
enum Knowledge {
    Asked,
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

/// Asks the C library, which asks whatever `nsswitch.conf` names.
pub(crate) fn from_system(uid: u32) -> Result<Option<String>, Errno> {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(user) => Ok(user.map(|user| user.name)),
        // Some services answer so for a uid that they do not know, and the C library for a missing file.
        Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Service {
    pub(crate) fn new(lookup: Lookup) -> Self {
        Self { lookup, thread: None, known: HashMap::new() }
    }

    pub(crate) fn name(&mut self, uid: u32, now: Instant, faults: &Faults) -> Option<&str> {
        self.collect(now, faults);
        let ask = match self.known.get(&uid) {
            None => true,
            Some(Knowledge::Nameless { since }) => now.saturating_duration_since(*since) >= RETRY,
            Some(Knowledge::Asked | Knowledge::Named(_)) => false,
        };
        if ask {
            self.ask(uid, now, faults);
        }
        match self.known.get(&uid) {
            Some(Knowledge::Named(name)) => Some(name),
            _ => None,
        }
    }

    fn collect(&mut self, now: Instant, faults: &Faults) {
        let Some(thread) = &self.thread else { return };
        for (uid, answer) in thread.answers.try_iter() {
            let knowledge = match answer {
                Ok(Some(name)) => Knowledge::Named(name),
                Ok(None) => Knowledge::Nameless { since: now },
                Err(source) => {
                    let error = ServiceError::Lookup { uid, source };
                    faults.report(Source::Attribution, Reason::UserUnknown, None, &error);
                    Knowledge::Nameless { since: now }
                }
            };
            self.known.insert(uid, knowledge);
        }
    }

    fn ask(&mut self, uid: u32, now: Instant, faults: &Faults) {
        if self.known.len() >= REMEMBERED {
            self.known.retain(|_, knowledge| matches!(knowledge, Knowledge::Asked));
            if self.known.len() >= REMEMBERED {
                return;
            }
        }
        let knowledge = match self.send(uid) {
            Ok(()) => Knowledge::Asked,
            Err(error) => {
                faults.report(Source::Attribution, Reason::UserUnknown, None, &ServiceError::Thread(error));
                Knowledge::Nameless { since: now }
            }
        };
        self.known.insert(uid, knowledge);
    }

    fn send(&mut self, uid: u32) -> io::Result<()> {
        if self.thread.as_ref().is_some_and(|thread| thread.asks.send(uid).is_ok()) {
            return Ok(());
        }
        let thread = Thread::start(self.lookup)?;
        // What a thread that ended left unanswered is asked for again when it is next wanted.
        self.known.retain(|_, knowledge| !matches!(knowledge, Knowledge::Asked));
        thread.asks.send(uid).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        self.thread = Some(thread);
        Ok(())
    }
}

impl Thread {
    fn start(lookup: Lookup) -> io::Result<Self> {
        let (asks, questions) = channel::<u32>();
        let (replies, answers) = channel();
        std::thread::Builder::new().name("user-names".into()).spawn(move || {
            for uid in questions {
                if replies.send((uid, lookup(uid))).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { asks, answers })
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
    fn a_service_that_hangs_holds_nobody_up() {
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
    fn a_nameless_uid_is_asked_for_again_after_five_minutes() {
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
            matches!(service.known.get(&9), Some(Knowledge::Nameless { .. })).then_some(())
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
    fn the_memory_of_uids_is_bounded() {
        let faults = Faults::default();
        let mut service = Service::new(|_| Ok(None));
        let now = Instant::now();
        for uid in 0..3 * REMEMBERED as u32 {
            assert_eq!(service.name(uid, now, &faults), None);
            assert!(service.known.len() <= REMEMBERED);
        }
    }

    #[test]
    fn the_system_knows_root() {
        assert_eq!(from_system(0), Ok(Some("root".to_owned())));
    }
}
