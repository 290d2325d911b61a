//! How much memory a value uses on the heap, in addition to its own size.
//!
//! The recorder's limit applies to the sum of these sizes. They are exact, because an ended process is replaced by
//! values over time when the limit is reached: if the estimate were higher than the real size for one of the two, but
//! not for the other, the memory in use would change although the sum does not.

use crate::snapshot::{CgroupLocation, Owner, Workload};

/// The number of bytes that the C library's allocator adds to each allocation, including its rounding.
const CHUNK: usize = 24;

/// The memory that an allocation of `bytes` bytes uses. For 0 bytes, nothing is allocated.
pub(crate) fn allocation(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes + CHUNK }
}

/// A value that uses memory on the heap.
pub(crate) trait HeapUse {
    /// Bytes, without the size of the value itself.
    fn heap_use(&self) -> usize;
}

impl HeapUse for String {
    fn heap_use(&self) -> usize {
        allocation(self.capacity())
    }
}

impl<T: HeapUse> HeapUse for Option<T> {
    fn heap_use(&self) -> usize {
        self.as_ref().map_or(0, T::heap_use)
    }
}

impl<T: HeapUse> HeapUse for Vec<T> {
    fn heap_use(&self) -> usize {
        allocation(self.capacity() * size_of::<T>()) + self.iter().map(T::heap_use).sum::<usize>()
    }
}

impl HeapUse for Owner {
    /// The workload is counted in full, although processes can share it.
    fn heap_use(&self) -> usize {
        let Self {
            name,
            namespace_pid: _,
            uid: _,
            user,
            start: _,
            start_ticks: _,
            command,
            memory_limit: _,
            cgroup,
            location,
            workload,
        } = self;
        let workload = workload.as_ref().map_or(0, |workload| allocation(size_of::<Workload>()) + workload.heap_use());
        // The counters of the `Arc` are part of the allocation.
        let cgroup = cgroup.as_ref().map_or(0, |path| allocation(path.as_os_str().len() + 2 * size_of::<usize>()));
        name.heap_use() + user.heap_use() + command.heap_use() + location.heap_use() + workload + cgroup
    }
}

impl HeapUse for CgroupLocation {
    fn heap_use(&self) -> usize {
        let Self { boundary: _, user: _, container_id, pod_uid, unit, slurm_job, slurm_step, job } = self;
        let job = job.as_ref().map_or(0, |job| job.id.heap_use());
        let names = [container_id, pod_uid, unit, slurm_job, slurm_step];
        names.into_iter().map(HeapUse::heap_use).sum::<usize>() + job
    }
}

impl HeapUse for Workload {
    /// Without the pod, which all its containers' processes share with the list of pods.
    fn heap_use(&self) -> usize {
        self.name.heap_use()
    }
}
