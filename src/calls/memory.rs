//! What every process holds at least, from its calls and its readings.
//!
//! Invariants: what a process calls changes only its own entry; the number of remembered allocations is bounded, and a
//! process with more has no bound from calls; a bound is a lower one at any moment.

use std::collections::HashMap;
use std::time::Duration;

use cuda_probe::Event;

use super::held::Span;
use super::places::{DeviceNumber, Place, Whereabouts};
use super::process_memory::ProcessMemory;
use crate::snapshot::{ProcessId, ProcessKind};

/// The maximum number of allocations and mappings that are remembered of all processes.
const OF_ALL: usize = 1 << 18;
/// The maximum number of processes.
const PROCESSES: usize = 4096;

/// All processes.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) processes: HashMap<u32, ProcessMemory>,
    blocks: usize,
    /// Until when calls were lost.
    lost: Option<Duration>,
}

impl Memory {
    /// The entry of a process; `None` if there are too many. A pid that now belongs to another process begins anew.
    pub(super) fn process(&mut self, id: ProcessId) -> Option<&mut ProcessMemory> {
        if self.processes.len() >= PROCESSES && !self.processes.contains_key(&id.pid) {
            return None;
        }
        let lost = self.lost;
        let process = self.processes.entry(id.pid).or_insert_with(|| ProcessMemory::after(lost));
        if process.start_ticks.is_some() && id.start_ticks.is_some() && process.start_ticks != id.start_ticks {
            self.blocks -= process.remembered();
            *process = ProcessMemory::after(lost);
        }
        process.start_ticks = process.start_ticks.or(id.start_ticks);
        Some(process)
    }

    /// Forgets the processes for which `is_alive` is false.
    pub(super) fn sweep(&mut self, is_alive: impl Fn(ProcessId) -> bool) {
        let blocks = &mut self.blocks;
        self.processes.retain(|pid, process| {
            let stays = is_alive(ProcessId { pid: *pid, start_ticks: process.start_ticks });
            if !stays {
                *blocks -= process.remembered();
            }
            stays
        });
    }

    /// Calls were lost until this moment, so no allocation is known to live any longer, and no bound holds before a reading
    /// that begins later.
    pub(super) fn lose(&mut self, until: Duration) {
        self.blocks = 0;
        self.lost = self.lost.max(Some(until));
        self.processes.values_mut().for_each(|process| process.lose_until(until));
    }

    /// Takes in a list with a process. Returns the correction.
    pub(super) fn read(&mut self, place: &Place, span: Span, places: Whereabouts<'_>) -> Option<u64> {
        self.change(place.id, |process, _| process.read(place, span, places))?
    }

    /// Takes in a call. `ordinal`: of the thread's current context. Returns whether the process took memory.
    pub(super) fn see(&mut self, id: ProcessId, event: &Event, ordinal: Option<i32>, places: Whereabouts<'_>) -> bool {
        self.change(id, |process, room| process.see(event, ordinal, places, room)).unwrap_or_default()
    }

    /// Changes the entry of a process. The change is told how much can still be remembered.
    fn change<T>(&mut self, id: ProcessId, change: impl FnOnce(&mut ProcessMemory, usize) -> T) -> Option<T> {
        let room = OF_ALL.saturating_sub(self.blocks);
        let process = self.process(id)?;
        let before = process.remembered();
        let result = change(process, room);
        let after = process.remembered();
        self.blocks = self.blocks + after - before;
        Some(result)
    }
}

/// The device of which a refused call asked memory: the one of the thread's context; otherwise the only one on which the
/// process is; otherwise the only one that has less free than was asked for. `free`: bytes that were free on a device.
pub(super) fn device_of_refusal(
    known: Option<DeviceNumber>,
    places: &[Place],
    asked: u64,
    free: impl Fn(DeviceNumber) -> Option<u64>,
) -> Option<DeviceNumber> {
    let short = |place: &&Place| free(place.device).is_none_or(|free| free < asked);
    // A client of MPS can have a limit of its own, so that plenty may be free.
    let is_limited = places.iter().any(|place| place.kind == ProcessKind::Mps);
    known.or_else(|| only(places.iter())).or_else(|| only(places.iter().filter(short)).filter(|_| !is_limited))
}

fn only<'p>(mut places: impl Iterator<Item = &'p Place>) -> Option<DeviceNumber> {
    let first = places.next()?;
    places.next().is_none().then_some(first.device)
}
