//! What the memory lane publishes.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::{Gpu, MigDevice};

/// The shares of the allocatable memory at or above which a device counts as nearly full. What a room does at one of them
/// is said where it names that one.
pub const NEARLY_FULL: [f64; 3] = [0.9, 0.95, 0.98];
/// The thresholds of `gpu_memory_pressure_seconds_total`, as shares of the memory that can be allocated.
pub const PRESSURE_RATIOS: [f64; 7] = [0.5, 0.7, 0.8, 0.85, NEARLY_FULL[0], NEARLY_FULL[1], NEARLY_FULL[2]];

/// The memory of every GPU, in the order of [`super::Driver::gpus`].
#[derive(Debug, Clone, Default)]
pub struct MemoryPart {
    /// One entry for each GPU.
    pub gpus: Vec<GpuMemory>,
}

/// Whether a GPU responds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GpuState {
    /// Not sampled yet.
    #[default]
    Unsampled,
    /// The last call succeeded.
    Up,
    /// A call has not returned within its time limit.
    Stalled,
    /// The last call failed: the GPU is lost or cannot be read.
    Unreadable,
}

/// One GPU's memory at its last good sample, and the values accumulated over all samples.
#[derive(Debug, Clone, Default)]
pub struct GpuMemory {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// Whether the GPU responds.
    pub state: GpuState,
    /// When the GPU last returned good numbers (or, if it has no memory of its own, responded at all).
    pub at: Option<Instant>,
    /// The figures; `None` before the first good sample, and on a GPU that shares the machine's memory while the memory of
    /// its processes is unknown.
    pub figures: Option<MemoryFigures>,
    /// The machine's memory, if the GPU shares it and the machine reports it.
    pub shared: Option<SharedMemory>,
    /// Bytes of [`SharedMemory::available`] when the list was read of which `figures` are; 0 before the first such list. What is
    /// available later no longer belongs to that use.
    pub available_then: u64,
    /// When the seconds and the sums below were 0; `None` before the memory lane knows the GPU.
    pub counted_since: Option<SystemTime>,
    /// Seconds spent at or above each of [`PRESSURE_RATIOS`].
    pub pressure_seconds: [f64; PRESSURE_RATIOS.len()],
    /// Bytes: the sum of all increases in `used` between samples.
    pub increase: u64,
    /// Bytes: the sum of all decreases in `used` between samples.
    pub decrease: u64,
    /// The GPU's MIG devices, in the order of [`Gpu::mig`].
    pub mig: Vec<MigMemory>,
}

impl GpuMemory {
    /// A GPU that has not been sampled yet.
    pub fn unsampled(gpu: Arc<Gpu>) -> Self {
        let mig = gpu.mig.iter().map(|device| MigMemory::unsampled(device.clone())).collect();
        Self { gpu, mig, ..Self::default() }
    }
}

impl GpuMemory {
    /// Bytes: all memory of the GPU, or of the machine that shares its memory with the GPU. `None` while it is unknown.
    pub fn total(&self) -> Option<u64> {
        self.figures.map(|figures| figures.total).or(self.shared.map(|shared| shared.total))
    }

    /// Bytes that processes on the GPU hold or can still allocate; 0 while this is unknown. Where the CPU has the same memory,
    /// this is what the CPU leaves.
    pub fn allocatable(&self) -> u64 {
        let Some(MemoryFigures { total, reserved, used, .. }) = self.figures else { return 0 };
        match self.shared {
            Some(_) => used.saturating_add(self.available_then).min(total),
            None => allocatable(total, reserved),
        }
    }
}

/// The memory of a machine whose GPU shares it with the CPU, in bytes, as the machine reports it (`/proc/meminfo`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedMemory {
    /// All memory of the machine, without what the firmware and the kernel's image keep: `MemTotal`.
    pub total: u64,
    /// What can still be allocated, by a process on the GPU or by any other: `MemAvailable` and `SwapFree`, or the free huge
    /// pages, whichever is more.
    pub available: u64,
}

/// One MIG device's memory.
#[derive(Debug, Clone, Default)]
pub struct MigMemory {
    /// The MIG device.
    pub device: Arc<MigDevice>,
    /// When the device last returned good numbers.
    pub at: Option<Instant>,
    /// `None` before the first good sample.
    pub figures: Option<MemoryFigures>,
    /// When the seconds were 0; `None` before the first good sample.
    pub counted_since: Option<SystemTime>,
    /// Seconds spent at or above each of [`PRESSURE_RATIOS`] of the memory that can be allocated on the device.
    pub pressure_seconds: [f64; PRESSURE_RATIOS.len()],
}

impl MigMemory {
    /// A MIG device that has not been sampled yet.
    pub fn unsampled(device: Arc<MigDevice>) -> Self {
        Self { device, ..Self::default() }
    }
}

/// Bytes of device memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryFigures {
    /// All device memory.
    pub total: u64,
    /// Reserved by the driver and the firmware. `None` on drivers that do not report it; in that case, `used`
    /// includes it.
    pub reserved: Option<u64>,
    /// Allocated. On a GPU that shares the machine's memory: the sum over the processes on the GPU.
    pub used: u64,
    /// Free to be allocated. `None` on a GPU that shares the machine's memory: see [`SharedMemory::available`].
    pub free: Option<u64>,
    /// The highest `used` within the peak window.
    pub window_peak: u64,
    /// Whether `window_peak` is a lower bound that calls tell, because no reading shows as much. `None` if calls have never told
    /// of a peak.
    pub is_peak_of_calls: Option<bool>,
    /// The highest `used` since the exporter started.
    pub peak: u64,
}

/// The bytes of a device that processes can allocate: the total minus the reserved memory. If the driver does not report what
/// is reserved, it counts as allocatable, because it counts as used too.
pub fn allocatable(total: u64, reserved: Option<u64>) -> u64 {
    total.saturating_sub(reserved.unwrap_or(0))
}
