//! The watch for Xid events: a thread that polls the event set of each GPU for critical errors and makes no other
//! driver calls.
//!
//! Invariant: the event sets belong to the open driver. No event is missed if a thread of another lane hangs. If this
//! thread hangs, only the events of one GPU are missed, until the call returns.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::guarded::{Caller, Guarded};
use super::memory::Link;
use super::schedule::{HEARTBEAT, RECONSIDER};
use super::session::Session;
use super::telemetry;
use super::watch::{Superseded, Watch};
use super::worker::LaneTask;
use crate::faults::{Faults, Source};
use crate::nvml::{Driver, Severity};
use crate::snapshot::{Gpu, GpuXids, Snapshot, XidClass, XidGroup, XidPart};

/// The maximum number of events taken from a GPU in one round. A storm of events on one GPU must not delay the others.
const EVENTS_AT_ONCE: usize = 64;

/// The critical errors of every GPU since the exporter started, keyed by [`Gpu::key`]. They outlive the session,
/// because the last Xid of a lost GPU must still be shown after the driver is reopened.
#[derive(Debug, Default)]
struct Ledger {
    counts: HashMap<String, GpuXids>,
    /// The number of changes so far.
    version: u64,
}

/// The watch. It outlives its threads and its sessions.
#[derive(Debug)]
pub(super) struct XidWatch {
    /// The pause between two rounds.
    interval: Duration,
    /// The pause after a failed registration.
    soon: Duration,
    /// The pause for a GPU that does not report Xids.
    late: Duration,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    link: Arc<Link>,
    ledger: Mutex<Ledger>,
}

/// What one thread keeps from round to round.
#[derive(Debug, Default)]
pub(super) struct LaneState {
    /// For each GPU that does not provide events, the time until which it is not polled.
    rest_until: Vec<Option<Instant>>,
    /// The version of the ledger that was last published.
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
            late: settings.slow_interval.saturating_mul(RECONSIDER),
            snapshot,
            faults,
            link,
            ledger: Mutex::default(),
        }
    }

    /// Polls every GPU once, and publishes new events.
    pub(super) fn round(&self, caller: Caller<'_>, state: &mut LaneState) -> Result<(), Superseded> {
        state.rest_until.resize(caller.session.driver.gpus().len(), None);
        for (position, rest_until) in state.rest_until.iter_mut().enumerate() {
            if rest_until.is_some_and(|until| Instant::now() < until) {
                continue;
            }
            if let Some(events) = caller.events(position) {
                *rest_until = self.ask(events, position)?.map(|rest| Instant::now() + rest);
            }
        }
        self.publish(caller.session, state);
        Ok(())
    }

    /// Registers for a GPU's events if that has not been done yet, and takes the pending ones. Returns how long to wait
    /// before polling the GPU again.
    fn ask(&self, events: Guarded<'_, &Driver>, position: usize) -> Result<Option<Duration>, Superseded> {
        let session = events.session;
        if !session.driver.reports_xids(position) {
            match events.call(|driver| driver.register_xids(position))? {
                Ok(true) => self.count(session, position, None),
                Ok(false) => return Ok(Some(self.late)),
                Err(error) => {
                    events.raise(&self.faults, Source::Telemetry, &error);
                    let is_absent = error.severity() == Severity::Absent;
                    return Ok(Some(if is_absent { self.late } else { self.soon }));
                }
            }
        }
        for _ in 0..EVENTS_AT_ONCE {
            // Counted within the call, because the driver returns an event only once. This way, the event is counted
            // even if the call hangs and returns later.
            let next = |driver: &Driver| driver.next_xid(position).inspect(|xid| self.count(session, position, *xid));
            match events.call(next)? {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    events.raise(&self.faults, Source::Telemetry, &error);
                    return Ok((error.severity() == Severity::Absent).then_some(self.late));
                }
            }
        }
        Ok(None)
    }

    /// Counts an Xid. If `xid` is `None`, begins to count the Xids of a GPU that reports them.
    fn count(&self, session: &Session, position: usize, xid: Option<u64>) {
        let Some(gpu) = session.driver.gpus().nth(position) else { return };
        let mut ledger = self.ledger.lock();
        let is_known = ledger.counts.contains_key(&gpu.key());
        if xid.is_none() && is_known {
            return;
        }
        ledger.version += 1;
        let counts = ledger.counts.entry(gpu.key()).or_default();
        counts.counted_since.get_or_insert_with(SystemTime::now);
        let errors = counts.errors.get_or_insert_default();
        if let Some(xid) = xid {
            *errors.entry(xid).or_default() += 1;
            counts.last = Some(xid);
            let (class, meaning) = (XidClass::of(xid).label(), XidGroup::of(xid).map(|group| group.meaning));
            tracing::warn!(gpu = gpu.index, uuid = gpu.uuid, xid, class, meaning, "Xid error");
        }
    }

    fn publish(&self, session: &Session, state: &mut LaneState) {
        let ledger = self.ledger.lock();
        if state.published.replace(ledger.version) != Some(ledger.version) {
            let xids = |gpu: &Arc<Gpu>| {
                let counts = ledger.counts.get(&gpu.key()).cloned().unwrap_or_default();
                GpuXids { gpu: gpu.clone(), ..counts }
            };
            self.snapshot.xids.store(Arc::new(XidPart { gpus: session.driver.gpus().map(xids).collect() }));
        }
    }
}

impl LaneTask for XidWatch {
    fn resume(&self, _session: &Session) {}

    fn run(&self, session: &Session, watch: &Watch) -> Result<(), Superseded> {
        let mut state = LaneState::default();
        loop {
            // Events that arrived before the session ended are still read.
            let last = session.ending();
            self.round(Caller::new(session, watch), &mut state)?;
            if last {
                return Ok(());
            }
            self.link.ended.wait_until(u64::MAX, Instant::now() + self.interval);
        }
    }
}
