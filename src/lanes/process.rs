//! The process lane: lists the processes of every GPU, at once when its memory moved and at least once a second, and
//! between two lists takes the telemetry readings one driver call at a time.

mod listing;
mod roster;

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::bell::Bell;
use super::memory::Link;
use super::schedule::{HEARTBEAT, Ticker};
use super::session::Session;
use super::telemetry::{self, Telemetry, Work};
use super::watch::{Superseded, Watch};
use crate::attribution::Attribution;
use crate::faults::{Faults, Source};
use crate::nvml::{Error, ProcessBuffer, Severity};
use crate::snapshot::{GpuProcesses, Lane, ProcessPart, Snapshot};
use listing::{Listing, Lists};
pub(super) use roster::Roster;

/// What the lane is told.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) interval: Duration,
    pub(super) peak_window: Duration,
    pub(super) linger: Duration,
    pub(super) series_limit: usize,
    pub(super) telemetry: telemetry::Settings,
}

/// The lane. It outlives its threads and its sessions.
#[derive(Debug)]
pub(super) struct ProcessLane {
    settings: Settings,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    link: Arc<Link>,
    book: Mutex<Book>,
}

/// What is remembered of processes. Never locked while the driver is asked.
#[derive(Debug)]
struct Book {
    attribution: Attribution,
    rosters: HashMap<String, Roster>,
    part: Vec<GpuProcesses>,
}

/// What one thread of the lane keeps for a GPU between passes.
#[derive(Debug, Default)]
struct GpuLists {
    lists: Lists,
    accounting: Option<bool>,
}

impl ProcessLane {
    pub(super) fn new(
        settings: Settings,
        attribution: Attribution,
        snapshot: Arc<Snapshot>,
        faults: Arc<Faults>,
        link: Arc<Link>,
    ) -> Self {
        let book = Mutex::new(Book { attribution, rosters: HashMap::new(), part: Vec::new() });
        Self { settings, snapshot, faults, link, book }
    }

    /// Before the first thread of a session starts: nothing is known of its GPUs' processes yet.
    pub(super) fn resume(&self, session: &Session) {
        let mut book = self.book();
        book.part = session.driver.gpus().cloned().map(unread).collect();
    }

    /// Lists and reads until the session ends or the thread is superseded.
    pub(super) fn run(&self, session: &Session, watch: &Watch) -> Result<(), Superseded> {
        let mut gpus: Vec<GpuLists> = session.driver.gpus().map(|_| GpuLists::default()).collect();
        let mut buffer = ProcessBuffer::default();
        let mut heartbeat = Ticker::starting(self.settings.interval, Instant::now());
        let mut telemetry = Telemetry::start(&self.settings.telemetry, &self.snapshot, &self.faults, session, watch)?;
        while !session.ending() {
            let deadline = heartbeat.next().min(telemetry.next()).min(Instant::now() + HEARTBEAT);
            let moved = self.link.moved.wait_until(deadline);
            if session.ending() {
                break;
            }
            let began = Instant::now();
            self.snapshot.vitals.beat(Lane::Process, began);
            if let Some(missed) = heartbeat.take(began) {
                self.snapshot.vitals.add_missed(Lane::Process, missed);
                self.pass(session, watch, &mut gpus, &mut buffer, u64::MAX, true)?;
                self.snapshot.vitals.observe(Lane::Process, began.elapsed());
            } else if moved != 0 {
                self.pass(session, watch, &mut gpus, &mut buffer, moved, false)?;
                self.snapshot.vitals.observe(Lane::Process, began.elapsed());
            }
            self.snapshot.vitals.beat(Lane::Telemetry, began);
            // One reading and no more, so that a list that is asked for meanwhile waits for one driver call at most.
            if let Some(work) = telemetry.step(session, watch)? {
                self.fold_work(&work);
            }
        }
        Ok(())
    }

    /// Lists the processes of the GPUs whose bits are set and publishes. A whole pass covers all GPUs and all lists.
    fn pass(
        &self,
        session: &Session,
        watch: &Watch,
        gpus: &mut [GpuLists],
        buffer: &mut ProcessBuffer,
        bits: u64,
        whole: bool,
    ) -> Result<(), Superseded> {
        for (position, kept) in gpus.iter_mut().enumerate().filter(|(i, _)| bits & Bell::bit(*i) != 0) {
            if session.stalled(position) {
                continue;
            }
            let Some(device) = session.driver.device(position) else { continue };
            let slices: Vec<_> = session.driver.mig_devices(position).collect();
            match kept.lists.read(device, &slices, watch, position, buffer, whole)? {
                Ok(listing) => {
                    self.take(session, position, listing);
                    if whole {
                        self.account(session, watch, position, &mut kept.accounting)?;
                    }
                }
                Err(error) => self.failed(session, position, &error),
            }
        }
        let mut book = self.book();
        if whole {
            book.attribution.sweep();
        }
        let alive = book.rosters.values().map(Roster::alive).sum();
        self.publish(&book);
        drop(book);
        if self.link.processes.swap(alive, Ordering::Relaxed) == 0 && alive > 0 {
            self.link.awake.ring(1);
        }
        Ok(())
    }

