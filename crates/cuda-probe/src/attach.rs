//! The two ways of attaching the programs to a library.
//!
//! Invariant: the return probes are attached before the entry probes, so that no call enters whose return would not be seen. A probe
//! lasts as long as its descriptor, so it ends with the process, also when that is killed.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::assembler::Instruction;
use crate::error::Error;
use crate::event::Mode;
use crate::kernel::{self, Operation};
use crate::program::{self, Maps};
use crate::sys::{self, Place};

/// How programs are attached. Events and costs are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// All calls at once with `uprobe_multi`, from Linux 6.6: two descriptors for each library. Needs CAP_BPF and CAP_PERFMON.
    Multi,
    /// An event of `perf_event_open` for each probe, from Linux 5.15: four descriptors for each call. Needs CAP_SYS_ADMIN, and the
    /// event source `uprobe` in `/sys`.
    PerfEvent,
}

/// The loaded programs. The kernel takes a program for one way only.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) way: Way,
    entry: OwnedFd,
    returned: OwnedFd,
}

impl Programs {
    pub(crate) fn load(maps: &Maps, mode: Mode, way: Way) -> Result<Self, Error> {
        Ok(Self {
            way,
            entry: load(&program::entry_program(maps)?, way, "cuda_entry")?,
            returned: load(&program::return_program(maps, mode)?, way, "cuda_return")?,
        })
    }

    /// Attaches both programs. The probes last as long as the descriptors.
    pub(crate) fn attach(&self, library: &File, places: &[Place]) -> Result<Vec<OwnedFd>, Error> {
        // The kernel opens a file by its path; this one leads to the open file, wherever it is.
        let path = CString::new(format!("/proc/self/fd/{}", library.as_raw_fd()))
            .map_err(|error| Error::of(Operation::LinkMulti, error.into()))?;
        let probes = [(&self.returned, true), (&self.entry, false)];
        if self.way == Way::Multi {
            let link = |(program, returns): (&OwnedFd, bool)| sys::link_multi(program.as_fd(), &path, places, returns);
            let links: io::Result<Vec<OwnedFd>> = probes.into_iter().map(link).collect();
            return links.map_err(|error| Error::of(Operation::LinkMulti, error));
        }
        let source = EventSource::read().map_err(|error| Error::of(Operation::PerfEventOpen, error))?;
        let mut held = Vec::with_capacity(4 * places.len());
        for (program, returns) in probes {
            for place in places {
                let event = sys::open_uprobe(source.kind, source.config(returns), &path, place.offset)
                    .map_err(|error| Error::of(Operation::PerfEventOpen, error))?;
                let link = sys::link_perf(program.as_fd(), event.as_fd(), place.cookie)
                    .map_err(|error| Error::of(Operation::LinkPerf, error))?;
                held.extend([link, event]);
            }
        }
        Ok(held)
    }
}

/// Whether the error says that the kernel has no `uprobe_multi`: it knows neither the type nor the length of the structure.
pub(crate) fn has_no_multi(error: &Error) -> bool {
    /// `ENOTSUPP`, an error of the kernel's own.
    const NOT_SUPPORTED: i32 = 524;
    let (Error::System { call, error } | Error::KernelTooOld { call, error, .. }) = error else { return false };
    let unknown = [libc::EINVAL, libc::E2BIG, libc::EOPNOTSUPP, NOT_SUPPORTED];
    *call == Operation::LinkMulti && error.raw_os_error().is_some_and(|number| unknown.contains(&number))
}

/// The event source `uprobe` of `perf_event_open`.
struct EventSource {
    kind: u32,
    /// The bit of `config` that makes a return probe.
    return_bit: u32,
}

impl EventSource {
    fn read() -> io::Result<Self> {
        let read = |name: &str| fs::read_to_string(format!("/sys/bus/event_source/devices/uprobe/{name}"));
        // `config:0`
        let bit = read("format/retprobe")?;
        let bit = bit.trim().strip_prefix("config:").and_then(|bit| bit.parse().ok()).filter(|bit| *bit < 64);
        Ok(Self {
            kind: read("type")?.trim().parse().map_err(io::Error::other)?,
            return_bit: bit.ok_or_else(|| io::Error::other("format/retprobe of the event source is no bit"))?,
        })
    }

    fn config(&self, returns: bool) -> u64 {
        u64::from(returns) << self.return_bit
    }
}

fn load(code: &[Instruction], way: Way, name: &'static str) -> Result<OwnedFd, Error> {
    let refused = match sys::load_program(code, way == Way::Multi, name, &mut []) {
        Ok(program) => return Ok(program),
        Err(error) => error,
    };
    if refused.raw_os_error() == Some(libc::EPERM) || kernel::release().is_ok_and(|release| kernel::is_old(&release)) {
        return Err(Error::of(Operation::ProgramLoad, refused));
    }
    // Again, now with the verifier's reasons.
    let mut log = vec![0; 256 << 10];
    match sys::load_program(code, way == Way::Multi, name, &mut log) {
        Ok(program) => Ok(program),
        Err(error) => {
            let log = String::from_utf8_lossy(&log);
            let mut last: Vec<&str> = log.trim_end_matches('\0').lines().rev().take(3).collect();
            last.reverse();
            match last.join("; ") {
                log if log.is_empty() => Err(Error::of(Operation::ProgramLoad, error)),
                log => Err(Error::Verifier { program: name, error, log }),
            }
        }
    }
}
