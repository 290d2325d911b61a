//! Sees every reading as it is taken: the snapshot holds only the latest values, and the feed passes on only those that
//! changed.
//!
//! Invariant: an observer is called on the thread that took the reading, which waits for it, and never during a driver call.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use super::{Driver, Gpu, GpuMemory, GpuProcesses};

/// Sees what the lanes read.
pub trait Observer: Debug + Send + Sync {
    /// The driver was opened, or opened again.
    fn opened(&self, driver: &Driver);

    /// It was the turn of a GPU and its MIG devices to be read. What could not be read keeps its earlier time.
    fn sampled(&self, memory: &GpuMemory);

    /// The processes of a GPU have just been listed completely; they may end at any time. If memory changed meanwhile, they
    /// were listed again: `reads` are the lists as they were read.
    fn listed(&self, gpu: &Arc<Gpu>, at: Instant, reads: &[ListRead]);

    /// The processes of the last list have been attributed to their owners.
    fn attributed(&self, list: &GpuProcesses);
}

/// The processes of a GPU as they were read once.
#[derive(Debug, Clone, Default)]
pub struct ListRead {
    /// Each process once for each device on which it is.
    pub entries: Vec<ReadProcess>,
    /// Bytes in use on the GPU immediately before and after, including reserved memory on drivers that do not report it
    /// separately. `None`: not known.
    pub around: [Option<u64>; 2],
    /// The same for its MIG devices, in the order of [`super::Gpu::mig`].
    pub mig_around: Vec<[Option<u64>; 2]>,
}

/// A process in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadProcess {
    /// The pid in the exporter's pid namespace.
    pub pid: u32,
    /// The ids of the GPU instance and the compute instance; `None` when MIG is off.
    pub instance: Option<(u32, u32)>,
    /// Bytes; `None` if the driver does not report them.
    pub used: Option<u64>,
}