    /// Folds a list into the GPU's roster and shows it.
    fn take(&self, session: &Session, position: usize, listing: Listing) {
        let Some(gpu) = session.driver.gpus().nth(position) else { return };
        let mut book = self.book();
        let Book { attribution, rosters, part } = &mut *book;
        let roster = rosters.entry(key(gpu)).or_insert_with(|| Roster::new(&self.settings));
        roster.fold(&listing.entries, gpu, listing.at, |pid| attribution.identify(pid));
        let unattributed = listing.used.and_then(|used| Some(used.saturating_sub(roster.used()?)));
        let shown = &mut part[position];
        shown.unattributed = unattributed;
        shown.mig_unattributed.clear();
        for (device, used) in gpu.mig.iter().zip(listing.slices) {
            // The compute instances of a GPU instance share its memory, which is told once.
            let told = shown.mig_unattributed.iter().any(|(first, _)| first.gpu_instance == device.gpu_instance);
            if let (false, Some(used), Some(held)) = (told, used, roster.used_in(device.gpu_instance)) {
                shown.mig_unattributed.push((device.clone(), used.saturating_sub(held)));
            }
        }
        shown.at = Some(listing.at);
        (shown.processes, shown.other) = roster.show(listing.at);
    }

    /// Folds what a GPU's processes did and shows it.
    fn fold_work(&self, work: &Work) {
        let mut book = self.book();
        let Book { rosters, part, .. } = &mut *book;
        let Some(roster) = rosters.get_mut(&key(&work.gpu)) else { return };
        roster.worked(&work.samples, work.asked_at);
        if let Some(shown) = part.iter_mut().find(|shown| Arc::ptr_eq(&shown.gpu, &work.gpu)) {
            (shown.processes, shown.other) = roster.show(work.asked_at.0);
        }
        self.publish(&book);
    }

    /// Asks the driver's accounting for its own maxima, where an administrator has turned it on.
    fn account(
        &self,
        session: &Session,
        watch: &Watch,
        position: usize,
        on: &mut Option<bool>,
    ) -> Result<(), Superseded> {
        let Some(device) = session.driver.device(position) else { return Ok(()) };
        if on.is_none() {
            *on = Some(watch.call(position, || device.accounting())?.unwrap_or(false));
        }
        let Some(gpu) = session.driver.gpus().nth(position).filter(|_| *on == Some(true)) else { return Ok(()) };
        let pids = self.book().rosters.get(&key(gpu)).map(Roster::pids).unwrap_or_default();
        for pid in pids {
            match watch.call(position, || device.accounted_peak(pid))? {
                Ok(Some(peak)) => {
                    if let Some(roster) = self.book().rosters.get_mut(&key(gpu)) {
                        roster.raise(pid, peak);
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    self.failed(session, position, &error);
                    break;
                }
            }
        }
        Ok(())
    }

    fn failed(&self, session: &Session, position: usize, error: &Error) {
        let gpu = session.driver.gpus().nth(position).map(|gpu| gpu.index);
        match error.severity() {
            Severity::Driver => session.end(crate::faults::chain(error)),
            Severity::Absent if self.faults.count(Source::Process, error.reason()) > 0 => return,
            _ => {}
        }
        self.faults.report(Source::Process, error.reason(), gpu, error);
    }

    fn publish(&self, book: &Book) {
        self.snapshot.processes.store(Arc::new(ProcessPart { gpus: book.part.clone() }));
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unread(gpu: Arc<crate::snapshot::Gpu>) -> GpuProcesses {
    GpuProcesses { gpu, at: None, processes: Vec::new(), other: None, unattributed: None, mig_unattributed: Vec::new() }
}

/// Under what a GPU's roster is kept: its UUID, since an index can change when GPUs come and go.
fn key(gpu: &crate::snapshot::Gpu) -> String {
    if gpu.uuid.is_empty() { format!("index {}", gpu.index) } else { gpu.uuid.clone() }
}
