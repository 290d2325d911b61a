//! What the calls and the lists of one round mean: pure but for the checks that it is given.
//!
//! Invariant: a call counts for a process only while a list shows the process, or showed it a moment ago.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cuda_probe::{Event, Kind};

use super::batch::{Batch, Happening};
use super::bounds::{Bounds, Taken};
use super::held::Span;
use super::memory::{Memory, device_of_refusal};
use super::places::{Device, DeviceNumber, Place, Places, Whereabouts};
use super::requests::{Outcome, PATIENCE, Request, Requests};
use super::tally::Tally;
use gpu_readings::snapshot::{CallPart, GpuProcesses, LostCalls, ProcessId, Workload};

/// How long a request waits for a list with its process, beyond the time in which its outcome is known, and how many wait, of all
/// processes and of one.
const UNLISTED: Duration = Duration::from_secs(3);
const MOST_UNLISTED: usize = 1024;
const UNLISTED_OF_PROCESS: usize = 4;

/// What the account asks of the machine.
pub(super) trait Machine {
    /// Whether the process has not ended.
    fn is_alive(&self, process: ProcessId) -> bool;
    /// Whether a process has a thread.
    fn has_thread(&self, process: u32, thread: u32) -> bool;
    /// Bytes that were free on a device at its last reading.
    fn free(&self, device: &Device) -> Option<u64>;
    /// Bytes that a device can give out at most.
    fn allocatable(&self, device: &Device) -> Option<u64>;
}

/// A request for this many bytes that was refused for good, with its process and device.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) at: Duration,
    pub(super) asked: u64,
    pub(super) process: ProcessId,
    pub(super) device: Device,
}

/// Everything that is remembered of calls.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) places: Places,
    memory: Memory,
    bounds: Bounds,
    requests: Requests,
    tally: Tally,
    batch: Batch,
    unlisted: Vec<Request>,
    unlisted_lost: u64,
    /// Whether every call is seen, so that what is held can be followed.
    follows: bool,
}

impl Account {
    /// `follows`: whether every call is seen.
    pub(super) fn new(follows: bool) -> Self {
        Self { follows, ..Self::default() }
    }

    /// Takes in a call. Returns the request of its thread whose outcome is known now.
    pub(super) fn call(&mut self, event: Event, process: ProcessId) -> Option<Request> {
        let places = self.places.of(process.pid);
        let ordinal = match self.memory.process(process, !places.is_empty()) {
            Some(known) => {
                known.contexts.see(&event);
                known.contexts.ordinal(&event)
            }
            None => None,
        };
        let outcome = self.requests.see(&event, process, ordinal);
        if self.follows && event.kind != Kind::Tells {
            if let Some(workload) = places.iter().find_map(|place| place.workload.as_ref()) {
                self.tally.call(workload, event.duration);
            }
            self.batch.add_call(event, process, ordinal);
        }
        outcome
    }

    /// Takes in a list that was read within `span`.
    pub(super) fn list(&mut self, list: &Arc<GpuProcesses>, span: Span) {
        self.tally.gpu(&list.gpu);
        if self.follows {
            self.batch.add_list(list.clone(), span.start, span.end);
        } else {
            self.places.read(list, span);
        }
    }

    /// Calls were lost until this moment.
    pub(super) fn lose(&mut self, until: Duration) {
        self.memory.lose(until);
        self.bounds.forget_sums();
    }

    /// Follows what is held up to a moment. `giving`: the processes with a thread that was in a call which gives memory back
    /// when the calls up to that moment had been read. Returns the peaks.
    pub(super) fn follow(&mut self, until: Duration, giving: HashSet<u32>, machine: &impl Machine) -> Taken {
        self.bounds.give(giving);
        let (happened, dropped) = self.batch.until(until);
        for (at, what) in happened {
            match what {
                Happening::List(list, complete) => self.read(&list, Span { start: at, end: complete }),
                Happening::Call(call) => self.follow_call(&call.0, call.1, call.2),
            }
        }
        if let Some(dropped) = dropped {
            self.lose(dropped);
        }
        let places = &self.places;
        self.bounds.take(
            places,
            |process| machine.is_alive(process),
            |device| machine.allocatable(places.device(device)),
        )
    }

