//! The profiling counters (GPM). Once per `profiling.interval`, every GPU and MIG GPU instance is sampled. The means
//! between two samples are integrated over the real time between them.
//!
//! Invariants: an interval that was not measured adds nothing; the totals outlive sessions and threads; a round
//! allocates nothing once every GPU has its samples.

mod scope;
mod totals;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::faults::{Faults, Source};
use crate::lanes::guarded::{Caller, GuardedDevice};
use crate::lanes::publish::Publisher;
use crate::lanes::session::Session;
use crate::lanes::watch::Superseded;
use crate::nvml::{Error, ProfilingComparison, Severity};
use crate::snapshot::{Gpu, GpuProfiling, MigProfiling, ProfilingFigures, ProfilingPart, Snapshot};
use scope::Scope;
pub(crate) use totals::Totals;

/// The profiling readings of one session, driven by one thread.
#[derive(Debug)]
pub(super) struct Profiler<'s> {
    interval: Duration,
    faults: &'s Faults,
    snapshot: &'s Snapshot,
    totals: &'s Mutex<Totals>,
    gpus: Vec<GpuScopes<'s>>,
    comparison: ProfilingComparison,
    publisher: Publisher<ProfilingPart>,
}

/// A GPU and what is sampled on it.
#[derive(Debug)]
struct GpuScopes<'s> {
    gpu: Arc<Gpu>,
    /// Whether this thread samples the GPU in the current round.
    is_served: bool,
    /// Whether the GPU supports the counters; `None` until the driver has reported it.
    supported: Option<bool>,
    /// The whole GPU, and each MIG GPU instance.
    scopes: Vec<Scope<'s>>,
}

impl<'s> Profiler<'s> {
    pub(super) fn new(
        interval: Duration,
        snapshot: &'s Snapshot,
        faults: &'s Faults,
        totals: &'s Mutex<Totals>,
        session: &'s Session,
    ) -> Self {
        let driver = &session.driver;
        let known = |position| driver.knows_mig_layout(position);
        let mut kept = totals.lock();
        if (0..driver.gpus().len()).all(known) {
            kept.forget_removed_instances(&driver.gpus().map(|gpu| &**gpu).collect::<Vec<_>>());
        }
        let gpus = driver.gpus().enumerate().map(|(position, gpu)| {
            let instances = gpu.mig.iter().filter(|device| known(position) && gpu.is_first_of_its_instance(device));
            let scopes = std::iter::once(None).chain(instances.map(Some));
            let scopes = scopes.map(|device| Scope::new(gpu, device.cloned(), &kept)).collect();
            GpuScopes { gpu: gpu.clone(), is_served: false, supported: None, scopes }
        });
        let gpus = gpus.collect();
        drop(kept);
        let (comparison, publisher) = (ProfilingComparison::default(), Publisher::default());
        Self { interval, faults, snapshot, totals, gpus, comparison, publisher }
    }

    /// Whether the thread serves a GPU that it did not serve in the last round, and that therefore has no earlier sample.
    pub(super) fn serves_more_than_before(&self, caller: Caller<'_>) -> bool {
        self.gpus.iter().enumerate().any(|(position, gpu)| !gpu.is_served && caller.serves(position))
    }

    /// What is sampled in one round: pairs of a GPU's position and a slot, the arguments of [`Profiler::profile`].
    pub(super) fn due(&mut self, caller: Caller<'_>) -> impl Iterator<Item = (usize, usize)> {
        for (position, gpu) in self.gpus.iter_mut().enumerate() {
            let was_served = std::mem::replace(&mut gpu.is_served, caller.serves(position));
            if gpu.is_served && !was_served {
                // Another thread may have added to the totals.
                let kept = self.totals.lock();
                gpu.scopes.iter_mut().for_each(|scope| scope.continue_from(&kept));
            }
        }
        let gpus = self.gpus.iter().enumerate().filter(|(_, gpu)| gpu.is_served && gpu.supported != Some(false));
        gpus.flat_map(|(position, gpu)| {
            let wanted = gpu.scopes.iter().enumerate().filter(|(_, scope)| !scope.given_up);
            wanted.map(move |(slot, _)| (position, slot))
        })
    }

