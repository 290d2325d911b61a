//! The settings of the lanes.

use std::time::Duration;

use super::{memory, process};
use crate::nvml::Library;

/// The settings of the lanes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The driver library to open.
    pub library: Library,
    /// If a driver call takes longer than this, its GPU is marked as stalled.
    pub call_timeout: Duration,
    /// The memory lane.
    pub memory: memory::Settings,
    /// The process lane.
    pub process: process::Settings,
}
