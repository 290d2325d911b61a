//! Where a process runs.

/// Where a process runs, as its cgroup path shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupLocation {
    /// The outermost boundary in the path, which no process inside can forge; `None` for a process in the root cgroup.
    pub boundary: Option<Boundary>,
    /// The container, by the runtime's full id, or by its name if the runtime has no ids (LXC).
    pub container_id: Option<String>,
    /// The pod's uid with hyphens, or a static pod's 32 hexadecimal digits.
    pub pod_uid: Option<String>,
    /// The uid of the user in whose slice or systemd it runs, whatever uid the process has: systemd creates these cgroups at login.
    pub user: Option<u32>,
    /// The systemd unit, of the system or of a user, with its suffix: `ollama.service`.
    pub unit: Option<String>,
    /// The job's number, or the identifier (SLUID) that Slurm 26.05 and later use instead in the name of the job's
    /// cgroup.
    pub slurm_job: Option<String>,
    /// The step within the job: a number, `batch`, `extern` or `interactive`; `0+1` in a heterogeneous job.
    pub slurm_step: Option<String>,
    /// The job of a scheduler other than Slurm.
    pub job: Option<Job>,
}

/// A job of a scheduler other than Slurm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The scheduler that runs the job.
    pub scheduler: Scheduler,
    /// The identifier in the name of the job's cgroup: `12345` and `12345[7]` (PBS, Torque), `slot1_2@node` (HTCondor),
    /// `<allocation>.<task>` (Nomad), `4242` (OAR), `container_e17_1410901177871_0001_01_000005` (YARN).
    pub id: String,
}

/// Declares the schedulers. An entry is the variant, the value of the label, the name, and what the identifier of a job is.
macro_rules! schedulers {
    ($($(#[$doc:meta])+ $variant:ident => $label:literal, $name:literal, $id:literal;)+) => {
        /// The schedulers other than Slurm whose jobs are recognised by their cgroups.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Scheduler {
            $($(#[$doc])+ $variant,)+
        }

        impl Scheduler {
            /// Every scheduler.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// The names of all, for people, in the order of [`Self::ALL`].
            pub const NAMES: &'static [&'static str] = &[$($name),+];
            /// What the workloads of each are called, in the order of [`Self::ALL`]: `` `pbs:<job>` ``.
            pub const FORMS: &'static [&'static str] = &[$(concat!("`", $label, ":<", $id, ">`")),+];

            /// A short lower-case name.
            pub fn label(self) -> &'static str {
                match self { $(Self::$variant => $label),+ }
            }
        }
    };
}

schedulers! {
    /// OpenPBS and PBS Professional.
    Pbs => "pbs", "PBS", "job";
    /// Torque.
    Torque => "torque", "Torque", "job";
    /// HTCondor.
    HtCondor => "htcondor", "HTCondor", "slot";
    /// HashiCorp Nomad.
    Nomad => "nomad", "Nomad", "allocation>.<task";
    /// OAR.
    Oar => "oar", "OAR", "job";
    /// Apache Hadoop YARN, whose containers are not those of a container runtime.
    Yarn => "yarn", "YARN", "container";
}

/// What separates a process from the rest of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Boundary {
    /// A container in a Kubernetes pod.
    Pod,
    /// A container that belongs to no known pod.
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
