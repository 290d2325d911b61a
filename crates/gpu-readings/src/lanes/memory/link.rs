//! How the threads of a session wake each other.

use std::sync::atomic::AtomicUsize;

use crate::lanes::wake::WakeBits;

/// What the threads of a session exchange besides the snapshot.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// From the memory lane: the memory of these GPUs changed.
    pub(crate) moved: WakeBits,
    /// From the process lane: there are processes again.
    pub(crate) awake: WakeBits,
    /// Wakes the thread that watches for Xid events, at the end of a session.
    pub(crate) ended: WakeBits,
    /// The number of visible processes on all GPUs.
    pub(crate) processes: AtomicUsize,
}

impl Link {
    /// Wakes every thread, so that it sees at once that its session is ending.
    pub(crate) fn wake_all(&self) {
        self.moved.notify(u64::MAX);
        self.awake.notify(u64::MAX);
        self.ended.notify(u64::MAX);
    }
}
