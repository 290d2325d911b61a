//! `libnvml_sim.so`: a stand-in for NVIDIA's `libnvidia-ml.so.1`, driven by a scenario file.
//!
//! The library exports NVML's own C symbols. What it answers is a pure function of the scenario, its seed and the
//! scenario's time, so two programs that agree on the time zero see the same machine.
//!
//! A Rust program can also have it built in: [`image`] gives it a library to open by path, without a file beside it.

mod abi;
mod catalog;
mod clock;
mod code;
mod control;
mod curve;
mod fault;
mod hide;
mod image;
#[doc(hidden)]
pub mod internals;
mod library;
mod machine;
mod procfs;
mod scenario;
mod stable_hash;

pub use hide::hide;
pub use image::image;

/// The names of the built-in scenarios.
pub fn scenarios() -> impl Iterator<Item = &'static str> {
    scenario::builtin::all()
}

/// Whether a machine can be made of a scenario, a built-in name or a file's path.
///
/// # Errors
/// What is wrong with it, as `nvmlInit` would say it on standard error.
pub fn check(scenario: &str) -> Result<(), String> {
    let built = scenario::load(scenario).and_then(|source| machine::Machine::build(&source, None));
    built.map(drop).map_err(|problem| problem.to_string())
}
