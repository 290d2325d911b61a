//! What the reader of the probes gets: calls that have returned, and the number of those that were lost.
//!
//! Invariant: times are of CLOCK_MONOTONIC, and processes and threads are those of the first pid namespace.

use std::mem::discriminant;
use std::time::Duration;

use crate::call::{Call, Kind, ROWS, Row};
use crate::record::{Record, WORDS};

/// `CUDA_ERROR_OUT_OF_MEMORY`, the result of a refused request.
pub const OUT_OF_MEMORY: i32 = 2;

/// A call that has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The process, in the first pid namespace. A pid is used again after the process has ended.
    pub process: u32,
    /// The thread, in the first pid namespace.
    pub thread: u32,
    /// The call and its arguments. They are what the process wrote: a program can call with any numbers.
    pub call: Call,
    /// What the call does.
    pub kind: Kind,
    /// The `CUresult`: 0 is success, [`OUT_OF_MEMORY`] is a refusal.
    pub result: i32,
    /// When the call was entered: the time of CLOCK_MONOTONIC, as `std::time::Instant` measures it.
    pub start: Duration,
    /// From the entry to the return.
    pub duration: Duration,
}

impl Event {
    /// For tests of what is made of events: a call of the thread with the number of its process, which took 1 ms.
    #[doc(hidden)]
    pub fn for_tests(process: u32, call: Call, result: i32, start: Duration) -> Self {
        let is_it = |row: &&Row| discriminant(&(row.call)(&Record(&[0; WORDS]))) == discriminant(&call);
        let kind = ROWS.iter().find(is_it).map_or(Kind::Tells, |row| row.kind);
        Self { process, thread: process, call, kind, result, start, duration: Duration::from_millis(1) }
    }

    /// Whether the driver refused memory.
    pub fn refused(&self) -> bool {
        self.result == OUT_OF_MEMORY
    }

    /// `None` for a record of a call that this crate does not know, which its programs do not write.
    pub(crate) fn of(record: &Record<'_>) -> Option<Self> {
        let row = ROWS.get(record.row())?;
        Some(Self {
            process: record.process(),
            thread: record.thread(),
            call: (row.call)(record),
            kind: row.kind,
            result: record.result(),
            start: Duration::from_nanos(record.start()),
            duration: Duration::from_nanos(record.end().saturating_sub(record.start())),
        })
    }
}

/// Which calls become events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Only what a refusal needs. Calls that give memory back have no probe and cost nothing. Of the calls that ask for memory, the
    /// kernel passes on those that failed, whatever the reason, and a success that follows a refusal: of the same call in the same
    /// thread with the same second argument, which is the size wherever a call names one. So a retry is told from a failure. Calls
    /// about contexts and streams, of which a process makes few, are all passed on, because they tell the device of a refusal.
    Refusals,
    /// Every call.
    All,
}

/// Calls that became no event, since the probes were loaded, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Lost {
    /// The reader did not come in time: the ring had no room.
    pub ring_full: u64,
    /// The arguments of a call could not be kept. Its return is one of `return_without_entry` as well.
    pub entry_table_full: u64,
    /// A call returned whose arguments were not kept: because it was entered before the probes were attached, because the table of
    /// entries gave its place to another thread, or for the reason above.
    pub return_without_entry: u64,
    /// A thread entered a call again from which it had never returned: it left it with a jump, the kernel had no memory for the return
    /// probe, or the thread had ended and its id was used again.
    pub never_returned: u64,
    /// Records that the reader did not understand. Always 0.
    pub unreadable: u64,
}

impl Lost {
    /// How many calls they are: together with the events and the [unfinished](crate::Unfinished) calls they are all calls whose kind has
    /// a probe and, with [`Mode::Refusals`], is not left out. Calls that were in progress when the probes were attached are counted too.
    pub fn calls(&self) -> u64 {
        self.ring_full + self.return_without_entry + self.never_returned + self.unreadable
    }
}
