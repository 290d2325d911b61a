//! The last text, for scrapers that come at the same moment.
//!
//! Invariant: a text is given again only while every part that it was written from is the present one, and for
//! [`FRESH`] at most: it tells ages, and counts of the exporter's own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::view::{MemoryMoment, Parts};
use crate::snapshot::{Allocations, Driver, Pods, ProcessPart, TelemetryPart};

/// One tick of the memory lane at its default rate: no reading is newer than that anyway.
const FRESH: Duration = Duration::from_millis(10);

/// What was written last, if it may be given again.
#[derive(Debug, Default)]
pub(super) struct LastText(Mutex<Option<Written>>);

/// A text and what it was written from.
#[derive(Debug)]
struct Written {
    at: Instant,
    of: Sources,
    text: Arc<[u8]>,
}

/// The parts of a snapshot. Those held here cannot be replaced by others in the same place of memory. The memory lane's is not
/// held, because the lane fills it again; it is known by when it was sampled.
#[derive(Debug)]
struct Sources {
    driver: Arc<Driver>,
    processes: Arc<ProcessPart>,
    telemetry: Arc<TelemetryPart>,
    pods: Arc<Pods>,
    allocations: Arc<Allocations>,
    memory: MemoryMoment,
}

impl LastText {
    /// The text that was written from these parts a moment ago.
    pub(super) fn of(&self, parts: &Parts) -> Option<Arc<[u8]>> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last.as_ref()?;
        let fresh = parts.now.saturating_duration_since(last.at) <= FRESH;
        (fresh && last.of.are(parts)).then(|| last.text.clone())
    }

    /// Keeps a text for those who come next.
    pub(super) fn keep(&self, parts: &Parts, text: &[u8]) {
        let written = Written { at: parts.now, of: Sources::of(parts), text: text.into() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(written);
    }
}

impl Sources {
    fn of(parts: &Parts) -> Self {
        Self {
            driver: parts.driver.clone(),
            processes: parts.processes.clone(),
            telemetry: parts.telemetry.clone(),
            pods: parts.pods.clone(),
            allocations: parts.allocations.clone(),
            memory: parts.memory_moment(),
        }
    }

    fn are(&self, parts: &Parts) -> bool {
        Arc::ptr_eq(&self.driver, &parts.driver)
            && Arc::ptr_eq(&self.processes, &parts.processes)
            && Arc::ptr_eq(&self.telemetry, &parts.telemetry)
            && Arc::ptr_eq(&self.pods, &parts.pods)
            && Arc::ptr_eq(&self.allocations, &parts.allocations)
            && self.memory == parts.memory_moment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Gpu, GpuMemory, MemoryPart, Snapshot};

    fn sampled(at: Instant) -> Arc<MemoryPart> {
        let gpu = GpuMemory { at: Some(at), ..GpuMemory::unsampled(Arc::new(Gpu::default())) };
        Arc::new(MemoryPart { gpus: vec![gpu] })
    }

    #[test]
    fn a_text_is_given_again_while_nothing_changed_and_for_a_moment() {
        let (snapshot, last) = (Snapshot::new(), LastText::default());
        let now = Instant::now();
        let parts = |now| {
            let mut parts = Parts::load(&snapshot);
            parts.now = now;
            parts
        };
        snapshot.memory.store(sampled(now));
        assert!(last.of(&parts(now)).is_none());
        last.keep(&parts(now), b"text");
        assert_eq!(last.of(&parts(now + FRESH)).as_deref(), Some(&b"text"[..]));
        assert!(last.of(&parts(now + FRESH + Duration::from_nanos(1))).is_none());

        let changes: [fn(&Snapshot); 6] = [
            |snapshot| snapshot.memory.store(sampled(Instant::now())),
            |snapshot| snapshot.processes.store(Arc::default()),
            |snapshot| snapshot.telemetry.store(Arc::default()),
            |snapshot| snapshot.driver.store(Arc::default()),
            |snapshot| snapshot.pods.store(Arc::default()),
            |snapshot| snapshot.allocations.store(Arc::default()),
        ];
        for change in changes {
            last.keep(&parts(now), b"text");
            assert!(last.of(&parts(now)).is_some());
            change(&snapshot);
            assert!(last.of(&parts(now)).is_none());
        }
    }

    #[test]
    fn the_memory_lane_can_fill_its_part_again() {
        let (snapshot, last) = (Snapshot::new(), LastText::default());
        snapshot.memory.store(sampled(Instant::now()));
        last.keep(&Parts::load(&snapshot), b"text");
        let mut part = snapshot.memory.swap(Arc::default());
        assert!(Arc::get_mut(&mut part).is_some(), "nobody holds it");
    }
}
