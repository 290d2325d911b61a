//! The boundary to NVIDIA's driver: driver calls in, plain readings or [`Error`]s out.
//!
//! Invariant: no nvml-wrapper type leaves this room, and what the driver cannot know is an error of severity
//! [`Severity::Absent`] or `None`, never a number. Together with the simulator this is the only place with unsafe
//! code: [`raw`] holds the calls that nvml-wrapper lacks.

mod device;
mod driver;
mod error;
mod events;
mod identity;
mod library;
mod processes;
mod raw;

pub use device::{Device, MemoryReading, RemappedRows, Slice, UtilizationSample};
pub use driver::{Discovery, Driver};
pub use error::{Error, Severity};
pub use identity::remember;
pub use library::{Library, OpenError, SEARCH_PATHS};
pub use processes::{ListKind, ListedProcess, ProcessBuffer};
