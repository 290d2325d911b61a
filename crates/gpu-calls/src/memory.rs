//! What every process holds at least, from its calls and its readings.
//!
//! Invariants: what a process calls changes only its own entry, but for the room that it takes; the number of remembered
//! allocations is bounded, and the process with the most has no bound from calls if there are more; a bound is a lower one
//! at any moment.

use std::collections::HashMap;
use std::time::Duration;

use cuda_probe::Event;

use super::held::Span;
use super::places::{DeviceNumber, Place, Whereabouts};
use super::process_memory::ProcessMemory;
use gpu_readings::snapshot::{ProcessId, ProcessKind};

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
    /// The entry of a process; `None` if there are too many. A pid that now belongs to another process gets an empty entry.
    pub(super) fn process(&mut self, id: ProcessId, is_listed: bool) -> Option<&mut ProcessMemory> {
        if self.processes.len() >= PROCESSES
            && !self.processes.contains_key(&id.pid)
            && !(is_listed && self.make_room())
        {
            return None;
        }
        let lost = self.lost;
        let process = self.processes.entry(id.pid).or_insert_with(|| ProcessMemory::after(lost));
        if process.start_ticks.is_some() && id.start_ticks.is_some() && process.start_ticks != id.start_ticks {
            self.blocks -= process.remembered();
            *process = ProcessMemory::after(lost);
        }
        process.start_ticks = process.start_ticks.or(id.start_ticks);
        process.is_listed |= is_listed;
        Some(process)
    }

    /// Forgets a process that no list has contained. Any program can call a library that has probes.
    fn make_room(&mut self) -> bool {
        let unlisted = self.processes.iter().find(|(_, process)| !process.is_listed).map(|(pid, _)| *pid);
        let gone = unlisted.and_then(|pid| self.processes.remove(&pid));
        self.blocks -= gone.as_ref().map_or(0, ProcessMemory::remembered);
        gone.is_some()
    }

    /// Forgets the allocations of the process that has the most, of those that no list has contained if there are any.
    fn forget_most(&mut self) {
        let weight = |process: &ProcessMemory| (!process.is_listed && process.remembered() > 0, process.remembered());
        if let Some(most) = self.processes.values_mut().max_by_key(|process| weight(process)) {
            self.blocks -= most.remembered();
            most.give_up();
        }
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
        self.change(place.id, true, |process| process.read(place, span, places))?
    }

    /// Takes in a call. `ordinal`: of the thread's current context. Returns whether the process took memory.
    pub(super) fn see(&mut self, id: ProcessId, event: &Event, ordinal: Option<i32>, places: Whereabouts<'_>) -> bool {
        if self.blocks >= OF_ALL {
            self.forget_most();
        }
        self.change(id, !places.is_empty(), |process| process.see(event, ordinal, places)).unwrap_or_default()
    }

    /// Changes the entry of a process.
    fn change<T>(&mut self, id: ProcessId, is_listed: bool, change: impl FnOnce(&mut ProcessMemory) -> T) -> Option<T> {
        let process = self.process(id, is_listed)?;
        let before = process.remembered();
        let result = change(process);
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

#[cfg(test)]
mod tests {
    use cuda_probe::Call;

    use super::*;

    fn id(pid: u32) -> ProcessId {
        ProcessId { pid, start_ticks: Some(1) }
    }

    fn take(memory: &mut Memory, pid: u32, address: u64, places: &[Place]) -> bool {
        let call = Call::Allocate { size: 4 << 20, address: Some(address) };
        let event = Event::for_tests(pid, call, 0, Duration::from_secs(1));
        memory.see(id(pid), &event, None, Whereabouts { places, elsewhere: Duration::MAX })
    }

    fn place(pid: u32) -> [Place; 1] {
        let since = Duration::ZERO;
        [Place {
            device: 0,
            id: id(pid),
            kind: ProcessKind::Compute,
            workload: None,
            used: Some(0),
            alive: true,
            since,
        }]
    }

    fn bound(memory: &Memory, pid: u32) -> Option<u64> {
        let places = place(pid);
        let places = Whereabouts { places: &places, elsewhere: Duration::MAX };
        memory.processes[&pid].at_least(0, Duration::from_secs(2), places)
    }

    /// Whether the count of allocations is that of the entries.
    fn is_whole(memory: &Memory) -> bool {
        memory.blocks == memory.processes.values().map(ProcessMemory::remembered).sum::<usize>()
    }

    #[test]
    fn who_takes_the_room_for_allocations_loses_its_own_bound() {
        for are_listed in [true, false] {
            let mut memory = Memory::default();
            let span = Span { start: Duration::ZERO, end: Duration::from_millis(1) };
            let its = place(1);
            memory.read(&its[0], span, Whereabouts { places: &its, elsewhere: Duration::MAX });
            for address in 0..1000 {
                assert!(take(&mut memory, 1, address, &its));
            }
            // Ten processes take as much as there is for all, each less than one may.
            for pid in 2..12 {
                let listed = place(pid);
                for address in 0..60_000 {
                    take(&mut memory, pid, address, if are_listed { &listed } else { &[] });
                }
                assert!(memory.blocks <= OF_ALL && is_whole(&memory));
            }
            assert!(take(&mut memory, 1, 1000, &its));
            assert_eq!(bound(&memory, 1), Some(1001 * (4 << 20)));
            let given_up: Vec<u32> = (2..12).filter(|pid| bound(&memory, *pid).is_none()).collect();
            assert!(given_up.len() >= 6, "{given_up:?}");
            // One that has been given up remembers nothing more.
            for pid in given_up {
                take(&mut memory, pid, 1 << 40, &place(pid));
                assert_eq!(memory.processes[&pid].remembered(), 0);
            }
        }
    }

    #[test]
    fn any_number_of_processes_that_no_list_has_leave_room_for_those_that_one_has() {
        let mut memory = Memory::default();
        for pid in 1..=3 * u32::try_from(PROCESSES).unwrap() {
            take(&mut memory, pid, 1, &[]);
        }
        assert_eq!((memory.processes.len(), is_whole(&memory)), (PROCESSES, true));
        let pid = 1_000_000;
        let its = place(pid);
        assert!(take(&mut memory, pid, 1, &its));
        assert_eq!((memory.processes.len(), is_whole(&memory)), (PROCESSES, true));
        assert_eq!(bound(&memory, pid), Some(4 << 20));
        // When all are listed there is no room for one more.
        for pid in 2_000_000..2_000_000 + u32::try_from(PROCESSES).unwrap() {
            take(&mut memory, pid, 1, &place(pid));
        }
        assert_eq!((memory.processes.len(), is_whole(&memory)), (PROCESSES, true));
        assert!(bound(&memory, pid).is_some() && memory.process(id(7_000_000), true).is_none());
    }
}
