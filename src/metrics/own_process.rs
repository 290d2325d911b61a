//! The exporter's own process, as every Prometheus client shows it.
//!
//! Always read from the real `/proc`, wherever the configuration looks for other processes. What cannot be read is absent.

use procfs::process::{LimitValue, Process};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use super::family::{Family, Section, Unit, When};
use super::program::{description, measured};

static CPU: Family = Family::counter(
    "process_cpu_seconds_total",
    Unit::Seconds,
    When::Scrape,
    &[],
    "User and system CPU time of the exporter in seconds.",
);
static RESIDENT: Family = Family::gauge(
    "process_resident_memory_bytes",
    Unit::Bytes,
    When::Scrape,
    &[],
    "Resident memory of the exporter in bytes.",
);
static VIRTUAL: Family = Family::gauge(
    "process_virtual_memory_bytes",
    Unit::Bytes,
    When::Scrape,
    &[],
    "Virtual memory of the exporter in bytes.",
);
static OPEN_FDS: Family =
    Family::gauge("process_open_fds", Unit::Number, When::Scrape, &[], "Open file descriptors of the exporter.");
static MAX_FDS: Family = Family::gauge(
    "process_max_fds",
    Unit::Number,
    When::Scrape,
    &[],
    "Most file descriptors that the exporter may open. Absent where there is no limit.",
);
static START_TIME: Family = Family::gauge(
    "process_start_time_seconds",
    Unit::Seconds,
    When::Scrape,
    &[],
    "When the exporter started, in seconds since the Unix epoch.",
);
static THREADS: Family = Family::gauge("process_threads", Unit::Number, When::Scrape, &[], "Threads of the exporter.");

pub(super) static SECTION: Section = Section {
    title: "The exporter's own process",
    intro: "The standard families of every Prometheus client.",
    families: &[&CPU, &RESIDENT, &VIRTUAL, &OPEN_FDS, &MAX_FDS, &START_TIME, &THREADS],
};

/// Reads the process at each scrape; keeps what does not change while it runs.
#[derive(Debug)]
pub(super) struct OwnProcess {
    descriptions: Vec<Desc>,
    boot: Option<u64>,
    ticks: f64,
    page: u64,
    /// The soft limit of open files; nothing in the exporter changes it.
    most_fds: Option<u64>,
}

impl OwnProcess {
    /// Reads the boot time once: `/proc/stat` is long on a machine with many cores.
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let limits = Process::myself().and_then(|own| own.limits());
        let most_fds = limits.ok().and_then(|limits| match limits.max_open_files.soft_limit {
            LimitValue::Value(most) => Some(most),
            LimitValue::Unlimited => None,
        });
        Ok(Self {
            descriptions: SECTION.families.iter().map(|family| description(family)).collect::<Result<_, _>>()?,
            boot: procfs::boot_time_secs().ok(),
            ticks: procfs::ticks_per_second() as f64,
            page: procfs::page_size(),
            most_fds,
        })
    }
}

impl Collector for OwnProcess {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Ok(process) = Process::myself() else { return Vec::new() };
        let mut families = Vec::with_capacity(SECTION.families.len());
        let mut add = |family, value| families.push(measured(family, value));
        if let Ok(stat) = process.stat() {
            add(&CPU, (stat.utime + stat.stime) as f64 / self.ticks);
            add(&RESIDENT, stat.rss.saturating_mul(self.page) as f64);
            add(&VIRTUAL, stat.vsize as f64);
            add(&THREADS, stat.num_threads as f64);
            if let Some(boot) = self.boot {
                add(&START_TIME, boot as f64 + stat.starttime as f64 / self.ticks);
            }
        }
        if let Ok(open) = process.fd_count() {
            add(&OPEN_FDS, open as f64);
        }
        if let Some(most) = self.most_fds {
            add(&MAX_FDS, most as f64);
        }
        families
    }
}
