//! Opening and closing the driver, each on a thread of its own: both are driver calls that can hang.
//!
//! Invariant: nobody waits here; whoever began asks now and then whether it is done.

use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::worker::UnparkOnDrop;
use crate::nvml::{self, Discovery, Driver, Library, OpenError};
use crate::snapshot::{self, Gpu};

/// How long either may take before it is told; it is waited for all the same, since nothing else can be done with the
/// driver meanwhile.
pub(super) const SLOW: Duration = Duration::from_secs(30);

/// What came of an opening.
pub(super) type OpenResult = Result<OpenedDriver, OpenError>;

/// An opened driver.
pub(super) struct OpenedDriver {
    pub(super) driver: Driver,
    /// What to publish of it.
    pub(super) description: snapshot::Driver,
    /// What GPUs failed to give, by index.
    pub(super) failures: Vec<(u32, nvml::Error)>,
}

/// An opening that was begun.
pub(super) struct Opening {
    answer: Receiver<OpenResult>,
    opener: JoinHandle<()>,
    since: Instant,
    told: bool,
    asking: Arc<Discovery>,
    /// The GPU that was asked when it was looked at, and since when.
    asked: (u32, Instant),
}

/// How far an opening is.
pub(super) enum Progress {
    /// It goes on.
    Pending(Opening),
    /// It goes on, and is slow since now.
    Slow(Opening),
    /// It has ended.
    Done(Box<OpenResult>),
    /// Its thread ended by a panic.
    Panicked,
}

impl Opening {
    /// Begins. `known` are the GPUs of earlier openings, `stalled` those of them to which a call hangs, and `left_out` the indices at
    /// which earlier openings hang. The thread that begins is woken at the end.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn begin(
        library: Library,
        known: Vec<Arc<Gpu>>,
        stalled: Vec<Arc<Gpu>>,
        left_out: Vec<u32>,
    ) -> std::io::Result<Self> {
        let (send, answer) = mpsc::channel();
        let wake = UnparkOnDrop::current();
        let asking = Arc::new(Discovery::all_but(left_out));
        let told = asking.clone();
        let opener = thread::Builder::new().name("driver-open".into()).spawn(move || {
            let _wake = wake;
            // The receiver is gone when the exporter ends, or the opening was left alone.
            let _ = send.send(open(&library, &known, &stalled, &told));
        })?;
        let now = Instant::now();
        Ok(Self { answer, opener, since: now, told: false, asking, asked: (Discovery::NONE, now) })
    }

    /// Whether it was found to be slow.
    pub(super) fn is_slow(&self) -> bool {
        self.told
    }

    /// The index of the GPU in a call to which it hangs.
    pub(super) fn hangs_at(&self) -> Option<u32> {
        let (index, since) = self.asked;
        (index != Discovery::NONE && since.elapsed() > SLOW).then_some(index)
    }

    /// Leaves it alone: its thread, what lives as long as its thread, and what closes a driver that it opened after all.
    pub(super) fn leave(self) -> (JoinHandle<()>, Weak<Discovery>, Option<Closing>) {
        (self.opener, Arc::downgrade(&self.asking), Closing::begin(self.answer))
    }

    /// How far it is.
    pub(super) fn progress(mut self) -> Progress {
        let asked = self.asking.now();
        if asked != self.asked.0 {
            self.asked = (asked, Instant::now());
        }
        match self.answer.try_recv() {
            Ok(opened) => Progress::Done(Box::new(opened)),
            Err(TryRecvError::Disconnected) => Progress::Panicked,
            Err(TryRecvError::Empty) if self.since.elapsed() > SLOW && !self.told => {
                self.told = true;
                Progress::Slow(self)
            }
            Err(TryRecvError::Empty) => Progress::Pending(self),
        }
    }
}

fn open(library: &Library, known: &[Arc<Gpu>], stalled: &[Arc<Gpu>], asking: &Discovery) -> OpenResult {
    let mut driver = library.open()?;
    match driver.discover(known, stalled, asking) {
        Ok(failures) => {
            let description = driver.describe();
            Ok(OpenedDriver { driver, description, failures })
        }
        Err(cause) => Err(OpenError::Init { library: format!("{library:?}"), cause }),
    }
}

/// A closing that was begun.
pub(super) struct Closing {
    closer: JoinHandle<()>,
    since: Instant,
}

impl Closing {
    /// Drops what holds a driver, which is closed when nothing else holds it. `None` where the system gives no thread;
    /// then it was dropped here.
    pub(super) fn begin(holder: impl Send + 'static) -> Option<Self> {
        let closer = thread::Builder::new().name("driver-close".into()).spawn(move || drop(holder)).ok()?;
        Some(Self { closer, since: Instant::now() })
    }

    pub(super) fn is_done(&self) -> bool {
        self.closer.is_finished()
    }

    /// The thread that closes, to be left alone.
    pub(super) fn into_thread(self) -> JoinHandle<()> {
        self.closer
    }

    pub(super) fn is_slow(&self) -> bool {
        self.since.elapsed() > SLOW
    }
}
