//! The watch for Xid events: a thread that asks each GPU's event set whether a critical error was reported, and makes no
//! other call.
//!
//! Invariant: the sets belong to the open driver, so a thread of another lane that hangs costs no event, and one that hangs
//! here costs the events of its GPU alone until the call comes back.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::memory::Link;
use super::schedule::HEARTBEAT;
use super::session::Session;
use super::telemetry;
use super::watch::{Superseded, Watch};
use super::worker::LaneTask;
use crate::faults::{Faults, Source};
use crate::nvml::{Error, Severity};
use crate::snapshot::{Gpu, GpuXids, Snapshot, XidPart};

/// Xids that are shown as 0 from the start, so that the first of them is a rise: those that NVIDIA's Xid catalogue
/// calls application faults (13, 31, 43, 45), memory faults (48, 63, 64, 92, 94, 95) or a GPU in trouble.
const KNOWN_XIDS: [u64; 18] = [13, 31, 43, 45, 48, 61, 62, 63, 64, 69, 74, 79, 92, 94, 95, 109, 119, 120];

/// The most events taken of a GPU in a round: a storm on one must not hold up the others.
const EVENTS_AT_ONCE: usize = 64;

/// The critical errors of every GPU by [`Gpu::key`], since the exporter started: a lost GPU is opened again,
/// and its last Xid is the one that matters.
#[derive(Debug, Default)]
struct Ledger {
    counts: HashMap<String, BTreeMap<u64, u64>>,
    /// How often it was written.
    version: u64,
}

/// The watch. It outlives its threads and its sessions.
#[derive(Debug)]
pub(super) struct XidWatch {
    /// Between two rounds.
    interval: Duration,
    /// Until a registration that failed is tried again.
    soon: Duration,
    /// Until a GPU that reports no Xids is asked again.
    late: Duration,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    link: Arc<Link>,
    ledger: Mutex<Ledger>,
}

/// What one thread keeps from round to round.
#[derive(Debug, Default)]
pub(super) struct LaneState {
    /// Until when each GPU that gives no events is left alone.
    rest_until: Vec<Option<Instant>>,
    /// The ledger's version that was published last.
    published: Option<u64>,
}

impl XidWatch {
    pub(super) fn new(
        settings: &telemetry::Settings,
        snapshot: Arc<Snapshot>,
        faults: Arc<Faults>,
        link: Arc<Link>,
    ) -> Self {
        Self {
            interval: settings.interval.min(HEARTBEAT),
            soon: settings.slow_interval,
            late: settings.slow_interval.saturating_mul(telemetry::RECONSIDER),
            snapshot,
            faults,
            link,
            ledger: Mutex::default(),
        }
    }

    /// Asks every GPU once, and publishes what is new.
    pub(super) fn round(&self, session: &Session, watch: &Watch, state: &mut LaneState) -> Result<(), Superseded> {
        state.rest_until.resize(session.driver.gpus().len(), None);
        for (position, rest_until) in state.rest_until.iter_mut().enumerate() {
            let rests = rest_until.is_some_and(|until| Instant::now() < until);
            if !rests && !session.stalled(session.events_slot(position)) {
                *rest_until = self.ask(session, watch, position)?.map(|rest| Instant::now() + rest);
            }
        }
        self.publish(session, state);
        Ok(())
    }

    /// Registers for a GPU's events where that was not done, and takes those that came. Says for how long the GPU is left
    /// alone.
    fn ask(&self, session: &Session, watch: &Watch, position: usize) -> Result<Option<Duration>, Superseded> {
        let (driver, slot) = (&session.driver, session.events_slot(position));
        if !driver.reports_xids(position) {
            match watch.call(slot, || driver.register_xids(position))? {
                Ok(true) => self.count(session, position, None),
                Ok(false) => return Ok(Some(self.late)),
                Err(error) => {
                    self.failed(session, position, &error);
                    let is_absent = error.severity() == Severity::Absent;
                    return Ok(Some(if is_absent { self.late } else { self.soon }));
                }
            }
        }
        // Counted within the call: a call that hung and comes back later reports its event only once.
        let next = || driver.next_xid(position).inspect(|xid| self.count(session, position, *xid));
        for _ in 0..EVENTS_AT_ONCE {
            match watch.call(slot, next)? {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    self.failed(session, position, &error);
                    return Ok((error.severity() == Severity::Absent).then_some(self.late));
                }
            }
        }
        Ok(None)
    }

    fn failed(&self, session: &Session, position: usize, error: &Error) {
        if error.severity() == Severity::Driver {
            session.end(crate::faults::chain(error));
        }
        let gpu = session.driver.gpus().nth(position).map(|gpu| gpu.index);
        self.faults.report(Source::Telemetry, error.reason(), gpu, error);
    }

    /// Counts an Xid of a GPU that reports them; without one, only from 0.
    fn count(&self, session: &Session, position: usize, xid: Option<u64>) {
        let Some(gpu) = session.driver.gpus().nth(position) else { return };
        let mut ledger = self.ledger();
        let is_known = ledger.counts.contains_key(&gpu.key());
        if xid.is_none() && is_known {
            return;
        }
        ledger.version += 1;
        let zeros = || KNOWN_XIDS.iter().map(|&xid| (xid, 0)).collect();
        let counts = ledger.counts.entry(gpu.key()).or_insert_with(zeros);
        if let Some(xid) = xid {
            *counts.entry(xid).or_default() += 1;
            tracing::warn!(gpu = gpu.index, uuid = gpu.uuid, xid, "Xid error");
        }
    }

    fn publish(&self, session: &Session, state: &mut LaneState) {
        let ledger = self.ledger();
        if state.published.replace(ledger.version) != Some(ledger.version) {
            let xids = |gpu: &Arc<Gpu>| GpuXids { gpu: gpu.clone(), errors: ledger.counts.get(&gpu.key()).cloned() };
            self.snapshot.xids.store(Arc::new(XidPart { gpus: session.driver.gpus().map(xids).collect() }));
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LaneTask for XidWatch {
    fn resume(&self, _session: &Session) {}

    fn run(&self, session: &Session, watch: &Watch) -> Result<(), Superseded> {
        let mut state = LaneState::default();
        loop {
            // What came before the session ended is still taken.
            let last = session.ending();
            self.round(session, watch, &mut state)?;
            if last {
                return Ok(());
            }
            self.link.ended.wait_until(Instant::now() + self.interval);
        }
    }
}
