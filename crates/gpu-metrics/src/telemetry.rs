//! Other telemetry of the GPUs: utilization, temperature, power, clocks, throttling and errors.

use super::exposition::Exposition;
use super::family::{Cadence, Family, GPU, Row, Rows, Series, Split};
use super::label::Labels;
use super::openmetrics::Counted;
use super::section::{Pass, Section};
use gpu_readings::snapshot::{
    ClockDomain, ClockLimit, Energy, FastTelemetry, RestOfEnergy, SlowTelemetry, THROTTLE_REASONS,
    TemperatureThreshold, XidClass,
};

const FAST: Series = Series::new(Cadence::Fast, GPU);
const SLOW: Series = Series::new(Cadence::Slow, GPU);

static CLOCK: Family = Series::new(Cadence::Fast, &["gpu", "uuid", "clock"])
    .family("gpu_clock_hertz", "Current frequency of the clock in hertz.");
static THROTTLE: Family = Series::new(Cadence::Fast, &["gpu", "uuid", "reason"])
    .family(
        "gpu_throttle_active",
        "1 if the reason limited the clocks at the moment of the reading, else 0. It does not show for how long; gpu_clock_limited_seconds_total does, for the reasons that the driver counts.",
    );
static LIMITED: Family = Series::new(Cadence::Slow, &["gpu", "uuid", "reason"]).family(
    "gpu_clock_limited_seconds_total",
    "Time for which the reason limited the clocks, in seconds, as the driver counts it in nanoseconds. Reasons can limit the clocks at the same time: their sum is not a time. A reason that the driver does not count is absent. NVML does not say whether thermal includes slowdowns by the hardware; gpu_throttle_active shows these.",
);
static THRESHOLD: Family = Series::new(Cadence::Slow, &["gpu", "uuid", "threshold"]).family(
    "gpu_temperature_threshold_celsius",
    "Temperature in degrees Celsius at which something happens. gpu_max: the driver may lower the clocks below the base clock. slowdown: the hardware slows the GPU down. shutdown: the hardware shuts it down. memory_max: the temperature of the memory at which the driver slows the GPU down.",
);
static FAN: Family = Series::new(Cadence::Slow, &["gpu", "uuid", "fan"]).family(
    "gpu_fan_speed_ratio",
    "Intended speed of a fan, as a share of the highest that the board allows for its noise; it can be above 1. A blocked fan has it too. Read only with telemetry.fan-speed.",
);
static XID: Family = Series::new(Cadence::Event, &["gpu", "uuid", "xid"]).family(
    "gpu_xid_errors_total",
    "Critical errors by Xid code since the exporter started. A code has a series from its first error; gpu_xid_class_errors_total has one from the start.",
);
static XID_CLASS: Family = Series::new(Cadence::Event, &["gpu", "uuid", "class"]).family(
    "gpu_xid_class_errors_total",
    "Critical errors (Xid) by class since the exporter started. Every class exists from the start at 0.",
);

static FAST_ROWS: Rows<FastTelemetry> = &[
    FAST.row(
        "gpu_utilization_ratio",
        "Share of time in which at least one kernel ran, 0 to 1, over the driver's own sample period.",
        |q| q.utilization,
    ),
    FAST.row(
        "gpu_memory_bandwidth_utilization_ratio",
        "Share of time in which device memory was read or written, 0 to 1, over the driver's own sample period. It is not a measure of how much is allocated.",
        |q| q.memory_bandwidth_utilization,
    ),
    FAST.row(
        "gpu_encoder_utilization_ratio",
        "Utilization of the video encoder, 0 to 1, over the driver's own sample period.",
        |q| q.encoder_utilization,
    ),
    FAST.row(
        "gpu_decoder_utilization_ratio",
        "Utilization of the video decoder, 0 to 1, over the driver's own sample period.",
        |q| q.decoder_utilization,
    ),
    FAST.row("gpu_temperature_celsius", "Temperature of the GPU die in degrees Celsius.", |q| q.temperature),
    FAST.row(
        "gpu_memory_temperature_celsius",
        "Temperature of the device memory in degrees Celsius.",
        |q| q.memory_temperature,
    ),
    FAST.row("gpu_power_watts", "Power draw in watts, as the driver averages it.", |q| q.power),
    FAST.row("gpu_power_limit_watts", "Power limit in force in watts.", |q| q.power_limit),
    FAST.row(
        "gpu_performance_state",
        "Performance state, from 0 (P0, the highest performance) to 15. Read only with telemetry.performance-state.",
        |q| q.performance_state.map(f64::from),
    ),
    FAST.row("gpu_row_remap_pending", "1 while a row remapping waits for a GPU reset, else 0.", |q| {
        q.remap_pending.map(f64::from)
    }),
    FAST.row("gpu_row_remap_failed", "1 if a row remapping failed, else 0.", |q| q.remap_failed.map(f64::from)),
];

