//! What the lanes and the room `calls` exchange: the lists of processes, and peaks that calls tell, which the recorder gets too.
//!
//! Invariant: neither waits for the other. If the reader is too slow, the oldest lists and peaks are dropped: a list that
//! is missing makes the next bound lower, and a peak that is missing is one that no reading shows either.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;

use super::{Gpu, GpuProcesses, MigDevice, ProcessId, Workload};

/// The numbers of lists and of peaks that wait.
const LISTS: usize = 1024;
const PEAKS: usize = 4096;
const RECORDED: usize = 1024;
/// GPUs with a higher index have no peaks from calls.
const GPUS: usize = 64;

/// The queues. By default there are none, and nothing is passed on.
#[derive(Debug, Default)]
pub struct CallFeed(Option<Box<Queues>>);

#[derive(Debug)]
struct Queues {
    lists: ArrayQueue<Arc<GpuProcesses>>,
    peaks: ArrayQueue<CallPeak>,
    recorded: ArrayQueue<RecordedCallPeak>,
    /// Bytes, by the index of the GPU; 0 if there is nothing new.
    gpus: [AtomicU64; GPUS],
}

/// Memory that a process or a workload held at least, at some time since the last list.
#[derive(Debug, Clone)]
pub struct CallPeak {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// The MIG device on it.
    pub mig: Option<Arc<MigDevice>>,
    /// Who held it.
    pub holder: CallHolder,
    /// Bytes.
    pub bytes: u64,
}

/// A peak that calls tell, for the recorder.
#[derive(Debug, Clone)]
pub struct RecordedCallPeak {
    /// When the calls had been read: the memory was held a moment before, usually within 0.2 s.
    pub at: Instant,
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// The MIG device on it.
    pub mig: Option<Arc<MigDevice>>,
    /// Who held it; `None` for the GPU as a whole.
    pub holder: Option<CallHolder>,
    /// Bytes.
    pub bytes: u64,
}

/// Who held memory.
#[derive(Debug, Clone)]
pub enum CallHolder {
    /// A process.
    Process(ProcessId),
    /// The processes of a workload together.
    Workload(Arc<Workload>),
}

impl CallFeed {
    /// A feed with queues.
    pub fn with_room() -> Self {
        Self(Some(Box::new(Queues {
            lists: ArrayQueue::new(LISTS),
            peaks: ArrayQueue::new(PEAKS),
            recorded: ArrayQueue::new(RECORDED),
            gpus: [const { AtomicU64::new(0) }; GPUS],
        })))
    }

    /// Whether there are queues.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Passes on a list that was read. Called by the process lane.
    pub(crate) fn add_list(&self, list: &Arc<GpuProcesses>) {
        if let Some(queues) = &self.0 {
            queues.lists.force_push(list.clone());
        }
    }

    /// Takes the oldest list.
    pub fn next_list(&self) -> Option<Arc<GpuProcesses>> {
        self.0.as_ref()?.lists.pop()
    }

    /// Passes on a peak of a process or a workload, in calls that had been read at this moment.
    pub fn add_peak(&self, peak: CallPeak, at: Instant) {
        if let Some(queues) = &self.0 {
            let CallPeak { gpu, mig, holder, bytes } = peak.clone();
            queues.recorded.force_push(RecordedCallPeak { at, gpu, mig, holder: Some(holder), bytes });
            queues.peaks.force_push(peak);
        }
    }

    /// Takes the oldest peak for the recorder.
    pub fn next_recorded(&self) -> Option<RecordedCallPeak> {
        self.0.as_ref()?.recorded.pop()
    }

    /// Takes the oldest peak of a process or a workload. Called by the process lane.
    pub(crate) fn next_peak(&self) -> Option<CallPeak> {
        self.0.as_ref()?.peaks.pop()
    }

    /// Passes on the memory of a GPU in calls that had been read at this moment; 0 bytes if only its processes have news.
    pub fn raise_gpu(&self, gpu: &Arc<Gpu>, bytes: u64, at: Instant) {
        if let Some(queues) = self.0.as_ref().filter(|_| bytes > 0) {
            queues.recorded.force_push(RecordedCallPeak { at, gpu: gpu.clone(), mig: None, holder: None, bytes });
        }
        if let Some(cell) = self.gpu(gpu) {
            cell.fetch_max(bytes.max(1), Ordering::Release);
        }
    }

    /// Takes the highest memory of a GPU since it was last taken; `None` if there is nothing new. Called by the memory lane.
    pub(crate) fn take_gpu(&self, gpu: &Gpu) -> Option<u64> {
        let cell = self.gpu(gpu)?;
        // Nearly always there is nothing, and a load is cheaper than a swap.
        (cell.load(Ordering::Relaxed) > 0).then(|| cell.swap(0, Ordering::Acquire))
    }

    fn gpu(&self, gpu: &Gpu) -> Option<&AtomicU64> {
        self.0.as_ref()?.gpus.get(usize::try_from(gpu.index).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_probes_nothing_is_kept() {
        let feed = CallFeed::default();
        feed.add_list(&Arc::default());
        feed.raise_gpu(&Arc::default(), 5, Instant::now());
        assert!(feed.next_list().is_none() && feed.next_peak().is_none() && feed.next_recorded().is_none());
        assert!(feed.take_gpu(&Gpu::default()).is_none());
    }

    #[test]
    fn the_highest_memory_of_a_gpu_is_taken_once() {
        let feed = CallFeed::with_room();
        let (gpu, now) = (Arc::new(Gpu { index: 3, ..Gpu::default() }), Instant::now());
        [0, 7, 5].into_iter().for_each(|bytes| feed.raise_gpu(&gpu, bytes, now));
        let recorded: Vec<_> = std::iter::from_fn(|| feed.next_recorded()).map(|peak| peak.bytes).collect();
        assert_eq!(recorded, [7, 5]);
        assert_eq!((feed.take_gpu(&gpu), feed.take_gpu(&gpu)), (Some(7), None));
        feed.raise_gpu(&gpu, 0, now);
        assert_eq!(feed.take_gpu(&gpu), Some(1), "processes have news");
        feed.raise_gpu(&Arc::new(Gpu { index: 64, ..Gpu::default() }), 9, now);
        assert_eq!(feed.take_gpu(&Gpu { index: 64, ..Gpu::default() }), None);
    }
}
