//! Joins what processes report about their allocators with what the driver lists: process used = outside the allocator +
//! reserved but not allocated + allocated.
//!
//! Invariant: a process is shown only on a device on which the driver lists it, and what it reports can lower `needed`
//! by no more than the memory that the driver reports for it.

use std::time::Instant;

use gpu_readings::snapshot::{AllocatorPart, AllocatorReport, Gpu, GpuProcesses, Process, RESERVED_MARGIN};

/// What a process on the GPU reported.
#[derive(Debug)]
pub struct Reporting<'a> {
    /// The process in the driver's list.
    pub process: &'a Process,
    /// Its reports about the device on which it is listed, sorted by framework.
    pub reports: Vec<&'a AllocatorReport>,
    /// Bytes that the driver reports for the process; `None` if it does not report them.
    used: Option<u64>,
}

impl<'a> Reporting<'a> {
    /// The processes that the driver lists and whose reports may be shown, sorted by pid.
    pub(super) fn all(list: &'a GpuProcesses, gpu: &Gpu, part: &'a AllocatorPart, now: Instant) -> Vec<Self> {
        if part.processes.is_empty() {
            return Vec::new();
        }
        let mut all: Vec<_> = list.processes.iter().filter_map(|process| of(process, list, gpu, part, now)).collect();
        all.sort_by_key(|reporting| reporting.process.pid);
        all
    }

    /// Bytes in live tensors or buffers of all frameworks. `None` if one of them does not report this.
    pub fn allocated(&self) -> Option<u64> {
        self.sum(|report| report.figures.allocated)
    }

    /// Bytes that all frameworks took from the driver. `None` if one of them does not report this.
    pub fn reserved(&self) -> Option<u64> {
        self.sum(|report| report.figures.reserved)
    }

    /// Bytes that the process uses outside its allocators. `None` if the used or the reserved memory is unknown, or if
    /// more memory has been reserved since the driver was queried.
    pub fn outside(&self) -> Option<u64> {
        self.used?.checked_sub(self.reserved()?)
    }

    /// Bytes that the process could return to the driver, at most what it uses. `None` if that is not known.
    fn slack(&self) -> Option<u64> {
        let known = self.reports.iter().filter_map(|report| report.figures.slack());
        Some(known.reduce(u64::saturating_add)?.min(self.used?))
    }

    fn sum(&self, read: impl Fn(&AllocatorReport) -> Option<u64>) -> Option<u64> {
        self.reports.iter().map(|report| read(report)).try_fold(0, |sum: u64, value| Some(sum.saturating_add(value?)))
    }
}

/// Bytes of a GPU's used memory that the processes could not return to the driver. `None` if no process reports how
/// much it could return.
pub(super) fn needed(used: u64, reporting: &[Reporting<'_>]) -> Option<u64> {
    let slack = reporting.iter().filter_map(Reporting::slack).reduce(u64::saturating_add)?;
    // The two values were read at different times, so their difference could be negative.
    used.checked_sub(slack)
}

/// The UUID of the device on which a process is listed.
fn device<'p>(process: &'p Process, gpu: &'p Gpu) -> &'p str {
    gpu.device_uuid(process.mig.as_deref())
}

fn of<'a>(
    process: &'a Process,
    list: &'a GpuProcesses,
    gpu: &Gpu,
    part: &'a AllocatorPart,
    now: Instant,
) -> Option<Reporting<'a>> {
    if !process.alive {
        return None;
    }
    let device = device(process, gpu);
    let reports = part.reports(process.id()).iter();
    let reports: Vec<_> = reports.filter(|report| &*report.device == device && !report.heard.is_stale(now)).collect();
    if reports.is_empty() {
        return None;
    }
    let same = |other: &&Process| other.alive && other.pid == process.pid && self::device(other, gpu) == device;
    // If a process has several entries, the first entry of the first kind represents them all, as in other families.
    let first = list.processes.iter().filter(same).min_by_key(|other| other.kind)?;
    if !std::ptr::eq(first, process) {
        return None;
    }
    let entries = list.processes.iter().filter(same).filter(|other| other.kind == process.kind);
    let used = entries.map(|entry| entry.used).try_fold(0, |sum: u64, used| Some(sum.saturating_add(used?)));
    let reserved = reports.iter().filter_map(|report| report.figures.reserved).fold(0, u64::saturating_add);
    let fits = used.is_none_or(|used| reserved <= used.saturating_add(RESERVED_MARGIN));
    fits.then_some(Reporting { process, reports, used })
}
