//! The exporter's own work: its sampling loops and its faults.
//!
//! Invariant: every fault is counted in `vram_exporter_faults_total` and in `vram_exporter_faults_by_reason_total`, and
//! in each scrape the values of the second family add up to those of the first.

use std::sync::LazyLock;

use super::exposition::Exposition;
use super::family::{Cadence, Family, Series};
use super::label::Labels;
use super::openmetrics::{Counted, canonical};
use super::section::{Pass, Section};
use gpu_readings::faults::Source;
use gpu_readings::snapshot::{DURATION_BUCKETS, Lane};

static STUCK: Family = Series::ONE.family(
    "vram_exporter_stuck_threads",
    "Threads that hang in a driver call. Their GPU is not read until the call returns. Once there are 32, threads that hang are no longer replaced, the driver is not opened, and /healthz fails.",
);
static FAULTS: Family = Series::new(Cadence::Scrape, &["source"]).family(
    "vram_exporter_faults_total",
    "Faults by the part of the exporter in which they occurred, for all reasons together. Every source that the configuration uses is present from the start, with the value 0.",
);
static FAULTS_BY_REASON: Family = Series::new(Cadence::Scrape, &["source", "reason"]).family(
    "vram_exporter_faults_by_reason_total",
    "Faults by the part of the exporter in which they occurred and by reason. A pair appears with its first fault, which rate() and increase() cannot see: use vram_exporter_faults_total with these functions.",
);
static MISSED_TICKS: Family = Series::new(Cadence::Scrape, &["lane", "gpu"]).family(
    "vram_exporter_missed_ticks_total",
    "Readings of a GPU that were due and not taken, because a driver call or the machine was too slow. They are skipped and never made up for. All GPUs miss the same number when the machine is too slow; the one that misses more than the others is slow itself.",
);
static LANE_DURATION: Family = Series::new(Cadence::Scrape, &["lane"]).histogram(
    "vram_exporter_lane_duration_seconds",
    "Duration of one pass of the sampling loop over the GPUs that it reads in turn, in seconds. A GPU that is slow is read on a thread of its own and is not in it.",
);

pub(super) static SECTION: Section = Section {
    title: "The exporter itself",
    intro: "`lane` is the sampling loop: `memory`, `process` or `telemetry`. `gpu` is the NVML index. `source` and `reason` are those of the log lines. \
            Left out with `web.disable-exporter-metrics`; the alert `VramExporterMissedTicks` needs them.",
    families: &[&STUCK, &FAULTS, &FAULTS_BY_REASON, &MISSED_TICKS, &LANE_DURATION],
    collect,
};

/// The upper bounds of the duration buckets as text. It is the same in both formats, because it is part of the labels.
static BOUNDS: LazyLock<Vec<String>> = LazyLock::new(|| DURATION_BUCKETS.into_iter().map(canonical).collect());

fn collect(pass: &Pass<'_>, out: &mut Exposition<'_>) {
    if !pass.settings.exporter_metrics {
        return;
    }
    let (vitals, since) = (&pass.snapshot.vitals, Some(pass.started));
    out.add_one(&STUCK, vitals.stuck() as f64);
    faults(pass, out);
    let labels = |lane: Lane| Labels::default().and("lane", lane.label());
    let missed = Lane::ALL.into_iter().flat_map(|lane| {
        let by_gpu = vitals.missed(lane).into_iter();
        by_gpu
            .map(move |(gpu, missed)| (labels(lane).and("gpu", &gpu.to_string()), Counted::since(since, missed as f64)))
    });
    out.add(&MISSED_TICKS, missed);
    let durations = Lane::ALL.map(|lane| (lane, vitals.durations(lane)));
    out.add_histogram(
        &LANE_DURATION,
        since,
        &BOUNDS,
        durations.iter().map(|(lane, took)| (labels(*lane), &took.buckets[..], took.sum)),
    );
}

fn faults(&Pass { faults, settings, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    let since = Some(faults.since());
    // Read once, so that both families show the same faults.
    let pairs: Vec<_> = faults.counts().filter(|&(_, _, count)| count > 0).collect();
    let totals = Source::ALL.iter().filter_map(|source| {
        let total: u64 = pairs.iter().filter(|(of, _, _)| of == source).map(|(_, _, count)| count).sum();
        let shown = total > 0 || settings.fault_sources.contains(source);
        let total = Counted::since(since, total as f64);
        shown.then(|| (Labels::default().and("source", source.label()), total))
    });
    out.add(&FAULTS, totals);
    let pairs = pairs.iter().map(|(source, reason, count)| {
        let labels = Labels::default().and("source", source.label()).and("reason", reason.label());
        (labels, Counted::since(since, *count as f64))
    });
    out.add(&FAULTS_BY_REASON, pairs);
}
