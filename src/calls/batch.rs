//! Puts calls and lists in the order in which they took effect.
//!
//! A request that was granted holds memory when it returns, and a call that gives memory back may do so from when it is
//! entered: in this order, what is held is never more than was held. A call is known only after it has returned, so calls
//! wait until the next reading of the events.
//!
//! Invariant: bounded by what the ring of events holds in two periods, and by [`MOST`].

use std::sync::Arc;
use std::time::Duration;

use cuda_probe::{Call, Event};

use crate::snapshot::GpuProcesses;

/// The maximum number of calls that wait. Beyond it, the earliest count as lost.
const MOST: usize = 1 << 17;

/// What happened, at its moment on CLOCK_MONOTONIC.
#[derive(Debug)]
pub(super) enum Happening {
    /// A call, with the ordinal of the thread's device.
    Call(Box<(Event, Option<i32>)>),
    /// A list, with the moment at which its reading was complete.
    List(Arc<GpuProcesses>, Duration),
}

/// What waits.
#[derive(Debug, Default)]
pub(super) struct Batch {
    waiting: Vec<(Duration, Happening)>,
}

impl Batch {
    pub(super) fn add_call(&mut self, event: Event, ordinal: Option<i32>) {
        self.waiting.push((moment(&event), Happening::Call(Box::new((event, ordinal)))));
    }

    /// Adds a list that was read from `began` to `complete`.
    pub(super) fn add_list(&mut self, list: Arc<GpuProcesses>, began: Duration, complete: Duration) {
        self.waiting.push((began, Happening::List(list, complete)));
    }

    /// What happened up to this moment, earliest first, and whether calls were dropped because too many were waiting.
    pub(super) fn until(&mut self, moment: Duration) -> (Vec<(Duration, Happening)>, bool) {
        // Stable: the calls of a thread keep their order.
        self.waiting.sort_by_key(|(at, _)| *at);
        let count = self.waiting.partition_point(|(at, _)| *at <= moment);
        let rest = self.waiting.split_off(count);
        let mut ready = std::mem::replace(&mut self.waiting, rest);
        let too_many = self.waiting.len() > MOST;
        if too_many {
            let surplus = self.waiting.len() - MOST;
            ready.extend(self.waiting.drain(..surplus).filter(|(_, what)| matches!(what, Happening::List(..))));
        }
        (ready, too_many)
    }
}

/// When the call took effect.
fn moment(event: &Event) -> Duration {
    let gives_back = matches!(
        event.call,
        Call::Free { .. }
            | Call::FreeAsync { .. }
            | Call::Release { .. }
            | Call::DestroyArray { .. }
            | Call::Unmap { .. }
            | Call::TrimPool { .. }
            | Call::DestroyContext { .. }
            | Call::ReleasePrimaryContext { .. }
            | Call::ResetPrimaryContext { .. }
    );
    if gives_back { event.start } else { event.start + event.duration }
}
