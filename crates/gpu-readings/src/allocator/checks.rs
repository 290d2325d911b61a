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
pub(super) struct Checks(HashMap<(ProcessId, Arc<str>), (Reason, Instant, bool)>);

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
                let Some(reason) = judge(process, &device, reserved, snapshot, now) else { continue };
                let limit = if reason == Reason::Inconsistent { EXCESS_AFTER } else { FOREIGN_AFTER };
                let key = (process.id, device.clone());
                let known = before.remove(&key).filter(|(known, _, _)| *known == reason);
                let (_, since, mut counted) = known.unwrap_or((reason, now, false));
                if !counted && now.saturating_duration_since(since) > limit {
                    counted = true;
                    found.push((reason, process.id, device));
                }
                self.0.insert(key, (reason, since, counted));
            }
        }
        found
    }
}

/// How the reports of a process about a device contradict the driver's list: more is reserved than the process uses
/// (`Inconsistent`), or the driver does not list the process on the device (`ForeignDevice`). `None`: they agree, or the
/// comparison is not possible.
fn judge(process: &ReportingProcess, device: &str, reserved: u64, snapshot: &Snapshot, now: Instant) -> Option<Reason> {
    let driver = snapshot.driver.load();
    let owner = driver.gpus.iter().find(|gpu| gpu.uuid == device || gpu.mig.iter().any(|mig| mig.uuid == device));
    let Some(gpu) = owner else {
        // If the driver has reported no GPUs, the device cannot be looked up.
        return (driver.up && !driver.gpus.is_empty()).then_some(Reason::ForeignDevice);
    };
    let processes = snapshot.processes.load();
    let list = processes.gpus.iter().find(|list| list.gpu.uuid == gpu.uuid);
    let is_recent = |list: &GpuProcesses| list.at.is_some_and(|at| now.saturating_duration_since(at) <= RECENT);
    let list = list.filter(|list| is_recent(list))?;
    let is_same = |listed: &&Process| {
        let on = list.gpu.device_uuid(listed.mig.as_deref());
        listed.alive && listed.id() == process.id && process.id.start_ticks.is_some() && on == device
    };
    match list.processes.iter().find(is_same) {
        Some(listed) => {
            let exceeds = listed.used.is_some_and(|used| reserved > used.saturating_add(RESERVED_MARGIN));
            exceeds.then_some(Reason::Inconsistent)
        }
        // The process may be among those that the limit on processes leaves out.
        None => list.other.is_none().then_some(Reason::ForeignDevice),
    }
}
