//! The lanes without their threads: the caller runs the same code step by step on its own thread, so that a benchmark
//! or a test can measure the cost of one step.
//!
//! Invariant: no part of the exporter uses this module, and a step does exactly what a thread of the lane does.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::guarded::Caller;
use super::memory::{LaneState, Link, MemoryLane};
use super::process::ProcessLane;
use super::session::Session;
use super::settings::Settings;
use super::stalls::Stalls;
use super::watch::{Role, Watch};
use super::worker::LaneTask;
use super::xids::{self, XidWatch};
use crate::attribution::Attribution;
use crate::faults::Faults;
use crate::nvml::{Discovery, Library, OpenError};
use crate::snapshot::{Lane, Snapshot};

/// How often [`ManualLanes::follow`] checks the snapshot.
const LOOK: Duration = Duration::from_millis(1);

const NOT_SUPERSEDED: &str = "only a supervisor supersedes a thread";

/// The lanes on an open driver, without threads and without a supervisor: a call that hangs blocks the caller.
#[derive(Debug)]
pub struct ManualLanes {
    library: Library,
    snapshot: Arc<Snapshot>,
    memory: MemoryLane,
    process: ProcessLane,
    xids: Option<XidWatch>,
    session: Session,
    state: LaneState,
    watch: Watch,
    /// Keeps the session alive, in place of a supervisor.
    _alive: Arc<()>,
}

impl ManualLanes {
    /// Opens the driver. Nothing is read yet.
    ///
    /// # Errors
    /// When the driver cannot be opened.
    pub fn open(
        settings: Settings,
        attribution: Attribution,
        snapshot: Arc<Snapshot>,
        faults: Arc<Faults>,
    ) -> Result<Self, OpenError> {
        let Settings { library, memory, process, .. } = settings;
        let link = Arc::new(Link::default());
        let memory = MemoryLane::new(memory, snapshot.clone(), faults.clone(), link.clone());
        let watch = |telemetry| XidWatch::new(telemetry, snapshot.clone(), faults.clone(), link.clone());
        let xids = process.telemetry.as_ref().map(watch);
        let process = ProcessLane::new(process, attribution, snapshot.clone(), faults, link);
        Self::begin(library, snapshot, memory, process, xids)
    }

    /// Closes the driver and opens it again; the lanes keep their state.
    ///
    /// # Errors
    /// When the driver cannot be opened.
    pub fn reopen(self) -> Result<Self, OpenError> {
        let Self { library, snapshot, memory, process, xids, session, .. } = self;
        drop(session);
        Self::begin(library, snapshot, memory, process, xids)
    }

    fn begin(
        library: Library,
        snapshot: Arc<Snapshot>,
        memory: MemoryLane,
        process: ProcessLane,
        xids: Option<XidWatch>,
    ) -> Result<Self, OpenError> {
        let mut driver = library.open()?;
        let discovered = driver.discover(&Discovery::default());
        discovered.map_err(|cause| OpenError::Init { library: format!("{library:?}"), cause })?;
        snapshot.driver.store(Arc::new(driver.describe()));
        let alive = Arc::new(());
        let session = Session::new(driver, &alive, &mut Stalls::default());
        [&memory as &dyn LaneTask, &process].iter().for_each(|task| task.resume(&session));
        let state = memory.begin(&session);
        let watch = Watch::new(Lane::Memory, Role::Shared, Duration::MAX);
        if let Some(xids) = &xids {
            let round = xids.round(Caller::new(&session, &watch), &mut xids::LaneState::default());
            round.expect(NOT_SUPERSEDED);
        }
        Ok(Self { library, snapshot, memory, process, session, state, watch, xids, _alive: alive })
    }

    /// Runs one tick of the memory lane as if the tick had begun at this time.
    pub fn tick(&mut self, began: Instant) {
        let Self { memory, session, watch, state, .. } = self;
        memory.tick(Caller::new(session, watch), state, began).expect(NOT_SUPERSEDED);
    }

    /// Runs the process lane on this thread, on its own schedule, until `wanted` accepts the snapshot. This ends the
    /// session: call [`ManualLanes::reopen`] before the next step.
    pub fn follow(&mut self, wanted: impl Fn(&Snapshot) -> bool + Sync) {
        let Self { process, session, watch, snapshot, .. } = &*self;
        thread::scope(|scope| {
            scope.spawn(|| {
                while !wanted(snapshot) {
                    thread::sleep(LOOK);
                }
                session.end("the wanted snapshot was published");
            });
            process.run(session, watch).expect(NOT_SUPERSEDED);
        });
    }
}
