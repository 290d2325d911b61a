//! What happened: the events that the recorder keeps.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::{Exit, FailureSites, HeapUse, Micros, Now, PeakHolder, ProcessRef, SECOND, allocation};
use crate::snapshot::{MigDevice, ProcessId};

/// An event is added at most this long after it happened.
const LATE: Micros = 10 * SECOND;
/// The maximum number of events that are kept.
const MAX_EVENTS: usize = 4096;

/// An event with its time.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Unix time in seconds.
    pub at: f64,
    /// NVML's index of the GPU; absent for an event that concerns no single GPU.
    pub gpu: Option<u32>,
    /// The GPU's UUID.
    pub uuid: Option<String>,
    /// What happened.
    #[serde(flatten)]
    pub what: EventKind,
}

/// What happened.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// The exporter started. Nothing before this is known.
    ExporterStarted,
    /// The driver was opened.
    DriverOpened {
        /// Its version.
        version: Option<String>,
    },
    /// The driver was closed or lost.
    DriverClosed {
        /// Why, if that is known.
        problem: Option<String>,
    },
    /// The GPU does not respond: it is lost, or its memory cannot be read.
    GpuLost,
    /// A driver call for the GPU does not return.
    GpuStalled,
    /// The GPU responds again.
    GpuBack,
    /// The driver reported critical errors for the GPU.
    Xid {
        /// NVIDIA's code.
        xid: u64,
        /// How many occurred since the previous check, a quarter of a second earlier.
        count: u64,
    },
    /// A process appeared on the GPU.
    ProcessStarted(ProcessRef),
    /// A process left the GPU.
    ProcessEnded {
        /// The process.
        #[serde(flatten)]
        who: ProcessRef,
        /// The most memory that it held, in bytes; absent if this was never known.
        peak_bytes: Option<u64>,
        /// Unix time in seconds at which it reached its peak.
        peak_at: Option<f64>,
        /// Seconds from its start, or from when it was first seen, to its end.
        lived_seconds: f64,
        /// How it ended.
        #[serde(flatten)]
        exit: Exit,
    },
    /// A process could not allocate memory: a framework in it reported that, or the driver refused a request.
    OutOfMemory(Box<Failure>),
    /// The memory use of the GPU or MIG device was higher than at any earlier time since the exporter started.
    NewPeak {
        /// Bytes.
        used_bytes: u64,
        /// Unix time in seconds of the process list that was read next; absent if none was read for ten seconds.
        listed_at: Option<f64>,
        /// The largest holders according to that list, largest first.
        holders: Vec<PeakHolder>,
        /// What held the memory, in words.
        #[serde(default)]
        held_by: String,
        /// The UUID of the MIG device whose memory it is; absent for a GPU.
        mig_uuid: Option<String>,
    },
    /// The memory use of the GPU or MIG device rose to this share of the allocatable memory. No event if it was that
    /// high at the first reading, because it is not known when it rose.
    Reached {
        /// 0.9, 0.95 or 0.98.
        ratio: f64,
        /// Bytes.
        used_bytes: u64,
        /// The UUID of the MIG device; absent for a GPU.
        mig_uuid: Option<String>,
    },
    /// An incident was recorded.
    Incident {
        /// Its id.
        id: String,
        /// The UUID of the MIG device; absent for a GPU.
        mig_uuid: Option<String>,
    },
}

/// An allocation that failed, as the process itself reported it, or a request that the driver refused, as the probes on
/// its calls have seen. What is not known is absent.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Which process.
    #[serde(flatten)]
    pub who: ProcessRef,
    /// The framework's name; absent if no framework reported the failure.
    pub framework: Option<String>,
    /// Bytes that were requested.
    pub requested_bytes: u64,
    /// Bytes of the request that the driver refused; absent if that was not seen. A framework may ask for less at a time
    /// than the program asked of it.
    pub refused_bytes: Option<u64>,
    /// Bytes that were free on the device: as the framework reported, or else at the last reading before the request.
    pub free_bytes: Option<u64>,
    /// Bytes that the device has.
    pub total_bytes: Option<u64>,
    /// Bytes in live tensors or buffers.
    pub allocated_bytes: Option<u64>,
    /// Bytes that the framework's allocator held.
    pub reserved_bytes: Option<u64>,
    /// Bytes of the largest block that the allocator could hand out without requesting memory from the driver.
    pub largest_free_block_bytes: Option<u64>,
    /// A file that the framework wrote about the failure. It is never opened here.
    pub snapshot_path: Option<String>,
    /// The line that asked, as a call site; absent without `allocator.sites`.
    pub asked_by: Option<String>,
    /// The stack that asked, innermost first, with the framework's own code; empty outside an incident and without
    /// `allocator.sites`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<String>,
    /// What the memory of the framework was; absent without `allocator.sites`, or if the process did not look.
    pub memory: Option<Box<FailureSites>>,
}

