//! What the memory allocators of frameworks such as PyTorch report about themselves, over a Unix socket
//! (docs/allocators.md).
//!
//! ```text
//!  process ── lines ──> connection ── messages ──> table ── at most ten times a second ──> snapshot
//!                               │                    └── compares with the driver's processes
//!                               ├── outcomes of connections that end, for `run`
//!                               └── a question of `vram leaks`, and the answer
//! ```
//!
//! Invariants: the kernel identifies the process of each connection, so a process can report only about itself; a
//! client can use only a bounded amount of memory and time; nothing here blocks the runtime, and no lane waits for it.

mod checks;
mod connection;
mod credentials;
mod limits;
pub mod message;
mod outcome;
mod question;
mod server;
mod table;
mod values;

pub use credentials::StartTicks;
pub use outcome::{Outcome, Outcomes};
pub use server::{Allocator, Listener, Settings};
