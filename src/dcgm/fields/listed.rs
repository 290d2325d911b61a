//! The fields that dcgm-exporter serves by default, in its order, as far as the snapshot holds them.

use super::{
    ENERGY, Field, Level, Share, XID_ERRORS, count, label, mhz, mib, number, percent, profiled, share, traffic,
};
use crate::snapshot::{ClockDomain, ProfilingMetric};

/// The label that dcgm-exporter adds by default.
pub(crate) const LABEL: &str = "DCGM_FI_DRIVER_VERSION";

/// The table.
pub(super) static LISTED: &[Field] = &[
    number("DCGM_FI_DEV_SM_CLOCK", |r| mhz(r, ClockDomain::Sm))
        .in_1x("dcgm_sm_clock")
        .then("DCGM_FI_DEV_SM_CLOCK_HERTZ")
        .gauge("Clock of the streaming multiprocessors in MHz."),
    number("DCGM_FI_DEV_MEM_CLOCK", |r| mhz(r, ClockDomain::Memory))
        .in_1x("dcgm_memory_clock")
        .then("DCGM_FI_DEV_MEMORY_CLOCK_HERTZ")
        .gauge("Clock of the device memory in MHz."),
    number("DCGM_FI_DEV_MEMORY_TEMP", |r| r.fast?.memory_temperature)
        .in_1x("dcgm_memory_temp")
        .renamed("DCGM_FI_DEV_MEMORY_TEMP_CELSIUS")
        .gauge("Temperature of the device memory in degrees Celsius."),
    number("DCGM_FI_DEV_GPU_TEMP", |r| r.fast?.temperature)
        .in_1x("dcgm_gpu_temp")
        .renamed("DCGM_FI_DEV_GPU_TEMP_CELSIUS")
        .gauge("Temperature of the GPU die in degrees Celsius."),
    number("DCGM_FI_DEV_POWER_USAGE", |r| r.fast?.power)
        .in_1x("dcgm_power_usage")
        .renamed("DCGM_FI_DEV_BOARD_POWER_WATTS")
        .gauge("Power draw in watts."),
    number("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", |r| r.slow?.driver_energy.map(|joules| (joules * 1e3).round()))
        .needs(ENERGY)
        .in_1x("dcgm_total_energy_consumption")
        .then("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL")
        .counter("Energy used since the driver was loaded, in millijoules. Present only with telemetry.energy."),
    number("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", |r| count(r.slow?.pcie_replays))
        .in_1x("dcgm_pcie_replay_counter")
        .renamed("DCGM_FI_DEV_PCIE_REPLAY_TOTAL")
        .counter("PCIe replays."),
    number("DCGM_FI_DEV_GPU_UTIL", |r| r.fast?.utilization.map(percent))
        .in_1x("dcgm_gpu_utilization")
        .then("DCGM_FI_DEV_GPU_UTIL_RATIO")
        .shared(Share::Utilization(percent))
        .gauge("Share of time in which at least one kernel ran, in percent."),
    number("DCGM_FI_DEV_MEM_COPY_UTIL", |r| r.fast?.memory_bandwidth_utilization.map(percent))
        .in_1x("dcgm_mem_copy_utilization")
        .then("DCGM_FI_DEV_MEMORY_UTIL_RATIO")
        .gauge("Share of time in which device memory was read or written, in percent."),
    number("DCGM_FI_DEV_ENC_UTIL", |r| r.fast?.encoder_utilization.map(percent))
        .in_1x("dcgm_enc_utilization")
        .then("DCGM_FI_DEV_ENC_UTIL_RATIO")
        .gauge("Utilization of the video encoder in percent."),
    number("DCGM_FI_DEV_DEC_UTIL", |r| r.fast?.decoder_utilization.map(percent))
        .in_1x("dcgm_dec_utilization")
        .then("DCGM_FI_DEV_DEC_UTIL_RATIO")
        .gauge("Utilization of the video decoder in percent."),
    number(XID_ERRORS, |r| count(r.xid))
        .in_1x("dcgm_xid_errors")
        .renamed("DCGM_FI_DEV_XID_ERROR")
        .on(Level::WholeGpu)
        .gauge("Code of the last Xid error since the exporter started, 0 before the first one."),
    number("DCGM_FI_DEV_FB_FREE", |r| Some(mib(r.memory?.free?)))
        .in_1x("dcgm_fb_free")
        .then("DCGM_FI_DEV_FB_FREE_BYTES")
        .on(Level::Instance)
        .gauge("Device memory that can still be allocated, in MiB."),
    number("DCGM_FI_DEV_FB_USED", |r| Some(mib(r.memory?.used)))
        .in_1x("dcgm_fb_used")
        .then("DCGM_FI_DEV_FB_USED_BYTES")
        .shared(Share::Memory(mib))
        .on(Level::Instance)
        .gauge("Allocated device memory in MiB."),
    number("DCGM_FI_DEV_FB_RESERVED", |r| r.memory?.reserved.map(mib))
        .then("DCGM_FI_DEV_FB_RESERVED_BYTES")
        .on(Level::Instance)
        .gauge("Device memory kept by driver and firmware, in MiB."),
    number("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", |r| count(r.fast?.remapped_uncorrectable))
        .renamed("DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL")
        .counter("Memory rows remapped because of uncorrectable errors."),
    number("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", |r| count(r.fast?.remapped_correctable))
        .renamed("DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL")
        .counter("Memory rows remapped because of correctable errors."),
    number("DCGM_FI_DEV_ROW_REMAP_FAILURE", |r| r.fast?.remap_failed.map(f64::from))
        .renamed("DCGM_FI_DEV_ROW_REMAP_FAILED")
        .gauge("1 if the remapping of a memory row failed, else 0."),
    label(LABEL, |r| r.driver.driver_version.as_deref()).renamed("DCGM_FI_SYSTEM_DRIVER_VERSION"),
    profiled("DCGM_FI_PROF_GR_ENGINE_ACTIVE", |r| share(r, ProfilingMetric::Graphics))
        .in_1x("dcgm_fi_prof_gr_engine_active")
        .renamed("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO")
        .on(Level::Instance)
        .gauge("Share of the last interval in which the graphics or compute engine was active, 0 to 1."),
    profiled("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", |r| share(r, ProfilingMetric::Tensor))
        .in_1x("dcgm_fi_prof_pipe_tensor_active")
        .renamed("DCGM_FI_PROF_TENSOR_UTIL_RATIO")
        .on(Level::Instance)
        .gauge("Activity of the tensor pipes in the last interval as a share of their peak, 0 to 1."),
    profiled("DCGM_FI_PROF_DRAM_ACTIVE", |r| share(r, ProfilingMetric::MemoryBandwidth))
        .in_1x("dcgm_fi_prof_dram_active")
        .renamed("DCGM_FI_PROF_DRAM_UTIL_RATIO")
        .on(Level::Instance)
        .gauge("Traffic of the device memory in the last interval as a share of its peak, 0 to 1."),
    profiled("DCGM_FI_PROF_PCIE_TX_BYTES", |r| traffic(r, ProfilingMetric::PcieTransmitted))
        .in_1x("dcgm_fi_prof_pcie_tx_bytes")
        .gauge("Bytes a second from the GPU over PCIe in the last interval, with the overhead of the link."),
    profiled("DCGM_FI_PROF_PCIE_RX_BYTES", |r| traffic(r, ProfilingMetric::PcieReceived))
        .in_1x("dcgm_fi_prof_pcie_rx_bytes")
        .gauge("Bytes a second to the GPU over PCIe in the last interval, with the overhead of the link."),
];
