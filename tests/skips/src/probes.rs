//! Whether the kernel takes probes here. It cannot be installed, nor can a right, so `VRAM_EXPORTER_TEST_REQUIRE_ALL` does not make a test
//! fail that lacks them.

use std::os::unix::fs::MetadataExt;

use cuda_probe::Error;

use crate::skipped;

/// What was loaded or attached; `None` after a reported skip.
///
/// # Panics
/// If the machine is not the reason of the error.
pub fn unless_skipped<T>(done: Result<T, Error>) -> Option<T> {
    done.map_err(|error| skipped(&no_probes(&error))).ok()
}

/// Why there are no probes here: the kernel is too old, dangerous or built without BPF, or a right is missing.
///
/// # Panics
/// If the machine is not the reason of the error.
pub fn no_probes(error: &Error) -> String {
    match error {
        Error::Rights { .. } | Error::Dangerous { .. } | Error::KernelTooOld { .. } | Error::System { .. } => {
            error.to_string()
        }
        error => panic!("{error}"),
    }
}

/// Whether the process sees the pids that the probes report.
pub fn in_first_pid_namespace() -> bool {
    /// `PROC_PID_INIT_INO`
    const FIRST: u64 = 0xefff_fffc;
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == FIRST)
}
