//! A report that is being written: one workload, on all GPUs.

use std::sync::Arc;
use std::time::SystemTime;

use super::device_use::{DeviceUse, Tracked};
use super::job_report::{ExitCount, JobReport, State, VERSION};
use crate::recorder::history::{Exit, HeapUse as _, Micros, Now, SECOND};
use crate::snapshot::{Gpu, MigDevice, Process, ProcessId, Workload, WorkloadShortage};

/// Units and users come and go as often as somebody starts a program: their reports wait longer for a return, and a
/// short use of a GPU is not worth a report.
const PATIENCE: u64 = 5;
const SHORT: Micros = 60 * SECOND;
/// The maximum number of processes whose exit status is looked for, and of different ways to end that are counted.
const MAX_AWAITED: usize = 256;
const MAX_EXITS: usize = 16;
/// Names are cut to this many characters.
const LONGEST_NAME: usize = 256;

/// The report about a workload, as far as it is known.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) workload: Arc<Workload>,
    user: Option<String>,
    /// When the first list that contained it was read.
    pub(super) first: Micros,
    /// When the last list that contained it was read.
    pub(super) seen: Micros,
    /// When the last of its processes had left; `None` while one is on a GPU.
    pub(super) left: Option<Micros>,
    pub(super) seen_from_start: bool,
    processes: u64,
    exits: Vec<ExitCount>,
    /// The processes that have left and whose exit status is not known yet, with the time at which they had left.
    awaited: Vec<(ProcessId, Micros)>,
    pub(super) devices: Vec<DeviceUse>,
}

impl Open {
    pub(super) fn new(workload: &Arc<Workload>, at: Micros, seen_from_start: bool) -> Self {
        Self {
            workload: workload.clone(),
            user: None,
            first: at,
            seen: at,
            left: None,
            seen_from_start,
            processes: 0,
            exits: Vec::new(),
            awaited: Vec::new(),
            devices: Vec::new(),
        }
    }

    /// The use of a device, which begins at `at` if it is new.
    pub(super) fn device(
        &mut self,
        index: usize,
        gpu: &Arc<Gpu>,
        mig: Option<&Arc<MigDevice>>,
        at: Micros,
    ) -> &mut DeviceUse {
        let uuid = mig.map(|device| device.uuid.as_str());
        let known = self.devices.iter().position(|device| device.is_on(index, uuid));
        let position = known.unwrap_or_else(|| {
            self.devices.push(DeviceUse::new(index, gpu, mig, at));
            self.devices.len() - 1
        });
        &mut self.devices[position]
    }

    /// Whether a process is followed on a GPU, in the same place and for the same user as the list shows it.
    pub(super) fn had(&self, index: usize, process: &Process) -> bool {
        let owner = &process.owner;
        let is_same = |known: &Tracked| {
            known.is(process.pid, owner) && known.owner.location == owner.location && known.owner.uid == owner.uid
        };
        self.devices.iter().filter(|device| device.index == index).flat_map(|device| &device.processes).any(is_same)
    }

    /// The device on which a list shows both the workload and a process of it.
    fn listed(&mut self, index: usize, process: &Process) -> Option<&mut DeviceUse> {
        let mig = process.mig.as_ref().map(|device| device.uuid.as_str());
        self.devices.iter_mut().find(|device| device.is_on(index, mig) && device.is_listed)
    }

    /// Records that a list contains a process that last worked at `active`. Returns whether it is followed.
    pub(super) fn follow(&mut self, index: usize, process: &Process, active: Option<Micros>) -> bool {
        let Some(device) = self.listed(index, process) else { return false };
        let is_followed = device.follow(process);
        if is_followed {
            device.seen.add(active);
        }
        is_followed
    }

    /// Begins to follow a process that a list contains, and that was first listed at `seen`.
    pub(super) fn begin(&mut self, index: usize, process: &Process, active: Option<Micros>, seen: SystemTime) {
        let is_known = self.follows(process.pid, |known| known.is(process.pid, &process.owner));
        let Some(device) = self.listed(index, process) else { return };
        device.seen.add(active);
        if device.begin(process, seen) && !is_known {
            self.processes += 1;
        }
        if self.user.is_none() {
            self.user = process.owner.user_or_uid().map(|user| cut(&user));
        }
    }

    fn follows(&self, pid: u32, is_same: impl Fn(&Tracked) -> bool) -> bool {
        self.devices.iter().flat_map(|device| &device.processes).any(|known| known.pid == pid && is_same(known))
    }

