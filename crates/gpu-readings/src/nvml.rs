//! The boundary with NVIDIA's driver: each call returns a plain reading or an [`Error`].
//!
//! Invariant: no nvml-wrapper type leaves this module. A value that the driver cannot provide is `None` or an error of
//! severity [`Severity::Absent`], never a number. The module's unsafe code is in [`raw`] and its submodules, which hold
//! the calls that nvml-wrapper lacks.

mod device;
mod discovery;
mod driver;
mod error;
mod events;
mod gpm;
mod guests;
mod health;
mod identity;
mod library;
mod links;
mod mig;
mod processes;
mod raw;
mod readings;
mod unified;

pub use device::Device;
pub use discovery::Discovery;
pub use driver::Driver;
pub use error::{Error, Severity};
pub use gpm::{ProfilingComparison, ProfilingSamples};
pub use guests::Guest;
pub use identity::remember;
pub use library::{Library, OpenError};
pub use processes::{ListedProcess, ProcessBuffer};
pub use raw::ListKind;
pub use readings::{Bar1, MemoryReading, RemappedRows, UtilizationSample};
