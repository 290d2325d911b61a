//! `libnvml_sim.so`: a stand-in for NVIDIA's `libnvidia-ml.so.1`, driven by a scenario file.
//!
//! The library exports NVML's own C symbols. What it answers is a pure function of the scenario, its seed and the
//! scenario's time, so two programs that agree on the time zero see the same machine.

mod abi;
mod catalog;
mod clock;
mod code;
mod control;
mod curve;
mod fault;
mod library;
mod machine;
mod procfs;
mod scenario;
mod stable_hash;
#[cfg(any(test, fuzzing))]
pub mod trials;
