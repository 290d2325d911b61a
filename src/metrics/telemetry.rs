//! Other telemetry of the GPUs: utilization, temperature, power, clocks, throttling and errors.

use super::exposition::Exposition;
use super::family::{Cadence, Family, Row, Section, Unit};
use super::label::Labels;
use super::openmetrics::Counted;
use super::view::GpuView;
use crate::snapshot::{ClockDomain, FastTelemetry, SlowTelemetry, THROTTLE_REASONS, XidClass};

const GPU: &[&str] = &["gpu", "uuid"];

static CLOCK: Family = Family::gauge(
    "gpu_clock_hertz",
    Unit::Hertz,
    Cadence::Fast,
    &["gpu", "uuid", "clock"],
    "Current frequency of the clock in hertz.",
);
static THROTTLE: Family = Family::gauge(
    "gpu_throttle_active",
    Unit::Number,
    Cadence::Fast,
    &["gpu", "uuid", "reason"],
    "1 while the reason limits the clocks, else 0.",
);
static ECC: Family = Family::counter(
    "gpu_ecc_errors_total",
    Unit::Number,
    Cadence::Fast,
    &["gpu", "uuid", "type"],
    "ECC memory errors since the driver was loaded.",
);
static REMAPPED: Family = Family::gauge(
    "gpu_remapped_rows",
    Unit::Number,
    Cadence::Fast,
    &["gpu", "uuid", "cause"],
    "Memory rows replaced by spare rows over the life of the GPU.",
);
static RETIRED: Family = Family::gauge(
    "gpu_retired_pages",
    Unit::Number,
    Cadence::Slow,
    &["gpu", "uuid", "cause"],
    "Memory pages taken out of use over the life of the GPU.",
);
static XID: Family = Family::counter(
    "gpu_xid_errors_total",
    Unit::Number,
    Cadence::Event,
    &["gpu", "uuid", "xid"],
    "Critical errors by Xid code since the exporter started. A code has a series from its first error; gpu_xid_class_errors_total has one from the start.",
);
static XID_CLASS: Family = Family::counter(
    "gpu_xid_class_errors_total",
    Unit::Number,
    Cadence::Event,
    &["gpu", "uuid", "class"],
    "Critical errors (Xid) by class since the exporter started. Every class exists from the start at 0.",
);

/// A gauge of the fast readings.
const fn fast(
    name: &'static str,
    unit: Unit,
    meaning: &'static str,
    read: fn(&FastTelemetry) -> Option<f64>,
) -> Row<FastTelemetry> {
    Row::new(Family::gauge(name, unit, Cadence::Fast, GPU, meaning), read)
}

static FAST: &[Row<FastTelemetry>] = &[
    fast(
        "gpu_utilization_ratio",
        Unit::Ratio,
        "Share of time in which at least one kernel ran, 0 to 1, over the driver's own sample period.",
        |q| q.utilization,
    ),
    fast(
        "gpu_memory_bandwidth_utilization_ratio",
        Unit::Ratio,
        "Share of time in which device memory was read or written, 0 to 1, over the driver's own sample period. It is not a measure of how much is allocated.",
        |q| q.memory_bandwidth_utilization,
    ),
    fast(
        "gpu_encoder_utilization_ratio",
        Unit::Ratio,
        "Utilization of the video encoder, 0 to 1, over the driver's own sample period.",
        |q| q.encoder_utilization,
    ),
    fast(
        "gpu_decoder_utilization_ratio",
        Unit::Ratio,
        "Utilization of the video decoder, 0 to 1, over the driver's own sample period.",
        |q| q.decoder_utilization,
    ),
    fast("gpu_temperature_celsius", Unit::Celsius, "Temperature of the GPU die in degrees Celsius.", |q| q.temperature),
    fast(
        "gpu_memory_temperature_celsius",
        Unit::Celsius,
        "Temperature of the device memory in degrees Celsius.",
        |q| q.memory_temperature,
    ),
    fast("gpu_power_watts", Unit::Watts, "Power draw in watts, as the driver averages it.", |q| q.power),
    fast("gpu_power_limit_watts", Unit::Watts, "Power limit in force in watts.", |q| q.power_limit),
    fast("gpu_row_remap_pending", Unit::Number, "1 while a row remapping waits for a GPU reset, else 0.", |q| {
        q.remap_pending.map(f64::from)
    }),
    fast("gpu_row_remap_failed", Unit::Number, "1 if a row remapping failed, else 0.", |q| {
        q.remap_failed.map(f64::from)
    }),
];

