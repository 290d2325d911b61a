//! The driver calls of a lane. Each runs under the [`Watch`] of its thread, and no call is made to a GPU while another
//! thread is hanging in a call to it.

use std::sync::Arc;
use std::time::Instant;

use super::session::Session;
use super::wake::WakeBits;
use super::watch::{Role, Superseded, Watch};
use crate::faults::{Faults, Source};
use crate::nvml::{Device, Driver, Error, Severity};
use crate::snapshot::{Gpu, Lane, Vitals};

/// A quick call for the driver itself counts as this many quick calls of a GPU.
const DRIVER_CALL: u32 = 50;

/// One thread of a lane, as a caller of the driver.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller<'s> {
    pub(super) session: &'s Session,
    pub(super) watch: &'s Watch,
}

/// What the thread may call now: `T` is a device, or the driver itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guarded<'s, T> {
    pub(super) session: &'s Session,
    watch: &'s Watch,
    slot: usize,
    target: T,
}

/// A GPU, or one of its MIG devices.
pub(super) type GuardedDevice<'s> = Guarded<'s, Device<'s>>;

/// Why a GPU cannot be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unavailable {
    /// Another thread is hanging in a call to it.
    Stalled,
    /// A thread of an earlier session is in a slow call of the same lane to it.
    Busy,
    /// This session could not open it.
    NotOpened,
}

impl<'s> Caller<'s> {
    pub(super) fn new(session: &'s Session, watch: &'s Watch) -> Self {
        Self { session, watch }
    }

    /// What the thread serves.
    pub(super) fn role(self) -> Role {
        self.watch.role()
    }

    /// Whether the thread makes the lane's calls for the slot.
    pub(super) fn serves(self, slot: usize) -> bool {
        match self.role() {
            Role::Shared => !self.session.calls.is_apart(self.watch.lane, slot),
            Role::Own(own) => own == slot,
        }
    }

    /// Counts readings that were missed, for each GPU that the thread serves.
    pub(super) fn add_missed(self, vitals: &Vitals, lane: Lane, missed: u64) {
        if missed > 0 {
            let served = self.session.driver.gpus().enumerate().filter(|&(position, _)| self.serves(position));
            served.for_each(|(_, gpu)| vitals.add_missed(lane, gpu.index, missed));
        }
    }

    /// The bits that wake the thread if they are set for the GPUs that it serves. [`u64::MAX`] wakes every thread.
    pub(super) fn wake_bits(self) -> u64 {
        match self.role() {
            Role::Own(slot) => WakeBits::bit(slot),
            Role::Shared => {
                let apart = self.session.calls.slots_apart(self.watch.lane).map(WakeBits::bit);
                // Some bit always belongs to this thread.
                !apart.fold(0, |bits, bit| bits | bit) | WakeBits::bit(63)
            }
        }
    }

    /// Gives the thread's own slot back to the thread that serves the others, if the slot is no longer slow. Returns
    /// whether it was given back: the thread then has nothing left to do.
    pub(super) fn gives_back(self) -> bool {
        let Role::Own(slot) = self.role() else { return false };
        // A lane makes few calls for the driver itself: one in each slow round.
        let weight = if slot == self.session.driver_slot() { DRIVER_CALL } else { 1 };
        let quick_calls = self.watch.quick_calls().saturating_mul(weight);
        self.session.calls.come_back(self.watch.lane, slot, quick_calls, Instant::now())
    }

    /// The GPU at a position.
    pub(super) fn device(self, position: usize) -> Result<GuardedDevice<'s>, Unavailable> {
        if self.session.calls.stalled(position) {
            return Err(Unavailable::Stalled);
        }
        if self.is_busy(position) {
            return Err(Unavailable::Busy);
        }
        let target = self.session.driver.device(position).ok_or(Unavailable::NotOpened)?;
        Ok(Guarded { session: self.session, watch: self.watch, slot: position, target })
    }

    /// The driver, for calls that belong to no GPU; `None` while another thread is hanging in such a call.
    pub(super) fn driver(self) -> Option<Guarded<'s, &'s Driver>> {
        self.driver_in(self.session.driver_slot())
    }

    /// The driver, for calls about a GPU's events; `None` while another thread is hanging in such a call.
    pub(super) fn events(self, position: usize) -> Option<Guarded<'s, &'s Driver>> {
        self.driver_in(self.session.events_slot(position))
    }

    fn driver_in(self, slot: usize) -> Option<Guarded<'s, &'s Driver>> {
        let Self { session, watch } = self;
        let is_free = !session.calls.stalled(slot) && !self.is_busy(slot);
        is_free.then_some(Guarded { session, watch, slot, target: &session.driver })
    }

    /// Whether a slow call of the lane that began in an earlier session is still under way.
    fn is_busy(self, slot: usize) -> bool {
        self.session.calls.waits(self.watch.lane, slot)
    }
}

impl<T: Copy> Guarded<'_, T> {
    /// Makes one driver call. `Ok(Err(_))`: the driver refused it.
    ///
    /// # Errors
    /// [`Superseded`] if the call returned too late: the thread must end without touching anything.
    pub(super) fn call<A>(&self, body: impl FnOnce(T) -> Result<A, Error>) -> Result<Result<A, Error>, Superseded> {
        self.watch.call(self.slot, || body(self.target))
    }

    /// Counts a refused call, and ends the session if only reopening the driver can help.
    pub(super) fn raise(&self, faults: &Faults, source: Source, error: &Error) {
        if error.severity() == Severity::Driver {
            self.session.end(crate::faults::chain(error));
        }
        let gpu = self.session.gpu_of_slot(self.slot).map(|gpu| gpu.index);
        faults.raise(source, error.reason(), gpu, error);
    }
}

impl<'s> GuardedDevice<'s> {
    /// The GPU's position in the session; for a MIG device, the position of its GPU.
    pub(super) fn position(&self) -> usize {
        self.slot
    }

    pub(super) fn gpu(&self) -> &'s Arc<Gpu> {
        self.session.gpu_of_slot(self.slot).expect("the driver returns only devices of its own GPUs")
    }

    /// The GPU's MIG devices, in the order of [`Gpu::mig`]; none if the layout could not be read.
    pub(super) fn mig_devices(self) -> impl Iterator<Item = Self> {
        self.session.driver.mig_devices(self.slot).map(move |target| Self { target, ..self })
    }

    /// Whether the session could read the GPU's MIG layout.
    pub(super) fn knows_mig_layout(&self) -> bool {
        self.session.driver.knows_mig_layout(self.slot)
    }

    /// [`Driver::same_mig_layout`].
    pub(super) fn same_mig_layout(&self) -> Result<Result<bool, Error>, Superseded> {
        self.call(|_| self.session.driver.same_mig_layout(self.slot))
    }
}
