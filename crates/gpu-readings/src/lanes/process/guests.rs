//! The virtual machines that have a vGPU of one GPU, as workloads.
//!
//! Invariant: a GPU that hosts no vGPUs is asked once while the driver is open. No byte counts twice: on a KVM host, NVIDIA's
//! vGPU manager has a process for each vGPU, and the driver lists that process with the whole frame buffer. What a guest
//! uses is therefore taken out of the manager's memory first, and only the rest out of what no process holds.

use std::sync::Arc;

use super::raised::RaisedReason;
use super::workload_entry::WorkloadMember;
use crate::faults::{Faults, Source};
use crate::lanes::guarded::GuardedDevice;
use crate::lanes::watch::Superseded;
use crate::nvml::Severity;
use crate::snapshot::{Workload, WorkloadKind};

/// The workload of the vGPU manager's processes.
const MANAGER: &str = "unit:nvidia-vgpu-mgr.service";

/// What the driver has answered about the vGPUs of one GPU.
#[derive(Debug, Default)]
pub(super) struct Guests {
    /// Whether the GPU hosts vGPUs; `None` until it has answered.
    supported: Option<bool>,
    pub(super) known: Vec<GuestUse>,
    raised: RaisedReason,
}

/// A vGPU of a virtual machine.
#[derive(Debug, Clone)]
pub(super) struct GuestUse {
    workload: Arc<Workload>,
    /// Bytes; `None` while the driver does not report them.
    used: Option<u64>,
}

impl Guests {
    /// Reads the vGPUs. `total` is the memory of the GPU. After a refusal, the vGPUs stay, but their memory is unknown.
    pub(super) fn refresh(
        &mut self,
        total: Option<u64>,
        device: &GuardedDevice<'_>,
        faults: &Faults,
    ) -> Result<(), Superseded> {
        let gpu = device.gpu();
        // The vGPUs of a GPU with MIG devices are on these, and the list does not say on which.
        if self.supported == Some(false) || gpu.mig_mode == Some(true) || !gpu.mig.is_empty() {
            return Ok(());
        }
        match device.call(|gpu| gpu.guests())? {
            Ok(guests) => {
                self.supported = Some(true);
                self.raised.forget();
                let known = std::mem::take(&mut self.known);
                self.known = guests
                    .into_iter()
                    .map(|guest| GuestUse {
                        workload: workload(&known, &guest.vm),
                        used: Some(guest.used).filter(|used| total.is_none_or(|total| *used <= total)),
                    })
                    .collect();
            }
            Err(error) => {
                let is_absent = error.severity() == Severity::Absent;
                // NVIDIA documents both codes for GPUs that host no vGPUs.
                if self.supported.is_none() && error.is_unavailable() {
                    self.supported = Some(false);
                    return Ok(());
                }
                self.known.iter_mut().for_each(|guest| guest.used = None);
                if self.raised.is_new(error.reason()) || !is_absent {
                    device.raise(faults, Source::Process, &error);
                }
            }
        }
        Ok(())
    }
}

/// The workload of a virtual machine, shared with its other readings.
fn workload(known: &[GuestUse], vm: &str) -> Arc<Workload> {
    let name = format!("vm:{vm}");
    let same = known.iter().find(|guest| guest.workload.name == name);
    same.map_or_else(
        || Arc::new(Workload { name: name.clone(), kind: WorkloadKind::Vgpu, pod: None }),
        |guest| guest.workload.clone(),
    )
}

impl GuestUse {
    /// The vGPU as a part of its workload. It has no pid.
    pub(super) fn member(&self) -> WorkloadMember<'_> {
        WorkloadMember {
            pid: 0,
            instance: None,
            mig: None,
            workload: &self.workload,
            before: None,
            alive: true,
            used: self.used,
            limit: None,
            cgroup: None,
        }
    }
}

/// Takes what the guests use out of the memory of the vGPU manager's processes, and returns what is left over: bytes that no
/// process holds. `None` while the memory of a guest is unknown; the manager's memory is then unknown too.
pub(super) fn settle(members: &mut [WorkloadMember<'_>], guests: &[GuestUse]) -> Option<u64> {
    let used = guests.iter().try_fold(0_u64, |sum, guest| Some(sum.saturating_add(guest.used?)));
    let managers = members.iter_mut().filter(|member| {
        member.alive && member.workload.kind == WorkloadKind::Systemd && member.workload.name == MANAGER
    });
    if guests.is_empty() {
        return Some(0);
    }
    let mut left = used;
    for member in managers {
        let part = left.zip(member.used).map(|(left, held)| left.min(held));
        member.used = member.used.zip(part).map(|(held, part)| held - part);
        left = left.zip(part).map(|(left, part)| left - part);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(vm: &str, used: Option<u64>) -> GuestUse {
        GuestUse { workload: workload(&[], vm), used }
    }

    fn process<'w>(workload: &'w Arc<Workload>, used: Option<u64>) -> WorkloadMember<'w> {
        WorkloadMember {
            pid: 7,
            instance: None,
            mig: None,
            workload,
            before: None,
            alive: true,
            used,
            limit: None,
            cgroup: None,
        }
    }

    fn unit(name: &str) -> Arc<Workload> {
        Arc::new(Workload { name: name.to_owned(), kind: WorkloadKind::Systemd, pod: None })
    }

    #[test]
    fn what_a_guest_uses_counts_once_wherever_the_driver_lists_it() {
        let (manager, other) = (unit(MANAGER), unit("unit:ollama.service"));
        let guests = [guest("a", Some(6)), guest("b", Some(5))];
        let held = |members: &[WorkloadMember<'_>]| members.iter().map(|member| member.used).collect::<Vec<_>>();
        // A process of the manager for each vGPU, with the whole frame buffer.
        let mut members = [process(&manager, Some(8)), process(&other, Some(3)), process(&manager, Some(8))];
        assert_eq!(settle(&mut members, &guests), Some(0));
        assert_eq!(held(&members), [Some(0), Some(3), Some(5)]);
        // No such process is listed.
        let mut members = [process(&other, Some(3))];
        assert_eq!(settle(&mut members, &guests), Some(11));
        assert_eq!(held(&members), [Some(3)]);
        // No guest.
        let mut members = [process(&manager, Some(8))];
        assert_eq!(settle(&mut members, &[]), Some(0));
        assert_eq!(held(&members), [Some(8)]);
    }

    #[test]
    fn unknown_memory_of_a_guest_makes_no_sum() {
        let manager = unit(MANAGER);
        let mut members = [process(&manager, Some(8))];
        assert_eq!(settle(&mut members, &[guest("a", Some(6)), guest("b", None)]), None);
        assert_eq!(members[0].used, None);
        let mut members = [process(&manager, None)];
        assert_eq!(settle(&mut members, &[guest("a", Some(6))]), None);
    }

    #[test]
    fn a_guest_keeps_its_workload_from_reading_to_reading() {
        let known = [guest("a", Some(1))];
        assert!(Arc::ptr_eq(&workload(&known, "a"), &known[0].workload));
        assert_eq!(workload(&known, "b").name, "vm:b");
    }
}