impl Failure {
    /// The failure as an event and a report have it: without the stack, and of the memory only the three call sites with the
    /// most. The incident has the rest.
    pub(crate) fn brief(&self) -> Self {
        let memory = self.memory.as_deref().map(|memory| Box::new(memory.brief()));
        Self { frames: Vec::new(), memory, ..self.clone() }
    }

    /// Adds another account of the same failure: the figures are the framework's, if it reported any.
    pub(crate) fn join(&mut self, other: &Self) {
        let refused_bytes = self.refused_bytes.or(other.refused_bytes);
        if self.framework.is_none() && other.framework.is_some() {
            *self = other.clone();
        }
        self.refused_bytes = refused_bytes;
    }
}

/// The latest events, oldest first, with times on the recorder's clock.
#[derive(Debug, Default)]
pub(crate) struct Events {
    kept: VecDeque<Recorded>,
    bytes: usize,
    dropped: u64,
}

/// An event whose time has not been converted yet.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) at: Micros,
    /// NVML's index and the UUID.
    pub(crate) gpu: Option<(u32, String)>,
    /// The first MIG device of the GPU instance that it concerns; `None` if it concerns a GPU or the machine.
    pub(crate) mig: Option<Arc<MigDevice>>,
    /// The process that it concerns.
    pub(crate) process: Option<ProcessId>,
    pub(crate) what: EventKind,
}

impl Recorded {
    /// An event that concerns the whole machine.
    pub(crate) fn of_machine(at: Micros, what: EventKind) -> Self {
        Self { at, gpu: None, mig: None, process: None, what }
    }

    /// The event with its time on the wall clock.
    pub(crate) fn shown(&self, now: Now) -> Event {
        let (gpu, uuid) = self.gpu.clone().unzip();
        Event { at: now.unix(self.at), gpu, uuid, what: self.what.clone() }
    }

    fn bytes(&self) -> usize {
        let uuid = self.gpu.as_ref().map_or(0, |(_, uuid)| uuid.heap_use());
        size_of::<Self>() + uuid + self.what.heap_use()
    }
}

impl Events {
    pub(crate) fn add(&mut self, event: Recorded) {
        // Dropped before the new event is added, so that the list of events never grows beyond its capacity.
        if self.kept.len() == MAX_EVENTS {
            self.give_up();
        }
        self.bytes += event.bytes();
        self.kept.push_back(event);
    }

    /// Adds the exit status or the signal of a process to the event that records its end at `ended_at`.
    pub(crate) fn set_exit(&mut self, ended_at: Micros, process: ProcessId, how: Exit) {
        for event in self.kept.iter_mut().rev().take_while(|event| event.at + LATE >= ended_at) {
            if let EventKind::ProcessEnded { exit, .. } = &mut event.what
                && event.at == ended_at
                && event.process == Some(process)
            {
                *exit = how;
            }
        }
    }

    /// Drops the oldest event that any process can cause, or the oldest if there is none.
    fn give_up(&mut self) {
        let position = self.kept.iter().position(|event| event.what.is_common()).unwrap_or(0);
        if let Some(event) = self.kept.remove(position) {
            self.bytes = self.bytes.saturating_sub(event.bytes());
            self.dropped += 1;
        }
    }

    /// Drops events until the rest uses at most `bytes`: first those that any process can cause, the oldest first.
    pub(crate) fn bound(&mut self, bytes: usize) {
        if self.bytes() <= bytes {
            return;
        }
        // A part is left free, so that the next events do not lead here at once.
        let bytes = bytes / 8 * 7;
        for is_dropped in [EventKind::is_common as fn(&EventKind) -> bool, |_| true] {
            let (kept, dropped) = (&mut self.bytes, &mut self.dropped);
            self.kept.retain(|event| {
                let stays = *kept <= bytes || !is_dropped(&event.what);
                if !stays {
                    *kept = kept.saturating_sub(event.bytes());
                    *dropped += 1;
                }
                stays
            });
        }
        self.kept.shrink_to_fit();
    }

    /// The last `limit` added events from `from` to `to` for which `is_wanted` is true, earliest first.
    pub(crate) fn latest(
        &self,
        from: Micros,
        to: Micros,
        limit: usize,
        now: Now,
        is_wanted: impl Fn(&Recorded) -> bool,
    ) -> Vec<Event> {
        let wanted = self.kept.iter().rev().filter(|event| (from..=to).contains(&event.at) && is_wanted(event));
        let mut latest: Vec<_> = wanted.take(limit).collect();
        latest.reverse();
        // Events can be added out of order. For example, a peak is known only once memory use has stopped rising.
        latest.sort_by_key(|event| event.at);
        latest.into_iter().map(|event| event.shown(now)).collect()
    }

