//! Reads the memory of NVIDIA GPUs, and finds the owner of every process on them.
//!
//! ```text
//!  NVML ──> nvml ──> lanes ──> snapshot ──> the programs that show the readings
//!                      └── requests the owner of a pid from attribution
//!  processes ──> allocator ──> snapshot (what their memory allocators report)
//! ```
//!
//! [`nvml`] is the boundary with the driver, [`lanes`] are the threads that call it, and [`snapshot`] contains what they publish.
//! [`faults`] counts and logs what fails. [`backoff`], [`peaks`], [`supervise`] and [`unix_socket`] are leaves.
//!
//! Invariants: a driver call that does not return costs one thread and the values of one GPU, and nothing waits for it; what
//! is not known is absent, never zero; nothing here depends on how the readings are shown.

pub mod allocator;
pub mod attribution;
pub mod backoff;
mod closed_enum;
pub mod faults;
pub mod lanes;
pub mod nvml;
pub mod peaks;
pub mod snapshot;
pub mod supervise;
pub mod unix_socket;
