//! Reads and checks the configuration, once. Nothing here binds, opens or starts anything.
//!
//! [`load()`] merges defaults, file, environment and flags, and checks the result. The keys of all of these, the
//! help and the documentation come from the one table [`keys::keys`].

mod address;
mod check;
mod command;
mod environment;
mod file;
mod flags;
mod forms;
mod key;
mod key_search;
pub mod keys;
mod layers;
mod load;
mod model;
mod problem;
pub mod setting;
mod show;
mod units;
mod yaml;

pub use address::ListenAddress;
pub(crate) use command::command;
pub use command::words;
pub(crate) use forms::label_name;
pub use load::{Command, load};
pub use model::{
    Allocator, ApiServer, Config, Dcgm, DcgmNames, Kubernetes, Limits, Log, LogFormat, Memory, Metrics, Nvml, Otlp,
    OtlpNames, Paths, Probes, Process, Recorder, Slurm, Telemetry, Web,
};
pub(crate) use problem::nearest;
pub use problem::{Error, Problem};
pub use show::reference;

/// The exit code for errors in the command line, the environment or the file: `EX_USAGE` of `sysexits.h`.
pub const EXIT_USAGE: u8 = 64;
