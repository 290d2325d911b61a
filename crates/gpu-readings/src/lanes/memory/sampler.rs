//! Samples a GPU and its MIG devices, and decides what a refused call means for the GPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::accumulator::{GpuAccumulator, Sampled};
use super::meminfo::Meminfo;
use crate::faults::{Faults, Reason, Source};
use crate::lanes::guarded::{Caller, GuardedDevice, Unavailable};
use crate::lanes::schedule::RETRY;
use crate::lanes::watch::Superseded;
use crate::nvml::{Error, Severity};
use crate::snapshot::{Gpu, GpuState, Snapshot};

/// Takes samples. It locks no accumulator during a driver call.
#[derive(Debug)]
pub(super) struct Sampler {
    pub(super) faults: Arc<Faults>,
    /// Has the lists of processes.
    pub(super) snapshot: Arc<Snapshot>,
    /// How long the last good sample stays valid, and the longest gap over which pressure is counted.
    pub(super) stale_after: Duration,
    /// How long the memory of the processes on a GPU counts as known after a list of them.
    pub(super) list_stale_after: Duration,
    pub(super) meminfo: Meminfo,
}

impl Sampler {
    /// Reads one GPU and its MIG devices, in a tick that began at `now`.
    pub(super) fn sample(
        &self,
        caller: Caller<'_>,
        position: usize,
        accumulator: &Mutex<GpuAccumulator>,
        now: Instant,
    ) -> Result<Sampled, Superseded> {
        let device = match caller.device(position) {
            Ok(device) => device,
            Err(Unavailable::Busy)
                if accumulator.lock().shown.at.is_some_and(|at| at.elapsed() <= self.stale_after) =>
            {
                return Ok(Sampled::Same);
            }
            Err(Unavailable::Stalled | Unavailable::Busy) => return Ok(accumulator.lock().lose(GpuState::Stalled)),
            Err(Unavailable::NotOpened) => {
                let mut accumulator = accumulator.lock();
                accumulator.lost = true;
                return Ok(accumulator.lose(GpuState::Unreadable));
            }
        };
        if accumulator.lock().retry_at.is_some_and(|at| now < at) {
            return Ok(Sampled::Same);
        }
        let mut sampled = match device.call(|gpu| gpu.memory())? {
            Ok(reading) => accumulator.lock().sample(reading, Instant::now(), self.stale_after),
            // The GPU answers: it shares the memory of the machine, and has none of its own.
            Err(error) if device.gpu().unified_memory.is_some() && error.reason() == Reason::NotSupported => {
                self.sample_shared(device.gpu(), accumulator)
            }
            Err(error) => self.refused(&device, accumulator, &error),
        };
        for (index, mig_device) in device.mig_devices().enumerate() {
            if !accumulator.lock().is_mig_due(index, now) {
                continue;
            }
            let mig_sampled = match mig_device.call(|device| device.memory())? {
                Ok(reading) => accumulator.lock().sample_mig(index, reading, Instant::now(), self.stale_after),
                Err(error) => self.mig_refused(&device, accumulator, index, &error),
            };
            sampled = sampled.max(mig_sampled);
        }
        Ok(sampled)
    }

    /// Samples the memory that a GPU shares with the machine. What its processes hold is taken from the latest list of them,
    /// because a call for a list takes too long for the rhythm of this lane.
    fn sample_shared(&self, gpu: &Arc<Gpu>, accumulator: &Mutex<GpuAccumulator>) -> Sampled {
        let at = Instant::now();
        let shared = self.meminfo.read();
        let mut accumulator = accumulator.lock();
        match shared {
            Ok(shared) => accumulator.sample_shared(shared, self.held(gpu, at), at, self.stale_after),
            Err(error) => {
                let new = accumulator.answered_without_figures(at);
                drop(accumulator);
                if new {
                    self.faults.raise(Source::Memory, Reason::Unreadable, Some(gpu.index), &error);
                }
                if new { Sampled::Changed } else { Sampled::Same }
            }
        }
    }

    /// Bytes that the processes on a GPU hold together, with the time of the latest list of them; `None` if the memory of any of
    /// them is unknown, or that list is too old.
    fn held(&self, gpu: &Arc<Gpu>, now: Instant) -> Option<(u64, Instant)> {
        let lists = self.snapshot.processes.load();
        let list = lists.gpus.iter().find(|list| Arc::ptr_eq(&list.gpu, gpu))?;
        let listed = list.at.filter(|at| now.saturating_duration_since(*at) <= self.list_stale_after)?;
        Some((list.held?.exactly()?, listed))
    }

    fn refused(&self, device: &GuardedDevice<'_>, accumulator: &Mutex<GpuAccumulator>, error: &Error) -> Sampled {
        let mut accumulator = accumulator.lock();
        let sampled = match error.severity() {
            // A GPU may respond without memory figures. A GPU with MIG devices may refuse its own figures but return those
            // of the MIG devices. Each case is raised as a fault once.
            Severity::Absent if error.reason() != Reason::NoPermission || !accumulator.shown.gpu.mig.is_empty() => {
                if !accumulator.answered_without_figures(Instant::now()) {
                    return Sampled::Same;
                }
                Sampled::Changed
            }
            // This sample contains no information; the last good one stays valid until it is stale.
            Severity::Passing if accumulator.shown.at.is_some_and(|at| at.elapsed() <= self.stale_after) => {
                Sampled::Same
            }
            Severity::Absent | Severity::Gpu | Severity::Passing => {
                accumulator.lost = error.severity() == Severity::Gpu;
                accumulator.retry_at = Some(Instant::now() + RETRY);
                accumulator.lose(GpuState::Unreadable)
            }
            Severity::Driver => Sampled::Same,
        };
        drop(accumulator);
        device.raise(&self.faults, Source::Memory, error);
        sampled
    }

    /// A MIG device that cannot be read loses its figures; its GPU keeps its own.
    fn mig_refused(
        &self,
        device: &GuardedDevice<'_>,
        accumulator: &Mutex<GpuAccumulator>,
        index: usize,
        error: &Error,
    ) -> Sampled {
        let mut accumulator = accumulator.lock();
        // As with a GPU, the last good sample stays valid until it is stale, and until then every tick queries the
        // device again.
        let passes = error.severity() == Severity::Passing
            && accumulator.mig_answered_at(index).is_some_and(|at| at.elapsed() <= self.stale_after);
        let lost = !passes && accumulator.lose_mig(index, Instant::now() + RETRY);
        drop(accumulator);
        // A value that the device never provides is reported only on the first refusal.
        if error.severity() != Severity::Absent || lost {
            device.raise(&self.faults, Source::Memory, error);
        }
        if lost { Sampled::Changed } else { Sampled::Same }
    }
}
