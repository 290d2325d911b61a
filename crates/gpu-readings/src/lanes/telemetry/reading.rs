//! The individual readings: which driver call each one makes, and which fields it fills. A reading is one entry of a table here.

use crate::nvml::{Device, Error};
use crate::snapshot::{ClockDomain, GpuTelemetry, TemperatureThreshold};

/// One driver call. Two readings are equal if they are the same entry.
#[derive(Debug)]
pub(super) struct Reading {
    /// The families that need it: the call is not made if all of them are excluded. [`ALWAYS`]: it is always made.
    families: &'static [&'static str],
    /// The call, if its answer is one number.
    number: Option<&'static str>,
    pub(super) take: Take,
}

/// Queries the device and fills the reading's fields; they become unknown if there is no device or it refuses the call.
type Take = fn(Option<Device<'_>>, &mut GpuTelemetry) -> Result<(), Error>;

/// A part of the exporter that is no family needs the reading too, such as the recorder.
const ALWAYS: &[&str] = &[];

/// Only families of dcgm-exporter need it, and only if a collectors file can list them: the key that names the file stands for
/// them.
const LISTED: &[&str] = &["dcgm.collectors-file"];

impl PartialEq for Reading {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Reading {}

/// A reading that fills one field, which is its whole answer.
macro_rules! plain {
    ($family:literal, $call:ident, $part:ident.$field:ident) => {
        Reading::of(&[$family], |device, shown| fill(device, Device::$call, |value| shown.$part.$field = value))
    };
}

/// A number of the driver, declared here alone: its families, the call, the call's method in nvml-wrapper, the field, and the
/// number in the field's unit. The simulator answers the call from a table too (`crates/nvml-sim/src/abi/numbers.rs`).
macro_rules! number {
    ($($family:literal)|+, $call:literal, $method:ident, $part:ident.$field:ident, $in_unit:expr) => {
        Reading {
            number: Some($call),
            ..Reading::of(&[$($family),+], |device, shown| {
                fill(
                    device,
                    |gpu| gpu.call($call, |device| device.$method()),
                    |number| shown.$part.$field = number.map($in_unit),
                )
            })
        }
    };
}

/// Thousandths of a unit.
fn thousandths(number: impl Into<u64>) -> f64 {
    number.into() as f64 / 1e3
}

/// The clock of one domain.
macro_rules! clock {
    ($domain:ident) => {
        Reading::of(&["gpu_clock_hertz"], |device, shown| {
            fill(
                device,
                |gpu| gpu.clock(ClockDomain::$domain),
                |hertz| shown.fast.clocks[ClockDomain::$domain as usize] = hertz,
            )
        })
    };
}

/// One of the temperatures at which something happens.
macro_rules! threshold {
    ($threshold:ident) => {
        Reading::of(&["gpu_temperature_threshold_celsius"], |device, shown| {
            fill(
                device,
                |gpu| gpu.temperature_threshold(TemperatureThreshold::$threshold),
                |celsius| shown.slow.temperature_thresholds[TemperatureThreshold::$threshold as usize] = celsius,
            )
        })
    };
}

/// Cheap calls: the driver answers them from a cache, or within 25 µs.
pub(super) static FAST: &[Reading] = &[
    // Tells whether the processes are asked for their work.
    Reading::of(ALWAYS, |device, shown| {
        fill(device, Device::utilization, |shares| {
            (shown.fast.utilization, shown.fast.memory_bandwidth_utilization) = shares.unzip();
        })
    }),
    plain!("gpu_encoder_utilization_ratio", encoder_utilization, fast.encoder_utilization),
    plain!("gpu_decoder_utilization_ratio", decoder_utilization, fast.decoder_utilization),
    plain!("gpu_temperature_celsius", temperature, fast.temperature),
    plain!("gpu_memory_temperature_celsius", memory_temperature, fast.memory_temperature),
    number!(
        "gpu_power_watts"
            | "gpu_energy_joules_total"
            | "gpu_energy_unmeasured_seconds_total"
            | "gpu_workload_energy_joules_total"
            | "gpu_idle_energy_joules_total",
        "nvmlDeviceGetPowerUsage",
        power_usage,
        fast.power,
        thousandths
    ),
    number!(
        "gpu_power_limit_watts",
        "nvmlDeviceGetEnforcedPowerLimit",
        enforced_power_limit,
        fast.power_limit,
        thousandths
    ),
    clock!(Graphics),
    clock!(Sm),
    clock!(Memory),
    clock!(Video),
    plain!("gpu_throttle_active", throttle_reasons, fast.throttle),
    plain!("gpu_ecc_errors_total", corrected_ecc_errors, fast.ecc_corrected),
    plain!("gpu_ecc_errors_total", uncorrected_ecc_errors, fast.ecc_uncorrected),
    Reading::of(&["gpu_remapped_rows", "gpu_row_remap_pending", "gpu_row_remap_failed"], |device, shown| {
        fill(device, Device::remapped_rows, |rows| {
            shown.fast.remapped_correctable = rows.map(|rows| rows.correctable);
            shown.fast.remapped_uncorrectable = rows.map(|rows| rows.uncorrectable);
            shown.fast.remap_pending = rows.map(|rows| rows.pending);
            shown.fast.remap_failed = rows.map(|rows| rows.failed);
        })
    }),
    plain!("gpu_recovery_action", recovery_action, fast.recovery_action),
    plain!("gpu_pcie_link_generation", pcie_generation, fast.pcie_generation),
    plain!("gpu_pcie_link_width", pcie_width, fast.pcie_width),
    Reading::of(LISTED, |device, shown| fill(device, Device::power_now, |watts| shown.fast.power_now = watts)),
];

/// Calls that hold the driver's lock for a long time, and values that hardly ever change.
pub(super) static SLOW: &[Reading] = &[
    Reading::of(&["gpu_bar1_memory_total_bytes", "gpu_bar1_memory_used_bytes"], |device, shown| {
        fill(device, Device::bar1, |bar1| {
            (shown.slow.bar1_total, shown.slow.bar1_used) = bar1.map(|bar1| (bar1.total, bar1.used)).unzip();
        })
    }),
    number!(
        "gpu_pcie_replays_total",
        "nvmlDeviceGetPcieReplayCounter",
        pcie_replay_counter,
        slow.pcie_replays,
        u64::from
    ),
    number!(
        "gpu_power_limit_default_watts",
        "nvmlDeviceGetPowerManagementDefaultLimit",
        power_management_limit_default,
        slow.power_limit_default,
        thousandths
    ),
    Reading::of(&["gpu_power_limit_min_watts", "gpu_power_limit_max_watts"], |device, shown| {
        fill(device, Device::power_limits, |limits| {
            (shown.slow.power_limit_min, shown.slow.power_limit_max) = limits.unzip();
        })
    }),
    threshold!(Shutdown),
    threshold!(Slowdown),
    threshold!(MemoryMax),
    threshold!(GpuMax),
    Reading::of(&["gpu_clock_limited_seconds_total"], |device, shown| {
        fill(device, Device::clock_limited, |times| shown.slow.clock_limited = times.unwrap_or_default())
    }),
    plain!("gpu_retired_pages", pages_retired_for_single_bit_errors, slow.retired_single_bit),
    plain!("gpu_retired_pages", pages_retired_for_double_bit_errors, slow.retired_double_bit),
    plain!("gpu_row_remap_banks", row_remap_banks, slow.row_remap_banks),
    plain!("gpu_pcie_link_generation_max", pcie_generation_max, slow.pcie_generation_max),
    plain!("gpu_pcie_link_width_max", pcie_width_max, slow.pcie_width_max),
    Reading::of(
        &[
            "gpu_nvlink_links",
            "gpu_nvlink_errors_total",
            "gpu_nvlink_payload_transmitted_bytes_total",
            "gpu_nvlink_payload_received_bytes_total",
        ],
        |device, shown| fill(device, Device::nvlinks, |links| shown.slow.nvlinks = links),
    ),
    plain!("gpu_nvlink_links_down", nvlinks_down, slow.nvlinks_down),
    Reading::of(&["gpu_c2c_links", "gpu_c2c_links_down"], |device, shown| {
        fill(device, Device::c2c_links, |links| shown.slow.c2c_links = links)
    }),
    Reading::of(&["gpu_fabric_state", "gpu_fabric_problem_active"], |device, shown| {
        fill(device, Device::fabric, |fabric| shown.slow.fabric = fabric)
    }),
    Reading::of(LISTED, |device, shown| {
        fill(device, Device::clocks_max, |clocks| shown.slow.clocks_max = clocks.unwrap_or_default())
    }),
    Reading::of(LISTED, |device, shown| {
        fill(device, Device::power_limit_requested, |watts| shown.slow.power_limit_requested = watts)
    }),
    Reading::of(LISTED, |device, shown| {
        fill(device, Device::lifetime_ecc_errors, |errors| {
            (shown.slow.ecc_corrected_lifetime, shown.slow.ecc_uncorrected_lifetime) = errors.unzip();
        })
    }),
    Reading::of(LISTED, |device, shown| {
        fill(device, Device::retirement_pending, |pending| shown.slow.retirement_pending = pending)
    }),
    Reading::of(LISTED, |device, shown| fill(device, Device::fan_speed, |speed| shown.slow.fan_speed = speed)),
];

/// Cheap calls that are made only on request.
pub(super) static FAST_ON_REQUEST: &[Reading] =
    &[plain!("gpu_performance_state", performance_state, fast.performance_state)];

/// Slow calls that are made only on request. That for energy holds the driver's lock for milliseconds.
pub(super) static SLOW_ON_REQUEST: &[Reading] = &[
    number!(
        "gpu_driver_energy_joules_total",
        "nvmlDeviceGetTotalEnergyConsumption",
        total_energy_consumption,
        slow.driver_energy,
        thousandths
    ),
    Reading::of(&["gpu_fan_speed_ratio"], |device, shown| {
        fill(device, Device::fan_speeds, |speeds| shown.slow.fan_speeds = speeds.unwrap_or_default())
    }),
    Reading::of(&["gpu_nvlink_link_errors_total"], |device, shown| {
        fill(device, Device::nvlink_errors, |errors| shown.slow.nvlink_errors = errors.unwrap_or_default())
    }),
];

/// What each process did. This reading fills no field and has a step of its own.
pub(super) static WORK: Reading = Reading::of(ALWAYS, |_, _| Ok(()));

/// Every reading that fills a field.
pub(super) fn all() -> impl Iterator<Item = &'static Reading> {
    [FAST, SLOW, FAST_ON_REQUEST, SLOW_ON_REQUEST].into_iter().flatten()
}

/// The call of a reading of one number, and the families that show the number.
pub(crate) type Number = (&'static str, &'static [&'static str]);

/// The readings of one number, for tests and for the programs that make the same calls: the fast ones, the slow ones, and
/// those that are made only on request.
pub fn numbers() -> [Vec<Number>; 3] {
    [FAST, SLOW, SLOW_ON_REQUEST].map(|readings| {
        let numbers = readings.iter().filter_map(|reading| Some((reading.number?, reading.families)));
        numbers.collect()
    })
}

impl Reading {
    const fn of(families: &'static [&'static str], take: Take) -> Self {
        Self { families, number: None, take }
    }

    /// Whether nobody needs it while these families are excluded.
    pub(super) fn is_unseen(&self, excluded: &[&'static str]) -> bool {
        !self.families.is_empty() && self.families.iter().all(|family| excluded.contains(family))
    }
}

/// Queries the device, if there is one, and passes its answer to `show`, or `None` if there is no answer.
fn fill<'d, T>(
    device: Option<Device<'d>>,
    ask: impl FnOnce(&Device<'d>) -> Result<T, Error>,
    show: impl FnOnce(Option<T>),
) -> Result<(), Error> {
    match device.as_ref().map(ask).transpose() {
        Ok(answer) => {
            show(answer);
            Ok(())
        }
        Err(error) => {
            show(None);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_of_a_reading_is_served() {
        let reference = include_str!("../../../../../docs/metrics.md");
        for family in all().flat_map(|reading| reading.families).filter(|&&family| family != LISTED[0]) {
            assert!(reference.contains(&format!("| `{family}` |")), "{family}");
        }
    }
}
