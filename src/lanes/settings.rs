//! The settings of the lanes, derived once from the configuration.

use std::time::Duration;

use super::{memory, process, telemetry};
use crate::config::Config;
use crate::nvml::Library;

/// The settings of the lanes, derived once from the configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    pub(super) library: Library,
    pub(super) call_timeout: Duration,
    pub(super) memory: memory::Settings,
    pub(super) process: process::Settings,
}

impl Settings {
    /// The lanes' part of the configuration, and the library to open.
    pub fn new(config: &Config, library: Library) -> Self {
        Self {
            library,
            call_timeout: config.nvml.call_timeout,
            memory: memory::Settings {
                period: Duration::from_secs_f64(1.0 / config.memory.rate),
                idle_period: Duration::from_secs_f64(1.0 / config.memory.idle_rate),
                peak_window: config.memory.peak_window,
                stale_after: config.memory.stale_after,
            },
            process: process::Settings {
                interval: config.process.interval,
                peak_window: config.memory.peak_window,
                linger: config.process.linger,
                series_limit: config.process.series_limit,
                telemetry: telemetry::Settings {
                    interval: config.telemetry.interval,
                    slow_interval: config.telemetry.slow_interval,
                    energy: config.telemetry.energy,
                },
            },
        }
    }
}
