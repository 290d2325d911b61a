//! What the memory allocators in the processes reported.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::{AllocatorSites, ProcessId};

/// Values of a process from which nothing has arrived for this long are stale.
pub const STALE_AFTER: Duration = Duration::from_secs(5);

/// The reserved memory of a process may exceed what the driver reports for it by this many bytes, because the two are
/// read at different times.
pub const RESERVED_MARGIN: u64 = 64 << 20;

/// The reports of all processes with a connection, sorted by pid and start time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AllocatorPart {
    /// One entry for each process.
    pub processes: Vec<ReportingProcess>,
}

impl AllocatorPart {
    /// The reports of a process; none if it reported nothing, or if its start time is unknown.
    pub fn reports(&self, process: ProcessId) -> &[AllocatorReport] {
        let found = self.processes.binary_search_by_key(&process, |known| known.id).ok();
        let known = found.filter(|_| process.start_ticks.is_some());
        known.map_or(&[], |index| &self.processes[index].reports)
    }
}

/// What one process reported about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportingProcess {
    /// The process, as the kernel reports it.
    pub id: ProcessId,
    /// One entry for each device and framework, sorted by both.
    pub reports: Vec<AllocatorReport>,
}

/// What one framework in a process reported about one device.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocatorReport {
    /// The UUID of a GPU or MIG device. It may be one that does not exist or that the process does not use.
    pub device: Arc<str>,
    /// The framework's name: 1 to 32 characters from `a-z`, `0-9` and `_`.
    pub framework: Arc<str>,
    /// When something last arrived from the process.
    pub heard: Arc<LastMessage>,
    /// The values.
    pub figures: AllocatorFigures,
    /// The measured regions of the program, sorted by name.
    pub regions: Vec<RegionPeak>,
    /// What the memory was at the last look; `None` if there was none, or if it is too long ago.
    pub sites: Option<Arc<AllocatorSites>>,
}

/// The values of an allocator. `None`: the process did not report the value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AllocatorFigures {
    /// Bytes in live tensors or buffers.
    pub allocated: Option<u64>,
    /// Bytes that the allocator took from the driver, at least `allocated`.
    pub reserved: Option<u64>,
    /// Bytes: the highest `allocated` within the peak window.
    pub window_peak: Option<u64>,
    /// Bytes: the highest `allocated` since the process started, as far as it is known.
    pub peak: Option<u64>,
    /// Bytes: the most that the allocator may hold.
    pub limit: Option<u64>,
    /// Bytes: the largest block that can be allocated without requesting memory from the driver.
    pub largest_free_block: Option<u64>,
    /// Bytes: free parts of segments that are partly in use.
    pub inactive_split: Option<u64>,
    /// The number of allocations for which cached memory had to be returned to the driver first.
    pub retries: Option<u64>,
    /// The number of allocations that failed.
    pub out_of_memory: Option<u64>,
}

impl AllocatorFigures {
    /// Bytes: reserved but not allocated. `None` if either is unknown.
    pub fn slack(&self) -> Option<u64> {
        self.reserved?.checked_sub(self.allocated?)
    }
}

/// The highest memory of a measured region of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionPeak {
    /// The region's name: 1 to 64 characters without control characters.
    pub name: Arc<str>,
    /// Bytes: the highest allocated memory of all its runs.
    pub peak: u64,
}

/// When something last arrived on a connection. Shared with the connection, so that a message without new values does
/// not replace the part.
#[derive(Debug)]
pub struct LastMessage(AtomicU64);

impl LastMessage {
    /// Creates an instance for something that arrived at `now`.
    pub fn new(now: Instant) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(millis_at(now))))
    }

    /// Records that something arrived.
    pub fn beat(&self, now: Instant) {
        self.0.store(millis_at(now), Ordering::Relaxed);
    }

    /// Whether nothing has arrived for [`STALE_AFTER`].
    pub fn is_stale(&self, now: Instant) -> bool {
        let silent = millis_at(now).saturating_sub(self.0.load(Ordering::Relaxed));
        u128::from(silent) > STALE_AFTER.as_millis()
    }
}

impl PartialEq for LastMessage {
    /// Whether both belong to the same connection.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// A process could not allocate memory: a framework in it reported that, or the driver refused a request.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedAllocation {
    /// The process that reported it, or that asked.
    pub process: ProcessId,
    /// When the report arrived, or when the driver first refused the request.
    pub at: Instant,
    /// The UUID of the GPU or MIG device, as reported.
    pub device: Arc<str>,
    /// The framework's name; `None` if the driver refused a request, as the probes on its calls have seen.
    pub framework: Option<Arc<str>>,
    /// Bytes that were requested.
    pub requested: u64,
    /// Bytes that were free on the device.
    pub free: Option<u64>,
    /// Bytes of memory that the device has in total.
    pub total: Option<u64>,
    /// Bytes in live tensors or buffers.
    pub allocated: Option<u64>,
    /// Bytes that the allocator held.
    pub reserved: Option<u64>,
    /// Bytes of the largest block that could be allocated without requesting memory from the driver.
    pub largest_free_block: Option<u64>,
    /// The path of a file that the framework wrote about the failure: at most 1024 bytes, without control characters.
    pub snapshot_path: Option<Arc<str>>,
    /// The call site that asked, as in [`Site`](super::Site).
    pub asked_by: Option<Arc<str>>,
    /// The stack that asked, innermost first: at most [`MOST_FRAMES`](super::MOST_FRAMES) texts like a call site.
    pub frames: Vec<Arc<str>>,
    /// What the memory was at the last look before.
    pub sites: Option<Arc<AllocatorSites>>,
}

/// Milliseconds between the first call and `now`.
fn millis_at(now: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(|| now);
    u64::try_from(now.saturating_duration_since(start).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_makes_a_connection_stale_until_the_next_message() {
        let start = Instant::now();
        let heard = LastMessage::new(start);
        assert!(!heard.is_stale(start + STALE_AFTER));
        assert!(heard.is_stale(start + STALE_AFTER + Duration::from_millis(1)));
        heard.beat(start + STALE_AFTER);
        assert!(!heard.is_stale(start + 2 * STALE_AFTER));
    }

    #[test]
    fn reports_belong_to_a_pid_with_its_start_time() {
        let figures = AllocatorFigures { allocated: Some(1), reserved: Some(3), ..AllocatorFigures::default() };
        let report = AllocatorReport {
            device: "GPU-a".into(),
            framework: "jax".into(),
            heard: LastMessage::new(Instant::now()),
            figures,
            regions: Vec::new(),
            sites: None,
        };
        let id = |pid, start_ticks| ProcessId { pid, start_ticks };
        let process = |pid, start| ReportingProcess { id: id(pid, start), reports: vec![report.clone()] };
        let processes = vec![process(3, None), process(3, Some(9)), process(7, Some(1)), process(7, Some(5))];
        let reports = |pid, start| AllocatorPart { processes: processes.clone() }.reports(id(pid, start)).len();
        assert_eq!((reports(7, Some(5)), reports(7, Some(4)), reports(4, Some(9))), (1, 0, 0));
        assert_eq!(reports(3, None), 0, "an unknown start time belongs to no process");
        assert_eq!((figures.slack(), AllocatorFigures::default().slack()), (Some(2), None));
    }
}