    /// The estimated size in bytes, including the names.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + (self.kept.capacity() - self.kept.len()) * size_of::<Recorded>()
    }

    /// The number of events that were dropped to make room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl EventKind {
    /// Whether any process can cause many of these by itself.
    fn is_common(&self) -> bool {
        matches!(
            self,
            Self::ProcessStarted(_)
                | Self::ProcessEnded { .. }
                | Self::OutOfMemory(_)
                | Self::NewPeak { .. }
                | Self::Reached { .. }
        )
    }
}

impl HeapUse for EventKind {
    fn heap_use(&self) -> usize {
        match self {
            Self::ProcessStarted(who) | Self::ProcessEnded { who, .. } => who.heap_use(),
            Self::NewPeak { holders, held_by, mig_uuid, .. } => {
                holders.heap_use() + held_by.heap_use() + mig_uuid.heap_use()
            }
            Self::OutOfMemory(failure) => allocation(size_of::<Failure>()) + failure.heap_use(),
            Self::DriverOpened { version: text } | Self::DriverClosed { problem: text } => text.heap_use(),
            Self::Incident { id, mig_uuid } => id.heap_use() + mig_uuid.heap_use(),
            Self::Reached { mig_uuid, .. } => mig_uuid.heap_use(),
            Self::ExporterStarted | Self::GpuLost | Self::GpuStalled | Self::GpuBack | Self::Xid { .. } => 0,
        }
    }
}

impl HeapUse for Failure {
    fn heap_use(&self) -> usize {
        let memory = self.memory.as_ref().map_or(0, |memory| allocation(size_of::<FailureSites>()) + memory.heap_use());
        let texts = [&self.framework, &self.snapshot_path, &self.asked_by].map(HeapUse::heap_use);
        self.who.heap_use() + texts.iter().sum::<usize>() + self.frames.heap_use() + memory
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Instant, SystemTime};

    use super::super::clock::Clock;
    use super::*;

    #[test]
    fn the_oldest_events_are_dropped_and_counted() {
        let mut events = Events::default();
        for at in 0..5000 {
            events.add(Recorded { at, gpu: None, mig: None, process: None, what: EventKind::ExporterStarted });
        }
        assert_eq!(events.dropped(), 5000 - MAX_EVENTS as u64);
        let now = Clock::starting(Instant::now()).both(Instant::now(), SystemTime::now());
        let within = |from, to, limit| events.latest(from, to, limit, now, |_| true);
        assert_eq!(events.kept.front().map(|event| event.at), Some(5000 - MAX_EVENTS as u64));
        assert_eq!(within(4990, 4992, 10).len(), 3);
        assert_eq!(within(0, Micros::MAX, 2), within(4998, 4999, 2), "the latest");
        let before = events.bytes();
        events.bound(before / 2);
        assert!(events.bytes() <= before / 2 && events.kept.len() > 1000);
    }

    #[test]
    fn events_are_sorted_by_their_times() {
        let mut events = Events::default();
        for at in [1_000_000, 3_000_000, 2_000_000] {
            events.add(Recorded { at, gpu: None, mig: None, process: None, what: EventKind::ExporterStarted });
        }
        let now = Clock::starting(Instant::now()).both(Instant::now(), SystemTime::now());
        let times: Vec<_> = events.latest(0, Micros::MAX, 2, now, |_| true).iter().map(|event| event.at).collect();
        assert_eq!(times, [now.unix(2_000_000), now.unix(3_000_000)]);
    }

    #[test]
    fn an_event_is_one_flat_object_and_reads_back() {
        let who = ProcessRef { pid: 7, name: Some("train.py".into()), ..ProcessRef::default() };
        let what = EventKind::ProcessEnded {
            who,
            peak_bytes: Some(5),
            peak_at: Some(1.5),
            lived_seconds: 2.0,
            exit: Exit { status: Some(1), signal: None },
        };
        let event = Event { at: 3.25, gpu: Some(0), uuid: Some("GPU-1".into()), what };
        let text = serde_json::to_string(&event).unwrap();
        let expected = r#"{"at":3.25,"gpu":0,"uuid":"GPU-1","kind":"process_ended","pid":7,"name":"train.py","peak_bytes":5,"peak_at":1.5,"lived_seconds":2.0,"exit_status":1}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }
}
