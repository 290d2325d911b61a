//! Another session beside the one that is open: for a GPU that is lost, or because the open one is outdated.
//!
//! Invariant: the open session goes on until another one is there in which every GPU that answers can be asked, and there is
//! never a second opening under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Supervisor;
use crate::faults::{Reason, Source};
use crate::lanes::opening::{Closing, OpenedDriver, Opening, Progress};
use crate::lanes::session::Session;
use crate::snapshot::{Gpu, GpuState};

/// Between two openings of the driver for the sake of a GPU that is lost: half as long again from the first to the last.
/// Each costs the other GPUs a gap of milliseconds in their samples; the GPU comes back so much later at most.
pub(super) const LOST_BACK_OFF: (Duration, Duration) = (Duration::from_secs(8), Duration::from_secs(60));
/// From the begin of such an opening to the next at the earliest, whatever it is for.
const PAUSE: Duration = LOST_BACK_OFF.0;
/// How old a session is when it has asked every GPU.
const SETTLED: Duration = Duration::from_secs(5);

impl Supervisor {
    /// Opens another session beside the one that is open, where that one is outdated or a GPU is lost, and gives it when it is
    /// there. The open one goes on meanwhile, and stays if no other can be opened.
    pub(super) fn poll_reopening(&mut self, session: &Session, since: Instant) -> Option<Box<OpenedDriver>> {
        let Some(opening) = self.reopening.take() else {
            let why = self.reopen_reason(session, since)?;
            self.reopen_after = Instant::now() + PAUSE;
            tracing::info!(why, "the driver is opened again beside the open session");
            let begun = self.begin_opening();
            self.reopening =
                begun.inspect_err(|error| self.faults.report(Source::Library, Reason::Panicked, None, error)).ok();
            return None;
        };
        match opening.progress() {
            Progress::Pending(opening) => self.reopening = Some(self.replace_hung_opening(opening)),
            Progress::Slow(opening) => {
                self.report_slow("opening the driver", false);
                self.reopening = Some(opening);
            }
            Progress::Done(opened) => match *opened {
                Ok(found) => match self.missing_gpu(session, &found) {
                    None => return Some(Box::new(found)),
                    Some(gpu) => {
                        self.report_failures(&found);
                        tracing::warn!(gpu, "the open session goes on: in the other one a GPU that answers is missing");
                        self.detached.close(Closing::begin(found));
                    }
                },
                Err(error) => self.faults.report(Source::Library, error.reason(), None, &error),
            },
            Progress::Panicked => {
                let error = std::io::Error::other("the thread that opened the driver ended by a panic");
                self.faults.report(Source::Library, Reason::Panicked, None, &error);
            }
        }
        None
    }

    /// The index of a GPU that answers in the open session and could not be asked, or not for its MIG devices, in the other one.
    /// A GPU that the other one does not count has left the machine.
    fn missing_gpu(&self, session: &Session, found: &OpenedDriver) -> Option<u32> {
        let memory = self.snapshot.memory.load();
        let answers = |gpu: &Arc<Gpu>| {
            memory.gpus.iter().any(|shown| Arc::ptr_eq(&shown.gpu, gpu) && shown.state == GpuState::Up)
        };
        let is_lost = |(position, gpu): (usize, &Arc<Gpu>)| {
            let sliced = session.driver.knows_mig_layout(position) && !gpu.mig.is_empty();
            let mut others = found.driver.gpus().enumerate();
            match others.find(|(_, other)| is_same(gpu, other)) {
                Some((other, _)) => {
                    found.driver.device(other).is_none() || (sliced && !found.driver.knows_mig_layout(other))
                }
                None => found.driver.gpus().any(|other| other.uuid.is_empty() && other.pci_bus_id.is_none()),
            }
        };
        let mut gpus = session.driver.gpus().enumerate();
        gpus.find(|&(position, gpu)| answers(gpu) && is_lost((position, gpu))).map(|(_, gpu)| gpu.index)
    }

    /// Why another session is worth the gap of milliseconds that the change costs: a GPU has been lost for long, or the open
    /// session is outdated.
    fn reopen_reason(&mut self, session: &Session, opened: Instant) -> Option<String> {
        let is_due = Instant::now() >= self.reopen_after && self.detached.is_closed() && !self.is_full();
        if let Some(why) = session.reopen_requested() {
            return Some(why).filter(|_| is_due);
        }
        if !session.lost() {
            // A session that just began has not looked yet.
            if opened.elapsed() >= SETTLED {
                (self.lost_since, self.lost_back_off) = (None, LOST_BACK_OFF.0);
            }
            return None;
        }
        let since = *self.lost_since.get_or_insert_with(Instant::now);
        if !is_due || since.elapsed() <= self.lost_back_off {
            return None;
        }
        self.lost_since = Some(Instant::now());
        self.lost_back_off = (self.lost_back_off * 3 / 2).min(LOST_BACK_OFF.1);
        Some("a GPU does not answer: the driver is opened again for its sake".to_owned())
    }

    /// Leaves an opening alone that hangs in a call to one GPU, and begins another one without that GPU in its place, which is
    /// opened again as one that is lost. An opening that hangs elsewhere is waited for.
    pub(super) fn replace_hung_opening(&mut self, opening: Opening) -> Opening {
        let Some(gpu) = opening.hangs_at().filter(|_| !self.is_full()) else { return opening };
        let left_out: Vec<u32> = self.left_out().chain([gpu]).collect();
        let other = match self.begin_opening_without(left_out) {
            Ok(other) => other,
            Err(error) => {
                self.faults.report(Source::Library, Reason::Panicked, None, &error);
                return opening;
            }
        };
        let error = std::io::Error::other("opening the driver hangs at this GPU: it is opened without it");
        self.faults.report(Source::Topology, Reason::Stalled, Some(gpu), &error);
        let (thread, lives, closing) = opening.leave();
        self.detached.leave(thread);
        self.detached.close(closing);
        self.hung.push((gpu, lives));
        other
    }

    /// The indices of the GPUs at which an opening hangs.
    fn left_out(&mut self) -> impl Iterator<Item = u32> {
        self.hung.retain(|(_, lives)| lives.strong_count() > 0);
        self.hung.iter().map(|&(gpu, _)| gpu)
    }

    pub(super) fn begin_opening(&mut self) -> std::io::Result<Opening> {
        let left_out = self.left_out().collect();
        self.begin_opening_without(left_out)
    }

    fn begin_opening_without(&self, left_out: Vec<u32>) -> std::io::Result<Opening> {
        let stalled = self.known.iter().filter(|gpu| self.stalls.is_stalled(gpu)).cloned().collect();
        Opening::begin(self.settings.library.clone(), self.known.clone(), stalled, left_out)
    }
}

/// Whether both are one GPU, as far as one of them can be told.
fn is_same(gpu: &Gpu, other: &Gpu) -> bool {
    let place = gpu.pci_bus_id.is_some() && gpu.pci_bus_id == other.pci_bus_id;
    place || (!gpu.uuid.is_empty() && gpu.uuid == other.uuid)
}
