//! A session: the driver from the time it is opened until it is closed, shared by the lanes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::stalls::{SessionCalls, Stalls};
use crate::nvml::Driver;
use crate::snapshot::Gpu;

/// The open driver and the state that the lanes share about it.
#[derive(Debug)]
pub(super) struct Session {
    /// Closed when the last lane drops the session.
    pub(super) driver: Driver,
    /// The calls by slot.
    pub(super) calls: SessionCalls,
    /// Why the session is ending; unset while it continues.
    end_reason: OnceLock<String>,
    /// Why another session should replace this one, which continues until then.
    reopen_request: Mutex<Option<String>>,
    lost: AtomicBool,
    /// Whether it ends because another one, which is open, replaces it: its driver may still be called.
    replaced: AtomicBool,
    /// Expires when the supervisor is dropped.
    alive: Weak<()>,
}

impl Session {
    /// Creates a session that ends, at the latest, when `alive` is dropped: lanes that ran without a supervisor would
    /// hide the fact that the supervisor is gone. A slot is stalled from the start if a call from an earlier session
    /// still hangs.
    pub(super) fn new(driver: Driver, alive: &Arc<()>, stalls: &mut Stalls) -> Self {
        Self {
            calls: stalls.of(&driver),
            driver,
            end_reason: OnceLock::new(),
            reopen_request: Mutex::new(None),
            lost: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
            alive: Arc::downgrade(alive),
        }
    }

    /// The slot for calls that do not belong to a GPU.
    pub(super) fn driver_slot(&self) -> usize {
        self.driver.gpus().len()
    }

    /// The slot for calls about a GPU's events, which are independent of the GPU's other calls.
    pub(super) fn events_slot(&self, position: usize) -> usize {
        self.driver_slot() + 1 + position
    }

    /// The GPU of a slot; `None` for the driver itself.
    pub(super) fn gpu_of_slot(&self, slot: usize) -> Option<&Arc<Gpu>> {
        let position = slot.checked_sub(self.events_slot(0)).unwrap_or(slot);
        self.driver.gpus().nth(position)
    }

    /// Signals every lane to drop the session. If called more than once, only the first reason is kept.
    pub(super) fn end(&self, reason: impl Into<String>) {
        let _ = self.end_reason.set(reason.into());
    }

    /// Signals every lane to drop the session, because another one replaces it.
    pub(super) fn replace(&self) {
        self.replaced.store(true, Ordering::Release);
        self.end("another session replaces it");
    }

    /// Whether it was replaced.
    pub(super) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Whether the lanes must drop the session.
    pub(super) fn ending(&self) -> bool {
        self.end_reason.get().is_some() || self.alive.strong_count() == 0
    }

    /// The reason passed to [`Session::end`].
    pub(super) fn end_reason(&self) -> Option<&str> {
        self.end_reason.get().map(String::as_str)
    }

    /// Requests another session. This one continues until the other is open. Only the last reason is kept.
    pub(super) fn request_reopen(&self, reason: impl Into<String>) {
        *self.reopen_request.lock() = Some(reason.into());
    }

    /// The reason passed to [`Session::request_reopen`].
    pub(super) fn reopen_requested(&self) -> Option<String> {
        self.reopen_request.lock().clone()
    }

    /// Sets whether a GPU is out of reach until the driver is reopened.
    pub(super) fn set_lost(&self, lost: bool) {
        self.lost.store(lost, Ordering::Relaxed);
    }

    pub(super) fn lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}
