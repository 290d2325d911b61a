//! The supervisor: opens the driver, starts the lanes' threads, replaces a thread that hangs or panics, and reopens the
//! driver when it is lost. It makes no driver call itself, so no call can block it.

mod health;
mod phase;
mod reopen;
mod restart;
mod run;
mod shutdown;
mod starvation;
#[cfg(test)]
mod tests;
mod workers;

use std::collections::HashMap;
use std::sync::Arc;

use super::control::Control;
use super::detached::DetachedThreads;
use super::memory::Link;
use super::settings::Settings;
use super::stalls::Stalls;
use super::watch::Role;
use super::worker::{LaneTask, Outlived};
use crate::backoff::Backoff;
use crate::faults::Faults;
use crate::snapshot::{Gpu, Lane, Snapshot};
use reopen::Reopening;
use restart::RestartPolicy;
use starvation::Starvation;

/// The threads of a session: each with the lane to which its faults are attributed, and its task. The telemetry is read
/// on the process lane's thread; the thread of [`Lane::Telemetry`] watches for Xid events.
pub(super) type LaneTasks = Vec<(Lane, Arc<dyn LaneTask>)>;

pub(super) struct Supervisor {
    settings: Settings,
    tasks: LaneTasks,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    control: Arc<Control>,
    link: Arc<Link>,
    /// All the GPUs ever found when the driver was opened.
    known: Vec<Arc<Gpu>>,
    /// The pauses between attempts to open the driver.
    backoff: Backoff,
    reopening: Reopening,
    /// Of the threads that have panicked: a GPU's own thread does not delay that of the others.
    restarts: HashMap<(Lane, Role), RestartPolicy>,
    stalls: Stalls,
    /// The slow calls of earlier sessions.
    outlived: Vec<Outlived>,
    starvation: Starvation,
    detached: DetachedThreads,
    /// Sessions hold a weak reference to it, so that they end when the supervisor does.
    alive: Arc<()>,
}

impl Supervisor {
    pub(super) fn new(
        settings: Settings,
        tasks: LaneTasks,
        link: Arc<Link>,
        snapshot: Arc<Snapshot>,
        faults: Arc<Faults>,
        control: Arc<Control>,
    ) -> Self {
        Self {
            settings,
            tasks,
            snapshot,
            faults,
            control,
            link,
            known: Vec::new(),
            backoff: Backoff::new(restart::FIRST_PAUSE, restart::LONGEST_PAUSE),
            reopening: Reopening::new(),
            restarts: HashMap::new(),
            stalls: Stalls::default(),
            outlived: Vec::new(),
            starvation: Starvation::default(),
            detached: DetachedThreads::default(),
            alive: Arc::new(()),
        }
    }
}
