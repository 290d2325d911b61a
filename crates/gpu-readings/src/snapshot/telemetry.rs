//! What the telemetry readings publish.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::{C2cLinks, Fabric, Gpu, NvlinkErrors, Nvlinks, RecoveryAction, SPARE_ROWS};
use crate::closed_enum::closed_enum;

/// The telemetry of every GPU, in the order of [`super::Driver::gpus`].
#[derive(Debug, Clone, Default)]
pub struct TelemetryPart {
    /// One entry for each GPU.
    pub gpus: Vec<GpuTelemetry>,
}

/// One GPU's telemetry.
#[derive(Debug, Clone)]
pub struct GpuTelemetry {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// When the fast readings were last taken.
    pub fast_at: Option<Instant>,
    /// Cheap readings, once a second.
    pub fast: FastTelemetry,
    /// When the slow readings were last taken.
    pub slow_at: Option<Instant>,
    /// Expensive readings, every 15 s.
    pub slow: SlowTelemetry,
}

impl GpuTelemetry {
    /// A GPU that has not been read yet.
    pub fn unread(gpu: Arc<Gpu>) -> Self {
        Self { gpu, fast_at: None, fast: FastTelemetry::default(), slow_at: None, slow: SlowTelemetry::default() }
    }
}

/// What the watch for Xid events publishes, in the order of [`super::Driver::gpus`].
#[derive(Debug, Clone, Default)]
pub struct XidPart {
    /// One entry for each GPU.
    pub gpus: Vec<GpuXids>,
}

/// One GPU's critical errors.
#[derive(Debug, Clone, Default)]
pub struct GpuXids {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// The number of errors since the exporter started, by Xid, without the codes that have not occurred. `None` if the
    /// GPU does not report them.
    pub errors: Option<BTreeMap<u64, u64>>,
    /// When no error had been counted yet: when the exporter first asked the driver to report them.
    pub counted_since: Option<SystemTime>,
    /// The last of these errors. `None` before the first one.
    pub last: Option<u64>,
}

closed_enum! {
    /// The exported clocks, by the label `clock`.
    pub enum ClockDomain {
        /// Graphics.
        Graphics => "graphics",
        /// Streaming multiprocessors.
        Sm => "sm",
        /// Memory.
        Memory => "memory",
        /// Video encoder and decoder.
        Video => "video",
    }
}

closed_enum! {
    /// The temperatures at which the driver or the hardware acts, by the label `threshold`.
    pub enum TemperatureThreshold {
        /// Of the GPU: the hardware shuts it down.
        Shutdown => "shutdown",
        /// Of the GPU: the hardware slows it down.
        Slowdown => "slowdown",
        /// Of the memory: the driver slows the GPU down.
        MemoryMax => "memory_max",
        /// Of the GPU: the driver may lower the clocks below the base clock.
        GpuMax => "gpu_max",
    }
}

closed_enum! {
    /// What limits the clocks, by the label `reason` of `gpu_clock_limited_seconds_total`: the performance policies of which
    /// NVML counts the time.
    pub enum ClockLimit {
        /// The power limit in force.
        Power => "power",
        /// Heat.
        Thermal => "thermal",
        /// The slowest GPU of a group that must keep the same clocks.
        SyncBoost => "sync_boost",
        /// A limit of the board.
        BoardLimit => "board_limit",
        /// Too little work.
        LowUtilization => "low_utilization",
        /// The limit that keeps the board reliable.
        Reliability => "reliability",
    }
}

/// The values of the `reason` label of `gpu_throttle_active`, each with NVML's bit (`nvmlClocksEventReason…`).
pub const THROTTLE_REASONS: [(&str, u64); 9] = [
    ("gpu_idle", 0x1),
    ("applications_clocks_setting", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal_slowdown", 0x20),
    ("hw_thermal_slowdown", 0x40),
    ("hw_power_brake_slowdown", 0x80),
    ("display_clock_setting", 0x100),
];

/// The energy of a GPU, integrated from readings of its power.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Energy {
    /// When nothing had been counted yet: when the exporter first read the power.
    pub counted_since: SystemTime,
    /// Joules since then, without those of the unmeasured time.
    pub joules: f64,
    /// Seconds since then of which the energy is not known.
    pub unmeasured: f64,
}