    fn follow_call(&mut self, event: &Event, caller: ProcessId, ordinal: Option<i32>) {
        let Some(process) = self.memory.processes.get(&event.process) else { return };
        let id = ProcessId { pid: event.process, start_ticks: process.start_ticks };
        // The pid belongs to another process by now.
        if !id.may_be(caller) {
            return;
        }
        let places = self.places.of(event.process);
        let took = self.memory.see(id, event, ordinal, places);
        self.bounds.called(&places, event.process);
        if !took {
            return;
        }
        let device = self.memory.processes.get(&event.process).and_then(|known| known.device(ordinal, places));
        if let Some(device) = device {
            let at = event.start + event.duration;
            self.bounds.took(&self.memory, &self.places, event.process, device, at);
        }
    }

    fn read(&mut self, list: &Arc<GpuProcesses>, span: Span) {
        let alive = self.places.read(list, span);
        for place in &alive {
            let correction = self.memory.read(place, span, self.places.of(place.id.pid));
            correction.into_iter().for_each(|bytes| self.tally.correct(&list.gpu, bytes));
        }
        self.bounds.read(list, span, &alive, &self.places);
    }

    /// Counts the requests whose outcome is known. Returns those that were refused for good,
    /// but for those that name no size.
    pub(super) fn settle(&mut self, mut known: Vec<Request>, now: Duration, machine: &impl Machine) -> Vec<Refusal> {
        known.extend(self.requests.settle(now, |process| machine.is_alive(process)));
        let waiting = std::mem::take(&mut self.unlisted);
        let mut refusals = Vec::new();
        let mut of_process: HashMap<u32, usize> = HashMap::new();
        for request in waiting.into_iter().chain(known) {
            let places = self.places_of(request.process);
            let device = self.device(&request, &places, machine);
            let is_young = now.saturating_sub(request.at) < PATIENCE + UNLISTED;
            // A process is refused memory of a GPU on whose list it is not yet.
            let may_be_elsewhere = device.is_none() && self.places.of(request.process.pid).elsewhere <= request.at;
            if (places.is_empty() || may_be_elsewhere) && is_young && self.unlisted.len() < MOST_UNLISTED {
                let waiting = of_process.entry(request.process.pid).or_default();
                *waiting += 1;
                if *waiting <= UNLISTED_OF_PROCESS {
                    self.unlisted.push(request);
                    continue;
                }
            }
            if places.is_empty() {
                self.unlisted_lost += 1;
                self.tally.is_new = true;
                continue;
            }
            let device = device.map(|number| self.places.device(number).clone());
            let workload = places.iter().find_map(|place| place.workload.clone());
            self.tally.request(workload.as_ref(), device.as_ref(), request.outcome);
            if let (Outcome::Refused, Some(device), Some(asked)) = (request.outcome, device, request.asked) {
                refusals.push(Refusal { at: request.at, asked, process: places[0].id, device });
            }
        }
        refusals
    }

    /// The places of a process, also if it has just ended.
    fn places_of(&self, process: ProcessId) -> Vec<Place> {
        self.places.of(process.pid).iter().filter(|place| place.id.may_be(process)).cloned().collect()
    }

    fn device(&self, request: &Request, places: &[Place], machine: &impl Machine) -> Option<DeviceNumber> {
        let known = self.memory.processes.get(&request.process.pid);
        let elsewhere = self.places.of(request.process.pid).elsewhere;
        let known = known.and_then(|known| known.device(request.ordinal, Whereabouts { places, elsewhere }));
        if known.is_none() && elsewhere <= request.at {
            return None;
        }
        let asked = request.asked.unwrap_or_default();
        device_of_refusal(known, places, asked, |device| machine.free(self.places.device(device)))
    }

    /// Forgets processes that have ended, and workloads that have not been counted for this long.
    pub(super) fn sweep(&mut self, linger: Duration, machine: &impl Machine) {
        self.memory.sweep(|process| machine.is_alive(process));
        for (pid, process) in self.memory.processes.iter_mut().filter(|(_, process)| process.contexts.threads() > 64) {
            process.contexts.sweep(|thread| machine.has_thread(*pid, thread));
        }
        let places = &self.places;
        self.tally.sweep(linger, |workload: &Workload| places.has(workload));
    }

    /// Whether what is published can have changed since the last time.
    pub(super) fn has_news(&mut self) -> bool {
        std::mem::take(&mut self.tally.is_new)
    }

    /// Fills in what is published.
    pub(super) fn show(&self, part: &mut CallPart) {
        self.tally.show(part);
        part.lost[LostCalls::Unlisted as usize] = self.unlisted_lost;
    }
}

#[cfg(test)]
mod tests;
