//! The fields that are served only if a collectors file lists them.

use super::field::{Field, Level, Reading, count, extra, label, mhz, mib, share, traffic};
use crate::snapshot::{ClockDomain, ProfilingMetric, allocatable};

/// The table.
pub(super) static EXTRA: &[Field] = &[
    label("DCGM_FI_NVML_VERSION", "DCGM_FI_SYSTEM_NVML_VERSION", |r| r.driver.nvml_version.as_deref()),
    label("DCGM_FI_DEV_NAME", "DCGM_FI_DEV_GPU_NAME", |r| r.gpu.name.as_deref()),
    label("DCGM_FI_DEV_UUID", "DCGM_FI_DEV_GPU_UUID", |r| Some(&r.gpu.uuid)),
    label("DCGM_FI_DEV_PCI_BUSID", "DCGM_FI_DEV_PCI_BUS_ID", |r| r.gpu.pci_bus_id.as_deref()),
    label("DCGM_FI_DEV_VBIOS_VERSION", "DCGM_FI_DEV_VBIOS_VERSION", |r| r.gpu.vbios.as_deref()),
    extra("DCGM_FI_DEV_VIDEO_CLOCK", "DCGM_FI_DEV_VIDEO_CLOCK", Level::Gpu, |r| mhz(r, ClockDomain::Video)),
    extra("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", Level::Gpu, |r| {
        count(r.fast?.throttle)
    }),
    extra("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", Level::Gpu, |r| {
        count(r.fast?.throttle)
    }),
    extra("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS", Level::Gpu, |r| {
        r.fast?.power_limit
    }),
    extra("DCGM_FI_DEV_FB_TOTAL", "DCGM_FI_DEV_FB_TOTAL", Level::Instance, |r| Some(mib(r.memory?.total))),
    extra("DCGM_FI_DEV_FB_USED_PERCENT", "DCGM_FI_DEV_FB_USED_RATIO", Level::Instance, |r| {
        let memory = r.memory?;
        memory.reserved?;
        let usable = Some(allocatable(memory.total, memory.reserved)).filter(|bytes| *bytes > 0)?;
        Some(memory.used as f64 / usable as f64)
    }),
    extra("DCGM_FI_DEV_BAR1_TOTAL", "DCGM_FI_DEV_BAR1_TOTAL", Level::WholeGpu, |r| r.slow?.bar1_total.map(mib)),
    extra("DCGM_FI_DEV_BAR1_USED", "DCGM_FI_DEV_BAR1_USED", Level::WholeGpu, |r| r.slow?.bar1_used.map(mib)),
    extra("DCGM_FI_DEV_BAR1_FREE", "DCGM_FI_DEV_BAR1_FREE", Level::WholeGpu, |r| {
        let slow = r.slow?;
        slow.bar1_total?.checked_sub(slow.bar1_used?).map(mib)
    }),
    extra("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", Level::Gpu, |r| {
        count(r.fast?.ecc_corrected)
    }),
    extra("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Level::Gpu, |r| {
        count(r.fast?.ecc_uncorrected)
    }),
    extra("DCGM_FI_DEV_RETIRED_SBE", "DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL", Level::Gpu, |r| {
        count(r.slow?.retired_single_bit)
    }),
    extra("DCGM_FI_DEV_RETIRED_DBE", "DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL", Level::Gpu, |r| {
        count(r.slow?.retired_double_bit)
    }),
    extra("DCGM_FI_DEV_ROW_REMAP_PENDING", "DCGM_FI_DEV_ROW_REMAP_PENDING", Level::Gpu, |r| {
        r.fast?.remap_pending.map(f64::from)
    }),
    extra("DCGM_FI_DEV_PCIE_LINK_GEN", "DCGM_FI_DEV_PCIE_LINK_GEN", Level::Gpu, |r| {
        r.fast?.pcie_generation.map(f64::from)
    }),
    extra("DCGM_FI_DEV_PCIE_LINK_WIDTH", "DCGM_FI_DEV_PCIE_LINK_WIDTH", Level::Gpu, |r| {
        r.fast?.pcie_width.map(f64::from)
    }),
    extra("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", "DCGM_FI_DEV_PCIE_MAX_LINK_GEN", Level::Gpu, |r| {
        r.slow?.pcie_generation_max.map(f64::from)
    }),
    extra("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", Level::Gpu, |r| {
        r.slow?.pcie_width_max.map(f64::from)
    }),
    extra("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_MAX", "DCGM_FI_DEV_BANK_REMAP_AVAIL_MAX", Level::Gpu, |r| banks(r, 0)),
    extra("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_HIGH", "DCGM_FI_DEV_BANK_REMAP_AVAIL_HIGH", Level::Gpu, |r| banks(r, 1)),
    extra("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_PARTIAL", "DCGM_FI_DEV_BANK_REMAP_AVAIL_PARTIAL", Level::Gpu, |r| {
        banks(r, 2)
    }),
    extra("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_LOW", "DCGM_FI_DEV_BANK_REMAP_AVAIL_LOW", Level::Gpu, |r| banks(r, 3)),
    extra("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_NONE", "DCGM_FI_DEV_BANK_REMAP_AVAIL_NONE", Level::Gpu, |r| banks(r, 4)),
    extra("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO", Level::Instance, |r| share(r, ProfilingMetric::Sm)),
    extra("DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_SM_OCCUPANCY_RATIO", Level::Instance, |r| {
        share(r, ProfilingMetric::Occupancy)
    }),
    extra("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "DCGM_FI_PROF_FP64_UTIL_RATIO", Level::Instance, |r| {
        share(r, ProfilingMetric::Fp64)
    }),
    extra("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "DCGM_FI_PROF_FP32_UTIL_RATIO", Level::Instance, |r| {
        share(r, ProfilingMetric::Fp32)
    }),
    extra("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "DCGM_FI_PROF_FP16_UTIL_RATIO", Level::Instance, |r| {
        share(r, ProfilingMetric::Fp16)
    }),
    extra("DCGM_FI_PROF_PIPE_INT_ACTIVE", "DCGM_FI_PROF_INT_UTIL_RATIO", Level::Instance, |r| {
        share(r, ProfilingMetric::Integer)
    }),
    extra("DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_TX_BYTES", Level::Gpu, |r| {
        traffic(r, ProfilingMetric::NvlinkTransmitted)
    }),
    extra("DCGM_FI_PROF_NVLINK_RX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES", Level::Gpu, |r| {
        traffic(r, ProfilingMetric::NvlinkReceived)
    }),
    extra("DCGM_FI_PROF_C2C_TX_ALL_BYTES", "DCGM_FI_PROF_C2C_TX_ALL_BYTES", Level::Gpu, |r| {
        traffic(r, ProfilingMetric::C2cTransmitted)
    }),
    extra("DCGM_FI_PROF_C2C_RX_ALL_BYTES", "DCGM_FI_PROF_C2C_RX_ALL_BYTES", Level::Gpu, |r| {
        traffic(r, ProfilingMetric::C2cReceived)
    }),
];

/// The number of memory banks in one class of spare rows; `spare` is its position in
/// [`SPARE_ROWS`](crate::snapshot::SPARE_ROWS).
fn banks(reading: &Reading<'_>, spare: usize) -> Option<f64> {
    reading.slow?.row_remap_banks.map(|banks| f64::from(banks[spare]))
}
