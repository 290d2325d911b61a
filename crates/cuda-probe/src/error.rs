//! Why probes cannot be attached.
//!
//! Invariant: the text of an error names what is missing, in one line, so that a person knows what to change.

use std::io;
use std::path::PathBuf;

use crate::assembler::AssemblyError;
use crate::kernel::{self, Danger, Operation, Rights};

/// Why probes cannot be loaded or attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A return probe could kill processes under this kernel. Nothing was loaded.
    #[error("no probe is attached under the kernel {release}: {danger}")]
    Dangerous {
        /// The kernel's release, as `uname -r` prints it.
        release: String,
        /// What is known about it.
        danger: Danger,
    },
    /// The kernel lacks what the programs need; the oldest that has it is Linux 5.15.
    #[error("the kernel {release} is too old: {call}: {error}; probes need Linux 5.15")]
    KernelTooOld {
        /// The kernel's release, as `uname -r` prints it.
        release: String,
        /// The system call that failed.
        call: Operation,
        /// Its error.
        error: io::Error,
    },
    /// The kernel refused a system call with EPERM or EACCES.
    #[error("{call}: {error}; {rights}")]
    Rights {
        /// The system call that was refused.
        call: Operation,
        /// Its error.
        error: io::Error,
        /// What the process lacks.
        rights: Rights,
    },
    /// A system call, or the read of a file that it needs, failed.
    #[error("{call}: {error}")]
    System {
        /// The system call.
        call: Operation,
        /// Its error.
        error: io::Error,
    },
    /// The kernel's verifier refused a program.
    #[error("the kernel refused the program {program}: {error}: {log}")]
    Verifier {
        /// The program's name.
        program: &'static str,
        /// The error of the system call.
        error: io::Error,
        /// The last lines of the verifier's log.
        log: String,
    },
    /// A program could not be assembled.
    #[error("the program cannot be assembled: {0}")]
    Assembly(#[from] AssemblyError),
    /// A file is not a library of the driver.
    #[error("{path}: {reason}")]
    Library {
        /// The path of the library, as it was found.
        path: PathBuf,
        /// What is wrong with it.
        reason: NoLibrary,
    },
    /// The size of the ring is not a power of two of at least a page.
    #[error("a ring of {0} bytes: the size must be a power of two and a multiple of the page size, at most 1 GiB")]
    RingSize(u32),
}

impl Error {
    /// The error of a system call: with the missing rights if it was refused, and with the release if the kernel is old.
    pub(crate) fn of(call: Operation, error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Rights { call, error, rights: Rights::for_call(call) },
            _ => match kernel::release() {
                Ok(release) if kernel::is_old(&release) => Self::KernelTooOld { release, call, error },
                _ => Self::System { call, error },
            },
        }
    }
}

/// Why a file is not a library on which probes can be attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoLibrary {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    /// It is not an ELF file of 64 bits for this processor, or its tables lie outside it.
    #[error("not an ELF64 library for this processor: {0}")]
    NotElf(&'static str),
    /// It exports none of the calls.
    #[error("the library exports none of the driver's memory calls")]
    LacksCalls,
    /// It is on a file system of FUSE: the kernel would wait for the program that provides it.
    #[error("the file is on a FUSE file system, whose program could hang what reads it")]
    Fuse,
    /// There are more files of this name than are watched.
    #[error("too many files of this name are in use")]
    TooMany,
    /// It has been replaced by another file since the process mapped it.
    #[error("the file at this path is not the one that the process has mapped")]
    Replaced,
}
