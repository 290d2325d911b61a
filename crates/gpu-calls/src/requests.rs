//! Tells a request that the driver refused from one that it granted when it was asked again.
//!
//! PyTorch answers a refusal by giving back its cache and asking again for the same size: if that is granted, the program
//! goes on; if it is refused again, the program gets an error. So a request is refused for good if the thread repeats it in
//! vain, asks for something else, ends, or asks for nothing within [`PATIENCE`].
//!
//! Invariant: bounded. Beyond the share of a process, its refusal counts at once; if there is no room at all, the refusal
//! that has waited for the longest does.

use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use cuda_probe::{Call, Event, Kind};

use super::meaning::asked;
use gpu_readings::snapshot::ProcessId;

/// How long a refused request waits to be granted. To give back a cache, a program waits for the work on the GPU.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The maximum number of threads with a refused request, of all processes and of one.
const WAITING: usize = 4096;
const OF_PROCESS: usize = 64;

/// What became of a request that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// The driver refused it.
    Refused,
    /// The driver granted it to the same thread in the same size.
    Retried,
}

/// A request whose outcome is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Request {
    /// When it was first refused, on CLOCK_MONOTONIC. First, so that requests are sorted by it.
    pub(super) at: Duration,
    pub(super) process: ProcessId,
    /// Bytes; `None` if the call names no size.
    pub(super) asked: Option<u64>,
    /// The ordinal of the thread's device.
    pub(super) ordinal: Option<i32>,
    pub(super) outcome: Outcome,
}

#[derive(Debug)]
struct Waiting {
    call: Discriminant<Call>,
    request: Request,
    /// Its outcome has been returned: it stays to recognize repetitions.
    is_decided: bool,
    last: Duration,
}

/// The requests that were refused a moment ago, by thread.
#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: HashMap<u32, Waiting>,
    /// The same, by the time of the last refusal.
    order: BTreeSet<(Duration, u32)>,
    of_process: HashMap<u32, usize>,
    /// Requests that had to make room.
    displaced: Vec<Request>,
}

impl Requests {
    /// Takes in a call that has returned. Returns the outcome of the thread's last request, if it is known now.
    pub(super) fn see(&mut self, event: &Event, process: ProcessId, ordinal: Option<i32>) -> Option<Request> {
        if event.kind != Kind::Asks {
            return None;
        }
        let (call, asked, at) = (discriminant(&event.call), asked(&event.call), event.start + event.duration);
        let known = self.take(event.thread);
        let same = known.as_ref().is_some_and(|known| {
            known.call == call && known.request.asked == asked && known.request.process == process
        });
        match known {
            // If it is decided, the program has been told that it was refused, and this is another request.
            Some(known) if same && event.result == 0 => {
                (!known.is_decided).then_some(Request { outcome: Outcome::Retried, ..known.request })
            }
            Some(known) if same && event.refused() => {
                let decided = (!known.is_decided).then_some(known.request);
                self.put(event.thread, Waiting { is_decided: true, last: at, ..known });
                decided
            }
            known => {
                // The program did something else, so it did without.
                let before = known.filter(|known| !known.is_decided).map(|known| known.request);
                if event.refused() {
                    let request = Request { process, asked, ordinal, at, outcome: Outcome::Refused };
                    if self.of_process.get(&process.pid).is_some_and(|count| *count >= OF_PROCESS) {
                        self.displaced.extend(before);
                        return Some(request);
                    }
                    self.put(event.thread, Waiting { call, request, is_decided: false, last: at });
                }
                before
            }
        }
    }

    fn put(&mut self, thread: u32, waiting: Waiting) {
        if self.waiting.len() >= WAITING
            && let Some((_, oldest)) = self.order.first().copied()
        {
            let oldest = self.take(oldest).filter(|oldest| !oldest.is_decided);
            self.displaced.extend(oldest.map(|oldest| oldest.request));
        }
        *self.of_process.entry(waiting.request.process.pid).or_default() += 1;
        self.order.insert((waiting.last, thread));
        self.waiting.insert(thread, waiting);
    }

    fn take(&mut self, thread: u32) -> Option<Waiting> {
        let waiting = self.waiting.remove(&thread)?;
        self.order.remove(&(waiting.last, thread));
        let pid = waiting.request.process.pid;
        if let Some(count) = self.of_process.get_mut(&pid) {
            *count -= 1;
            if *count == 0 {
                self.of_process.remove(&pid);
            }
        }
        Some(waiting)
    }

