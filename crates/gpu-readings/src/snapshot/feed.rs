//! What the lanes and the module `allocator` pass on to the recorder as it happens, because a snapshot holds only the
//! latest values and the recorder must see every value.
//!
//! Invariant: a lane never waits here and never allocates. If the reader is too slow, the oldest entries are dropped
//! and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;

use super::{FailedAllocation, Gpu, GpuProcesses, MigDevice};

/// The number of process lists that the feed holds.
const LISTS: usize = 256;
/// The number of failed allocations that the feed holds.
const FAILURES: usize = 64;

/// The used memory of a GPU or MIG device from a given moment on.
#[derive(Debug, Clone)]
pub struct MemorySample {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// The MIG device; `None` for the GPU itself.
    pub mig: Option<Arc<MigDevice>>,
    /// When the memory was read.
    pub at: Instant,
    /// Bytes; `None` if the memory is unknown from this moment on.
    pub used: Option<u64>,
    /// Bytes: [`super::GpuMemory::allocatable`] of a GPU, and total minus reserved memory of a MIG device; 0 if unknown.
    pub allocatable: u64,
}

/// The queues that lead from the lanes, and from the processes' own reports, to the recorder. By default there are no
/// queues, and nothing is passed on.
#[derive(Debug, Default)]
pub struct Feed {
    queues: Option<Queues>,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct Queues {
    samples: ArrayQueue<MemorySample>,
    lists: ArrayQueue<Arc<GpuProcesses>>,
    failures: ArrayQueue<FailedAllocation>,
}

impl Feed {
    /// A feed with room for this many samples.
    pub fn with_room(samples: usize) -> Self {
        let queues = Queues {
            samples: ArrayQueue::new(samples.max(1)),
            lists: ArrayQueue::new(LISTS),
            failures: ArrayQueue::new(FAILURES),
        };
        Self { queues: Some(queues), dropped: AtomicU64::new(0) }
    }

    /// Passes on a sample that differs from the previous one. Called by the memory lane.
    pub fn add_sample(&self, sample: impl FnOnce() -> MemorySample) {
        self.push(|queues| &queues.samples, sample);
    }

    /// Passes on a list that was read. Called by the process lane.
    pub fn add_list(&self, list: &Arc<GpuProcesses>) {
        self.push(|queues| &queues.lists, || list.clone());
    }

    /// Passes on a failed allocation. Called by the module `allocator`.
    pub fn add_failure(&self, failure: FailedAllocation) {
        self.push(|queues| &queues.failures, || failure);
    }

    /// A queue that is full loses its oldest item.
    fn push<T>(&self, queue: fn(&Queues) -> &ArrayQueue<T>, item: impl FnOnce() -> T) {
        if let Some(queues) = &self.queues
            && queue(queues).force_push(item()).is_some()
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes the oldest sample.
    pub fn next_sample(&self) -> Option<MemorySample> {
        self.queues.as_ref()?.samples.pop()
    }

    /// Takes the oldest list.
    pub fn next_list(&self) -> Option<Arc<GpuProcesses>> {
        self.queues.as_ref()?.lists.pop()
    }

    /// Takes the oldest failed allocation.
    pub fn next_failure(&self) -> Option<FailedAllocation> {
        self.queues.as_ref()?.failures.pop()
    }

    /// The number of entries that were dropped because the reader was too slow.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The size of the queues in bytes.
    pub fn bytes(&self) -> usize {
        let Some(queues) = &self.queues else { return 0 };
        // A slot holds an entry and its sequence number.
        let slot = size_of::<usize>();
        queues.samples.capacity() * (size_of::<MemorySample>() + slot)
            + queues.lists.capacity() * (size_of::<Arc<GpuProcesses>>() + slot)
            + queues.failures.capacity() * (size_of::<FailedAllocation>() + slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::ProcessId;

    fn sample(used: u64) -> MemorySample {
        MemorySample { gpu: Arc::default(), mig: None, at: Instant::now(), used: Some(used), allocatable: 100 }
    }

    fn failure(requested: u64) -> FailedAllocation {
        FailedAllocation {
            process: ProcessId { pid: 1, start_ticks: Some(1) },
            at: Instant::now(),
            device: "GPU-1".into(),
            framework: Some("jax".into()),
            requested,
            free: None,
            total: None,
            allocated: None,
            reserved: None,
            largest_free_block: None,
            snapshot_path: None,
            asked_by: None,
            frames: Vec::new(),
            sites: None,
        }
    }

    #[test]
    fn without_a_recorder_nothing_is_kept() {
        let feed = Feed::default();
        feed.add_sample(|| unreachable!("the feed is off, so no sample may be made"));
        feed.add_list(&Arc::default());
        feed.add_failure(failure(1));
        assert!(feed.next_failure().is_none());
        assert!(feed.queues.is_none() && feed.next_sample().is_none() && feed.next_list().is_none());
        assert_eq!((feed.bytes(), feed.dropped()), (0, 0));
    }

    #[test]
    fn a_slow_reader_loses_the_oldest_and_each_loss_is_counted() {
        let feed = Feed::with_room(4);
        (0..10).for_each(|used| feed.add_sample(|| sample(used)));
        let kept: Vec<_> = std::iter::from_fn(|| feed.next_sample()).filter_map(|sample| sample.used).collect();
        assert_eq!(kept, [6, 7, 8, 9]);
        assert_eq!(feed.dropped(), 6);
        (0..LISTS + 2).for_each(|_| feed.add_list(&Arc::default()));
        assert_eq!(feed.dropped(), 8);
        (0..FAILURES as u64 + 3).for_each(|requested| feed.add_failure(failure(requested)));
        assert_eq!(feed.next_failure().map(|failure| failure.requested), Some(3));
        assert_eq!(feed.dropped(), 11);
    }
}