    /// Tries again the GPUs and GPU instances that were found not to provide the counters.
    pub(super) fn reconsider(&mut self) {
        for gpu in &mut self.gpus {
            gpu.supported = gpu.supported.filter(|&supported| supported);
            gpu.scopes.iter_mut().for_each(Scope::reconsider);
        }
    }

    /// Takes one sample and adds the interval that it ends.
    pub(super) fn profile(&mut self, position: usize, slot: usize, caller: Caller<'s>) -> Result<(), Superseded> {
        let Self { interval, totals, comparison, faults, .. } = self;
        let Some(gpu) = self.gpus.get_mut(position) else { return Ok(()) };
        let GpuScopes { supported, scopes, .. } = gpu;
        let Some(scope) = scopes.get_mut(slot) else { return Ok(()) };
        let Ok(device) = caller.device(position) else {
            scope.interrupt();
            return Ok(());
        };
        if supported.is_none() {
            *supported = match device.call(|gpu| gpu.supports_profiling())? {
                Ok(answer) => Some(answer),
                Err(error) => refused(&device, faults, &error).then_some(false),
            };
        }
        if *supported != Some(true) {
            scope.interrupt();
            return Ok(());
        }
        match scope.sample(&device, *interval, comparison)? {
            Ok(true) => totals.lock().keep(&scope.key, &scope.figures),
            Ok(false) => {}
            Err(error) => {
                if refused(&device, faults, &error) {
                    scope.give_up();
                }
            }
        }
        Ok(())
    }

    /// Publishes the figures of the GPUs that this thread sampled, with what other threads have published about theirs.
    pub(super) fn publish(&mut self, caller: Caller<'_>) {
        let Self { gpus, publisher, snapshot, totals, .. } = self;
        // Held so that two threads do not replace each other's figures.
        let _one_at_a_time = totals.lock();
        let current = snapshot.profiling.load_full();
        publisher.publish(&snapshot.profiling, |part| {
            if part.gpus.len() != gpus.len() {
                let empty = |gpu: &GpuScopes<'_>| GpuProfiling::unread(gpu.gpu.clone());
                part.gpus = gpus.iter().map(empty).collect();
            }
            for (position, (gpu, shown)) in gpus.iter().zip(&mut part.gpus).enumerate() {
                let theirs = current.gpus.get(position).filter(|other| Arc::ptr_eq(&other.gpu, &gpu.gpu));
                match theirs {
                    Some(theirs) if !(gpu.is_served && caller.serves(position)) => shown.clone_from(theirs),
                    _ => gpu.show(shown),
                }
            }
        });
    }
}

/// Returns `true` if the error means that the GPU does not provide the counters. Any other error is
/// raised as a fault.
fn refused(device: &GuardedDevice<'_>, faults: &Faults, error: &Error) -> bool {
    if error.severity() == Severity::Absent {
        tracing::debug!(gpu = device.gpu().index, call = error.call, "this GPU does not provide profiling counters");
        return true;
    }
    device.raise(faults, Source::Telemetry, error);
    false
}

impl GpuScopes<'_> {
    /// Replaces what is published about the GPU, without an allocation if the MIG layout is the same.
    fn show(&self, shown: &mut GpuProfiling) {
        shown.settled = self.supported == Some(false) || self.scopes.iter().all(Scope::is_settled);
        shown.gpu = self.gpu.clone();
        shown.mig.clear();
        (shown.at, shown.figures) = (None, ProfilingFigures::default());
        for scope in &self.scopes {
            match &scope.device {
                None => (shown.at, shown.figures) = (scope.at, scope.figures),
                Some(device) => {
                    shown.mig.push(MigProfiling { device: device.clone(), at: scope.at, figures: scope.figures });
                }
            }
        }
    }
}
