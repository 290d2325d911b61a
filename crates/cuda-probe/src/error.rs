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
        let release = kernel::release().unwrap_or_default();
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::refused(call, error, Rights::for_call(call), release),
            _ if kernel::is_old(&release) => Self::KernelTooOld { release, call, error },
            _ => Self::System { call, error },
        }
    }

    /// The error of a refused call. An old kernel also refuses memory above a limit, which no capability lifts.
    fn refused(call: Operation, error: io::Error, rights: Rights, release: String) -> Self {
        let limited = matches!(call, Operation::MapCreate | Operation::ProgramLoad) && kernel::limits_memory(&release);
        if limited && rights.missing.is_empty() && !rights.filtered {
            Self::KernelTooOld { release, call, error }
        } else {
            Self::Rights { call, error, rights }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Capability;

    #[test]
    fn a_refusal_by_an_old_kernel_names_the_kernel_unless_a_right_is_missing() {
        let text = |call, missing: &[Capability], filtered, release: &str| {
            let rights = Rights { missing: missing.to_vec(), filtered };
            Error::refused(call, io::Error::from_raw_os_error(libc::EPERM), rights, release.to_owned()).to_string()
        };
        let (create, old) = (Operation::MapCreate, "5.10.0-32-amd64");
        let too_old = "the kernel 5.10.0-32-amd64 is too old: bpf(BPF_MAP_CREATE): Operation not permitted (os error 1); \
                       probes need Linux 5.15";
        assert_eq!(text(create, &[], false, old), too_old);
        assert!(text(create, &[Capability::Bpf], false, old).ends_with("CAP_BPF is missing"));
        assert!(text(create, &[], true, old).contains("seccomp filter"));
        assert!(text(Operation::PerfEventOpen, &[], false, old).contains("the capabilities are there"));
        for release in ["5.14.0-503.el9.x86_64", "6.1.0-50-amd64", ""] {
            assert!(text(create, &[], false, release).contains("the capabilities are there"), "{release}");
        }
    }
}
