//! What the exporter shows when the driver, a GPU, a process or the machine fails, and that it recovers by itself.
//! `docs/reliability.md` names each of these tests; `tests/it/reliability.rs` checks that it does.

mod by_hand;
mod calls;
mod driver;
mod gpus;
mod host;
mod lists;
mod mig;
mod processes;
pub(crate) mod refusals;
mod sessions;
mod slow;
pub(crate) mod table;

use crate::harness::{Exporter, Scrape};
use nix::sys::signal::Signal;

/// Two GPUs, and a process on the second.
const TWO: &str = "seed = 1\n[[gpu]]\nmodel = \"H200\"\ncount = 2\n[[process]]\npid = 42\ngpu = 1\ncommand = [\"train\"]\nmemory = \"1GiB\"\n";

fn up(scrape: &Scrape, gpu: &str) -> Option<f64> {
    scrape.value("gpu_up", &[("gpu", gpu)])
}

/// The Xid errors of a class. `None` until the exporter asks the driver to report them.
pub(crate) fn xids(scrape: &Scrape, gpu: &str, class: &str) -> Option<f64> {
    scrape.value("gpu_xid_class_errors_total", &[("gpu", gpu), ("class", class)])
}

/// How many times a fault with this source and reason was counted.
pub(crate) fn faults(scrape: &Scrape, source: &str, reason: &str) -> f64 {
    scrape.value("vram_exporter_faults_by_reason_total", &[("source", source), ("reason", reason)]).unwrap_or(0.0)
}

/// How many faults were counted altogether, apart from slow calls: on a busy machine, a call may be slow because its thread
/// gets no processor.
pub(crate) fn faults_but_slow(scrape: &Scrape) -> f64 {
    let pairs = scrape.all("vram_exporter_faults_by_reason_total");
    pairs.filter(|series| series.label("reason") != Some("slow")).map(|series| series.value).sum()
}

/// The families that remain when a GPU does not respond: its state, its identity, and the errors that the driver
/// reported.
const STAYING: [&str; 6] = [
    "gpu_up",
    "gpu_info",
    "gpu_xid_class_errors_total",
    "gpu_xid_errors_total",
    "gpu_memory_incidents_total",
    "gpu_memory_last_incident_timestamp_seconds",
];

/// The number of values shown for a GPU.
fn values(scrape: &Scrape, gpu: &str) -> usize {
    let shown = |s: &&crate::harness::Series| {
        s.label("gpu") == Some(gpu) && s.name.starts_with("gpu_") && !STAYING.contains(&s.name.as_str())
    };
    scrape.series.iter().filter(shown).count()
}

/// How many rounds a lane has completed.
pub(crate) fn rounds(scrape: &Scrape, lane: &str) -> f64 {
    scrape.value("vram_exporter_lane_duration_seconds_count", &[("lane", lane)]).unwrap()
}

/// Closes the driver and opens it again at once, with no back-off.
fn reopen(exporter: &Exporter) {
    let closed = refusals::release(exporter);
    assert_eq!(closed.value("vram_exporter_nvml_up", &[]), Some(0.0));
    exporter.signal(Signal::SIGUSR1);
}
