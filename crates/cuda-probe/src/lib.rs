//! Watches the memory calls of NVIDIA's CUDA driver in all processes of a machine, from outside: every allocation, every refusal and
//! every free, with its size, its result and its duration.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use cuda_probe::{Mode, Probes, Settings, find_libraries};
//!
//! let mut probes = Probes::load(Settings::new(Mode::All))?;
//! for library in find_libraries(Path::new("/proc"), [4711], |id| probes.is_attached(id)).libraries {
//!     probes.attach(&library)?;
//! }
//! loop {
//!     std::thread::sleep(std::time::Duration::from_millis(100));
//!     probes.drain(|event| println!("{event:?}"));
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), cuda_probe::Error>(())
//! ```
//!
//! Two programs of eBPF, assembled here and loaded with `bpf(2)`, run at the entry and at the return of each call. They need no compiler,
//! no kernel headers and no tracefs. Linux 5.15 or later on x86-64 or 64-bit Arm.
//!
//! Invariant: a call is an event, or it is counted as [lost](Lost) or [unfinished](Unfinished). Nothing is changed in a process but the
//! breakpoints of the probes.

mod assembler;
mod attach;
mod call;
mod elf;
mod error;
mod event;
mod kernel;
mod library;
mod probes;
mod program;
mod record;
mod ring;
mod sys;

pub use assembler::AssemblyError;
pub use attach::Way;
pub use call::{ArrayShape, Call, Kind, Place};
pub use error::{Error, NoLibrary};
pub use event::{Event, Lost, Mode, OUT_OF_MEMORY};
pub use kernel::{Capability, Danger, Operation, Rights};
pub use library::{Found, Library, LibraryId, find_libraries};
pub use probes::{Attached, Probes, Settings, Unfinished};
