//! `libnvml_sim.so`: a stand-in for NVIDIA's `libnvidia-ml.so.1`, driven by a scenario file.
//!
//! The library exports NVML's own C symbols. Every answer is a pure function of the scenario, its seed and the scenario
//! time, so two programs with the same scenario and the same scenario time zero see the same machine.
//!
//! A Rust program can also link it in: [`image()`] returns a library that the program writes to a file and opens by its
//! path, and [`configure`] sets what it simulates. README.md describes scenarios, the control file and what is
//! simulated.

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
pub use image::{OldLoader, image};
pub use library::Settings;

/// The simulated library is open, so its settings cannot be changed; the same settings again are no change.
#[derive(Debug, thiserror::Error)]
#[error("the simulated NVML library is open; configure it before nvmlInit")]
pub struct AlreadyOpen;

/// Sets what to simulate, before `nvmlInit`, for a program with this crate linked in; `None` leaves a setting as it is.
/// A separate `libnvml_sim.so` has settings of its own: its environment and `nvmlSimConfigure`.
///
/// # Errors
/// If the library is open and the settings differ from those that it has.
pub fn configure(settings: Settings) -> Result<(), AlreadyOpen> {
    library::configure(settings).map_err(|_| AlreadyOpen)
}

/// The names of the built-in scenarios.
pub fn scenarios() -> impl Iterator<Item = &'static str> {
    scenario::builtin::all()
}

/// What a built-in scenario is, in one sentence; `None` if there is no scenario of that name.
pub fn describe(scenario: &str) -> Option<&'static str> {
    scenario::builtin::describe(scenario)
}

/// Checks whether a scenario, given as a built-in name or the path of a file, describes a possible machine.
///
/// # Errors
/// What is wrong with it, as `nvmlInit` would write it to standard error.
pub fn check(scenario: &str) -> Result<(), String> {
    let built = scenario::load(scenario).and_then(|source| machine::Machine::build(&source, None));
    built.map(drop).map_err(|problem| problem.to_string())
}
