//! The `process_*` families of the exporter, as in every Prometheus client library.
//!
//! Always read from the real `/proc`, whatever the value of `path.procfs`. Values that cannot be read are absent.

mod reader;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::exposition::Exposition;
use super::family::{Family, Series};
use super::openmetrics::Counted;
use super::section::{Pass, Section};

pub(super) use reader::OwnProcess;

static CPU: Family =
    Series::ONE.family("process_cpu_seconds_total", "User and system CPU time of the exporter in seconds.");
static RESIDENT: Family =
    Series::ONE.family("process_resident_memory_bytes", "Resident memory of the exporter in bytes.");
static VIRTUAL: Family = Series::ONE.family("process_virtual_memory_bytes", "Virtual memory of the exporter in bytes.");
static OPEN_FDS: Family = Series::ONE.family(
    "process_open_fds",
    "Open file descriptors of the exporter. Before Linux 6.2 they are counted at most once in 10 seconds.",
);
static MAX_FDS: Family = Series::ONE
    .family("process_max_fds", "Maximum number of open file descriptors of the exporter. Absent if there is no limit.");
static START_TIME: Family =
    Series::ONE.family("process_start_time_seconds", "When the exporter started, in seconds since the Unix epoch.");
static THREADS: Family = Series::ONE.family("process_threads", "Threads of the exporter.");

pub(super) static SECTION: Section = Section {
    title: "The exporter's own process",
    intro: "The standard families of every Prometheus client. Left out with `web.disable-exporter-metrics`.",
    families: &[&CPU, &RESIDENT, &VIRTUAL, &OPEN_FDS, &MAX_FDS, &START_TIME, &THREADS],
    collect,
};

fn collect(&Pass { own_process, settings, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    if settings.exporter_metrics {
        write(own_process, out);
    }
}

fn write(own: &OwnProcess, out: &mut Exposition<'_>) {
    if let Some(stat) = own.stat() {
        let start = own.boot.map(|boot| boot as f64 + stat.starttime as f64 / own.ticks);
        out.add_one(&CPU, Counted::since(start.and_then(time), (stat.utime + stat.stime) as f64 / own.ticks));
        out.add_one(&RESIDENT, stat.rss.saturating_mul(own.page));
        out.add_one(&VIRTUAL, stat.vsize);
        out.add_one(&THREADS, stat.num_threads as f64);
        out.add(&START_TIME, start.map(|start| ("", start)));
    }
    out.add(&OPEN_FDS, own.open_files().map(|open| ("", open)));
    out.add(&MAX_FDS, own.most_fds.map(|most| ("", most)));
}

/// A Unix time in seconds.
fn time(seconds: f64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(seconds).ok()?)
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs::File;
    use std::process::Command;

    use procfs::Current as _;

    use super::super::openmetrics::Format;

    use super::*;

    fn shown(own: &OwnProcess, family: &str) -> f64 {
        let mut out = Exposition::whole(Format::Text, 0);
        write(own, &mut out);
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
        let name = "own_process::tests::each_scrape_shows_current_values";
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
}
