//! `vram run -- COMMAND`: runs a command and reports how much GPU memory its processes held.
//!
//! ```text
//!  arguments ──> measure ── starts ──> child (the command; signals are forwarded to it)
//!                   │
//!                   ├── readings: the exporter's lanes ──> record
//!                   ├── names thread: tree (membership), attribution ──> owners
//!                   ├── socket: allocator ──> reported (by the processes of the command, about their allocators)
//!                   └── at the end: record + owners + reported ──> report ──> text or JSON ──> output
//! ```
//!
//! Invariants: the command runs whether or not it can be measured, with its own input and output, and its exit status
//! is the exit status of `run`. A driver that hangs cannot hold back the report. A sum is the sum of lists that show one
//! moment, and never a sum of peaks. A value that was not measured is absent.

mod allocators;
mod arguments;
mod child;
mod facts;
mod measure;
mod names;
mod notes;
mod output;
mod places;
mod readings;
mod record;
mod report;
mod reported;
mod signals;
mod socket;
mod text;
mod tree;

pub(crate) use arguments::{NAME, PROGRAM, command};
pub(crate) use measure::main;