static SLOW: &[Row<SlowTelemetry>] = &[
    Row::new(
        Family::counter(
            "gpu_pcie_replays_total",
            Unit::Number,
            Cadence::Slow,
            GPU,
            "PCIe packets that were retransmitted, as counted by the GPU.",
        ),
        |s| s.pcie_replays.map(|n| n as f64),
    ),
    Row::new(
        Family::counter(
            "gpu_energy_joules_total",
            Unit::Joules,
            Cadence::Slow,
            GPU,
            "Energy used since the driver was loaded, in joules. Read only with telemetry.energy, because the call holds the driver's lock.",
        ),
        |s| s.energy,
    ),
];

pub(super) static SECTION: Section = Section {
    title: "Other GPU telemetry",
    intro: "One series for each GPU, or for each value of the family's own label. `clock` is `graphics`, `sm`, `memory` or \
            `video`; `type` of an ECC error is `corrected` or `uncorrected`; `class` of an Xid is `hardware`, `memory`, \
            `application` or `unknown`, and the [runbook](runbook.md#gpuxiderror) lists the codes of each. The families about Xids \
            are absent for a GPU that does not report Xids.",
    families: &[&FAST, &SLOW, &CLOCK, &THROTTLE, &ECC, &REMAPPED, &RETIRED, &XID, &XID_CLASS],
};

/// A family, the name of its own label, and how to read the value for each value of that label.
type Split<T> = (&'static Family, &'static str, [(&'static str, fn(&T) -> Option<u64>); 2]);

static FAST_SPLIT: [Split<FastTelemetry>; 2] = [
    (&ECC, "type", [("corrected", |q| q.ecc_corrected), ("uncorrected", |q| q.ecc_uncorrected)]),
    (
        &REMAPPED,
        "cause",
        [("correctable", |q| q.remapped_correctable), ("uncorrectable", |q| q.remapped_uncorrectable)],
    ),
];
static SLOW_SPLIT: [Split<SlowTelemetry>; 1] = [(
    &RETIRED,
    "cause",
    [("multiple_single_bit", |s| s.retired_single_bit), ("double_bit", |s| s.retired_double_bit)],
)];

pub(super) fn collect(gpus: &[GpuView<'_>], out: &mut Exposition<'_>) {
    let fast: Vec<_> = gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.fast?))).collect();
    let slow: Vec<_> = gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.slow?))).collect();
    plain(FAST, &fast, out);
    plain(SLOW, &slow, out);
    split(&FAST_SPLIT, &fast, out);
    split(&SLOW_SPLIT, &slow, out);
    let clocks = fast.iter().flat_map(|(labels, fast)| {
        let domains = ClockDomain::ALL.iter().zip(fast.clocks);
        domains.filter_map(|(domain, hertz)| Some((labels.with_room(1).and("clock", domain.label()), hertz?)))
    });
    out.add(&CLOCK, clocks);
    let throttle =
        fast.iter().filter_map(|(labels, fast)| Some((labels, fast.throttle?))).flat_map(|(labels, bits)| {
            THROTTLE_REASONS
                .iter()
                .map(move |(reason, bit)| (labels.with_room(1).and("reason", reason), f64::from(bits & bit != 0)))
        });
    out.add(&THROTTLE, throttle);
    let xid = gpus.iter().flat_map(|gpu| {
        let errors = gpu.xid_errors.into_iter().flatten();
        let counted = |count: u64| Counted::since(gpu.xids_since, count as f64);
        errors.map(move |(xid, count)| (gpu.labels.with_room(1).and_number("xid", *xid), counted(*count)))
    });
    out.add(&XID, xid);
    let classes = gpus.iter().filter_map(|gpu| Some((gpu, gpu.xid_errors?))).flat_map(|(gpu, errors)| {
        XidClass::ALL.map(|class| {
            let of_class = errors.iter().filter(|&(&xid, _)| XidClass::of(xid) == class);
            let count: u64 = of_class.map(|(_, count)| count).sum();
            (gpu.labels.with_room(1).and("class", class.label()), Counted::since(gpu.xids_since, count as f64))
        })
    });
    out.add(&XID_CLASS, classes);
}

fn plain<T>(rows: &'static [Row<T>], gpus: &[(&Labels, &T)], out: &mut Exposition<'_>) {
    for Row { family, read } in rows {
        out.add(family, gpus.iter().filter_map(|(labels, part)| Some((*labels, read(part)?))));
    }
}

fn split<T>(readings: &[Split<T>], gpus: &[(&Labels, &T)], out: &mut Exposition<'_>) {
    for (family, name, values) in readings {
        let series = gpus.iter().flat_map(|(labels, part)| {
            values
                .iter()
                .filter_map(move |(value, read)| Some((labels.with_room(1).and(name, value), read(part)? as f64)))
        });
        out.add(family, series);
    }
}
