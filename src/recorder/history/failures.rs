//! Failed allocations that processes report about themselves.
//!
//! Invariant: a failure is recorded only for a GPU or MIG device on which the driver lists the process, or listed it
//! until a moment ago. A process that the driver does not list cannot add an event.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{DeviceHistory, DeviceKey, Failure, Holding, Micros, ProcessHistory, SECOND};
use crate::snapshot::{FailedAllocation, Gpu, ProcessId};

/// How long a failure waits for the driver to list its process.
const WAIT: Micros = 3 * SECOND;
/// A process may have left the GPU at most this long before its failure arrives.
const ENDED: Micros = 5 * SECOND;
/// Further failures of a process within this time belong to the same incident.
const SAME: Micros = 5 * SECOND;
/// If a process ends within this time after a failure, it is assumed to have ended because of the failure.
const BEFORE_END: Micros = 10 * SECOND;
/// The maximum number of failures that wait, and of processes that are remembered.
const MOST: usize = 64;

/// The failures that wait, and the processes that reported a failure recently.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    waiting: VecDeque<(FailedAllocation, Micros)>,
    /// For each process: the time of its last reported failure, and the time of the failure that began its last
    /// incident.
    recent: VecDeque<(ProcessId, Micros, Micros)>,
}

/// A failure that has been matched to a process.
#[derive(Debug)]
pub(crate) struct Resolved {
    /// The index of the device.
    pub(crate) index: usize,
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) device: DeviceKey,
    pub(crate) at: Micros,
    pub(crate) process: ProcessId,
    pub(crate) holding: Holding,
    pub(crate) failure: Box<Failure>,
    /// Whether it is the first failure of the process within a few seconds.
    pub(crate) is_new: bool,
}

impl Failures {
    /// Adds a failure that arrived at `at`. If too many failures are waiting, the oldest is dropped.
    pub(crate) fn add(&mut self, failed: FailedAllocation, at: Micros) {
        self.waiting.push_back((failed, at));
        if self.waiting.len() > MOST {
            self.waiting.pop_front();
        }
    }

    /// The failures that can now be matched to a process.
    pub(crate) fn resolve(&mut self, devices: &[DeviceHistory], now: Micros) -> Vec<Resolved> {
        let mut resolved = Vec::new();
        for (failed, at) in std::mem::take(&mut self.waiting) {
            match find(&failed, at, devices) {
                Some((index, process)) => resolved.push(Resolved {
                    index,
                    gpu: devices[index].gpu.clone(),
                    device: devices[index].key(),
                    at,
                    process: failed.process,
                    holding: process.holding(),
                    is_new: self.remember(failed.process, at),
                    failure: Box::new(failure(&failed, process)),
                }),
                None if now.saturating_sub(at) < WAIT => self.waiting.push_back((failed, at)),
                None => {}
            }
        }
        resolved
    }

    /// Whether the process reported a failure shortly before its end, even if that failure is still waiting.
    pub(crate) fn is_recent(&self, process: &ProcessHistory, end: Micros) -> bool {
        let is_near = |at: Micros| end.saturating_sub(at) <= BEFORE_END;
        self.recent.iter().any(|&(known, last, _)| known == process.id() && is_near(last))
            || self.waiting.iter().any(|(failed, at)| failed.process == process.id() && is_near(*at))
    }

    /// Returns whether the failure needs a new incident, because the last incident of the process, if any, began more
    /// than [`SAME`] ago.
    fn remember(&mut self, process: ProcessId, at: Micros) -> bool {
        let known = self.recent.iter_mut().find(|known| known.0 == process);
        if let Some((_, last, incident)) = known {
            *last = at;
            let is_new = at.saturating_sub(*incident) > SAME;
            if is_new {
                *incident = at;
            }
            return is_new;
        }
        self.recent.push_back((process, at, at));
        if self.recent.len() > MOST {
            self.recent.pop_front();
        }
        true
    }
}

/// The device and the process of a failure.
fn find<'g>(
    failed: &FailedAllocation,
    at: Micros,
    devices: &'g [DeviceHistory],
) -> Option<(usize, &'g ProcessHistory)> {
    let is_same = |gpu: &DeviceHistory, process: &ProcessHistory| {
        let device = process.mig.as_ref().map_or(&gpu.gpu.uuid, |mig| &mig.uuid);
        let was_there = process.ended.is_none_or(|(_, by)| at.saturating_sub(by) <= ENDED);
        process.id() == failed.process
            && failed.process.start_ticks.is_some()
            && **device == *failed.device
            && was_there
    };
    devices.iter().enumerate().find_map(|(index, gpu)| {
        let found = gpu.processes().find(|process| is_same(gpu, process));
        found.map(|process| (index, process))
    })
}

fn failure(failed: &FailedAllocation, process: &ProcessHistory) -> Failure {
    let FailedAllocation { requested, free, total, allocated, reserved, .. } = *failed;
    Failure {
        who: process.who(),
        framework: failed.framework.as_ref().to_owned(),
        requested_bytes: requested,
        free_bytes: free,
        total_bytes: total,
        allocated_bytes: allocated,
        reserved_bytes: reserved,
        snapshot_path: failed.snapshot_path.as_deref().map(str::to_owned),
    }
}
