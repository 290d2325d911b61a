//! The process lane: lists the processes of every GPU, at once when its memory moved and at least once a second, and
//! between two lists takes the telemetry readings one driver call at a time.

mod accounting;
mod layout;
mod list_cache;
mod reported;
mod table;
mod workloads;

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::memory::Link;
use super::schedule::{HEARTBEAT, Ticker};
use super::session::Session;
use super::telemetry::{self, Telemetry, Work};
use super::wake::WakeBits;
use super::watch::{Superseded, Watch};
use super::worker::LaneTask;
use crate::attribution::Attribution;
use crate::faults::{Faults, Reason, Source};
use crate::nvml::{Error, ProcessBuffer, Severity};
use crate::snapshot::{Gpu, GpuProcesses, Lane, ProcessPart, Snapshot};
use accounting::Accounting;
use layout::LayoutCheck;
use list_cache::{ListCache, ProcessList, Refusal, Slice};
use table::{ListContext, ProcessTable, WorkloadMember};
use workloads::Workloads;

/// After a pass the lane rests for so many times as long as the pass took, so that memory that moves at every tick cannot
/// make it hold the driver's lock more than a third of the time. It reads telemetry meanwhile.
const REST: u32 = 2;
/// A pass that waited for the driver says nothing of what the next one costs.
const LONGEST_REST: Duration = Duration::from_millis(50);

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
    book: Mutex<ProcessLaneState>,
}

/// What is remembered of processes. Never locked while the driver is asked.
#[derive(Debug)]
struct ProcessLaneState {
    attribution: Attribution,
    gpus: HashMap<String, GpuProcessState>,
    part: Vec<Arc<GpuProcesses>>,
}

/// What is remembered of one GPU, under its key.
#[derive(Debug)]
struct GpuProcessState {
    table: ProcessTable,
    workloads: Workloads,
    /// How many processes were invisible, so that it is said once when they are more.
    invisible: u64,
}

impl GpuProcessState {
    fn new(settings: &Settings) -> Self {
        Self { table: ProcessTable::new(settings), workloads: Workloads::new(settings), invisible: 0 }
    }

    fn show(&mut self, shown: &mut GpuProcesses, now: Instant) {
        (shown.processes, shown.other) = self.table.show(now);
        (shown.workloads, shown.other_workloads) = self.workloads.show(now);
        shown.invisible = self.table.invisible(now);
    }
}

/// What became of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// The number of processes on the GPU.
    Folded(usize),
    /// A pid of the list was another process' at the list before; that one has ended.
    PidReused,
}

/// Processes are on the GPU that `/proc` does not show.
#[derive(Debug, thiserror::Error)]
#[error("{processes} processes on the GPU are not in /proc, so nobody can say whose they are: {}", why(*own_namespace))]
struct Invisible {
    processes: u64,
    own_namespace: bool,
}

fn why(own_namespace: bool) -> &'static str {
    if own_namespace {
        "the exporter has a pid namespace of its own; give it the host's (hostPID: true, docker run --pid=host)"
    } else {
        "they are in another pid namespace, or /proc is mounted with hidepid and the exporter is not in its group"
    }
}

/// What one thread of the lane keeps for a GPU between passes.
#[derive(Debug, Default)]
struct GpuLists {
    lists: ListCache,
    accounting: Accounting,
    layout: LayoutCheck,
    /// How many processes were on it at its last list. Where the list is refused there may be one.
    alive: usize,
}

impl ProcessLane {
    pub(super) fn new(
        settings: Settings,
        attribution: Attribution,
        snapshot: Arc<Snapshot>,
        faults: Arc<Faults>,
        link: Arc<Link>,
    ) -> Self {
        let book = Mutex::new(ProcessLaneState { attribution, gpus: HashMap::new(), part: Vec::new() });
        Self { settings, snapshot, faults, link, book }
    }
}

impl LaneTask for ProcessLane {
    /// Nothing is known of the GPUs' processes yet.
    fn resume(&self, session: &Session) {
        let mut book = self.book();
        book.part = session.driver.gpus().cloned().map(unread).map(Arc::new).collect();
    }

    fn run(&self, session: &Session, watch: &Watch) -> Result<(), Superseded> {
        let mut telemetry = Telemetry::new(&self.settings.telemetry, &self.snapshot, &self.faults, session);
        self.work(session, watch, &mut telemetry)
    }
}

