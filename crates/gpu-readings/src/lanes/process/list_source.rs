//! The devices that list the processes of one GPU: the GPU and its MIG devices.

use std::collections::HashSet;

use crate::lanes::guarded::GuardedDevice;
use crate::lanes::watch::Superseded;
use crate::nvml::{Error, ListKind, ListedProcess, ProcessBuffer, Severity};

/// A GPU and its MIG devices.
#[derive(Debug)]
pub(super) struct ListSource<'d> {
    pub(super) device: GuardedDevice<'d>,
    /// Each MIG device with the ids of its GPU instance and compute instance.
    mig_devices: Vec<(GuardedDevice<'d>, (u32, u32))>,
}

/// The memory in use on the GPU and on each of its MIG devices; `None` if it is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InUse {
    pub(super) gpu: Option<Used>,
    pub(super) mig: Vec<Option<Used>>,
}

/// Memory in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) bytes: u64,
    /// Whether reserved memory is reported separately, and is no part of it.
    pub(super) is_exact: bool,
}

impl Used {
    /// Bytes, without reserved memory; `None` if the driver does not report that separately.
    pub(super) fn exact(self) -> Option<u64> {
        Some(self.bytes).filter(|_| self.is_exact)
    }
}

impl InUse {
    /// Keeps only the figures that were the same before and after the lists were read.
    pub(super) fn common(self, after: Self) -> Self {
        let same = |(before, after): (Option<Used>, Option<Used>)| after.filter(|_| before == after);
        Self { gpu: same((self.gpu, after.gpu)), mig: self.mig.into_iter().zip(after.mig).map(same).collect() }
    }

    /// Marks all figures as unknown.
    pub(super) fn forget(&mut self) {
        self.gpu = None;
        self.mig.fill(None);
    }
}

impl<'d> ListSource<'d> {
    pub(super) fn of(device: GuardedDevice<'d>) -> Self {
        let instances = device.gpu().mig.iter().map(|mig| (mig.gpu_instance, mig.compute_instance));
        Self { device, mig_devices: device.mig_devices().zip(instances).collect() }
    }

    pub(super) fn in_use(&self) -> Result<InUse, Superseded> {
        let mig = self.mig_devices.iter().map(|(device, _)| used(device));
        Ok(InUse { gpu: used(&self.device)?, mig: mig.collect::<Result<_, _>>()? })
    }

    /// Reads one list into `entries`.
    pub(super) fn read(
        &self,
        kind: ListKind,
        entries: &mut Vec<ListedProcess>,
        buffer: &mut ProcessBuffer,
    ) -> Result<Result<(), Error>, Superseded> {
        let answer = self.device.call(|gpu| {
            let listed = gpu.processes(kind, buffer)?;
            entries.clear();
            entries.extend(listed);
            Ok(())
        })?;
        let refusal = match answer {
            answer if self.mig_devices.is_empty() => return Ok(answer),
            // A driver may refuse the list of a GPU with MIG devices to users without administrator rights, but still
            // return the lists of the MIG devices. Their entries do not identify the device.
            Err(error) if error.severity() == Severity::Absent => {
                entries.clear();
                Some(error)
            }
            // The oldest drivers list the processes of all MIG devices, but not on which of them each is.
            Ok(()) if !buffer.tells_instances() => None,
            answer => return Ok(answer),
        };
        let of_gpu = entries.len();
        for &(device, instance) in &self.mig_devices {
            let answer = device.call(|device| {
                let listed = device.processes(kind, buffer)?;
                entries.extend(listed.map(|entry| ListedProcess { instance: Some(instance), ..entry }));
                Ok(())
            })?;
            // A MIG device's own failure is more informative than the GPU's refusal.
            if let Err(own) = answer {
                entries.truncate(of_gpu);
                return Ok(if own.severity() == Severity::Absent { refusal.map_or(Ok(()), Err) } else { Err(own) });
            }
        }
        // A process that is on none of the known MIG devices is on one that was made since the driver was opened.
        let of_mig = entries.split_off(of_gpu);
        let known: HashSet<u32> = of_mig.iter().map(|entry| entry.pid).collect();
        entries.retain(|entry| !known.contains(&entry.pid));
        entries.extend(of_mig);
        Ok(Ok(()))
    }
}

fn used(device: &GuardedDevice<'_>) -> Result<Option<Used>, Superseded> {
    let memory = device.call(|device| device.memory())?.ok();
    Ok(memory.map(|memory| Used { bytes: memory.used, is_exact: memory.reserved.is_some() }))
}
