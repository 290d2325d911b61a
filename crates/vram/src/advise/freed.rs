//! How much memory could be given back.
//!
//! Invariants: the memory of a device counts once, however many workloads share it; never more is given back from a device than it
//! has.

use std::collections::BTreeMap;

use super::devices::Devices;
use super::history::{History, Run};
use super::record::Action;
use super::run_key::RunKey;

/// What was advised for a run, in all the groups that it belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Advised {
    /// The highest advice in bytes; `None` without any.
    pub(super) bytes: Option<u64>,
    /// Whether a group of the run cannot be given less.
    pub(super) stays: bool,
}

impl Advised {
    /// With what was advised for one more group.
    pub(super) fn add(&mut self, bytes: Option<u64>, action: Action) {
        self.bytes = bytes.max(self.bytes);
        self.stays |= action != Action::Lower;
    }
}

/// A GPU or MIG device: cluster, UUID, and UUID of the MIG device.
type DeviceKey<'a> = (Option<&'a str>, &'a str, Option<&'a str>);

fn device(key: &RunKey) -> DeviceKey<'_> {
    (key.cluster.as_deref(), &key.uuid, key.mig_uuid.as_deref())
}

/// What remains free on a device if each of its current runs holds what was advised for it.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// Bytes; `None` if the size of the device is not known. A run without advice holds its window peak.
    bytes: Option<u64>,
    /// Whether every run has advice.
    is_advised: bool,
}

/// What could be given back on each device.
#[derive(Debug)]
pub(super) struct Freed<'a> {
    rooms: BTreeMap<DeviceKey<'a>, Room>,
    advised: &'a BTreeMap<&'a RunKey, Advised>,
}

impl<'a> Freed<'a> {
    /// `advised` are the runs that belong to a group.
    pub(super) fn new(history: &'a History, devices: &Devices, advised: &'a BTreeMap<&'a RunKey, Advised>) -> Self {
        let mut rooms: BTreeMap<DeviceKey<'_>, Room> = BTreeMap::new();
        for (key, run) in history.runs.iter().filter(|(_, run)| run.is_now) {
            let advice = advised.get(key).and_then(|advised| advised.bytes);
            let room = rooms.entry(device(key)).or_insert_with(|| {
                let memory = devices.memory(&key.gpu(), key.mig_uuid.as_deref());
                Room { bytes: memory.map(|memory| memory.allocatable()), is_advised: true }
            });
            room.bytes = room.bytes.map(|bytes| bytes.saturating_sub(advice.unwrap_or(run.driver_peak)));
            room.is_advised &= advice.is_some();
        }
        Self { rooms, advised }
    }

    /// Bytes that these runs could give back, of those that run now and can be given less.
    pub(super) fn of(&self, runs: impl Iterator<Item = (&'a RunKey, &'a Run)>) -> u64 {
        // By device: what is promised too much by budgets, and whether a run may use the whole device.
        let mut given: BTreeMap<DeviceKey<'_>, (u64, bool)> = BTreeMap::new();
        for (key, run) in runs.filter(|(_, run)| run.is_now) {
            let Some(Advised { bytes: Some(advice), stays: false }) = self.advised.get(key) else { continue };
            let (promised, whole) = given.entry(device(key)).or_default();
            match &run.budget {
                Some((budget, _)) => *promised = promised.saturating_add(budget.saturating_sub(*advice)),
                None => *whole = true,
            }
        }
        let freed = given.iter().filter_map(|(device, (promised, whole))| {
            let room = self.rooms.get(device)?;
            Some(match room.bytes {
                Some(bytes) if *whole && room.is_advised => bytes,
                Some(bytes) => bytes.min(*promised),
                None => *promised,
            })
        });
        freed.fold(0, u64::saturating_add)
    }
}
