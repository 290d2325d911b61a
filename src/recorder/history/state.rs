//! The states of the driver and of the GPUs, and their Xids, which the histories learn from the snapshot.

use super::{DeviceKey, EventKind, Histories, Micros, Now, Recorded};
use crate::snapshot::{GpuState, Snapshot, XidGroup};

/// The changes in a snapshot that are worth an incident.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    /// The GPUs that have stopped responding.
    pub(crate) lost: Vec<DeviceKey>,
    /// The Xids that concern memory, with their GPUs.
    pub(crate) memory_xids: Vec<(DeviceKey, u64)>,
}

impl Histories {
    /// Compares the snapshot with the last known state of the driver, the GPUs and their errors.
    pub(crate) fn compare_snapshot(&mut self, snapshot: &Snapshot, now: Now) -> Alarms {
        let mut alarms = Alarms::default();
        let driver = snapshot.driver.load();
        let is_known = driver.up || driver.problem.is_some();
        if is_known && self.driver_up != Some(driver.up) {
            let what = if driver.up {
                EventKind::DriverOpened { version: driver.driver_version.clone() }
            } else {
                EventKind::DriverClosed { problem: driver.problem.clone() }
            };
            self.events.add(Recorded::of_machine(now.micros, what));
            if !driver.up {
                self.devices.iter_mut().for_each(|gpu| gpu.lose(now.micros));
            }
            self.driver_up = Some(driver.up);
        }
        for memory in &snapshot.memory.load().gpus {
            let index = self.device_index(&memory.gpu, None, now.micros);
            if self.change_state(index, memory.state, now.micros) {
                alarms.lost.push(self.devices[index].key());
            }
        }
        for part in &snapshot.xids.load().gpus {
            for (&xid, &count) in part.errors.iter().flatten() {
                let before = self.xids.insert((part.gpu.key(), xid), count).unwrap_or(0);
                if count > before {
                    let index = self.device_index(&part.gpu, None, now.micros);
                    self.note(now.micros, index, None, EventKind::Xid { xid, count: count - before });
                    if XidGroup::of(xid).is_some_and(|group| group.concerns_memory) {
                        alarms.memory_xids.push((self.devices[index].key(), xid));
                    }
                }
            }
        }
        for index in 0..self.devices.len() {
            if let Some((at, what)) = self.devices[index].new_peak(now) {
                self.note(at, index, None, what);
            }
        }
        alarms
    }

    /// Records the state of a device. Returns whether it has stopped responding.
    pub(crate) fn change_state(&mut self, index: usize, state: GpuState, at: Micros) -> bool {
        let before = std::mem::replace(&mut self.devices[index].state, state);
        match (before, state) {
            (before, state) if before == state => {}
            (_, GpuState::Unsampled) => self.devices[index].state = before,
            (GpuState::Unsampled, GpuState::Up) => {}
            (_, GpuState::Up) => self.note(at, index, None, EventKind::GpuBack),
            (_, GpuState::Stalled) => self.note(at, index, None, EventKind::GpuStalled),
            (_, GpuState::Unreadable) => {
                self.note(at, index, None, EventKind::GpuLost);
                return true;
            }
        }
        false
    }
}
