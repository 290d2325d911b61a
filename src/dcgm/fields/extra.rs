//! The fields that are served only if a collectors file lists them.

use super::{
    Field, Level, PERFORMANCE_STATE, Reading, constant, count, label, limited, mega, mhz, mib, number, percent,
    profiled, share, traffic, xid_totals,
};
use crate::snapshot::{
    ClockDomain, ClockLimit, FabricState, NvlinkError, ProfilingMetric, TemperatureThreshold, allocatable,
};

/// The table.
pub(super) static EXTRA: &[Field] = &[
    label("DCGM_FI_NVML_VERSION", |r| r.driver.nvml_version.as_deref()).renamed("DCGM_FI_SYSTEM_NVML_VERSION"),
    label("DCGM_FI_DEV_NAME", |r| r.gpu.name.as_deref()).renamed("DCGM_FI_DEV_GPU_NAME"),
    label("DCGM_FI_DEV_BRAND", |r| r.gpu.brand).renamed("DCGM_FI_DEV_GPU_BRAND"),
    label("DCGM_FI_DEV_SERIAL", |r| r.gpu.serial.as_deref()).renamed("DCGM_FI_DEV_BOARD_SERIAL"),
    label("DCGM_FI_DEV_UUID", |r| Some(&r.gpu.uuid)).renamed("DCGM_FI_DEV_GPU_UUID"),
    label("DCGM_FI_DEV_PCI_BUSID", |r| r.gpu.pci_bus_id.as_deref()).renamed("DCGM_FI_DEV_PCI_BUS_ID"),
    constant("DCGM_FI_DEV_COUNT", |r| u64::try_from(r.driver.gpus.len()).ok()).renamed("DCGM_FI_SYSTEM_GPU_QUANTITY"),
    constant("DCGM_FI_DEV_NVML_INDEX", |r| Some(r.gpu.index.into())),
    constant("DCGM_FI_DEV_MINOR_NUMBER", |r| r.gpu.minor.map(u64::from)).renamed("DCGM_FI_DEV_GPU_MINOR_NUMBER"),
    // The major version in the upper 16 bits, the minor version in the lower ones.
    constant("DCGM_FI_DEV_CUDA_COMPUTE_CAPABILITY", |r| version(r.gpu.compute_capability.as_deref(), 1 << 16, 1))
        .renamed("DCGM_FI_CUDA_GPU_COMPUTE_CAPABILITY"),
    // As the driver writes it: 13.1 is 13010.
    constant("DCGM_FI_CUDA_DRIVER_VERSION", |r| version(r.driver.cuda_version.as_deref(), 1000, 10)),
    label("DCGM_FI_DEV_VBIOS_VERSION", |r| r.gpu.vbios.as_deref()),
    xid_totals("DCGM_EXP_XID_ERRORS_TOTAL"),
    number("DCGM_FI_DEV_VIDEO_CLOCK", |r| mhz(r, ClockDomain::Video)).then("DCGM_FI_DEV_VIDEO_CLOCK_HERTZ"),
    number("DCGM_FI_DEV_MAX_SM_CLOCK", |r| clock_max(r, ClockDomain::Sm)).then("DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ"),
    number("DCGM_FI_DEV_MAX_MEM_CLOCK", |r| clock_max(r, ClockDomain::Memory))
        .then("DCGM_FI_DEV_MEMORY_MAX_CLOCK_HERTZ"),
    number("DCGM_FI_DEV_MAX_VIDEO_CLOCK", |r| clock_max(r, ClockDomain::Video))
        .then("DCGM_FI_DEV_VIDEO_MAX_CLOCK_HERTZ"),
    number("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", |r| count(r.fast?.throttle)),
    number("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", |r| count(r.fast?.throttle))
        .renamed("DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
    number("DCGM_FI_DEV_POWER_USAGE_INSTANT", |r| r.fast?.power_now).renamed("DCGM_FI_DEV_BOARD_POWER_RAW_WATTS"),
    number("DCGM_FI_DEV_POWER_MGMT_LIMIT", |r| r.slow?.power_limit_requested)
        .renamed("DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS"),
    number("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", |r| r.fast?.power_limit)
        .renamed("DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS"),
    number("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", |r| r.slow?.power_limit_default)
        .renamed("DCGM_FI_DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS"),
    number("DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN", |r| r.slow?.power_limit_min)
        .renamed("DCGM_FI_DEV_BOARD_POWER_LIMIT_MIN_WATTS"),
    number("DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", |r| r.slow?.power_limit_max)
        .renamed("DCGM_FI_DEV_BOARD_POWER_LIMIT_MAX_WATTS"),
    number("DCGM_FI_DEV_SLOWDOWN_TEMP", |r| threshold(r, TemperatureThreshold::Slowdown))
        .renamed("DCGM_FI_DEV_GPU_TEMP_SLOWDOWN_CELSIUS"),
    number("DCGM_FI_DEV_SHUTDOWN_TEMP", |r| threshold(r, TemperatureThreshold::Shutdown))
        .renamed("DCGM_FI_DEV_GPU_TEMP_SHUTDOWN_CELSIUS"),
    number("DCGM_FI_DEV_MEM_MAX_OP_TEMP", |r| threshold(r, TemperatureThreshold::MemoryMax))
        .renamed("DCGM_FI_DEV_MEMORY_MAX_OP_TEMP_CELSIUS"),
    number("DCGM_FI_DEV_GPU_MAX_OP_TEMP", |r| threshold(r, TemperatureThreshold::GpuMax))
        .renamed("DCGM_FI_DEV_GPU_MAX_OP_TEMP_CELSIUS"),
    number("DCGM_FI_DEV_PSTATE", |r| r.fast?.performance_state.map(f64::from))
        .needs(PERFORMANCE_STATE)
        .renamed("DCGM_FI_DEV_GPU_PSTATE"),
    number("DCGM_FI_DEV_FAN_SPEED", |r| r.slow?.fan_speed.map(percent)).then("DCGM_FI_DEV_FAN_SPEED_RATIO"),
    // NVML's code, which is the position of the action.
    number("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", |r| r.fast?.recovery_action.map(|action| f64::from(action as u8)))
        .renamed("DCGM_FI_DEV_GPU_RECOVERY_ACTION"),
    number("DCGM_FI_DEV_POWER_VIOLATION", |r| limited(r, ClockLimit::Power))
        .in_1x("dcgm_power_violation")
        .then("DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL"),
    number("DCGM_FI_DEV_THERMAL_VIOLATION", |r| limited(r, ClockLimit::Thermal)).in_1x("dcgm_thermal_violation"),
    number("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", |r| limited(r, ClockLimit::SyncBoost))
        .in_1x("dcgm_sync_boost_violation"),
    number("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", |r| limited(r, ClockLimit::BoardLimit))
        .in_1x("dcgm_board_limit_violation"),
    number("DCGM_FI_DEV_LOW_UTIL_VIOLATION", |r| limited(r, ClockLimit::LowUtilization))
        .in_1x("dcgm_low_util_violation"),
    number("DCGM_FI_DEV_RELIABILITY_VIOLATION", |r| limited(r, ClockLimit::Reliability))
        .in_1x("dcgm_reliability_violation"),
    number("DCGM_FI_DEV_FB_TOTAL", |r| Some(mib(r.memory?.total)))
        .then("DCGM_FI_DEV_FB_CAPACITY_BYTES")
        .on(Level::Instance),
    number("DCGM_FI_DEV_FB_USED_PERCENT", |r| {
        let memory = r.memory?;
        memory.reserved?;
        let usable = Some(allocatable(memory.total, memory.reserved)).filter(|bytes| *bytes > 0)?;
        Some(memory.used as f64 / usable as f64)
    })
    .renamed("DCGM_FI_DEV_FB_USED_RATIO")
    .on(Level::Instance),
    number("DCGM_FI_DEV_BAR1_TOTAL", |r| r.slow?.bar1_total.map(mib))
        .then("DCGM_FI_DEV_BAR1_CAPACITY_BYTES")
        .on(Level::WholeGpu),
    number("DCGM_FI_DEV_BAR1_USED", |r| r.slow?.bar1_used.map(mib))
        .then("DCGM_FI_DEV_BAR1_USED_BYTES")
        .on(Level::WholeGpu),
    number("DCGM_FI_DEV_BAR1_FREE", |r| {
        let slow = r.slow?;
        slow.bar1_total?.checked_sub(slow.bar1_used?).map(mib)
    })
    .then("DCGM_FI_DEV_BAR1_FREE_BYTES")
    .on(Level::WholeGpu),
    number("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", |r| count(r.fast?.ecc_corrected)).in_1x("dcgm_ecc_sbe_volatile_total"),
    number("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", |r| count(r.fast?.ecc_uncorrected)).in_1x("dcgm_ecc_dbe_volatile_total"),
    number("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", |r| count(r.slow?.ecc_corrected_lifetime))
        .in_1x("dcgm_ecc_sbe_aggregate_total"),
    number("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", |r| count(r.slow?.ecc_uncorrected_lifetime))
        .in_1x("dcgm_ecc_dbe_aggregate_total"),
    number("DCGM_FI_DEV_RETIRED_SBE", |r| count(r.slow?.retired_single_bit))
        .in_1x("dcgm_retired_pages_sbe")
        .renamed("DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL"),
    number("DCGM_FI_DEV_RETIRED_DBE", |r| count(r.slow?.retired_double_bit))
        .in_1x("dcgm_retired_pages_dbe")
        .renamed("DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL"),
    number("DCGM_FI_DEV_RETIRED_PENDING", |r| r.slow?.retirement_pending.map(f64::from))
        .in_1x("dcgm_retired_pages_pending")
        .renamed("DCGM_FI_DEV_PAGE_RETIRED_PENDING"),
    number("DCGM_FI_DEV_ROW_REMAP_PENDING", |r| r.fast?.remap_pending.map(f64::from)),
    number("DCGM_FI_DEV_PCIE_LINK_GEN", |r| r.fast?.pcie_generation.map(f64::from)),
    number("DCGM_FI_DEV_PCIE_LINK_WIDTH", |r| r.fast?.pcie_width.map(f64::from)),
    number("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", |r| r.slow?.pcie_generation_max.map(f64::from)),
    number("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", |r| r.slow?.pcie_width_max.map(f64::from)),
    number("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_MAX", |r| banks(r, 0)).renamed("DCGM_FI_DEV_BANK_REMAP_AVAIL_MAX"),
    number("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_HIGH", |r| banks(r, 1)).renamed("DCGM_FI_DEV_BANK_REMAP_AVAIL_HIGH"),
    number("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_PARTIAL", |r| banks(r, 2))
        .renamed("DCGM_FI_DEV_BANK_REMAP_AVAIL_PARTIAL"),
    number("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_LOW", |r| banks(r, 3)).renamed("DCGM_FI_DEV_BANK_REMAP_AVAIL_LOW"),
    number("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_NONE", |r| banks(r, 4)).renamed("DCGM_FI_DEV_BANK_REMAP_AVAIL_NONE"),
    number("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", |r| nvlink_errors(r, NvlinkError::CrcFlit))
        .in_1x("dcgm_nvlink_flit_crc_error_count_total")
        .renamed("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL"),
    number("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", |r| nvlink_errors(r, NvlinkError::CrcData))
        .in_1x("dcgm_nvlink_data_crc_error_count_total")
        .renamed("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_TOTAL"),
    number("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", |r| nvlink_errors(r, NvlinkError::Replay))
        .in_1x("dcgm_nvlink_replay_error_count_total")
        .renamed("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL"),
    number("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", |r| nvlink_errors(r, NvlinkError::Recovery))
        .in_1x("dcgm_nvlink_recovery_error_count_total")
        .renamed("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL"),
    number("DCGM_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL", |r| nvlink_errors(r, NvlinkError::EccData))
        .renamed("DCGM_FI_DEV_NVLINK_ECC_ERROR_TOTAL"),
    number("DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS", |r| count(r.slow?.nvlinks.as_ref()?.recovery_events))
        .renamed("DCGM_FI_DEV_NVLINK_RECOVERY_EVENT_TOTAL"),
    number("DCGM_FI_DEV_C2C_LINK_COUNT", |r| Some(r.slow?.c2c_links?.links.into()))
        .renamed("DCGM_FI_DEV_C2C_LINK_QUANTITY"),
    // DCGM's codes: 0 is not supported, and 5 a state that is not known.
    number("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", |r| {
        Some(match r.slow?.fabric.as_ref()?.state {
            FabricState::NotStarted => 1.0,
            FabricState::InProgress => 2.0,
            FabricState::Completed => 3.0,
            FabricState::Failed => 4.0,
        })
    }),
    label("DCGM_FI_DEV_FABRIC_CLUSTER_UUID", |r| Some(&r.slow?.fabric.as_ref()?.cluster)),
    number("DCGM_FI_DEV_FABRIC_CLIQUE_ID", |r| Some(r.slow?.fabric.as_ref()?.clique.into())),
    number("DCGM_FI_DEV_FABRIC_HEALTH_MASK", |r| Some(r.slow?.fabric.as_ref()?.health_mask.into())),
    number("DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY", |r| r.slow?.fabric.as_ref()?.health_summary.map(f64::from)),
    profiled("DCGM_FI_PROF_SM_ACTIVE", |r| share(r, ProfilingMetric::Sm))
        .in_1x("dcgm_fi_prof_sm_active")
        .renamed("DCGM_FI_PROF_SM_UTIL_RATIO")
        .on(Level::Instance),
    profiled("DCGM_FI_PROF_SM_OCCUPANCY", |r| share(r, ProfilingMetric::Occupancy))
        .in_1x("dcgm_fi_prof_sm_occupancy")
        .renamed("DCGM_FI_PROF_SM_OCCUPANCY_RATIO")
        .on(Level::Instance),
    profiled("DCGM_FI_PROF_PIPE_FP64_ACTIVE", |r| share(r, ProfilingMetric::Fp64))
        .renamed("DCGM_FI_PROF_FP64_UTIL_RATIO")
        .on(Level::Instance),
    profiled("DCGM_FI_PROF_PIPE_FP32_ACTIVE", |r| share(r, ProfilingMetric::Fp32))
        .renamed("DCGM_FI_PROF_FP32_UTIL_RATIO")
        .on(Level::Instance),
    profiled("DCGM_FI_PROF_PIPE_FP16_ACTIVE", |r| share(r, ProfilingMetric::Fp16))
        .renamed("DCGM_FI_PROF_FP16_UTIL_RATIO")
        .on(Level::Instance),
    profiled("DCGM_FI_PROF_PIPE_INT_ACTIVE", |r| share(r, ProfilingMetric::Integer))
        .renamed("DCGM_FI_PROF_INT_UTIL_RATIO")
        .on(Level::Instance),
    profiled("DCGM_FI_PROF_NVLINK_TX_BYTES", |r| traffic(r, ProfilingMetric::NvlinkTransmitted)),
    profiled("DCGM_FI_PROF_NVLINK_RX_BYTES", |r| traffic(r, ProfilingMetric::NvlinkReceived)),
    profiled("DCGM_FI_PROF_C2C_TX_ALL_BYTES", |r| traffic(r, ProfilingMetric::C2cTransmitted)),
    profiled("DCGM_FI_PROF_C2C_RX_ALL_BYTES", |r| traffic(r, ProfilingMetric::C2cReceived)),
];

/// The number of memory banks in one class of spare rows; `spare` is its position in
/// [`SPARE_ROWS`](crate::snapshot::SPARE_ROWS).
fn banks(reading: &Reading<'_>, spare: usize) -> Option<f64> {
    reading.slow?.row_remap_banks.map(|banks| f64::from(banks[spare]))
}

/// A version such as `9.0` as one number: its first part times `major` plus its second part times `minor`.
fn version(text: Option<&str>, major: u64, minor: u64) -> Option<u64> {
    let (first, second) = text?.split_once('.')?;
    let [first, second] = [first, second].map(|part| part.parse::<u64>().ok());
    first?.checked_mul(major)?.checked_add(second?.checked_mul(minor)?)
}

/// The highest clock of a domain in MHz.
fn clock_max(reading: &Reading<'_>, domain: ClockDomain) -> Option<f64> {
    reading.slow?.clocks_max[domain as usize].map(mega)
}

/// The errors of all NVLinks.
fn nvlink_errors(reading: &Reading<'_>, error: NvlinkError) -> Option<f64> {
    let slow = reading.slow?;
    count(slow.nvlinks.as_ref()?.totals(&slow.nvlink_errors)[error as usize])
}

/// Degrees Celsius.
fn threshold(reading: &Reading<'_>, which: TemperatureThreshold) -> Option<f64> {
    reading.slow?.temperature_thresholds[which as usize]
}