    /// Records that processes have left a device. Those that are on no other device have ended.
    pub(super) fn end(&mut self, gone: Vec<Tracked>, at: Micros) {
        for process in gone {
            let remains = self.follows(process.pid, |known| known.is(process.pid, &process.owner));
            if !remains && process.id().start_ticks.is_some() && self.awaited.len() < MAX_AWAITED {
                self.awaited.push((process.id(), at));
            }
        }
    }

    /// For each process that left at `since` or later, records how it ended, if `exit` returns that.
    pub(super) fn add_exits(&mut self, since: Micros, exit: &impl Fn(ProcessId) -> Option<Exit>) {
        let exits = &mut self.exits;
        self.awaited.retain(|(process, at)| match exit(*process) {
            Some(exit) => {
                count(exits, ExitCount { exit, processes: 1 });
                false
            }
            None => *at >= since,
        });
    }

    /// Continues a report that was written under another name.
    pub(super) fn absorb(&mut self, other: Self) {
        self.first = self.first.min(other.first);
        self.seen_from_start &= other.seen_from_start;
        self.user = other.user.or(self.user.take());
        self.processes += other.processes;
        other.exits.into_iter().for_each(|counted| count(&mut self.exits, counted));
        self.awaited.extend(other.awaited);
        for device in other.devices {
            let mig = device.mig_uuid().map(str::to_owned);
            match self.devices.iter_mut().find(|own| own.is_on(device.index, mig.as_deref())) {
                Some(own) => own.absorb(device),
                None => self.devices.push(device),
            }
        }
    }

    /// How long the workload is expected to return; `usual` for most kinds.
    pub(super) fn linger(&self, usual: Micros) -> Micros {
        usual.saturating_mul(if self.workload.kind.is_casual() { PATIENCE } else { 1 })
    }

    pub(super) fn is_worth_a_report(&self) -> bool {
        !self.workload.kind.is_casual() || self.devices.iter().any(|device| device.present >= SHORT)
    }

    /// The report. A report that is not final covers the time until now.
    pub(super) fn report(&self, now: Now, state: State, node: Option<&str>, simulated: bool) -> JobReport {
        let Workload { name, kind, pod } = &*self.workload;
        let pod = pod.as_deref();
        let end = self.left.unwrap_or(now.micros);
        JobReport {
            version: VERSION,
            workload: cut(name),
            kind: *kind,
            job: name.split_once(':').filter(|_| kind.is_job()).map(|(_, id)| cut(id)),
            namespace: pod.map(|pod| cut(&pod.namespace)),
            pod: pod.map(|pod| cut(&pod.pod)),
            container: pod.map(|pod| cut(&pod.container)),
            user: self.user.clone(),
            node: node.map(str::to_owned),
            simulated,
            state,
            start: now.unix(self.first),
            end: self.left.map(|at| now.unix(at)),
            seconds: end.saturating_sub(self.first) as f64 / 1e6,
            seen_from_start: self.seen_from_start,
            processes: self.processes,
            exits: self.exits.clone(),
            gpus: self.devices.iter().map(|device| device.report(now)).collect(),
        }
    }

    /// Where the workload was short of memory, and when last.
    pub(super) fn shortages(&self, now: Now) -> impl Iterator<Item = WorkloadShortage> {
        self.devices.iter().filter_map(move |device| {
            let last = now.unix(device.shortage.last?);
            let (gpu, mig) = device.place();
            Some(WorkloadShortage { gpu, mig, workload: self.workload.clone(), last })
        })
    }

    /// Bytes: the highest memory on any device.
    pub(super) fn peak(&self) -> u64 {
        self.devices.iter().filter_map(DeviceUse::peak).max().unwrap_or(0)
    }

    pub(super) fn bytes(&self) -> usize {
        let devices: usize = self.devices.iter().map(DeviceUse::bytes).sum();
        let awaited = self.awaited.capacity() * size_of::<(ProcessId, Micros)>();
        let exits = self.exits.capacity() * size_of::<ExitCount>();
        size_of::<Self>() + size_of::<Workload>() + self.workload.heap_use() + devices + awaited + exits
    }
}

/// Adds processes that ended in the same way. If there are too many different ways, further ones are left out.
fn count(exits: &mut Vec<ExitCount>, more: ExitCount) {
    match exits.iter().position(|known| known.exit == more.exit) {
        Some(known) => exits[known].processes += more.processes,
        None if exits.len() < MAX_EXITS => exits.push(more),
        None => {}
    }
}

/// A name that is cut to a bounded length.
fn cut(name: &str) -> String {
    name.chars().take(LONGEST_NAME).collect()
}