    /// The requests that are refused for good by now, because the thread did not ask again, or because its process has
    /// ended.
    pub(super) fn settle(&mut self, now: Duration, is_alive: impl Fn(ProcessId) -> bool) -> Vec<Request> {
        let mut refused = std::mem::take(&mut self.displaced);
        let is_over =
            |waiting: &Waiting| now.saturating_sub(waiting.last) >= PATIENCE || !is_alive(waiting.request.process);
        let over: Vec<u32> =
            self.waiting.iter().filter(|(_, waiting)| is_over(waiting)).map(|(thread, _)| *thread).collect();
        let over = over.into_iter().filter_map(|thread| self.take(thread));
        refused.extend(over.filter(|waiting| !waiting.is_decided).map(|waiting| waiting.request));
        // There are few, and a heap is less code than a sort.
        refused.into_iter().collect::<BinaryHeap<_>>().into_sorted_vec()
    }
}

#[cfg(test)]
mod tests {
    use cuda_probe::OUT_OF_MEMORY;

    use super::*;

    /// A call of a thread that returns at this moment.
    fn call(
        requests: &mut Requests,
        process: u32,
        thread: u32,
        millis: u64,
        size: u64,
        result: i32,
    ) -> Option<Request> {
        let call = Call::Allocate { size, address: None };
        let mut event = Event::for_tests(process, call, result, Duration::from_millis(millis - 1));
        event.thread = thread;
        requests.see(&event, ProcessId { pid: process, start_ticks: Some(1) }, None)
    }

    fn refuse(requests: &mut Requests, process: u32, thread: u32, millis: u64, size: u64) -> Option<Request> {
        call(requests, process, thread, millis, size, OUT_OF_MEMORY)
    }

    /// Whether the count of every process and the order are those of what waits.
    fn is_whole(requests: &Requests) -> bool {
        let counted: usize = requests.of_process.values().sum();
        counted == requests.waiting.len() && requests.order.len() == requests.waiting.len()
    }

    #[test]
    fn a_storm_of_one_process_takes_its_share_and_each_refusal_counts_once() {
        let mut requests = Requests::default();
        assert_eq!(refuse(&mut requests, 1, 1, 10, 7), None);
        let storm: Vec<_> = (100..10_100).filter_map(|thread| refuse(&mut requests, 2, thread, 20, 5)).collect();
        assert_eq!((storm.len(), requests.waiting.len()), (10_000 - OF_PROCESS, OF_PROCESS + 1));
        // The request of the other process is still known when it is repeated.
        let retried = call(&mut requests, 1, 1, 30, 7, 0);
        assert_eq!(retried.map(|request| (request.asked, request.outcome)), Some((Some(7), Outcome::Retried)));
        assert!(is_whole(&requests));
        let settled = requests.settle(Duration::from_secs(60), |_| true);
        assert_eq!(settled.len(), OF_PROCESS);
        assert!(requests.waiting.is_empty() && is_whole(&requests));
        // One thread that asks for another size each time.
        let sizes: Vec<_> = (1..=1000).filter_map(|size| refuse(&mut requests, 2, 100, 100_000 + size, size)).collect();
        assert!(sizes.iter().map(|request| request.asked).eq((1..1000).map(Some)));
        assert_eq!(requests.settle(Duration::from_secs(600), |_| true).len(), 1);
    }

    #[test]
    fn a_storm_of_many_processes_displaces_what_has_waited_for_the_longest() {
        let mut requests = Requests::default();
        let count = u32::try_from(2 * WAITING).unwrap();
        for process in 1..=count {
            assert_eq!(refuse(&mut requests, process, process, 10 + u64::from(process), 5), None);
            assert!(requests.waiting.len() <= WAITING);
        }
        // The last one is still known.
        let retried = call(&mut requests, count, count, 10_000, 5, 0);
        assert_eq!(retried.map(|request| request.outcome), Some(Outcome::Retried));
        assert!(is_whole(&requests));
        let refused = requests.settle(Duration::from_millis(10_000), |_| false);
        let mut processes: Vec<u32> = refused.iter().map(|request| request.process.pid).collect();
        processes.sort_unstable();
        assert_eq!(processes, (1..count).collect::<Vec<_>>(), "each refusal counts once");
    }

    #[test]
    fn a_request_that_was_refused_for_good_is_not_a_retry_as_well() {
        let mut requests = Requests::default();
        let known: Vec<_> = [2, 2, 0, 2, 0]
            .into_iter()
            .zip(1..)
            .filter_map(|(result, second)| call(&mut requests, 1, 1, 1000 * second, 7, result))
            .collect();
        let outcomes: Vec<_> = known.iter().map(|request| request.outcome).collect();
        assert_eq!(outcomes, [Outcome::Refused, Outcome::Retried]);
    }
}
