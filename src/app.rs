//! Builds, connects and stops all parts of the exporter. The only module that depends on all the others.

mod check;
mod cluster;
mod dcgm_fields;
mod descriptors;
mod exporter;
mod heap;
mod listeners;
mod log_output;
mod once;
mod resource;
mod running;
mod runtime;
mod selection;
mod serve;
mod service;
pub(crate) mod settings;
mod signals;
mod web_guard;

pub use check::{Checked, check, check_places};
pub use log_output::say;
pub use once::{machine, once};
pub use serve::serve;
