//! How long a GPU or MIG device was nearly full, added up from the samples of the memory lane.
//!
//! Invariant: the sums cover exactly the time up to [`Meter::at`]; samples from later moments wait. The number of
//! waiting samples is bounded.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::recorder::history::Micros;
use crate::snapshot::{Gpu, MemorySample, MigDevice, NEARLY_FULL};

/// The number of samples that wait for the next process list. Beyond it, the oldest no longer waits.
const MAX_WAITING: usize = 256;

/// Time at or above each of [`NEARLY_FULL`].
pub(super) type Near = [Micros; NEARLY_FULL.len()];

/// The meter of one device.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// The MIG device; `None` for the GPU itself.
    pub(super) mig: Option<Arc<MigDevice>>,
    /// The sums cover the time up to this moment.
    at: Micros,
    /// The memory in use since then; `None` if it is unknown.
    used: Option<u64>,
    /// Bytes that can be allocated; 0 while unknown.
    pub(super) allocatable: u64,
    /// The time at or above each level since the meter began.
    pub(super) near: Near,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    at: Micros,
    used: Option<u64>,
    allocatable: u64,
}

impl Meter {
    pub(super) fn new(mig: Option<Arc<MigDevice>>, at: Micros) -> Self {
        Self { mig, at, ..Self::default() }
    }

    /// Accepts a sample, which counts once the meter reaches its moment.
    pub(super) fn sample(&mut self, sample: &MemorySample, at: Micros) {
        if self.waiting.len() >= MAX_WAITING
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.take(oldest);
        }
        self.waiting.push_back(Waiting { at, used: sample.used, allocatable: sample.allocatable });
    }

    /// Adds up the time until `to`.
    pub(super) fn advance(&mut self, to: Micros) {
        while let Some(&next) = self.waiting.front().filter(|next| next.at <= to) {
            self.take(next);
            self.waiting.pop_front();
        }
        self.pass(to);
    }

    fn take(&mut self, next: Waiting) {
        self.pass(next.at);
        self.used = next.used;
        self.allocatable = next.allocatable;
    }

    fn pass(&mut self, to: Micros) {
        let passed = to.saturating_sub(self.at);
        if let Some(used) = self.used
            && self.allocatable > 0
        {
            let ratio = used as f64 / self.allocatable as f64;
            let reached = NEARLY_FULL.into_iter().zip(&mut self.near).filter(|(level, _)| ratio >= *level);
            reached.for_each(|(_, sum)| *sum += passed);
        }
        self.at = self.at.max(to);
    }

    /// Frees the unused capacity.
    pub(super) fn trim(&mut self) {
        self.waiting.shrink_to(self.waiting.len() * 2);
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.waiting.capacity() * size_of::<Waiting>()
    }
}

/// One GPU.
#[derive(Debug, Default)]
pub(super) struct GpuReadings {
    /// [`Gpu::key`].
    key: String,
    pub(super) meters: Vec<Meter>,
    /// When its last list was read.
    pub(super) listed: Option<Micros>,
}

/// The position of a GPU, which is added if it is new.
pub(super) fn position(gpus: &mut Vec<GpuReadings>, gpu: &Gpu) -> usize {
    let key = gpu.key();
    gpus.iter().position(|known| known.key == key).unwrap_or_else(|| {
        gpus.push(GpuReadings { key, ..GpuReadings::default() });
        gpus.len() - 1
    })
}

impl GpuReadings {
    /// Forgets the meters of MIG devices that are gone, unless a report uses the GPU instance (`used`).
    pub(super) fn forget_meters(&mut self, gpu: &Gpu, used: &[u32]) {
        let is_needed = |mig: &MigDevice| {
            used.contains(&mig.gpu_instance) || gpu.mig.iter().any(|present| present.uuid == mig.uuid)
        };
        self.meters.retain(|meter| meter.mig.as_deref().is_none_or(is_needed));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn sample(used: Option<u64>) -> MemorySample {
        MemorySample { gpu: Arc::default(), mig: None, at: Instant::now(), used, allocatable: 1000 }
    }

    #[test]
    fn a_sample_counts_from_its_own_moment_on() {
        let mut meter = Meter::new(None, 0);
        meter.sample(&sample(Some(949)), 100);
        meter.sample(&sample(Some(980)), 300);
        meter.advance(200);
        assert_eq!(meter.near, [100, 0, 0]);
        meter.advance(400);
        assert_eq!(meter.near, [300, 100, 100]);
        meter.sample(&sample(None), 350);
        meter.advance(1000);
        assert_eq!(meter.near, [300, 100, 100], "a sample that comes late counts from now on");
    }

    #[test]
    fn waiting_samples_are_bounded_and_still_counted() {
        let mut meter = Meter::new(None, 0);
        (0..10 * MAX_WAITING as u64).for_each(|at| meter.sample(&sample(Some(990)), at));
        assert!(meter.waiting.len() <= MAX_WAITING && meter.bytes() < 128 << 10);
        meter.advance(20_000);
        assert_eq!(meter.near, [20_000; 3]);
    }
}
