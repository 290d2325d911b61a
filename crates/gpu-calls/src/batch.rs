//! Puts calls and lists in the order in which they took effect.
//!
//! A request that was granted holds memory when it returns, and a call that gives memory back may do so from when it is
//! entered: in this order, what is held is never more than was held. A call is known only after it has returned, so calls
//! wait until the next reading of the events.
//!
//! Invariant: bounded by what the ring of events holds in two periods, and by [`MOST`].

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use cuda_probe::{Event, Kind};

use gpu_readings::snapshot::{GpuProcesses, ProcessId};

/// The maximum number of calls that wait. Beyond it, the earliest count as lost.
const MOST: usize = 1 << 17;

/// What happened, at its moment on CLOCK_MONOTONIC.
#[derive(Debug)]
pub(super) enum Happening {
    /// A call, with its process and the ordinal of the thread's device.
    Call(Box<(Event, ProcessId, Option<i32>)>),
    /// A list, with the moment at which its reading was complete.
    List(Arc<GpuProcesses>, Duration),
}

/// What waits, with its number: what took effect at the same moment, such as the calls of a thread, keeps its order.
#[derive(Debug)]
struct Waiting {
    at: Duration,
    number: u64,
    what: Happening,
}

impl Ord for Waiting {
    /// The earliest is the greatest, which a heap hands out first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Waiting {}

/// Everything that waits.
#[derive(Debug, Default)]
pub(super) struct Batch {
    waiting: BinaryHeap<Waiting>,
    number: u64,
}

impl Batch {
    pub(super) fn add_call(&mut self, event: Event, process: ProcessId, ordinal: Option<i32>) {
        self.add(moment(&event), Happening::Call(Box::new((event, process, ordinal))));
    }

    /// Adds a list that was read from `began` to `complete`.
    pub(super) fn add_list(&mut self, list: Arc<GpuProcesses>, began: Duration, complete: Duration) {
        self.add(began, Happening::List(list, complete));
    }

    fn add(&mut self, at: Duration, what: Happening) {
        self.number += 1;
        self.waiting.push(Waiting { at, number: self.number, what });
    }

    /// What happened up to this moment, earliest first, and until when calls were dropped, if too many were waiting.
    pub(super) fn until(&mut self, moment: Duration) -> (Vec<(Duration, Happening)>, Option<Duration>) {
        let (mut ready, mut dropped) = (Vec::new(), None);
        while let Some(first) = self.waiting.peek() {
            let is_ready = first.at <= moment;
            if !is_ready && self.waiting.len() <= MOST {
                break;
            }
            let Some(Waiting { at, what, .. }) = self.waiting.pop() else { break };
            match what {
                Happening::Call(call) if !is_ready => dropped = dropped.max(Some(call.0.start + call.0.duration)),
                what => ready.push((at, what)),
            }
        }
        (ready, dropped)
    }
}

/// When the call took effect.
fn moment(event: &Event) -> Duration {
    if event.kind == Kind::Gives { event.start } else { event.start + event.duration }
}
