//! The owner of a Linux process, from the contents of its `/proc/<pid>/cgroup`: a container, a Kubernetes pod, a batch
//! job, a systemd unit or a user.
//!
//! [`locate`] is a pure function: it opens no file, makes no call to a container runtime or to systemd, and depends on
//! nothing but its arguments. It reads cgroup versions 1 and 2 and the hybrid layout.
//!
//! ```
//! use cgroup_owner::{Boundary, locate};
//!
//! let pod = b"0::/kubepods.slice/kubepods-pod1d2e3f40_5a6b_4c7d_8e9f_0a1b2c3d4e5f.slice/cri-containerd-\
//!     a07c5e21d9f84b36a07c5e21d9f84b36a07c5e21d9f84b36a07c5e21d9f84b36.scope\n";
//! let location = locate(pod, b"");
//! assert_eq!(location.boundary, Some(Boundary::Pod));
//! assert_eq!(location.pod_uid.as_deref(), Some("1d2e3f40-5a6b-4c7d-8e9f-0a1b2c3d4e5f"));
//!
//! let job = locate(b"0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n", b"");
//! assert_eq!(job.boundary, Some(Boundary::SlurmJob));
//! assert_eq!((job.slurm_job.as_deref(), job.slurm_step.as_deref()), (Some("42"), Some("0")));
//! ```
//!
//! # What can be trusted
//!
//! The outermost boundary in a path decides. A container, a user's session or a Slurm job may be able to create cgroups
//! with any name below its own, so a name further inside never replaces the boundary above it. A container id below a
//! user, a unit or a job is a claim by that owner: it may name a container, but never a pod.
//!
//! The text is treated as hostile: it may hold any bytes and may be cut off anywhere. Anything uncertain is left out.
//!
//! # How the lines are read
//!
//! The kernel ends every line with a newline and allows no newline in a cgroup's name. A last line without one may
//! therefore have been cut off: its last name is accepted only if its shape has a fixed length or a suffix, which
//! a job's number and the name of an LXC container do not have.
//!
//! Version 1 has one line for each hierarchy, and the lines differ: Slurm moves its processes only in the hierarchies
//! that it constrains, old versions of Docker did not move theirs in `name=systemd`, and in the hybrid layout the
//! unified line can stay at the runtime's own unit. The lines are therefore searched for pods, containers and jobs in
//! the following order, and the first one found counts: `memory`, `devices`, `freezer`, `pids`, `cpu`, `cpuset`,
//! `name=systemd`, unified. If no line contains any of these, units and sessions count: first those of `name=systemd`,
//! which is systemd's own hierarchy, then those of the unified line, then those of the other lines.

mod hierarchies;
mod location;
mod path;
mod scheduler;
mod shape;
#[cfg(test)]
mod tests;

pub use hierarchies::{boundary_path, locate};
pub use location::{Boundary, CgroupLocation, Job, Scheduler};
