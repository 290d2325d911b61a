//! Opening and closing the driver, each on its own thread because both make driver calls that can hang.
//!
//! Invariant: nothing here waits; the supervisor polls for the result.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::bell::{Bell, RingOnDrop};
use crate::nvml::{self, Discovery, Driver, Library, OpenError};
use crate::snapshot;

/// How long opening or closing may take before it is reported as slow. If opening is slow, the supervisor keeps
/// waiting, because nothing else can be done with the driver until the attempt ends.
pub(super) const SLOW: Duration = Duration::from_secs(30);

/// The result of an attempt to open the driver.
pub(super) type OpenResult = Result<OpenedDriver, OpenError>;

/// An opened driver.
pub(super) struct OpenedDriver {
    pub(super) driver: Driver,
    /// The description to publish.
    pub(super) description: snapshot::Driver,
    /// The failed calls, each with the index of its GPU.
    pub(super) failures: Vec<(u32, nvml::Error)>,
}

/// An attempt to open the driver that is in progress.
pub(super) struct Opening {
    result: Receiver<OpenResult>,
    thread: JoinHandle<()>,
    since: Instant,
    pub(super) is_slow: bool,
    discovery: Arc<Discovery>,
    /// The GPU that was being queried at the last poll, and since when.
    queried: (Option<u32>, Instant),
}

/// The progress of an attempt to open the driver.
pub(super) enum Progress {
    /// It is still in progress.
    Pending(Opening),
    /// It is still in progress and has just become slow.
    Slow(Opening),
    /// It has ended.
    Done(Box<OpenResult>),
    /// Its thread panicked.
    Panicked,
}

impl Opening {
    /// Starts a thread that opens the driver. The bell rings when it ends.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub(super) fn begin(library: Library, discovery: Discovery, bell: &Arc<Bell>) -> std::io::Result<Self> {
        let (send, result) = mpsc::channel();
        let ring = RingOnDrop(bell.clone());
        let discovery = Arc::new(discovery);
        let shared = discovery.clone();
        let thread = thread::Builder::new().name("driver-open".into()).spawn(move || {
            let _ring = ring;
            // The receiver is gone if the exporter is shutting down or the attempt has been abandoned.
            let _ = send.send(open(&library, &shared));
        })?;
        let now = Instant::now();
        Ok(Self { result, thread, since: now, is_slow: false, discovery, queried: (None, now) })
    }

    /// The index of the GPU on which it is hanging.
    pub(super) fn hangs_at(&self) -> Option<u32> {
        let (gpu, since) = self.queried;
        gpu.filter(|_| since.elapsed() > SLOW)
    }

    /// Abandons the attempt. Returns its thread, and a [`Closing`] that closes the driver if it has already been
    /// opened.
    pub(super) fn abandon(self) -> (JoinHandle<()>, Option<Closing>) {
        (self.thread, Closing::begin(self.result))
    }

    /// Polls the attempt.
    pub(super) fn progress(mut self) -> Progress {
        let gpu = self.discovery.current_gpu();
        if gpu != self.queried.0 {
            self.queried = (gpu, Instant::now());
        }
        match self.result.try_recv() {
            Ok(result) => Progress::Done(Box::new(result)),
            Err(TryRecvError::Disconnected) => Progress::Panicked,
            Err(TryRecvError::Empty) if self.since.elapsed() > SLOW && !self.is_slow => {
                self.is_slow = true;
                Progress::Slow(self)
            }
            Err(TryRecvError::Empty) => Progress::Pending(self),
        }
    }
}

fn open(library: &Library, discovery: &Discovery) -> OpenResult {
    let mut driver = library.open()?;
    match driver.discover(discovery) {
        Ok(failures) => {
            let description = driver.describe();
            Ok(OpenedDriver { driver, description, failures })
        }
        Err(cause) => Err(OpenError::Init { library: format!("{library:?}"), cause }),
    }
}

/// A driver that is being closed.
pub(super) struct Closing {
    pub(super) thread: JoinHandle<()>,
    since: Instant,
}

impl Closing {
    /// Drops an owner of a driver on a new thread; dropping the last owner closes the driver. `None` if the system
    /// cannot create a thread; in that case, the owner has been dropped on the calling thread.
    pub(super) fn begin(owner: impl Send + 'static) -> Option<Self> {
        let thread = thread::Builder::new().name("driver-close".into()).spawn(move || drop(owner)).ok()?;
        Some(Self { thread, since: Instant::now() })
    }

    pub(super) fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    pub(super) fn is_slow(&self) -> bool {
        self.since.elapsed() > SLOW
    }
}