/// Cheap readings. `None`: this GPU does not provide the value, or the call failed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FastTelemetry {
    /// Share of time during which a kernel ran, 0 to 1.
    pub utilization: Option<f64>,
    /// Share of time during which memory was read or written, 0 to 1.
    pub memory_bandwidth_utilization: Option<f64>,
    /// Share of time during which the encoder was busy, 0 to 1.
    pub encoder_utilization: Option<f64>,
    /// Share of time during which the decoder was busy, 0 to 1.
    pub decoder_utilization: Option<f64>,
    /// Degrees Celsius.
    pub temperature: Option<f64>,
    /// Degrees Celsius.
    pub memory_temperature: Option<f64>,
    /// Watts.
    pub power: Option<f64>,
    /// Watts at the moment of the reading, only with a list of dcgm-exporter's fields.
    pub power_now: Option<f64>,
    /// The energy up to the reading of the power. `None` while the power is not known.
    pub energy: Option<Energy>,
    /// Watts: the enforced limit.
    pub power_limit: Option<f64>,
    /// Hertz, by domain.
    pub clocks: [Option<f64>; ClockDomain::ALL.len()],
    /// The bits of [`THROTTLE_REASONS`].
    pub throttle: Option<u64>,
    /// Corrected ECC errors since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Uncorrected ECC errors since the driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// Rows remapped because of correctable errors.
    pub remapped_correctable: Option<u64>,
    /// Rows remapped because of uncorrectable errors.
    pub remapped_uncorrectable: Option<u64>,
    /// Whether a remapping is pending until the next reset.
    pub remap_pending: Option<bool>,
    /// Whether a remapping failed.
    pub remap_failed: Option<bool>,
    /// What must be done to recover the GPU. `None` also for an action that is not known.
    pub recovery_action: Option<RecoveryAction>,
    /// The performance state, from 0 (highest performance) to 15, only if the configuration enables this reading.
    pub performance_state: Option<u32>,
    /// The generation of the PCIe link now. A GPU may lower it while it is idle.
    pub pcie_generation: Option<u32>,
    /// The number of lanes of the PCIe link now.
    pub pcie_width: Option<u32>,
}

/// Readings that hold the driver's lock for a long time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SlowTelemetry {
    /// Bytes.
    pub bar1_total: Option<u64>,
    /// Bytes.
    pub bar1_used: Option<u64>,
    /// PCIe replays.
    pub pcie_replays: Option<u64>,
    /// Nanoseconds for which each [`ClockLimit`] held, as the driver counts.
    pub clock_limited: [Option<u64>; ClockLimit::ALL.len()],
    /// Watts: the limit that the board has unless somebody sets another.
    pub power_limit_default: Option<f64>,
    /// Watts: the lowest limit that somebody can set.
    pub power_limit_min: Option<f64>,
    /// Watts: the highest limit that somebody can set.
    pub power_limit_max: Option<f64>,
    /// Degrees Celsius, by [`TemperatureThreshold`].
    pub temperature_thresholds: [Option<f64>; TemperatureThreshold::ALL.len()],
    /// The intended speed of each fan, as a share of its highest. Empty unless the configuration enables this reading.
    pub fan_speeds: Vec<f64>,
    /// Joules since the driver was loaded, as it counts them, only if the configuration enables this reading.
    pub driver_energy: Option<f64>,
    /// Pages retired because of several single-bit errors.
    pub retired_single_bit: Option<u64>,
    /// Pages retired because of a double-bit error.
    pub retired_double_bit: Option<u64>,
    /// The number of memory banks by the spare rows that are left, in the order of [`SPARE_ROWS`].
    pub row_remap_banks: Option<[u32; SPARE_ROWS.len()]>,
    /// The highest generation of the PCIe link that the GPU and the machine allow.
    pub pcie_generation_max: Option<u32>,
    /// The highest number of lanes of the PCIe link that the GPU and the machine allow.
    pub pcie_width_max: Option<u32>,
    /// The highest clocks in hertz, by domain, only with a list of dcgm-exporter's fields.
    pub clocks_max: [Option<f64>; ClockDomain::ALL.len()],
    /// Watts: the limit that somebody has set, which may not be the enforced one. Only with such a list.
    pub power_limit_requested: Option<f64>,
    /// Corrected ECC errors over the life of the GPU, only with such a list.
    pub ecc_corrected_lifetime: Option<u64>,
    /// Uncorrected ECC errors over the life of the GPU, only with such a list.
    pub ecc_uncorrected_lifetime: Option<u64>,
    /// Whether pages wait for a reboot to be retired, only with such a list.
    pub retirement_pending: Option<bool>,
    /// The intended speed of the fan that the first version of NVML's call means, as a share. Only with such a list.
    pub fan_speed: Option<f64>,
    /// `None` also for a GPU without NVLinks.
    pub nvlinks: Option<Nvlinks>,
    /// How many of the NVLinks are not active. `None` also for a GPU without NVLinks.
    pub nvlinks_down: Option<u32>,
    /// The errors of each NVLink. Empty unless the configuration enables this reading.
    pub nvlink_errors: Vec<NvlinkErrors>,
    /// `None` also for a GPU without C2C links.
    pub c2c_links: Option<C2cLinks>,
    /// `None` also for a GPU that is not in a fabric.
    pub fabric: Option<Fabric>,
}
