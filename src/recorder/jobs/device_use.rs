//! What one workload holds on one GPU or MIG device, added up list by list.
//!
//! Invariant: every sum is weighted by the real time between two lists. A value holds until the next list, because a
//! list is read after each change; if two lists are further apart than the gap, nothing is known about the time between
//! them.

use std::sync::Arc;
use std::time::SystemTime;

use super::activity::{Activity, Seen};
use super::budget_use::BudgetUse;
use super::job_report::{DeviceReport, advice};
use super::meter::{Meter, Near};
use super::need::{Needs, ProcessNeed};
use super::shortage::Shortage;
use crate::recorder::history::{Micros, Now, allocation};
use crate::snapshot::{AllocatorPart, Gpu, MigDevice, Owner, Process, ProcessId, WorkloadUse};

/// The maximum number of processes that are followed on one device.
const MAX_PROCESSES: usize = 1024;

/// A process that is followed until it leaves the device.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) pid: u32,
    pub(super) owner: Arc<Owner>,
    /// When a list first contained it.
    pub(super) first_seen: SystemTime,
    /// Whether the last list contained it.
    pub(super) is_listed: bool,
    /// Its memory in the last list that contained it.
    pub(super) used: Option<u64>,
    /// Its highest memory.
    pub(super) peak: Option<u64>,
    pub(super) need: ProcessNeed,
}

impl Tracked {
    pub(super) fn id(&self) -> ProcessId {
        ProcessId { pid: self.pid, start_ticks: self.owner.start_ticks }
    }

    /// Whether the process with this pid and owner is this one, which every list has contained.
    pub(super) fn is(&self, pid: u32, owner: &Owner) -> bool {
        let other = ProcessId { pid, start_ticks: owner.start_ticks };
        self.pid == pid && !self.id().is_former_of(other, owner.start, self.first_seen)
    }
}

/// The use of one device.
#[derive(Debug, Default)]
pub(super) struct DeviceUse {
    /// The position of the GPU in `Jobs::gpus`.
    pub(super) index: usize,
    gpu: Arc<Gpu>,
    mig: Option<Arc<MigDevice>>,
    /// Whether processes of the workload are on the device.
    pub(super) is_present: bool,
    /// The sums cover the time up to this moment, that of the last list.
    pub(super) at: Micros,
    /// Whether the last list contained processes of the workload.
    pub(super) is_listed: bool,
    /// Bytes held since then; `None` if unknown.
    used: Option<u64>,
    last: Option<u64>,
    peak: Option<(u64, Micros)>,
    /// The highest memory according to the process lane when this report began. It may belong to an earlier report.
    former: u64,
    /// Bytes times microseconds.
    product: u128,
    /// The time with known memory.
    known: Micros,
    /// The time on the device.
    pub(super) present: Micros,
    samples: u64,
    allocatable: u64,
    budget: BudgetUse,
    /// The time near the end of the device; `None` while the device's memory was never known.
    near: Option<Near>,
    /// The sums of the meter up to `at`.
    near_before: Near,
    pub(super) activity: Activity,
    pub(super) seen: Seen,
    pub(super) shortage: Shortage,
    allocated_peak: Option<u64>,
    /// Joules that were apportioned to the workload; `None` if none ever were.
    joules: Option<f64>,
    /// The process lane's count of them in the last list.
    counted: Option<f64>,
    needs: Needs,
    pub(super) processes: Vec<Tracked>,
}

impl DeviceUse {
    pub(super) fn new(index: usize, gpu: &Arc<Gpu>, mig: Option<&Arc<MigDevice>>, at: Micros) -> Self {
        Self { index, gpu: gpu.clone(), mig: mig.cloned(), at, ..Self::default() }
    }

    pub(super) fn is_on(&self, index: usize, mig: Option<&str>) -> bool {
        self.index == index && self.mig_uuid() == mig
    }

    pub(super) fn mig_uuid(&self) -> Option<&str> {
        self.mig.as_ref().map(|device| device.uuid.as_str())
    }

    /// The GPU, and the MIG device if it is one.
    pub(super) fn place(&self) -> (Arc<Gpu>, Option<Arc<MigDevice>>) {
        (self.gpu.clone(), self.mig.clone())
    }

    pub(super) fn gpu_instance(&self) -> Option<u32> {
        self.mig.as_ref().map(|device| device.gpu_instance)
    }

