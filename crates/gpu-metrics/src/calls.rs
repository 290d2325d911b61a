//! What the driver's memory calls tell: requests that were refused, the time in calls, and which peaks are made of calls.
//!
//! Invariant: without probes there is no series of any of these families; where the configuration asks for probes, one
//! family says whether they are there.

use std::sync::LazyLock;

use super::exposition::Exposition;
use super::family::{Cadence, Family, GPU, Rows, Series};
use super::label::{Labels, distinct};
use super::openmetrics::{Counted, canonical};
use super::section::{Pass, Section};
use super::workloads;
use gpu_readings::snapshot::{CORRECTION_BUCKETS, CallPart, CallState, LostCalls, WorkloadCalls, WorkloadRequests};

const PROBES: Series = Series::new(Cadence::Calls, &["reason"]);
const DEVICE: Series = Series::new(Cadence::Calls, GPU);
const REQUESTS: Series = Series::new(Cadence::Calls, workloads::LABELS);
const WORKLOAD: Series = Series::new(Cadence::Calls, &["workload", "kind", "namespace", "pod", "container"]);

static UP: Family = PROBES.family(
    "vram_exporter_probes_up",
    "1 if the driver's memory calls are seen as memory.probes asks, 0 if they cannot be; then reason is that of the fault. Absent with memory.probes=none.",
);
static LOST: Family = PROBES.family(
    "vram_exporter_probe_events_lost_total",
    "Memory calls that were not seen: ring_full (more calls than were read in time), no_entry and no_return (only one end of the call was seen, as when a process ends in it), unlisted (a refused request of a process that no list contained within some seconds).",
);
static REFUSED: Family = DEVICE.family(
    "gpu_memory_refused_requests_total",
    "Requests for memory of the GPU, and of its MIG devices, that the driver refused for want of memory and did not grant when they were repeated. A request that a thread repeats in vain is one.",
);
static CORRECTION: Family = DEVICE.histogram(
    "gpu_memory_call_correction_bytes",
    "How far the memory that calls told for a process was from the next reading, in bytes, at each reading with calls since the one before. Contexts, loaded code and the rounding of small requests are in readings only.",
);
static WORKLOAD_REQUESTS: Rows<WorkloadRequests, u64> = &[
    REQUESTS.row(
        "gpu_workload_memory_refused_requests_total",
        "Requests of the workload that the driver refused for want of memory and did not grant when they were repeated. A request that a thread repeats in vain is one. Without gpu: the process is on several GPUs, and it is not known which of them it asked.",
        |w| Some(w.refused),
    ),
    REQUESTS.row(
        "gpu_workload_memory_retried_requests_total",
        "Requests of the workload that the driver refused and then granted to the same thread in the same size, as after PyTorch has given back its cache. The program went on.",
        |w| Some(w.retried),
    ),
];

static WORKLOAD_CALLS: Rows<WorkloadCalls> = &[
    WORKLOAD.row(
        "gpu_workload_memory_calls_total",
        "Calls with which the processes of the workload asked the driver for memory or gave it back, on all devices. Only with memory.probes=all.",
        |w| Some(w.calls as f64),
    ),
    WORKLOAD.row(
        "gpu_workload_memory_call_seconds_total",
        "Time in these calls in seconds, of all threads of the workload together. A call can wait for the work on the GPU. Only with memory.probes=all.",
        |w| Some(w.time.as_secs_f64()),
    ),
];

pub(super) static SECTION: Section = Section {
    title: "Memory calls",
    intro: "What probes on the driver's memory calls see, whichever program makes them ([probes.md](probes.md)); with `memory.probes=none`, the \
            default, all of these families are absent. With `memory.probes=all`, the peaks of GPUs, processes and workloads include lower \
            bounds made of calls, and the families that end in `_from_calls` say where. A series of a workload appears with its first call.",
    families: &[&UP, &LOST, &REFUSED, &WORKLOAD_REQUESTS, &WORKLOAD_CALLS, &CORRECTION],
    collect,
};

/// The upper bounds of the buckets as text.
static BOUNDS: LazyLock<Vec<String>> = LazyLock::new(|| CORRECTION_BUCKETS.into_iter().map(canonical).collect());

fn collect(pass: &Pass<'_>, out: &mut Exposition<'_>) {
    let part = pass.snapshot.calls.load();
    match part.state {
        CallState::Off => {}
        CallState::Down(reason) => out.add(&UP, [(Labels::default().and("reason", reason.label()), 0.0)]),
        CallState::Up => {
            out.add_one(&UP, 1.0);
            seen(&part, out);
        }
    }
}

fn seen(part: &CallPart, out: &mut Exposition<'_>) {
    let since = part.counted_since;
    let lost = LostCalls::ALL.into_iter().zip(part.lost);
    out.add(
        &LOST,
        lost.map(|(why, count)| (Labels::default().and("reason", why.label()), Counted::since(since, count as f64))),
    );
    let gpus: Vec<_> = part.gpus.iter().map(|of| (Labels::of_gpu(of.gpu.index, &of.gpu.uuid), of)).collect();
    out.add(&REFUSED, gpus.iter().map(|(labels, of)| (labels, Counted::since(since, of.refused as f64))));
    let requests = part.requests.iter().map(|of| {
        let gpu = of.gpu.as_ref().map_or_else(Labels::default, |gpu| Labels::of_gpu(gpu.index, &gpu.uuid));
        (workloads::labels(&gpu, &of.workload, of.mig.as_deref()), of.clone())
    });
    // Two devices that are not identified yet have the same labels.
    let requests = distinct(requests.collect(), |one, other| {
        (one.refused, one.retried) = (one.refused + other.refused, one.retried + other.retried);
        one.since = one.since.min(other.since);
    });
    for row in WORKLOAD_REQUESTS {
        let counted = requests
            .iter()
            .filter_map(|(labels, of)| Some((labels, Counted::since(Some(of.since), (row.read)(of)? as f64))));
        out.add(&row.family, counted);
    }
    if part.sees_all {
        calls(part, out);
        out.add_histogram(
            &CORRECTION,
            since,
            &BOUNDS,
            gpus.iter().map(|(labels, of)| (labels.clone(), &of.corrections[..], of.corrected as f64)),
        );
    }
}

fn calls(part: &CallPart, out: &mut Exposition<'_>) {
    let entries = part.workloads.iter().map(|of| {
        let labels = Labels::default().and("workload", &of.workload.name).and("kind", of.workload.kind.label());
        (labels.and_pod(of.workload.pod.as_deref()), of.clone())
    });
    let entries = distinct(entries.collect(), |one, other| {
        (one.calls, one.time) = (one.calls + other.calls, one.time + other.time);
        one.since = one.since.min(other.since);
    });
    for row in WORKLOAD_CALLS {
        let counted =
            entries.iter().filter_map(|(labels, of)| Some((labels, Counted::since(Some(of.since), (row.read)(of)?))));
        out.add(&row.family, counted);
    }
}
