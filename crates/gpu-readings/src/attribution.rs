//! The owner of a process and where it runs: its name, user, start time, cgroup and declared memory limit from `/proc`, and the name of its
//! pod, if the snapshot contains its container.
//!
//! Invariant: a process is identified by its pid and start time. What is cached for a pid is shown only after a check
//! that its process still exists; a pid that now belongs to another process is resolved again. A procfs of another pid
//! namespace identifies no process. This module never waits for the network, and waits only a bounded time for files
//! that hang.

mod boot;
mod cached;
mod directory;
mod environment;
mod identify;
mod namespace;
mod reader;
pub mod record;
mod users;
mod workload;

pub use directory::{is_alive, process};
pub use identify::{Attribution, Settings};
pub use namespace::{ForeignProcfs, check as check_procfs, sees_host_processes};
pub use users::parse_passwd;
