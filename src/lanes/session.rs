//! One opening of the driver, shared by the lanes while it lasts.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::stalls::Stalls;
use crate::nvml::Driver;
use crate::snapshot::Gpu;

/// The open driver and what the lanes know of it together.
#[derive(Debug)]
pub(super) struct Session {
    /// The driver. It is closed when the last lane lets go of the session.
    pub(super) driver: Driver,
    /// How many threads hang in a call: to each GPU, to the driver itself, for the events of each GPU.
    stalled: Vec<Arc<AtomicU32>>,
    ending: AtomicBool,
    /// Why another session should take the place of this one, which goes on.
    outdated: Mutex<Option<String>>,
    lost: AtomicBool,
    why: Mutex<Option<String>>,
    /// Gone when nobody looks after the session any longer.
    alive: Weak<()>,
}

impl Session {
    /// A session that lasts as long as its alive at most: lanes that nobody looks after would hide that they are alone.
    /// What hangs since an earlier session is not asked.
    pub(super) fn new(driver: Driver, alive: &Arc<()>, stalls: &mut Stalls) -> Self {
        let mut stalled: Vec<_> = driver.gpus().map(|gpu| stalls.of_gpu(gpu)).collect();
        stalled.push(stalls.of_driver());
        stalled.extend(driver.gpus().map(|gpu| stalls.of_events(gpu)));
        Self {
            driver,
            stalled,
            outdated: Mutex::new(None),
            ending: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            why: Mutex::new(None),
            alive: Arc::downgrade(alive),
        }
    }

    /// The slot of calls that belong to no GPU.
    pub(super) fn driver_slot(&self) -> usize {
        self.driver.gpus().len()
    }

    /// The slot of calls for the events of a GPU. Whether they come back says nothing of the GPU's other calls.
    pub(super) fn events_slot(&self, position: usize) -> usize {
        self.driver_slot() + 1 + position
    }

    /// The GPU of a slot; `None` for the driver itself.
    pub(super) fn gpu_of_slot(&self, slot: usize) -> Option<&Arc<Gpu>> {
        let position = slot.checked_sub(self.events_slot(0)).unwrap_or(slot);
        self.driver.gpus().nth(position)
    }

    /// Whether a thread hangs in a call to the slot: then nobody else may ask it.
    pub(super) fn stalled(&self, slot: usize) -> bool {
        self.stalled[slot].load(Ordering::Relaxed) > 0
    }

    pub(super) fn stall(&self, slot: usize) {
        self.stalled[slot].fetch_add(1, Ordering::Relaxed);
    }

    /// The call has come back.
    pub(super) fn recover(&self, slot: usize) {
        self.stalled[slot].fetch_sub(1, Ordering::Relaxed);
    }

    /// Asks every lane to let go. The first reason stands.
    pub(super) fn end(&self, why: impl Into<String>) {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| why.into());
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Asks for another session beside this one, which goes on until that is open. The last reason stands.
    pub(super) fn request_reopen(&self, why: impl Into<String>) {
        *self.outdated.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.into());
    }

    /// Why another session is asked for.
    pub(super) fn reopen_requested(&self) -> Option<String> {
        self.outdated.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed) || self.alive.strong_count() == 0
    }

    /// Why the session was ended.
    pub(super) fn why(&self) -> Option<String> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A GPU is out of reach, which only another opening of the driver can mend.
    pub(super) fn set_lost(&self, lost: bool) {
        self.lost.store(lost, Ordering::Relaxed);
    }

    pub(super) fn lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}
