//! Puts calls and lists in the order in which they took effect.
//!
//! A request that was granted holds memory when it returns, and a call that gives memory back may do so from when it is
//! entered: in this order, what is held is never more than was held. A call is known only after it has returned, so calls
//! wait until the next reading of the events.
//!
//! Invariant: bounded by what the ring of events holds in two periods, and by [`MOST`].

use std::sync::Arc;
use std::time::Duration;

use cuda_probe::Event;

use super::meaning::gives_back;
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

/// What waits.
#[derive(Debug, Default)]
pub(super) struct Batch {
    waiting: Vec<(Duration, Happening)>,
}

impl Batch {
    pub(super) fn add_call(&mut self, event: Event, process: ProcessId, ordinal: Option<i32>) {
        self.waiting.push((moment(&event), Happening::Call(Box::new((event, process, ordinal)))));
    }

    /// Adds a list that was read from `began` to `complete`.
    pub(super) fn add_list(&mut self, list: Arc<GpuProcesses>, began: Duration, complete: Duration) {
        self.waiting.push((began, Happening::List(list, complete)));
    }

    /// What happened up to this moment, earliest first, and until when calls were dropped, if too many were waiting.
    pub(super) fn until(&mut self, moment: Duration) -> (Vec<(Duration, Happening)>, Option<Duration>) {
        // Stable: the calls of a thread keep their order.
        self.waiting.sort_by_key(|(at, _)| *at);
        let count = self.waiting.partition_point(|(at, _)| *at <= moment);
        let rest = self.waiting.split_off(count);
        let mut ready = std::mem::replace(&mut self.waiting, rest);
        let mut dropped = None;
        for (at, what) in self.waiting.drain(..self.waiting.len().saturating_sub(MOST)) {
            match what {
                Happening::Call(call) => dropped = dropped.max(Some(call.0.start + call.0.duration)),
                list @ Happening::List(..) => ready.push((at, list)),
            }
        }
        (ready, dropped)
    }
}

/// When the call took effect.
fn moment(event: &Event) -> Duration {
    if gives_back(&event.call) { event.start } else { event.start + event.duration }
}