static ENERGY_ROWS: Rows<Energy, Counted<'static>> = &[
    Series::new(Cadence::Integrated, GPU).row(
        "gpu_energy_joules_total",
        "Energy in joules since the exporter first read the power: the readings of gpu_power_watts, integrated over the time between them. A missing reading adds nothing: gpu_energy_unmeasured_seconds_total counts the time without energy. Absent while the power is unknown.",
        |e| Some(Counted::since(Some(e.counted_since), e.joules)),
    ),
    Series::new(Cadence::Integrated, GPU).row(
        "gpu_energy_unmeasured_seconds_total",
        "Time in seconds since the exporter first read the power of which gpu_energy_joules_total has no energy, because a reading was missing or late.",
        |e| Some(Counted::since(Some(e.counted_since), e.unmeasured)),
    ),
];

static IDLE: Family = Series::new(Cadence::Integrated, GPU).family(
    "gpu_idle_energy_joules_total",
    "Energy of the GPU in joules that is apportioned to the time in which no kernel ran: an estimate, because the power is taken to be the same all the time between two readings. gpu_workload_energy_joules_total has the rest. Only with telemetry.workload-energy. Absent on a GPU with MIG devices.",
);

static SLOW_ROWS: Rows<SlowTelemetry> = &[
    SLOW.row(
        "gpu_pcie_replays_total",
        "PCIe packets that were retransmitted, as counted by the GPU.",
        |s| s.pcie_replays.map(|n| n as f64),
    ),
    SLOW.row(
        "gpu_power_limit_default_watts",
        "Power limit with which the GPU boots in watts. A lower gpu_power_limit_watts was set by somebody or by the machine.",
        |s| s.power_limit_default,
    ),
    SLOW.row("gpu_power_limit_min_watts", "Lowest power limit that somebody can set, in watts.", |s| s.power_limit_min),
    SLOW.row("gpu_power_limit_max_watts", "Highest power limit that somebody can set, in watts.", |s| s.power_limit_max),
    SLOW.row(
        "gpu_driver_energy_joules_total",
        "Energy in joules since the driver was loaded, as the driver counts it. Read only with telemetry.energy, because the call holds the driver's lock.",
        |s| s.driver_energy,
    ),
];

type Count<T> = fn(&T) -> Option<u64>;

static FAST_SPLIT: &[Row<Split<Count<FastTelemetry>>>] = &[
    Series::new(Cadence::Fast, &["gpu", "uuid", "type"]).row(
        "gpu_ecc_errors_total",
        "ECC memory errors since the driver was loaded.",
        &[(",type=\"corrected\"", |q| q.ecc_corrected), (",type=\"uncorrected\"", |q| q.ecc_uncorrected)],
    ),
    Series::new(Cadence::Fast, &["gpu", "uuid", "cause"]).row(
        "gpu_remapped_rows",
        "Memory rows replaced by spare rows over the life of the GPU.",
        &[
            (",cause=\"correctable\"", |q| q.remapped_correctable),
            (",cause=\"uncorrectable\"", |q| q.remapped_uncorrectable),
        ],
    ),
];

