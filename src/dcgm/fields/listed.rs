//! The fields that dcgm-exporter serves by default, in its order, as far as the snapshot holds them.

use super::field::{
    FB_USED, Field, GPU_UTIL, Level, XID_ERRORS, count, counter, gauge, label, mhz, mib, percent, share, traffic,
};
use crate::snapshot::{ClockDomain, ProfilingMetric};

/// The label that dcgm-exporter adds by default.
pub(in crate::dcgm) const LABEL: &str = "DCGM_FI_DRIVER_VERSION";

/// The table.
pub(super) static LISTED: &[Field] = &[
    gauge(
        "DCGM_FI_DEV_SM_CLOCK",
        "DCGM_FI_DEV_SM_CLOCK",
        Level::Gpu,
        |r| mhz(r, ClockDomain::Sm),
        "Clock of the streaming multiprocessors in MHz.",
    ),
    gauge(
        "DCGM_FI_DEV_MEM_CLOCK",
        "DCGM_FI_DEV_MEM_CLOCK",
        Level::Gpu,
        |r| mhz(r, ClockDomain::Memory),
        "Clock of the device memory in MHz.",
    ),
    gauge(
        "DCGM_FI_DEV_MEMORY_TEMP",
        "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS",
        Level::Gpu,
        |r| r.fast?.memory_temperature,
        "Temperature of the device memory in degrees Celsius.",
    ),
    gauge(
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_GPU_TEMP_CELSIUS",
        Level::Gpu,
        |r| r.fast?.temperature,
        "Temperature of the GPU die in degrees Celsius.",
    ),
    gauge(
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_BOARD_POWER_WATTS",
        Level::Gpu,
        |r| r.fast?.power,
        "Power draw in watts.",
    ),
    counter(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        Level::Gpu,
        |r| r.slow?.energy.map(|joules| (joules * 1e3).round()),
        "Energy used since the driver was loaded, in millijoules. Present only with telemetry.energy.",
    ),
    counter(
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "DCGM_FI_DEV_PCIE_REPLAY_TOTAL",
        Level::Gpu,
        |r| count(r.slow?.pcie_replays),
        "PCIe replays.",
    ),
    gauge(
        GPU_UTIL,
        "DCGM_FI_DEV_GPU_UTIL_RATIO",
        Level::Gpu,
        |r| percent(r.fast?.utilization),
        "Share of time in which at least one kernel ran, in percent.",
    ),
    gauge(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        Level::Gpu,
        |r| percent(r.fast?.memory_bandwidth_utilization),
        "Share of time in which device memory was read or written, in percent.",
    ),
    gauge(
        "DCGM_FI_DEV_ENC_UTIL",
        "DCGM_FI_DEV_ENC_UTIL",
        Level::Gpu,
        |r| percent(r.fast?.encoder_utilization),
        "Utilization of the video encoder in percent.",
    ),
    gauge(
        "DCGM_FI_DEV_DEC_UTIL",
        "DCGM_FI_DEV_DEC_UTIL",
        Level::Gpu,
        |r| percent(r.fast?.decoder_utilization),
        "Utilization of the video decoder in percent.",
    ),
    gauge(
        XID_ERRORS,
        "DCGM_FI_DEV_XID_ERROR",
        Level::WholeGpu,
        |r| count(r.xid),
        "Code of the last Xid error since the exporter started, 0 before the first one.",
    ),
    gauge(
        "DCGM_FI_DEV_FB_FREE",
        "DCGM_FI_DEV_FB_FREE",
        Level::Instance,
        |r| Some(mib(r.memory?.free)),
        "Device memory that can still be allocated, in MiB.",
    ),
    gauge(
        FB_USED,
        "DCGM_FI_DEV_FB_USED",
        Level::Instance,
        |r| Some(mib(r.memory?.used)),
        "Allocated device memory in MiB.",
    ),
    gauge(
        "DCGM_FI_DEV_FB_RESERVED",
        "DCGM_FI_DEV_FB_RESERVED",
        Level::Instance,
        |r| r.memory?.reserved.map(mib),
        "Device memory kept by driver and firmware, in MiB.",
    ),
    counter(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
        Level::Gpu,
        |r| count(r.fast?.remapped_uncorrectable),
        "Memory rows remapped because of uncorrectable errors.",
    ),
    counter(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL",
        Level::Gpu,
        |r| count(r.fast?.remapped_correctable),
        "Memory rows remapped because of correctable errors.",
    ),
    gauge(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "DCGM_FI_DEV_ROW_REMAP_FAILED",
        Level::Gpu,
        |r| r.fast?.remap_failed.map(f64::from),
        "1 if the remapping of a memory row failed, else 0.",
    ),
    label(LABEL, "DCGM_FI_SYSTEM_DRIVER_VERSION", |r| r.driver.driver_version.as_deref()),
    gauge(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
        Level::Instance,
        |r| share(r, ProfilingMetric::Graphics),
        "Share of the last interval in which the graphics or compute engine was active, 0 to 1.",
    ),
    gauge(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "DCGM_FI_PROF_TENSOR_UTIL_RATIO",
        Level::Instance,
        |r| share(r, ProfilingMetric::Tensor),
        "Activity of the tensor pipes in the last interval as a share of their peak, 0 to 1.",
    ),
    gauge(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "DCGM_FI_PROF_DRAM_UTIL_RATIO",
        Level::Instance,
        |r| share(r, ProfilingMetric::MemoryBandwidth),
        "Traffic of the device memory in the last interval as a share of its peak, 0 to 1.",
    ),
    gauge(
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        Level::Gpu,
        |r| traffic(r, ProfilingMetric::PcieTransmitted),
        "Bytes a second from the GPU over PCIe in the last interval, with the overhead of the link.",
    ),
    gauge(
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        Level::Gpu,
        |r| traffic(r, ProfilingMetric::PcieReceived),
        "Bytes a second to the GPU over PCIe in the last interval, with the overhead of the link.",
    ),
];
