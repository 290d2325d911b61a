//! The boot time, which turns clock ticks since boot into a time of day.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::directory::{ReadError, read_bounded};
use super::record::boot_seconds;

/// The maximum number of bytes read from `/proc/stat`: the boot time comes after the lines for cores and interrupts.
const LIMIT: u64 = 4 * 1024 * 1024;
/// How long the boot time is kept. The kernel derives it from the clock, so it changes when the clock is set.
const KEEP: Duration = Duration::from_secs(60);

/// The boot time, read again when it is a minute old.
#[derive(Debug)]
pub(super) struct Boot {
    path: PathBuf,
    read: Option<(Instant, Option<u64>)>,
}

impl Boot {
    pub(super) fn new(procfs: &Path) -> Self {
        Self { path: procfs.join("stat"), read: None }
    }

    /// The time of day `ticks` clock ticks after boot. If the boot time is unknown, the result is an error once a
    /// minute and `None` in between.
    pub(super) fn at(&mut self, ticks: u64) -> Result<Option<SystemTime>, ReadError> {
        let seconds = match self.read {
            Some((at, seconds)) if at.elapsed() < KEEP => seconds,
            _ => {
                self.read = Some((Instant::now(), None));
                let seconds = self.seconds()?;
                self.read = Some((Instant::now(), Some(seconds)));
                Some(seconds)
            }
        };
        Ok(seconds.and_then(|seconds| time_of_day(seconds, ticks, procfs::ticks_per_second())))
    }

    fn seconds(&self) -> Result<u64, ReadError> {
        let bytes = File::open(&self.path)
            .and_then(|file| read_bounded(file, LIMIT))
            .map_err(|source| ReadError::Io { path: self.path.clone(), source })?;
        boot_seconds(&bytes).ok_or_else(|| ReadError::Malformed { path: self.path.clone() })
    }
}

fn time_of_day(boot: u64, ticks: u64, per_second: u64) -> Option<SystemTime> {
    let whole = ticks.checked_div(per_second)?;
    let nanos = (ticks % per_second) * 1_000_000_000 / per_second;
    let since_boot = Duration::from_secs(whole) + Duration::from_nanos(nanos);
    UNIX_EPOCH.checked_add(Duration::from_secs(boot))?.checked_add(since_boot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_a_time_of_day() {
        let expected = UNIX_EPOCH + Duration::from_millis(1_700_000_012_340);
        assert_eq!(time_of_day(1_700_000_000, 1_234, 100), Some(expected));
        assert_eq!(time_of_day(u64::MAX, 1, 100), None);
        assert_eq!(time_of_day(1, u64::MAX, 1), None);
        assert_eq!(time_of_day(1, 1, 0), None);
    }

    #[test]
    fn an_unreadable_boot_time_is_an_error_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut boot = Boot::new(dir.path());
        assert!(boot.at(5).is_err());
        assert_eq!(boot.at(5).ok(), Some(None));
    }
}
