//! A session: the driver from the time it is opened until it is closed, shared by the lanes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::apart::Apart;
use super::stalls::{SessionCalls, Stalls};
use crate::nvml::Driver;
use crate::snapshot::{Gpu, Lane};

/// The open driver and the state that the lanes share about it.
#[derive(Debug)]
pub(super) struct Session {
    /// Closed when the last lane drops the session.
    pub(super) driver: Driver,
    calls: SessionCalls,
    /// Why the session is ending; unset while it continues.
    end_reason: OnceLock<String>,
    /// Why another session should replace this one, which continues until then.
    reopen_request: Mutex<Option<String>>,
    lost: AtomicBool,
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

    /// Whether a thread is hanging in a call for the slot. If so, no other thread may make a call for it.
    pub(super) fn stalled(&self, slot: usize) -> bool {
        self.is_troubled() && self.calls.slots[slot].hanging.load(Ordering::Relaxed) > 0
    }

    /// Whether any call hangs, or any slot is apart.
    fn is_troubled(&self) -> bool {
        self.calls.trouble.load(Ordering::Acquire) > 0
    }

    fn add_trouble(&self) {
        self.calls.trouble.fetch_add(1, Ordering::Release);
    }

    fn end_trouble(&self) {
        self.calls.trouble.fetch_sub(1, Ordering::Release);
    }

    /// Records that a call for the slot is hanging.
    pub(super) fn mark_stalled(&self, slot: usize) {
        self.calls.slots[slot].hanging.fetch_add(1, Ordering::Relaxed);
        self.add_trouble();
    }

    /// Records that a call that hung has returned.
    pub(super) fn mark_recovered(&self, slot: usize) {
        self.calls.slots[slot].hanging.fetch_sub(1, Ordering::Relaxed);
        self.end_trouble();
    }

    /// Leaves a slot to a thread of the lane that serves it alone.
    pub(super) fn leave(&self, lane: Lane, slot: usize, now: Instant) {
        if self.apart(lane, slot).leave(now) {
            self.add_trouble();
        }
    }

    /// Gives a slot back to the thread of the lane that serves the others, after this many quick calls in a row, if they are
    /// enough. Returns whether it was given back.
    pub(super) fn come_back(&self, lane: Lane, slot: usize, quick_calls: u32, now: Instant) -> bool {
        let comes = self.apart(lane, slot).come_back(quick_calls, now);
        if comes {
            self.end_trouble();
        }
        comes
    }

    /// Records that the session was replaced during a slow call of the lane for the slot.
    pub(super) fn mark_outlived(&self, lane: Lane, slot: usize) {
        self.apart(lane, slot).mark_outlived();
        self.add_trouble();
    }

    /// Records that a call that outlived its session has returned.
    pub(super) fn mark_returned(&self, lane: Lane, slot: usize) {
        self.apart(lane, slot).mark_returned();
        self.end_trouble();
    }

    /// Whether a thread of the lane serves the slot alone.
    pub(super) fn is_apart(&self, lane: Lane, slot: usize) -> bool {
        self.is_troubled() && self.apart(lane, slot).is_apart()
    }

    /// Whether a call of the lane for the slot, which began in an earlier session, is still under way.
    pub(super) fn waits(&self, lane: Lane, slot: usize) -> bool {
        self.is_troubled() && self.apart(lane, slot).waits()
    }

    /// The slots that each have a thread of the lane for themselves.
    pub(super) fn slots_apart(&self, lane: Lane) -> impl Iterator<Item = usize> {
        let slots = if self.is_troubled() { self.calls.slots.len() } else { 0 };
        (0..slots).filter(move |&slot| self.apart(lane, slot).is_apart())
    }

    fn apart(&self, lane: Lane, slot: usize) -> &Apart {
        &self.calls.slots[slot].apart[lane as usize]
    }

    /// Signals every lane to drop the session. If called more than once, only the first reason is kept.
    pub(super) fn end(&self, reason: impl Into<String>) {
        let _ = self.end_reason.set(reason.into());
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
