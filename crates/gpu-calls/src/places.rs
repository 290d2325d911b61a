//! Who is on which device, as the latest lists of processes tell.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::held::Span;
use gpu_readings::snapshot::{Gpu, GpuProcesses, MigDevice, Process, ProcessId, ProcessKind, Workload};

/// A process that has left its device for longer than this is not looked for there any more.
const ENDED: Duration = Duration::from_secs(5);

/// A GPU that has not been listed for this long while others were is out of order, and nothing begins on it.
const SILENT: Duration = Duration::from_secs(60);

/// A GPU, or a MIG device on it.
#[derive(Debug, Clone)]
pub(super) struct Device {
    pub(super) gpu: Arc<Gpu>,
    pub(super) mig: Option<Arc<MigDevice>>,
}

impl Device {
    /// The UUID of the MIG device, or of the GPU.
    pub(super) fn uuid(&self) -> &str {
        self.gpu.device_uuid(self.mig.as_deref())
    }
}

/// The position of a device in [`Places`]. It stays the same.
pub(super) type DeviceNumber = usize;

/// A process on a device, or one that has just left it.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) device: DeviceNumber,
    pub(super) id: ProcessId,
    pub(super) kind: ProcessKind,
    pub(super) workload: Option<Arc<Workload>>,
    pub(super) used: Option<u64>,
    pub(super) alive: bool,
    /// When the first list with it was complete.
    pub(super) since: Duration,
}

/// Where one process is, or was a moment ago.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whereabouts<'p> {
    pub(super) places: &'p [Place],
    /// All GPUs on which it is not have been listed, and the list of each began at this moment or later. One that is split
    /// into MIG devices counts although the process is on it.
    pub(super) elsewhere: Duration,
}

impl Deref for Whereabouts<'_> {
    type Target = [Place];

    fn deref(&self) -> &[Place] {
        self.places
    }
}

/// The devices, and the processes on them.
#[derive(Debug, Default)]
pub(super) struct Places {
    devices: Vec<Device>,
    by_pid: HashMap<u32, Vec<Place>>,
    /// Where clients of MPS are listed without memory: each GPU lists the clients of all of them.
    idle: HashMap<u32, Vec<Place>>,
    /// When the last list of each GPU began, by its UUID.
    began: HashMap<String, Duration>,
}

impl Places {
    /// Takes in a list that was read within `span`. Returns the processes on its devices that are alive.
    pub(super) fn read(&mut self, list: &GpuProcesses, span: Span) -> Vec<Place> {
        let of_gpu = &list.gpu.uuid;
        self.began.insert(of_gpu.clone(), span.start);
        let latest = self.began.values().copied().max().unwrap_or_default();
        self.began.retain(|_, began| latest.saturating_sub(*began) < SILENT);
        let devices = &self.devices;
        let mut before: HashMap<(ProcessId, DeviceNumber), Duration> = HashMap::new();
        for places in self.by_pid.values_mut().chain(self.idle.values_mut()) {
            let gone = places.extract_if(.., |place| devices[place.device].gpu.uuid == *of_gpu);
            before.extend(gone.map(|place| ((place.id, place.device), place.since)));
        }
        self.by_pid.retain(|_, places| !places.is_empty());
        self.idle.retain(|_, places| !places.is_empty());
        let mut alive = Vec::new();
        for process in list.processes.iter().filter(|process| is_recent(process, list.at)) {
            let (id, device) = (process.id(), self.number(&list.gpu, process.mig.as_ref()));
            let place = Place {
                device,
                id,
                since: before.get(&(id, device)).copied().unwrap_or(span.end),
                kind: process.kind,
                workload: process.owner.workload.clone(),
                used: process.used,
                alive: process.alive,
            };
            if is_idle(process) {
                self.idle.entry(process.pid).or_default().push(place);
                continue;
            }
            alive.extend(process.alive.then(|| place.clone()));
            self.by_pid.entry(process.pid).or_default().push(place);
        }
        alive
    }

    /// The devices on which a process is, or was a moment ago.
    pub(super) fn of(&self, pid: u32) -> Whereabouts<'_> {
        // A client without any memory may be on each GPU that lists it.
        let places = self.by_pid.get(&pid).or_else(|| self.idle.get(&pid)).map_or(&[][..], Vec::as_slice);
        let is_on = |uuid: &String| {
            let its = places.iter().find(|place| place.alive && self.devices[place.device].gpu.uuid == *uuid);
            its.is_some_and(|place| self.devices[place.device].mig.is_none())
        };
        let others = self.began.iter().filter(|(uuid, _)| !is_on(uuid)).map(|(_, began)| *began);
        Whereabouts { places, elsewhere: others.min().unwrap_or(Duration::MAX) }
    }

    /// The processes that the lists contain, each at one of its places.
    pub(super) fn processes(&self) -> impl Iterator<Item = &Place> {
        let idle = self.idle.iter().filter(|(pid, _)| !self.by_pid.contains_key(pid)).map(|(_, places)| places);
        self.by_pid.values().chain(idle).filter_map(|places| places.iter().find(|place| place.alive))
    }

    /// Whether a process of the workload is on a device.
    pub(super) fn has(&self, workload: &Workload) -> bool {
        let is_its = |place: &Place| place.alive && place.workload.as_deref() == Some(workload);
        self.by_pid.values().flatten().any(is_its)
    }

    pub(super) fn device(&self, number: DeviceNumber) -> &Device {
        &self.devices[number]
    }

    fn number(&mut self, gpu: &Arc<Gpu>, mig: Option<&Arc<MigDevice>>) -> DeviceNumber {
        let is_it = |known: &Device| known.uuid() == gpu.device_uuid(mig.map(|mig| &**mig));
        let found = self.devices.iter().position(is_it).unwrap_or_else(|| {
            self.devices.push(Device { gpu: gpu.clone(), mig: mig.cloned() });
            self.devices.len() - 1
        });
        // The index of the GPU can change when the driver is opened again.
        self.devices[found].gpu = gpu.clone();
        found
    }
}

/// Whether a process is a client of MPS on the list of a GPU on which it has nothing.
fn is_idle(process: &Process) -> bool {
    process.kind == ProcessKind::Mps && process.used == Some(0)
}

fn is_recent(process: &Process, listed: Option<Instant>) -> bool {
    let since_end = process.ended.zip(listed).map(|(ended, listed)| listed.saturating_duration_since(ended.by));
    process.alive || since_end.is_some_and(|since| since <= ENDED)
}
