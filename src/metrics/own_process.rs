//! The `process_*` families of the exporter, as in every Prometheus client library.
//!
//! Always read from the real `/proc`, whatever the value of `path.procfs`. Values that cannot be read are absent.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use procfs::FromRead as _;
use procfs::process::{LimitValue, Process, Stat};

use super::exposition::Exposition;
use super::family::{Cadence, Family, Section, Unit};
use super::openmetrics::Counted;

static CPU: Family = Family::counter(
    "process_cpu_seconds_total",
    Unit::Seconds,
    Cadence::Scrape,
    &[],
    "User and system CPU time of the exporter in seconds.",
);
static RESIDENT: Family = Family::gauge(
    "process_resident_memory_bytes",
    Unit::Bytes,
    Cadence::Scrape,
    &[],
    "Resident memory of the exporter in bytes.",
);
static VIRTUAL: Family = Family::gauge(
    "process_virtual_memory_bytes",
    Unit::Bytes,
    Cadence::Scrape,
    &[],
    "Virtual memory of the exporter in bytes.",
);
static OPEN_FDS: Family = Family::gauge(
    "process_open_fds",
    Unit::Number,
    Cadence::Scrape,
    &[],
    "Open file descriptors of the exporter. Before Linux 6.2 they are counted at most once in 10 seconds.",
);
static MAX_FDS: Family = Family::gauge(
    "process_max_fds",
    Unit::Number,
    Cadence::Scrape,
    &[],
    "Maximum number of open file descriptors of the exporter. Absent if there is no limit.",
);
static START_TIME: Family = Family::gauge(
    "process_start_time_seconds",
    Unit::Seconds,
    Cadence::Scrape,
    &[],
    "When the exporter started, in seconds since the Unix epoch.",
);
static THREADS: Family =
    Family::gauge("process_threads", Unit::Number, Cadence::Scrape, &[], "Threads of the exporter.");

pub(super) static SECTION: Section = Section {
    title: "The exporter's own process",
    intro: "The standard families of every Prometheus client. Left out with `web.disable-exporter-metrics`.",
    families: &[&CPU, &RESIDENT, &VIRTUAL, &OPEN_FDS, &MAX_FDS, &START_TIME, &THREADS],
};

/// The size of the buffer in bytes: `stat` is one line of about fifty numbers.
const LINE: usize = 2048;

/// The directory of the exporter's open files.
const FILES: &str = "/proc/self/fd";
/// How long a count of the open files is reused. Counting can take a long time, because thousands of process
/// directories may be open.
const COUNT_VALID: Duration = Duration::from_secs(10);

/// Reads the values of the exporter's process on each scrape, and keeps those that do not change while it runs.
#[derive(Debug)]
pub(super) struct OwnProcess {
    /// The file `stat`, kept open because opening it takes as long as reading it. Each read from offset 0 returns
    /// current values.
    stat: Option<File>,
    /// When the open files were last counted, and how many there were.
    counted: Mutex<Option<(Instant, u64)>>,
    boot: Option<u64>,
    ticks: f64,
    page: u64,
    /// The soft limit on open files, which the exporter does not change after startup.
    most_fds: Option<u64>,
}

impl OwnProcess {
    /// Reads the boot time once, because `/proc/stat` is long on a machine with many cores.
    pub(super) fn new() -> Self {
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

    pub(super) fn collect(&self, out: &mut Exposition<'_>) {
        if let Some(stat) = self.stat() {
            let start = self.boot.map(|boot| boot as f64 + stat.starttime as f64 / self.ticks);
            let since = start.and_then(time);
            out.add_one(&CPU, Counted::since(since, (stat.utime + stat.stime) as f64 / self.ticks));
            out.add_one(&RESIDENT, stat.rss.saturating_mul(self.page) as f64);
            out.add_one(&VIRTUAL, stat.vsize as f64);
            out.add_one(&THREADS, stat.num_threads as f64);
            if let Some(start) = start {
                out.add_one(&START_TIME, start);
            }
        }
        if let Some(open) = self.open_files() {
            out.add_one(&OPEN_FDS, open as f64);
        }
        if let Some(most) = self.most_fds {
            out.add_one(&MAX_FDS, most as f64);
        }
    }

    fn open_files(&self) -> Option<u64> {
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

    fn stat(&self) -> Option<Stat> {
        let mut line = [0; LINE];
        let length = self.stat.as_ref()?.read_at(&mut line, 0).ok()?;
        Stat::from_read(&line[..length]).ok()
    }
}

/// A Unix time in seconds.
fn time(seconds: f64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(seconds).ok()?)
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use procfs::Current as _;

    use super::super::openmetrics::Format;

    use super::*;

    fn shown(own: &OwnProcess, family: &str) -> f64 {
        let mut out = Exposition::whole(Format::Text, 0);
        own.collect(&mut out);
        let text = String::from_utf8(out.end(b"").unwrap().0).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(family)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {family} in {text}")).parse().unwrap()
    }

    /// The values are those of a whole process, and other tests of this one open files and end threads. So the test
    /// runs once more in a process of its own.
    #[test]
    fn each_scrape_shows_current_values() {
        const ALONE: &str = "VRAM_EXPORTER_TEST_OWN_PROCESS";
        if env::var_os(ALONE).is_some() {
            return current_values();
        }
        let name = "metrics::own_process::tests::each_scrape_shows_current_values";
        let mut alone = Command::new(env::current_exe().unwrap());
        let ended = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    }

    fn current_values() {
        const MORE: usize = 64 << 20;
        const FILES: usize = 50;
        let own = OwnProcess::new();
        // Before Linux 6.2 a count is reused, but not by another reader.
        let files = || shown(&OwnProcess::new(), "process_open_fds");
        let (before, open) = (shown(&own, "process_resident_memory_bytes"), files());
        let held = std::hint::black_box(vec![1_u8; MORE]);
        let opened: Vec<_> = (0..FILES).map(|_| File::open("/proc/self/stat").unwrap()).collect();
        assert!(shown(&own, "process_resident_memory_bytes") > before + 0.9 * MORE as f64);
        assert_eq!(files(), open + FILES as f64);
        drop((held, opened));
        let (boot, up) = (procfs::boot_time_secs().unwrap() as f64, procfs::Uptime::current().unwrap().uptime);
        let started = shown(&own, "process_start_time_seconds");
        assert!(started > boot && started <= boot + up + 1.0, "{boot} {started} {up}");
        assert!(shown(&own, "process_threads") >= 2.0);
        assert!(shown(&own, "process_virtual_memory_bytes") >= shown(&own, "process_resident_memory_bytes"));
    }

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
