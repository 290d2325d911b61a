//! Whose a process is.

use std::sync::Arc;
use std::time::SystemTime;

/// Who a process is. Resolved once for each (pid, start time); only names that come late are filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    /// The executable's name, or the script's for an interpreter; `None` where `/proc` does not show the process.
    pub name: Option<String>,
    /// The effective user id.
    pub uid: Option<u32>,
    /// The user's name; `None` where it is not known (yet).
    pub user: Option<String>,
    /// When the process started.
    pub start: Option<SystemTime>,
    /// The command line, only where the configuration asks for it.
    pub command: Option<String>,
    /// Where it lives.
    pub location: CgroupLocation,
    /// What its memory is counted for; `None` where `/proc` does not show the process.
    pub workload: Option<Arc<Workload>>,
}

/// Where a process lives, as its cgroup path tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupLocation {
    /// The outermost boundary on the path, the one that no process inside can have made up; `None` for a process in the root.
    pub boundary: Option<Boundary>,
    /// The container, by the runtime's full id, or by its name where the runtime has no ids (LXC).
    pub container_id: Option<String>,
    /// The pod's uid with hyphens, or a static pod's 32 hexadecimal digits.
    pub pod_uid: Option<String>,
    /// The systemd unit, of the system or of a user, with its suffix: `ollama.service`.
    pub unit: Option<String>,
    /// The job's number, or the identifier that Slurm 26.05 and later give the job's control group in its place (SLUID).
    pub slurm_job: Option<String>,
    /// The step within the job: a number, `batch`, `extern` or `interactive`; `0+1` in a heterogeneous job.
    pub slurm_step: Option<String>,
    /// The job of a scheduler other than Slurm.
    pub job: Option<Job>,
}

/// A job of a scheduler other than Slurm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Whose job it is.
    pub scheduler: Scheduler,
    /// As the scheduler's cgroup names it: `12345` and `12345[7]` (PBS, Torque), `slot1_2@node` (HTCondor),
    /// `<allocation>.<task>` (Nomad).
    pub id: String,
}

/// The schedulers other than Slurm whose jobs are known by their cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheduler {
    /// OpenPBS and PBS Professional.
    Pbs,
    /// Torque.
    Torque,
    /// HTCondor.
    HtCondor,
    /// HashiCorp Nomad.
    Nomad,
}

impl Scheduler {
    /// The value of the label `scheduler`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Pbs => "pbs",
            Self::Torque => "torque",
            Self::HtCondor => "htcondor",
            Self::Nomad => "nomad",
        }
    }
}

/// What sets a process apart from the rest of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Boundary {
    /// A container in a Kubernetes pod.
    Pod,
    /// A container that no pod is known of.
    Container,
    /// A Slurm job.
    SlurmJob,
    /// A job of another scheduler.
    Job,
    /// A unit of the system's systemd.
    Unit,
    /// A user's session, or a unit of the user's own systemd.
    User,
}

/// What memory is counted for, beyond single processes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Workload {
    /// `namespace/pod/container`, `container:<12 hexadecimal digits>`, `slurm:<job>`, `<scheduler>:<job>`, `unit:<name>` or
    /// `user:<name>`.
    pub name: String,
    /// Which of these.
    pub kind: WorkloadKind,
    /// Its pod, where it is one's container.
    pub pod: Option<Arc<PodContainer>>,
}

/// The kinds of workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkloadKind {
    /// A container of a pod whose name is known.
    Kubernetes,
    /// Any other container.
    Container,
    /// A Slurm job.
    Slurm,
    /// A job of another scheduler.
    Job,
    /// A unit of the system's systemd.
    Systemd,
    /// Everything else: by its user.
    User,
}

impl WorkloadKind {
    /// The value of the label `kind`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Container => "container",
            Self::Slurm => "slurm",
            Self::Job => "job",
            Self::Systemd => "systemd",
            Self::User => "user",
        }
    }
}

/// A container of a pod, by its names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodContainer {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name within the pod.
    pub container: String,
}
