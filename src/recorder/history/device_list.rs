//! Which device something is about, and the part of a process list that concerns a device.
//!
//! Invariant: the compute instances of a GPU instance share its memory, so all of them have the key of the first.

use std::sync::Arc;

use crate::snapshot::{Gpu, GpuProcesses, MigDevice, Other, Process, ProcessId, WorkloadUse};

/// What identifies a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeviceKey {
    /// [`Gpu::key`].
    pub(crate) gpu: String,
    /// The UUID of the first MIG device of the GPU instance; `None` for the GPU itself.
    pub(crate) mig: Option<String>,
}

impl DeviceKey {
    /// `mig`: any MIG device of the GPU instance. Its compute instances share its memory.
    pub(crate) fn of(gpu: &Gpu, mig: Option<&MigDevice>) -> Self {
        Self { gpu: gpu.key(), mig: mig.map(|mig| first_of_instance(gpu, mig).uuid.clone()) }
    }

    /// Whether it is the key of this MIG device of its own GPU, or without one of the GPU itself.
    fn is_of(&self, gpu: &Gpu, mig: Option<&MigDevice>) -> bool {
        mig.map(|mig| &first_of_instance(gpu, mig).uuid) == self.mig.as_ref()
    }
}

/// The first MIG device of the GPU instance to which a MIG device belongs.
pub(crate) fn first_of_instance<'a>(gpu: &'a Gpu, device: &'a MigDevice) -> &'a MigDevice {
    let is_listed = gpu.mig.iter().any(|other| other.uuid == device.uuid);
    let mut instance = gpu.mig.iter().filter(|other| is_listed && other.gpu_instance == device.gpu_instance);
    instance.next().map_or(device, |first| first)
}

/// A process that is not followed: a [`ProcessId`] and a compute instance in as few bytes as possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unfollowed {
    /// `u64::MAX` if it is unknown.
    start_ticks: u64,
    pid: u32,
    /// `u32::MAX` without MIG.
    compute_instance: u32,
}

impl Unfollowed {
    pub(crate) fn of(process: ProcessId, mig: Option<&MigDevice>) -> Self {
        Self {
            start_ticks: process.start_ticks.unwrap_or(u64::MAX),
            pid: process.pid,
            compute_instance: mig.map_or(u32::MAX, |device| device.compute_instance),
        }
    }
}

/// The part of a list that concerns one device.
#[derive(Debug)]
pub(crate) struct DeviceList<'l> {
    pub(crate) processes: Vec<&'l Process>,
    pub(crate) workloads: Vec<&'l WorkloadUse>,
    /// The number of running processes on the GPU that the list leaves out, and that are not yet assumed to be on a
    /// device.
    pub(crate) left_out: usize,
    pub(crate) cuts_workloads: bool,
    list: &'l GpuProcesses,
    key: &'l DeviceKey,
}

impl<'l> DeviceList<'l> {
    pub(crate) fn of(list: &'l GpuProcesses, key: &'l DeviceKey, left_out: usize) -> Self {
        let is_here = |mig: &Option<Arc<MigDevice>>| key.is_of(&list.gpu, mig.as_deref());
        Self {
            processes: list.processes.iter().filter(|process| is_here(&process.mig)).collect(),
            workloads: list.workloads.iter().filter(|workload| is_here(&workload.mig)).collect(),
            left_out,
            cuts_workloads: list.other_workloads.is_some(),
            list,
            key,
        }
    }

    /// The processes that use the device's memory: of a GPU with MIG devices, those on the MIG devices too.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &'l Process> {
        let Self { list, key, .. } = *self;
        let is_on = move |process: &&Process| key.mig.is_none() || key.is_of(&list.gpu, process.mig.as_deref());
        list.processes.iter().filter(is_on)
    }

    /// Bytes in use that no visible process holds; `None` if that is unknown.
    pub(crate) fn unattributed(&self) -> Option<u64> {
        let Some(uuid) = &self.key.mig else { return self.list.unattributed };
        let mut instances = self.list.mig_unattributed.iter();
        instances.find(|(device, _)| device.uuid == *uuid).map(|(_, bytes)| *bytes)
    }

    /// The sum of the processes that the list leaves out. Of a MIG device they are not known.
    pub(crate) fn other(&self) -> Option<Other> {
        self.list.other.filter(|_| self.key.mig.is_none())
    }
}