impl ProcessLane {
    fn work(&self, session: &Session, watch: &Watch, telemetry: &mut Telemetry<'_>) -> Result<(), Superseded> {
        let mut gpus: Vec<GpuLists> = session.driver.gpus().map(|_| GpuLists::default()).collect();
        let mut buffer = ProcessBuffer::default();
        let mut rested = Instant::now();
        let mut heartbeat = Ticker::starting(self.settings.interval, rested);
        while !session.ending() {
            let now = Instant::now();
            let deadline = heartbeat.next().min(telemetry.next()).min(now + HEARTBEAT);
            if now < rested && deadline > now {
                std::thread::sleep(deadline.min(rested) - now);
            }
            // While the lane rests, what moved waits in the bell.
            let moved = if Instant::now() < rested { 0 } else { self.link.moved.wait_until(deadline) };
            if session.ending() {
                break;
            }
            let began = Instant::now();
            self.snapshot.vitals.beat(Lane::Process, began);
            let due = heartbeat.take(began);
            if let Some(missed) = due {
                self.snapshot.vitals.add_missed(Lane::Process, missed);
            }
            if due.is_some() || moved != 0 {
                let bits = if due.is_some() { u64::MAX } else { moved };
                self.pass(session, watch, &mut gpus, &mut buffer, bits, due.is_some())?;
                let took = began.elapsed();
                rested = Instant::now() + (took * REST).min(LONGEST_REST);
                self.snapshot.vitals.observe(Lane::Process, took);
            }
            self.snapshot.vitals.beat(Lane::Telemetry, began);
            // One reading and no more, so that a list that is asked for meanwhile waits for one driver call at most. Behind
            // a long pass there may be as many as take as long, or lists that are slow on one GPU would leave no time for them.
            let begun = Instant::now();
            let allowance = begun.duration_since(began).saturating_sub(LONGEST_REST);
            loop {
                if let Some(work) = telemetry.step(session, watch)? {
                    self.fold_work(&work);
                }
                if session.ending() || begun.elapsed() >= allowance || telemetry.next() > Instant::now() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// ListCache the processes of the GPUs whose bits are set and publishes. A whole pass covers all GPUs and all lists.
    fn pass(
        &self,
        session: &Session,
        watch: &Watch,
        gpus: &mut [GpuLists],
        buffer: &mut ProcessBuffer,
        bits: u64,
        whole: bool,
    ) -> Result<(), Superseded> {
        for (position, kept) in gpus.iter_mut().enumerate().filter(|(i, _)| bits & WakeBits::bit(*i) != 0) {
            let device = session.driver.device(position).filter(|_| !session.stalled(position));
            let Some(device) = device else {
                // Neither its memory nor its processes can be asked for, at no rate.
                kept.alive = 0;
                continue;
            };
            let slices = slices(session, position);
            let total = self.total(session, position);
            let listing = loop {
                let listing = match kept.lists.read(device, &slices, watch, position, buffer, (whole, total))? {
                    Ok(listing) => listing,
                    Err(refusal) => break Err(refusal),
                };
                listing.refusals.iter().for_each(|refusal| self.refused(session, position, refusal));
                let layout_stands = self.layout_stands(session, watch, position, &mut kept.layout, &listing)?;
                if session.ending() {
                    return Ok(());
                }
                match self.take(session, position, listing, layout_stands) {
                    Taken::Folded(alive) => break Ok(alive),
                    // Whose memory it was that the list told, nobody knows: it is read again with the new holder known.
                    Taken::PidReused => kept.layout = LayoutCheck::default(),
                }
            };
            match listing {
                Ok(alive) => {
                    kept.alive = alive;
                    if whole {
                        self.account(session, watch, position, &mut kept.accounting)?;
                    }
                }
                Err(refusal) => {
                    kept.alive = kept.alive.max(1);
                    self.refused(session, position, &refusal);
                }
            }
        }
        let mut book = self.book();
        if whole {
            book.attribution.sweep();
        }
        self.publish(&book);
        drop(book);
        let alive = gpus.iter().map(|kept| kept.alive).sum();
        if self.link.processes.swap(alive, Ordering::Relaxed) == 0 && alive > 0 {
            self.link.awake.notify(1);
        }
        Ok(())
    }

    /// Folds a list into the GPU's table and shows it, unless a pid passed to another process meanwhile.
    fn take(&self, session: &Session, position: usize, mut listing: ProcessList, layout_stands: bool) -> Taken {
        let Some(gpu) = session.driver.gpus().nth(position) else { return Taken::Folded(0) };
        if let Some(pid) = listing.implausible {
            self.implausible(gpu, pid);
        }
        let mut book = self.book();
        let ProcessLaneState { attribution, gpus, part } = &mut *book;
        let known = gpus.entry(gpu.key()).or_insert_with(|| GpuProcessState::new(&self.settings));
        let GpuProcessState { table, workloads, .. } = known;
        let pids: Vec<u32> = listing.entries.iter().map(|entry| entry.pid).collect();
        let identities = attribution.identify_all(&pids);
        if table.end_former(&listing.entries, &identities, listing.at) {
            return Taken::PidReused;
        }
        let gone = table.gone_since(&listing.entries, &listing.earlier);
        let gone: Vec<_> = gone.into_iter().collect();
        let now_there = attribution.identify_all(&gone.iter().map(|entry| entry.pid).collect::<Vec<_>>());
        let passed_on: Vec<u32> = std::iter::zip(gone, &now_there)
            .filter(|(entry, identity)| table.passed_on(entry, identity))
            .map(|(entry, _)| entry.pid)
            .collect();
        if !passed_on.is_empty() {
            listing.earlier.iter_mut().for_each(|list| list.retain(|entry| !passed_on.contains(&entry.pid)));
        }
        let layout = layout_stands.then_some(&gpu.mig[..]);
        let beside = ListContext { layout, unread: &listing.unread };
        table.fold((&listing.entries, &listing.earlier), &identities, beside, listing.at);
        let alive = table.alive();
        let members: Vec<WorkloadMember<'_>> = table.members().collect();
        workloads.fold(&members, &listing.earlier, listing.at);
        // Made anew, since what was published may still be read; the other GPUs' stay as they are.
        let mut shown = unread(part[position].gpu.clone());
        shown.unattributed = listing.used.and_then(|used| Some(used.saturating_sub(table.used()?)));
        for (device, used) in layout.unwrap_or_default().iter().zip(listing.slices) {
            // The compute instances of a GPU instance share its memory, which is told once.
            let told = shown.mig_unattributed.iter().any(|(first, _)| first.gpu_instance == device.gpu_instance);
            if let (false, Some(used), Some(held)) = (told, used, table.used_in(device.gpu_instance)) {
                shown.mig_unattributed.push((device.clone(), used.saturating_sub(held)));
            }
        }
        shown.at = Some(listing.at);
        self.show(known, attribution, &mut shown, listing.at);
        part[position] = Arc::new(shown);
        Taken::Folded(alive)
    }

    /// Folds what a GPU's processes did and shows it.
    fn fold_work(&self, work: &Work) {
        let mut book = self.book();
        let ProcessLaneState { attribution, gpus, part } = &mut *book;
        let Some(known) = gpus.get_mut(&work.gpu.key()) else { return };
        match &work.samples {
            Some(samples) => known.table.worked(samples, work.asked_at),
            None => known.table.work_unknown(),
        }
        if let Some(shown) = part.iter_mut().find(|shown| Arc::ptr_eq(&shown.gpu, &work.gpu)) {
            let GpuProcesses { at, unattributed, .. } = **shown;
            let mig_unattributed = shown.mig_unattributed.clone();
            let mut next = GpuProcesses { at, unattributed, mig_unattributed, ..unread(shown.gpu.clone()) };
            self.show(known, attribution, &mut next, work.asked_at.0);
            *shown = Arc::new(next);
        }
        self.publish(&book);
    }

    /// Shows what is remembered of a GPU. Processes that come invisible are counted before they are shown.
    fn show(&self, known: &mut GpuProcessState, attribution: &Attribution, shown: &mut GpuProcesses, now: Instant) {
        known.show(shown, now);
        if shown.invisible > std::mem::replace(&mut known.invisible, shown.invisible) {
            let error = Invisible {
                processes: shown.invisible,
                own_namespace: attribution.sees_host_processes() == Some(false),
            };
            self.faults.report(Source::Attribution, Reason::Invisible, Some(shown.gpu.index), &error);
        }
    }

    /// All memory of a GPU, where it is known. What was published last may be of an earlier session with other positions.
    fn total(&self, session: &Session, position: usize) -> Option<u64> {
        let gpu = session.driver.gpus().nth(position)?;
        let memory = self.snapshot.memory.load();
        Some(memory.gpus.get(position).filter(|memory| Arc::ptr_eq(&memory.gpu, gpu))?.figures?.total)
    }

    fn implausible(&self, gpu: &Gpu, pid: u32) {
        let error = std::io::Error::other(format!("the driver gives process {pid} more memory than the GPU has"));
        self.faults.report(Source::Process, Reason::Implausible, Some(gpu.index), &error);
    }

    fn refused(&self, session: &Session, position: usize, refusal: &Refusal) {
        if refusal.counts {
            self.failed(session, position, Source::Process, &refusal.error);
        }
    }

    fn failed(&self, session: &Session, position: usize, source: Source, error: &Error) {
        let gpu = session.driver.gpus().nth(position).map(|gpu| gpu.index);
        if error.severity() == Severity::Driver {
            session.end(crate::faults::chain(error));
        }
        self.faults.report(source, error.reason(), gpu, error);
    }

    fn publish(&self, book: &ProcessLaneState) {
        self.snapshot.processes.store(Arc::new(ProcessPart { gpus: book.part.clone() }));
    }

    fn book(&self) -> MutexGuard<'_, ProcessLaneState> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The MIG devices of a GPU.
fn slices(session: &Session, position: usize) -> Vec<Slice<'_>> {
    let known = session.driver.gpus().nth(position).map_or(&[][..], |gpu| &gpu.mig);
    let instances = known.iter().map(|slice| (slice.gpu_instance, slice.compute_instance));
    session.driver.mig_devices(position).zip(instances).collect()
}

fn unread(gpu: Arc<Gpu>) -> GpuProcesses {
    GpuProcesses { gpu, ..GpuProcesses::default() }
}
