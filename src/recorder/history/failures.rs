//! Failed allocations that processes report about themselves, and requests that the driver refused.
//!
//! Invariant: a failure is recorded only for a GPU or MIG device on which the driver lists the process, or listed it
//! until a moment ago. A process that the driver does not list cannot add an event.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{DeviceHistory, DeviceKey, Failure, FailureSites, Holding, Micros, ProcessHistory, SECOND};
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
    recent: VecDeque<Recent>,
}

/// A process that failed to allocate memory recently.
#[derive(Debug)]
struct Recent {
    process: ProcessId,
    /// The time of its last failure, and of the one that began its last incident.
    last: Micros,
    incident: Micros,
    /// Whether a framework reported a failure that belongs to that incident, and whether the driver refused a request.
    accounts: [bool; 2],
}

/// What a failure is to the incidents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Novelty {
    /// The first failure of the process within a few seconds.
    New,
    /// The first one within these seconds that the framework reported, or that the driver's calls showed, after one of the other
    /// kind: another account of the same failure.
    Account,
    /// A further failure.
    Further,
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
    pub(crate) novelty: Novelty,
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
                    novelty: self.remember(failed.process, at, failed.framework.is_some()),
                    failure: Box::new(failure(&failed, at, &devices[index], process)),
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
        self.recent.iter().any(|known| known.process == process.id() && is_near(known.last))
            || self.waiting.iter().any(|(failed, at)| failed.process == process.id() && is_near(*at))
    }

    /// What the failure is, and whether it begins an incident: if the last one of the process, if any, began more than
    /// [`SAME`] ago.
    fn remember(&mut self, process: ProcessId, at: Micros, is_reported: bool) -> Novelty {
        let accounts = [is_reported, !is_reported];
        let Some(known) = self.recent.iter_mut().find(|known| known.process == process) else {
            self.recent.push_back(Recent { process, last: at, incident: at, accounts });
            if self.recent.len() > MOST {
                self.recent.pop_front();
            }
            return Novelty::New;
        };
        known.last = known.last.max(at);
        if at.saturating_sub(known.incident) > SAME {
            (known.incident, known.accounts) = (at, accounts);
            return Novelty::New;
        }
        if std::mem::replace(&mut known.accounts[usize::from(!is_reported)], true) {
            Novelty::Further
        } else {
            Novelty::Account
        }
    }
}

/// The device and the process of a failure.
fn find<'g>(
    failed: &FailedAllocation,
    at: Micros,
    devices: &'g [DeviceHistory],
) -> Option<(usize, &'g ProcessHistory)> {
    let is_same = |gpu: &DeviceHistory, process: &ProcessHistory| {
        let device = gpu.gpu.device_uuid(process.mig.as_deref());
        let was_there = process.ended.is_none_or(|(_, by)| at.saturating_sub(by) <= ENDED);
        process.id() == failed.process && failed.process.start_ticks.is_some() && device == &*failed.device && was_there
    };
    devices.iter().enumerate().find_map(|(index, gpu)| {
        let found = gpu.processes().find(|process| is_same(gpu, process));
        found.map(|process| (index, process))
    })
}

fn failure(failed: &FailedAllocation, at: Micros, device: &DeviceHistory, process: &ProcessHistory) -> Failure {
    let FailedAllocation { requested, free, total, allocated, reserved, .. } = *failed;
    let is_refusal = failed.framework.is_none();
    let read = || device.memory.at(at).filter(|_| device.allocatable > 0);
    let left = || read().map(|used| device.allocatable.saturating_sub(used));
    Failure {
        who: process.who(),
        framework: failed.framework.as_deref().map(str::to_owned),
        requested_bytes: requested,
        refused_bytes: is_refusal.then_some(requested),
        free_bytes: free.or_else(|| if is_refusal { left() } else { None }),
        total_bytes: total,
        allocated_bytes: allocated,
        reserved_bytes: reserved,
        largest_free_block_bytes: failed.largest_free_block,
        snapshot_path: failed.snapshot_path.as_deref().map(str::to_owned),
        asked_by: failed.asked_by.as_deref().map(str::to_owned),
        frames: failed.frames.iter().map(|frame| frame.to_string()).collect(),
        memory: failed.sites.as_deref().map(|look| Box::new(FailureSites::of(look, failed.at))),
    }
}