static SLOW_SPLIT: &[Row<Split<Count<SlowTelemetry>>>] = &[Series::new(Cadence::Slow, &["gpu", "uuid", "cause"]).row(
    "gpu_retired_pages",
    "Memory pages taken out of use over the life of the GPU.",
    &[
        (",cause=\"multiple_single_bit\"", |s| s.retired_single_bit),
        (",cause=\"double_bit\"", |s| s.retired_double_bit),
    ],
)];

pub(super) static SECTION: Section = Section {
    title: "Other GPU telemetry",
    intro: "One series for each GPU, or for each value of the family's own label. `clock` is `graphics`, `sm`, `memory` or \
            `video`; `type` of an ECC error is `corrected` or `uncorrected`; `class` of an Xid is `hardware`, `memory`, \
            `application` or `unknown`, and the [runbook](runbook.md#gpuxiderror) lists the codes of each. The families about Xids \
            are absent for a GPU that does not report Xids.",
    families: &[
        &FAST_ROWS,
        &ENERGY_ROWS,
        &IDLE,
        &SLOW_ROWS,
        &CLOCK,
        &THROTTLE,
        &LIMITED,
        &THRESHOLD,
        &FAN,
        &FAST_SPLIT,
        &SLOW_SPLIT,
        &XID,
        &XID_CLASS,
    ],
    collect,
};

/// The series of each GPU for each value of a label, in the order of the values.
fn by_label<'a, P, const N: usize>(
    parts: &'a [(&'a Labels, &'a P)],
    label: &'static str,
    values: [&'static str; N],
    read: impl Fn(&P) -> [Option<f64>; N],
) -> impl Iterator<Item = (Labels, f64)> {
    parts.iter().flat_map(move |(labels, part)| {
        let known = values.into_iter().zip(read(part));
        known.filter_map(|(value, number)| Some((labels.with_room(1).and(label, value), number?)))
    })
}

fn collect(&Pass { gpus, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    let fast: Vec<_> = gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.fast?))).collect();
    let slow: Vec<_> = gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.slow?))).collect();
    out.add_rows(FAST_ROWS, fast.iter().copied());
    let energies = fast.iter().filter_map(|(labels, fast)| Some((labels.as_str(), fast.energy.as_ref()?)));
    out.add_rows(ENERGY_ROWS, energies);
    let idle = |rest: &RestOfEnergy| Counted::since(Some(rest.counted_since), rest.idle);
    out.add(&IDLE, gpus.iter().filter_map(|gpu| Some((gpu.labels.as_str(), idle(gpu.rest_of_energy()?)))));
    out.add_rows(SLOW_ROWS, slow.iter().copied());
    out.add_split(FAST_SPLIT, fast.iter().map(|(labels, part)| (labels.as_str(), *part)), |_, part, read| read(part));
    out.add_split(SLOW_SPLIT, slow.iter().map(|(labels, part)| (labels.as_str(), *part)), |_, part, read| read(part));
    out.add(&CLOCK, by_label(&fast, "clock", ClockDomain::ALL.map(ClockDomain::label), |fast| fast.clocks));
    let throttle =
        fast.iter().filter_map(|(labels, fast)| Some((labels, fast.throttle?))).flat_map(|(labels, bits)| {
            THROTTLE_REASONS
                .iter()
                .map(move |(reason, bit)| (labels.with_room(1).and("reason", reason), f64::from(bits & bit != 0)))
        });
    out.add(&THROTTLE, throttle);
    let seconds =
        |slow: &SlowTelemetry| slow.clock_limited.map(|time| time.map(|nanoseconds| nanoseconds as f64 / 1e9));
    out.add(&LIMITED, by_label(&slow, "reason", ClockLimit::ALL.map(ClockLimit::label), seconds));
    let thresholds = TemperatureThreshold::ALL.map(TemperatureThreshold::label);
    out.add(&THRESHOLD, by_label(&slow, "threshold", thresholds, |slow| slow.temperature_thresholds));
    let fans = slow.iter().flat_map(|(labels, slow)| {
        let speeds = slow.fan_speeds.iter().zip(0u32..);
        speeds.map(|(speed, fan)| (labels.with_room(1).and_number("fan", fan), *speed))
    });
    out.add(&FAN, fans);
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
