//! Who is on which device, as the latest lists of processes tell.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::snapshot::{Gpu, GpuProcesses, MigDevice, Process, ProcessId, ProcessKind, Workload};

/// A process that has left its device for longer than this is not looked for there any more.
const ENDED: Duration = Duration::from_secs(5);

/// A GPU, or a MIG device on it.
#[derive(Debug, Clone)]
pub(super) struct Device {
    pub(super) gpu: Arc<Gpu>,
    pub(super) mig: Option<Arc<MigDevice>>,
}

impl Device {
    /// The UUID of the MIG device, or of the GPU.
    pub(super) fn uuid(&self) -> &str {
        self.mig.as_ref().map_or(&self.gpu.uuid, |mig| &mig.uuid)
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
}

/// The devices, and the processes on them.
#[derive(Debug, Default)]
pub(super) struct Places {
    devices: Vec<Device>,
    by_pid: HashMap<u32, Vec<Place>>,
}

impl Places {
    /// Takes in a list. Returns the processes on its devices that are alive.
    pub(super) fn read(&mut self, list: &GpuProcesses) -> Vec<Place> {
        let uuid = &list.gpu.uuid;
        let devices = &self.devices;
        for places in self.by_pid.values_mut() {
            places.retain(|place| devices[place.device].gpu.uuid != *uuid);
        }
        self.by_pid.retain(|_, places| !places.is_empty());
        let mut alive = Vec::new();
        for process in list.processes.iter().filter(|process| is_recent(process, list.at)) {
            let place = Place {
                device: self.number(&list.gpu, process.mig.as_ref()),
                id: process.id(),
                kind: process.kind,
                workload: process.owner.workload.clone(),
                used: process.used,
                alive: process.alive,
            };
            alive.extend(process.alive.then(|| place.clone()));
            self.by_pid.entry(process.pid).or_default().push(place);
        }
        alive
    }

    /// The devices on which a process is, or was a moment ago.
    pub(super) fn of(&self, pid: u32) -> &[Place] {
        self.by_pid.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// The processes that the lists contain.
    pub(super) fn processes(&self) -> impl Iterator<Item = ProcessId> {
        self.by_pid.values().filter_map(|places| places.iter().find(|place| place.alive)).map(|place| place.id)
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
        let mig_uuid = |device: &Option<Arc<MigDevice>>| device.as_ref().map(|mig| mig.uuid.clone());
        let is_it = |known: &Device| known.gpu.uuid == gpu.uuid && mig_uuid(&known.mig) == mig_uuid(&mig.cloned());
        let found = self.devices.iter().position(is_it).unwrap_or_else(|| {
            self.devices.push(Device { gpu: gpu.clone(), mig: mig.cloned() });
            self.devices.len() - 1
        });
        // The index of the GPU can change when the driver is opened again.
        self.devices[found].gpu = gpu.clone();
        found
    }
}

fn is_recent(process: &Process, listed: Option<Instant>) -> bool {
    let since_end = process.ended.zip(listed).map(|(ended, listed)| listed.saturating_duration_since(ended.by));
    process.alive || since_end.is_some_and(|since| since <= ENDED)
}
