//! Reopening the driver while a session is open: because a GPU is lost, or because the session is out of date.
//!
//! Invariant: the open session continues until another has been opened and can query every GPU that responds, and two
//! attempts to open the driver are never in progress at once.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Supervisor;
use crate::faults::{Reason, Source};
use crate::lanes::opening::{Closing, OpenedDriver, Opening, Progress};
use crate::lanes::session::Session;
use crate::nvml::Discovery;
use crate::snapshot::{Gpu, GpuState};

/// The first and the longest pause between two attempts to reopen the driver for a lost GPU; each pause is 1.5 times as
/// long as the previous one. Each attempt costs the other GPUs a gap of milliseconds in their samples; each pause
/// delays the return of the lost GPU.
const LOST_PAUSE: (Duration, Duration) = (Duration::from_secs(8), Duration::from_secs(60));
/// The shortest time between the starts of two attempts to open the driver during a session, whatever their reasons.
const MIN_PAUSE: Duration = LOST_PAUSE.0;
/// The age by which a session has queried every GPU.
const SETTLED: Duration = Duration::from_secs(5);

/// The attempts to open the driver while a session is open.
pub(super) struct Reopening {
    /// The attempt in progress.
    pub(super) opening: Option<Opening>,
    not_before: Instant,
    /// When the session first had a lost GPU, or when the driver was last reopened for it.
    lost_since: Option<Instant>,
    lost_pause: Duration,
}

impl Reopening {
    pub(super) fn new() -> Self {
        Self { opening: None, not_before: Instant::now(), lost_since: None, lost_pause: LOST_PAUSE.0 }
    }
}

impl Supervisor {
    /// Opens another session alongside the open one if there is a reason to, and returns it once it is open. The open
    /// session continues in the meantime, and also if no other session can be opened.
    pub(super) fn poll_reopening(&mut self, session: &Session, since: Instant) -> Option<Box<OpenedDriver>> {
        let Some(opening) = self.reopening.opening.take() else {
            let why = self.reopen_reason(session, since)?;
            self.reopening.not_before = Instant::now() + MIN_PAUSE;
            tracing::info!(why, "reopening the driver while the current session continues");
            self.reopening.opening = self.begin_opening(None);
            return None;
        };
        match opening.progress() {
            Progress::Pending(opening) => self.reopening.opening = Some(self.replace_hung_opening(opening)),
            Progress::Slow(opening) => {
                self.raise_slow("opening the driver");
                self.reopening.opening = Some(opening);
            }
            Progress::Done(result) => match *result {
                Ok(opened) => match self.missing_gpu(session, &opened) {
                    None => return Some(Box::new(opened)),
                    Some(gpu) => {
                        self.raise_failures(&opened);
                        tracing::warn!(gpu, "the open session continues: the new one lacks a GPU that answers");
                        self.detached.add_closing(Closing::begin(opened));
                    }
                },
                Err(error) => self.faults.raise(Source::Library, error.reason(), None, &error),
            },
            Progress::Panicked => self.raise_panicked_opening(),
        }
        None
    }

    /// The index of a GPU that responds in the open session, but that the newly opened driver cannot query, or whose
    /// MIG devices it cannot query. A GPU that the newly opened driver does not count has left the machine.
    fn missing_gpu(&self, session: &Session, opened: &OpenedDriver) -> Option<u32> {
        let memory = self.snapshot.memory.load();
        let answers = |gpu: &Arc<Gpu>| {
            memory.gpus.iter().any(|shown| Arc::ptr_eq(&shown.gpu, gpu) && shown.state == GpuState::Up)
        };
        let is_missing = |(position, gpu): (usize, &Arc<Gpu>)| {
            let has_mig = session.driver.knows_mig_layout(position) && !gpu.mig.is_empty();
            let mut others = opened.driver.gpus().enumerate();
            match others.find(|(_, other)| is_same(gpu, other)) {
                Some((other, _)) => {
                    opened.driver.device(other).is_none() || (has_mig && !opened.driver.knows_mig_layout(other))
                }
                None => opened.driver.gpus().any(|other| other.uuid.is_empty() && other.pci_bus_id.is_none()),
            }
        };
        let mut gpus = session.driver.gpus().enumerate();
        gpus.find(|&(position, gpu)| answers(gpu) && is_missing((position, gpu))).map(|(_, gpu)| gpu.index)
    }

    /// The reason to open another session, if there is one that justifies a gap of milliseconds in the samples: a GPU
    /// has been lost for a long time, or the open session is out of date.
    fn reopen_reason(&mut self, session: &Session, opened: Instant) -> Option<String> {
        let is_due = Instant::now() >= self.reopening.not_before && self.detached.closings_done() && !self.is_full();
        if let Some(why) = session.reopen_requested() {
            return Some(why).filter(|_| is_due);
        }
        let Reopening { lost_since, lost_pause, .. } = &mut self.reopening;
        if !session.lost() {
            // A session that has just begun has not queried every GPU yet.
            if opened.elapsed() >= SETTLED {
                (*lost_since, *lost_pause) = (None, LOST_PAUSE.0);
            }
            return None;
        }
        let since = *lost_since.get_or_insert_with(Instant::now);
        if !is_due || since.elapsed() <= *lost_pause {
            return None;
        }
        *lost_since = Some(Instant::now());
        *lost_pause = (*lost_pause * 3 / 2).min(LOST_PAUSE.1);
        Some("a lost GPU may answer again in another session".to_owned())
    }

    /// Abandons an attempt that hangs in a call to one GPU, and begins another without that GPU, which is then treated
    /// like a lost GPU. An attempt that hangs elsewhere is not abandoned.
    pub(super) fn replace_hung_opening(&mut self, opening: Opening) -> Opening {
        let Some(gpu) = opening.hangs_at().filter(|_| !self.is_full()) else { return opening };
        let Some(other) = self.begin_opening(Some(gpu)) else { return opening };
        let error = io::Error::other("opening the driver hangs at this GPU: the driver is opened without it");
        self.faults.raise(Source::Topology, Reason::Stalled, Some(gpu), &error);
        let (thread, closing) = opening.abandon();
        self.detached.add_stuck(thread, Some(gpu));
        self.detached.add_closing(closing);
        other
    }

    /// Begins an attempt that skips the GPUs on which an earlier attempt hangs, and the GPU `without`. If the
    /// system cannot create a thread, the error is raised as a fault.
    pub(super) fn begin_opening(&self, without: Option<u32>) -> Option<Opening> {
        let skipped = self.detached.hung_openings().chain(without).collect();
        let stalled = self.known.iter().filter(|gpu| self.stalls.is_stalled(gpu)).cloned().collect();
        let begun = Opening::begin(
            self.settings.library.clone(),
            Discovery::new(self.known.clone(), stalled, skipped),
            &self.control.bell,
        );
        begun.inspect_err(|error| self.faults.raise(Source::Library, Reason::Panicked, None, error)).ok()
    }
}

/// Whether both are the same GPU, as far as their identities are known.
fn is_same(gpu: &Gpu, other: &Gpu) -> bool {
    let has_same_bus_id = gpu.pci_bus_id.is_some() && gpu.pci_bus_id == other.pci_bus_id;
    has_same_bus_id || (!gpu.uuid.is_empty() && gpu.uuid == other.uuid)
}
