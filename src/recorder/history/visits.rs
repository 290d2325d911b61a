//! When each process was on its GPU, and how it ended.

use std::collections::HashMap;

use serde::Serialize;
use serde_with_macros::skip_serializing_none;

use super::Histories;
use super::clock::Now;
use super::device_history::DeviceHistory;
use super::exit_status::Exit;
use super::process_history::ProcessHistory;
use crate::snapshot::{MigDevice, Process, ProcessId};

/// The recorded data about the time that a process spent on a GPU (or MIG device).
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Visit {
    /// Unix time in seconds: when the exporter first listed the process on the GPU.
    pub first_seen_at: f64,
    /// Unix time in seconds: when it reached its highest memory use; absent if its memory use was never known.
    pub peak_at: Option<f64>,
    /// How it ended.
    #[serde(flatten)]
    pub exit: Exit,
}

/// A process, whether it is running, and the UUID of the GPU or MIG device. Only processes whose start time is unknown
/// are told apart by whether they are running; of those that have ended, the last one is remembered.
type Key = (ProcessId, bool, String);

/// The visits of the processes that the recorder remembers.
#[derive(Debug, Default)]
pub struct Visits(HashMap<Key, Visit>);

impl Visits {
    pub(in crate::recorder) fn new(histories: &Histories, now: Now) -> Self {
        let visit = |gpu: &DeviceHistory, process: &ProcessHistory| {
            let key = key(&gpu.gpu.uuid, process.mig.as_deref(), process.id(), process.ended.is_none());
            let peak_at = process.peak.map(|(_, at)| now.unix(at));
            (key, Visit { first_seen_at: now.unix(process.first), peak_at, exit: process.exit })
        };
        Self(histories.devices.iter().flat_map(|gpu| gpu.processes().map(move |process| visit(gpu, process))).collect())
    }

    /// The visit of a process to the GPU with that UUID; `None` if the recorder has dropped it or has not seen it yet.
    pub fn of(&self, uuid: &str, process: &Process) -> Option<Visit> {
        self.0.get(&key(uuid, process.mig.as_deref(), process.id(), process.alive)).copied()
    }
}

fn key(uuid: &str, mig: Option<&MigDevice>, process: ProcessId, is_running: bool) -> Key {
    (process, is_running && process.start_ticks.is_none(), mig.map_or(uuid, |device| &device.uuid).to_owned())
}
