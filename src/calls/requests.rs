//! Tells a request that the driver refused from one that it granted when it was asked again.
//!
//! PyTorch answers a refusal by giving back its cache and asking again for the same size: if that is granted, the program
//! goes on; if it is refused again, the program gets an error. So a request is refused for good if the thread repeats it in
//! vain, asks for something else, ends, or asks for nothing within [`PATIENCE`].
//!
//! Invariant: bounded; if there is no room, a refusal counts at once.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use cuda_probe::{Call, Event};

use super::meaning::asked;
use crate::snapshot::ProcessId;

/// How long a refused request waits to be granted. To give back a cache, a program waits for the work on the GPU.
const PATIENCE: Duration = Duration::from_secs(5);
/// The maximum number of threads with a refused request.
const WAITING: usize = 4096;

/// What became of a request that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The driver refused it.
    Refused,
    /// The driver granted it to the same thread in the same size.
    Retried,
}

/// A request whose outcome is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) process: ProcessId,
    /// Bytes.
    pub(super) asked: u64,
    /// The ordinal of the thread's device.
    pub(super) ordinal: Option<i32>,
    /// When it was first refused, on CLOCK_MONOTONIC.
    pub(super) at: Duration,
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
}

impl Requests {
    /// Takes in a call that has returned. Returns the outcome of the thread's last request, if it is known now.
    pub(super) fn see(&mut self, event: &Event, process: ProcessId, ordinal: Option<i32>) -> Option<Request> {
        let asked = asked(&event.call)?;
        let (call, at) = (discriminant(&event.call), event.start + event.duration);
        let known = self.waiting.remove(&event.thread);
        let same = known.as_ref().is_some_and(|known| {
            known.call == call && known.request.asked == asked && known.request.process == process
        });
        match known {
            Some(known) if same && event.result == 0 => Some(Request { outcome: Outcome::Retried, ..known.request }),
            Some(known) if same && event.refused() => {
                let decided = (!known.is_decided).then_some(known.request);
                self.waiting.insert(event.thread, Waiting { is_decided: true, last: at, ..known });
                decided
            }
            known => {
                if event.refused() {
                    let request = Request { process, asked, ordinal, at, outcome: Outcome::Refused };
                    let waiting = Waiting { call, request, is_decided: false, last: at };
                    if self.waiting.len() >= WAITING {
                        return Some(request);
                    }
                    self.waiting.insert(event.thread, waiting);
                }
                // The program did something else, so it did without.
                known.filter(|known| !known.is_decided).map(|known| known.request)
            }
        }
    }

    /// The requests that are refused for good by now, because the thread did not ask again, or because its process has
    /// ended.
    pub(super) fn settle(&mut self, now: Duration, is_alive: impl Fn(ProcessId) -> bool) -> Vec<Request> {
        let mut refused = Vec::new();
        self.waiting.retain(|_, waiting| {
            let stays = now.saturating_sub(waiting.last) < PATIENCE && is_alive(waiting.request.process);
            refused.extend((!stays && !waiting.is_decided).then_some(waiting.request));
            stays
        });
        refused.sort_by_key(|request| request.at);
        refused
    }
}
