//! What `/proc` shows about the exporter's process. Values that cannot be read are `None`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use procfs::FromRead as _;
use procfs::process::{LimitValue, Process, Stat};

/// The size of the buffer in bytes: `stat` is one line of about fifty numbers.
const LINE: usize = 2048;

/// The directory of the exporter's open files.
const FILES: &str = "/proc/self/fd";
/// How long a count of the open files is reused. Counting can take a long time, because thousands of process
/// directories may be open.
const COUNT_VALID: Duration = Duration::from_secs(10);

/// Reads the values of the exporter's process on each scrape, and keeps those that do not change while it runs.
#[derive(Debug)]
pub(crate) struct OwnProcess {
    /// The file `stat`, kept open because opening it takes as long as reading it. Each read from offset 0 returns
    /// current values.
    stat: Option<File>,
    /// When the open files were last counted, and how many there were.
    counted: Mutex<Option<(Instant, u64)>>,
    pub(super) boot: Option<u64>,
    pub(super) ticks: f64,
    pub(super) page: u64,
    /// The soft limit on open files, which the exporter does not change after startup.
    pub(super) most_fds: Option<u64>,
}

impl OwnProcess {
    /// Reads the boot time once, because `/proc/stat` is long on a machine with many cores.
    pub(crate) fn new() -> Self {
        let limits = Process::myself().and_then(|own| own.limits()).ok();
        let most_fds = limits.and_then(|limits| match limits.max_open_files.soft_limit {
            LimitValue::Value(most) => Some(most),
            LimitValue::Unlimited => None,
        });
        Self {
            counted: Mutex::default(),
            stat: File::open("/proc/self/stat").ok(),
            boot: procfs::boot_time_secs().ok(),
            ticks: procfs::ticks_per_second() as f64,
            page: procfs::page_size(),
            most_fds,
        }
    }

    pub(super) fn open_files(&self) -> Option<u64> {
        // Since Linux 6.2, the size of the directory is the number of open files.
        match fs::metadata(FILES).ok()?.len() {
            0 => self.counted_files(Path::new(FILES), Instant::now()),
            size => Some(size),
        }
    }

    fn counted_files(&self, folder: &Path, now: Instant) -> Option<u64> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, files)) = *counted
            && now.saturating_duration_since(at) < COUNT_VALID
        {
            return Some(files);
        }
        // One of them is the directory that is being read.
        let files = (fs::read_dir(folder).ok()?.count() as u64).saturating_sub(1);
        *counted = Some((now, files));
        Some(files)
    }

    pub(super) fn stat(&self) -> Option<Stat> {
        let mut line = [0; LINE];
        let length = self.stat.as_ref()?.read_at(&mut line, 0).ok()?;
        Stat::from_read(&line[..length]).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_where_the_kernel_does_not_report_them() {
        let (own, folder, now) = (OwnProcess::new(), tempfile::tempdir().unwrap(), Instant::now());
        let open = |name: &str| File::create(folder.path().join(name)).unwrap();
        let _files = ["0", "1", "the folder itself"].map(open);
        assert_eq!(own.counted_files(folder.path(), now), Some(2));
        let _one_more = open("3");
        assert_eq!(own.counted_files(folder.path(), now + COUNT_VALID / 2), Some(2));
        assert_eq!(own.counted_files(folder.path(), now + COUNT_VALID), Some(3));
        let own = OwnProcess::new();
        assert_eq!(own.counted_files(Path::new("/nonexistent"), now), None);
    }
}
