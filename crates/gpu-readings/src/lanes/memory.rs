//! The memory lane: reads the memory of every GPU at the configured rate, accumulates the samples, publishes them, and
//! wakes the process lane when memory changes.

mod accumulator;
mod lane;
mod link;
mod meminfo;
mod sampler;

pub use lane::Settings;
pub(super) use lane::{LaneState, MemoryLane};
pub(super) use link::Link;