    /// Adds up the time until a list that was read at `at`.
    pub(super) fn advance(&mut self, at: Micros, gap: Micros, meters: &[Meter]) {
        let passed = at.saturating_sub(self.at);
        let meter = self.meter(meters);
        if self.is_present && passed <= gap {
            self.present += passed;
            self.budget.pass(passed);
            if let Some(used) = self.used {
                self.product += u128::from(used) * u128::from(passed);
                self.known += passed;
            }
            if let Some(meter) = meter {
                let near = self.near.get_or_insert_default();
                let sums = near.iter_mut().zip(meter.near.iter().zip(self.near_before));
                sums.for_each(|(sum, (now, before))| *sum += now.saturating_sub(before));
            }
        }
        if let Some(meter) = meter {
            self.near_before = meter.near;
            self.allocatable = meter.allocatable;
        }
        self.at = at;
        self.seen = Seen::default();
        self.is_listed = false;
        self.processes.iter_mut().for_each(|process| process.is_listed = false);
    }

    /// The meter of the device. The compute instances of a MIG GPU instance share its memory.
    fn meter<'m>(&self, meters: &'m [Meter]) -> Option<&'m Meter> {
        let instance = |mig: &Option<Arc<MigDevice>>| mig.as_ref().map(|device| device.gpu_instance);
        meters.iter().find(|meter| instance(&meter.mig) == instance(&self.mig) && meter.allocatable > 0)
    }

    /// Records what a list shows about the workload, which has processes on the device. The list was read at the moment
    /// to which the sums have been advanced.
    pub(super) fn see(&mut self, listed: &WorkloadUse) {
        if self.samples == 0 && !self.is_present {
            self.former = listed.peak.filter(|peak| listed.used.is_none_or(|used| *peak > used)).unwrap_or(0);
        }
        self.is_present = true;
        self.is_listed = true;
        self.used = listed.used;
        self.budget.see(listed);
        if let Some(used) = listed.used {
            self.samples += 1;
            self.last = Some(used);
            self.raise(used);
        }
        self.see_peak(listed);
        self.see_energy(listed);
    }

    /// Adds the energy since the list before. What was counted before the first list belongs to an earlier report.
    pub(super) fn see_energy(&mut self, listed: &WorkloadUse) {
        let Some(share) = listed.energy else { return };
        let new = match self.counted.replace(share.joules) {
            None => 0.0,
            // The process lane had forgotten the workload and counts again from 0.
            Some(before) if before > share.joules => share.joules,
            Some(before) => share.joules - before,
        };
        self.joules = Some(self.joules.unwrap_or(0.0) + new);
    }

    /// Applies the highest memory according to the process lane, which is above that of all lists if memory changed
    /// while a list was read, and if the driver keeps account of it.
    pub(super) fn see_peak(&mut self, listed: &WorkloadUse) {
        if let Some(peak) = listed.peak.filter(|peak| *peak > self.former) {
            self.raise(peak);
        }
    }

    fn raise(&mut self, bytes: u64) {
        if self.peak.is_none_or(|(peak, _)| bytes > peak) {
            self.peak = Some((bytes, self.at));
        }
    }

    /// Records that the workload may still be on the device although the list does not contain it.
    pub(super) fn lose_sight(&mut self) {
        self.used = None;
        self.budget.leave();
        self.activity.leave();
    }

    /// Records that the workload has left the device.
    pub(super) fn leave(&mut self) {
        self.is_present = false;
        self.lose_sight();
    }

    /// Records that a list contains a process. Returns whether it is followed.
    pub(super) fn follow(&mut self, process: &Process) -> bool {
        let known = self.processes.iter_mut().find(|known| known.is(process.pid, &process.owner));
        let Some(known) = known else { return false };
        // A list has an entry for each way in which a process uses the device.
        known.used = if known.is_listed { add(known.used, process.used) } else { process.used };
        known.is_listed = true;
        known.peak = known.peak.max(process.peak).max(process.used);
        if !Arc::ptr_eq(&known.owner, &process.owner) {
            known.owner = process.owner.clone();
        }
        true
    }

    /// Begins to follow a process that was first listed at `first_seen`. Returns whether there is room for it.
    pub(super) fn begin(&mut self, process: &Process, first_seen: SystemTime) -> bool {
        let has_room = self.processes.len() < MAX_PROCESSES;
        if has_room {
            let (used, peak) = (process.used, process.peak.max(process.used));
            let (pid, owner, need) = (process.pid, process.owner.clone(), ProcessNeed::default());
            self.processes.push(Tracked { pid, owner, first_seen, is_listed: true, used, peak, need });
        }
        has_room
    }

    /// The followed processes that the last list does not contain. `stays` is called for each.
    pub(super) fn take_gone(&mut self, stays: impl Fn(&Tracked) -> bool) -> Vec<Tracked> {
        self.needs.list(self.processes.iter().filter(|process| process.is_listed).count());
        let gone: Vec<_> = self.processes.extract_if(.., |process| !process.is_listed && !stays(process)).collect();
        gone.iter().for_each(|process| self.needs.leave(&process.need, process.peak));
        gone
    }

    /// Applies what the allocators in the processes report about the device at `at`.
    pub(super) fn see_allocators(&mut self, allocators: &AllocatorPart, at: Micros) {
        // A process reports about a MIG device under that device's UUID.
        let uuid = self.mig.as_ref().map_or(&*self.gpu.uuid, |device| &*device.uuid);
        let claims = self.processes.iter_mut().filter_map(|process| {
            let reports = allocators.reports(process.id()).iter().filter(|report| *report.device == *uuid);
            process.need.see(reports, process.used, process.peak, at)
        });
        let claimed =
            claims.reduce(|(sum, highest), (allocated, peak)| (sum.saturating_add(allocated), highest.max(peak)));
        if let Some((sum, highest)) = claimed {
            self.allocated_peak = self.allocated_peak.max(Some(sum.max(highest)));
        }
    }

    /// Adds the sums of a part of the workload that had another name, on the same device.
    pub(super) fn absorb(&mut self, other: Self) {
        self.product += other.product;
        self.known += other.known;
        self.present += other.present;
        self.samples += other.samples;
        self.shortage.absorb(other.shortage);
        self.allocated_peak = self.allocated_peak.max(other.allocated_peak);
        self.joules = other.joules.map(|joules| self.joules.unwrap_or(0.0) + joules).or(self.joules);
        self.needs.absorb(other.needs);
        self.activity.absorb(&other.activity);
        self.budget.absorb(&other.budget);
        if let Some((bytes, at)) = other.peak
            && self.peak.is_none_or(|(peak, _)| bytes >= peak)
        {
            self.peak = Some((bytes, at));
        }
        if let Some(near) = other.near {
            self.near.get_or_insert_default().iter_mut().zip(near).for_each(|(sum, more)| *sum += more);
        }
        self.processes.extend(other.processes);
    }

    /// The report about this device.
    pub(super) fn report(&self, now: Now) -> DeviceReport {
        let seconds = |micros: Micros| micros as f64 / 1e6;
        let near = |level: usize| self.near.map(|near| seconds(near[level]));
        let mean = (self.known > 0).then(|| u64::try_from(self.product / u128::from(self.known)).unwrap_or(u64::MAX));
        let needed = self.needed();
        let highest = needed.or(self.peak());
        let advice = advice(highest, self.allocatable, self.shortage.is_seen());
        let (advice_bytes, advice_margin) = advice.ok().unzip();
        DeviceReport {
            gpu: self.gpu.index,
            uuid: self.gpu.uuid.clone(),
            mig_uuid: self.mig.as_ref().map(|device| device.uuid.clone()),
            name: self.gpu.name.clone(),
            allocatable_bytes: Some(self.allocatable).filter(|bytes| *bytes > 0),
            budget_bytes: self.budget.bytes(),
            budget_source: self.budget.source().map(|source| source.label().to_owned()),
            seconds_at_budget: self.budget.reached().map(seconds),
            seconds: seconds(self.present),
            samples: self.samples,
            peak_bytes: self.peak(),
            peak_at: self.peak.map(|(_, at)| now.unix(at)),
            // A workload that was in a single list has no duration, but its memory is known.
            mean_bytes: mean.or(self.last),
            last_bytes: self.last,
            seconds_at_90_percent: near(0),
            seconds_at_95_percent: near(1),
            seconds_at_98_percent: near(2),
            idle_ratio: self.activity.idle_ratio(),
            energy_joules: self.joules,
            out_of_memory: self.shortage.out_of_memory,
            ended_at_limit: self.shortage.ended_at_limit,
            needs_more_than_bytes: self.peak().filter(|_| self.shortage.is_seen()),
            others_bytes: self.shortage.others,
            last_failure: self.shortage.failure.clone(),
            incident: self.shortage.incident.clone(),
            allocated_peak_bytes: self.allocated_peak,
            needed_bytes: needed,
            advice_bytes,
            advice_margin,
            no_advice: advice.err().map(str::to_owned),
        }
    }

    pub(super) fn peak(&self) -> Option<u64> {
        self.peak.map(|(peak, _)| peak)
    }

    /// Bytes that it needs at most, as far as its processes report; never more than its peak. `None` if none reports.
    fn needed(&self) -> Option<u64> {
        let here = self.processes.iter().map(|process| (&process.need, process.peak));
        self.peak().zip(self.needs.bytes(here)).map(|(peak, needed)| needed.min(peak))
    }

    pub(super) fn bytes(&self) -> usize {
        let processes = allocation(self.processes.capacity() * size_of::<Tracked>());
        size_of::<Self>() + self.shortage.heap_bytes() + processes + allocation(self.needs.heap_bytes())
    }
}

/// The sum of two values, if both are known.
fn add(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.zip(other).map(|(one, other)| one.saturating_add(other))
}
