//! Signs that a workload needed more memory on a device than it could get.

use crate::recorder::history::{Failure, HeapUse as _, Micros, allocation};

/// What told that it needed more.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// Failed allocations that its processes reported.
    pub(super) out_of_memory: u64,
    /// How often a process ended at its peak while the device was nearly full.
    pub(super) ended_at_limit: u64,
    /// Bytes that everything else on the device held at the last such end.
    pub(super) others: Option<u64>,
    /// When a process last ended so, or reported a failed allocation.
    pub(super) last: Option<Micros>,
    /// The last failed allocation, in short.
    pub(super) failure: Option<Box<Failure>>,
    /// The last incident of such an end, or of a failed allocation.
    pub(super) incident: Option<String>,
}

impl Shortage {
    /// Whether its peak is less than what it needed.
    pub(super) fn is_seen(&self) -> bool {
        self.out_of_memory + self.ended_at_limit > 0
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let failure = self.failure.as_deref();
        self.incident.heap_use() + failure.map_or(0, |failed| allocation(size_of::<Failure>()) + failed.heap_use())
    }

    /// Adds the signs of a part of the workload that had another name.
    pub(super) fn absorb(&mut self, other: Self) {
        self.out_of_memory += other.out_of_memory;
        self.ended_at_limit += other.ended_at_limit;
        self.others = self.others.or(other.others);
        self.last = self.last.max(other.last);
        self.failure = self.failure.take().or(other.failure);
        self.incident = self.incident.take().or(other.incident);
    }
}
