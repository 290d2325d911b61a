//! The owner of a process.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use cgroup_owner::CgroupLocation;
use pod_resources::PodContainer;
use serde::{Deserialize, Serialize};

use crate::closed_enum::closed_enum;

/// The owner of a process. Resolved once for each (pid, start time); only names that become known later are added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    /// The executable's name, or the script's name if the executable is an interpreter; `None` if `/proc` does not show
    /// the process.
    pub name: Option<String>,
    /// The pid in the pid namespace of the process itself, such as that of its container. `None` if that is the namespace of
    /// `/proc`, and if it is not known.
    pub namespace_pid: Option<u32>,
    /// The effective user id.
    pub uid: Option<u32>,
    /// The user's name; `None` if it is not known (yet).
    pub user: Option<String>,
    /// When the process started.
    pub start: Option<SystemTime>,
    /// The start time in clock ticks since boot. It identifies the process together with its pid. `None` if `/proc`
    /// does not show the process.
    pub start_ticks: Option<u64>,
    /// The command line, only if the configuration enables it.
    pub command: Option<String>,
    /// Bytes: the value of `VRAM_EXPORTER_GPU_MEMORY_LIMIT` in the environment with which it was started. `None` if it is
    /// not set or cannot be read.
    pub memory_limit: Option<u64>,
    /// The path of the cgroup that forms its boundary, in the unified hierarchy as the machine sees it:
    /// `/system.slice/train.service`. At most 4 KiB. `None` if it has no boundary, if version 1 of cgroups
    /// determines its owner, or if the exporter does not see the whole path (from a cgroup namespace of its own).
    pub cgroup: Option<Arc<Path>>,
    /// Its place in the cgroup hierarchy.
    pub location: CgroupLocation,
    /// The workload to which its memory is attributed; `None` if `/proc` does not show the process.
    pub workload: Option<Arc<Workload>>,
}

impl Owner {
    /// The user's name, or the uid if the name is not known; `None` if neither is.
    pub fn user_or_uid(&self) -> Option<String> {
        self.user.clone().or_else(|| self.uid.map(|uid| uid.to_string()))
    }
}

/// A group of processes whose memory is summed: a container, a job, a unit or a user. Or a virtual machine, with the memory of
/// its vGPUs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Workload {
    /// `namespace/pod/container`, `container:<12 hexadecimal digits>`, `slurm:<job>`, `<scheduler>:<job>`,
    /// `unit:<name>`, `user:<name>` or `vm:<id>`.
    pub name: String,
    /// The kind of group.
    pub kind: WorkloadKind,
    /// The pod and the container, if the workload is a container of a known pod.
    pub pod: Option<Arc<PodContainer>>,
}

impl Workload {
    /// The workload of a Slurm job. `job`: its number or its SLUID.
    pub fn of_slurm_job(job: &str) -> Self {
        Self { name: format!("slurm:{job}"), kind: WorkloadKind::Slurm, pod: None }
    }
}

closed_enum! {
    /// The kinds of workload, by the label `kind`. In JSON, a kind is its label.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum WorkloadKind {
        /// A container of a pod whose name is known.
        Kubernetes => "kubernetes",
        /// Any other container.
        Container => "container",
        /// A Slurm job.
        Slurm => "slurm",
        /// A job of another scheduler, or a container of YARN.
        Job => "job",
        /// A unit of the systemd system instance.
        Systemd => "systemd",
        /// Everything else: the processes are grouped by user.
        User => "user",
        /// A virtual machine with a vGPU.
        Vgpu => "vgpu",
    }
}

impl WorkloadKind {
    /// The kind with this label; `None` for any other text.
    pub fn of(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.label() == label)
    }

    /// Whether a batch system started the workload, which has an id there.
    pub fn is_job(self) -> bool {
        matches!(self, Self::Slurm | Self::Job)
    }

    /// Whether workloads of this kind come and go as often as somebody starts a program.
    pub fn is_casual(self) -> bool {
        matches!(self, Self::Systemd | Self::User)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_by_its_label() {
        use WorkloadKind::{Container, Job, Kubernetes, Slurm, Systemd, User, Vgpu};
        for kind in [Kubernetes, Container, Slurm, Job, Systemd, User, Vgpu] {
            assert_eq!(WorkloadKind::of(kind.label()), Some(kind));
        }
        assert_eq!(["", "Slurm", "other"].map(WorkloadKind::of), [None; 3]);
    }
}
