//! Compares what processes report with what the driver lists.
//!
//! Invariant: nothing is counted while the driver's list is old, incomplete or missing, and each process is counted
//! once until its reports agree with the list again. What is shown is not decided here: `metrics` leaves such values
//! out at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::faults::Reason;
use crate::snapshot::{AllocatorPart, GpuProcesses, Process, ProcessId, RESERVED_MARGIN, ReportingProcess, Snapshot};

/// A list of processes older than this is too old for a comparison.
const RECENT: Duration = Duration::from_secs(5);
/// How long the reserved memory may exceed what the driver reports.
const EXCESS_AFTER: Duration = Duration::from_secs(2);
/// How long a reporting process may be missing from the driver's list.
const FOREIGN_AFTER: Duration = Duration::from_secs(10);

/// What is wrong with the reports of a process about a device, and since when.
#[derive(Debug, Default)]
pub(super) struct Checks(HashMap<(ProcessId, Arc<str>), (Verdict, Instant, bool)>);

/// How the reports of a process about a device compare with the driver's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// They agree, or the comparison is not possible.
    Fits,
    /// More is reserved than the process uses.
    Exceeds,
    /// The driver does not list the process on the device.
    NotListed,
}

impl Checks {
    /// Compares all reports. Returns each process with reports that have been wrong for too long, but only once.
    pub(super) fn look(
        &mut self,
        part: &AllocatorPart,
        snapshot: &Snapshot,
        now: Instant,
    ) -> Vec<(Reason, ProcessId, Arc<str>)> {
        let mut before = std::mem::take(&mut self.0);
        let mut found = Vec::new();
        for process in &part.processes {
            for reports in process.reports.chunk_by(|one, other| one.device == other.device) {
                let device = reports[0].device.clone();
                let reserved = reports.iter().filter_map(|report| report.figures.reserved).fold(0, u64::saturating_add);
                let verdict = judge(process, &device, reserved, snapshot, now);
                let (reason, limit) = match verdict {
                    Verdict::Fits => continue,
                    Verdict::Exceeds => (Reason::Inconsistent, EXCESS_AFTER),
                    Verdict::NotListed => (Reason::ForeignDevice, FOREIGN_AFTER),
                };
                let key = (process.id, device.clone());
                let known = before.remove(&key).filter(|(known, _, _)| *known == verdict);
                let (_, since, mut counted) = known.unwrap_or((verdict, now, false));
                if !counted && now.saturating_duration_since(since) > limit {
                    counted = true;
                    found.push((reason, process.id, device));
                }
                self.0.insert(key, (verdict, since, counted));
            }
        }
        found
    }
}

fn judge(process: &ReportingProcess, device: &str, reserved: u64, snapshot: &Snapshot, now: Instant) -> Verdict {
    let driver = snapshot.driver.load();
    let owner = driver.gpus.iter().find(|gpu| gpu.uuid == device || gpu.mig.iter().any(|mig| mig.uuid == device));
    let Some(gpu) = owner else {
        // If the driver has reported no GPUs, the device cannot be looked up.
        return if driver.up && !driver.gpus.is_empty() { Verdict::NotListed } else { Verdict::Fits };
    };
    let processes = snapshot.processes.load();
    let list = processes.gpus.iter().find(|list| list.gpu.uuid == gpu.uuid);
    let is_recent = |list: &GpuProcesses| list.at.is_some_and(|at| now.saturating_duration_since(at) <= RECENT);
    let Some(list) = list.filter(|list| is_recent(list)) else { return Verdict::Fits };
    let is_same = |listed: &&Process| {
        let on = listed.mig.as_ref().map_or(&list.gpu.uuid, |mig| &mig.uuid);
        listed.alive && listed.id() == process.id && process.id.start_ticks.is_some() && on == device
    };
    match list.processes.iter().find(is_same) {
        Some(listed) => {
            let exceeds = listed.used.is_some_and(|used| reserved > used.saturating_add(RESERVED_MARGIN));
            if exceeds { Verdict::Exceeds } else { Verdict::Fits }
        }
        // The process may be among those that the limit on processes leaves out.
        None if list.other.is_some() => Verdict::Fits,
        None => Verdict::NotListed,
    }
}
