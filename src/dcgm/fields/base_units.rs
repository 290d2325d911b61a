//! The fields that DCGM 4.7 adds in hertz, joules, bytes, seconds and ratios, in the order of their numbers. Each has a number of
//! its own, and the field in the old unit stays (`in_base_units` of [`Field`]).

use super::{ENERGY, Field, Level, Share, count, hertz, limited, number};
use crate::snapshot::{ClockDomain, ClockLimit};

/// The table.
pub(super) static BASE_UNITS: &[Field] = &[
    number("DCGM_FI_DEV_BAR1_CAPACITY_BYTES", |r| count(r.slow?.bar1_total)).on(Level::WholeGpu),
    number("DCGM_FI_DEV_BAR1_USED_BYTES", |r| count(r.slow?.bar1_used)).on(Level::WholeGpu),
    number("DCGM_FI_DEV_BAR1_FREE_BYTES", |r| count(r.slow?.bar1_total?.checked_sub(r.slow?.bar1_used?)))
        .on(Level::WholeGpu),
    number("DCGM_FI_DEV_SM_CLOCK_HERTZ", |r| hertz(r, ClockDomain::Sm))
        .gauge("Clock of the streaming multiprocessors in hertz."),
    number("DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", |r| hertz(r, ClockDomain::Memory))
        .gauge("Clock of the device memory in hertz."),
    number("DCGM_FI_DEV_VIDEO_CLOCK_HERTZ", |r| hertz(r, ClockDomain::Video)),
    number("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", |r| r.slow?.driver_energy)
        .needs(ENERGY)
        .counter("Energy used since the driver was loaded, in joules. Present only with telemetry.energy."),
    number("DCGM_FI_DEV_GPU_UTIL_RATIO", |r| r.fast?.utilization)
        .shared(Share::Utilization(|ratio| ratio))
        .gauge("Share of time in which at least one kernel ran, 0 to 1."),
    number("DCGM_FI_DEV_MEMORY_UTIL_RATIO", |r| r.fast?.memory_bandwidth_utilization)
        .gauge("Share of time in which device memory was read or written, 0 to 1."),
    number("DCGM_FI_DEV_ENC_UTIL_RATIO", |r| r.fast?.encoder_utilization)
        .gauge("Utilization of the video encoder, 0 to 1."),
    number("DCGM_FI_DEV_DEC_UTIL_RATIO", |r| r.fast?.decoder_utilization)
        .gauge("Utilization of the video decoder, 0 to 1."),
    number("DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ", |r| r.slow?.clocks_max[ClockDomain::Sm as usize]),
    number("DCGM_FI_DEV_MEMORY_MAX_CLOCK_HERTZ", |r| r.slow?.clocks_max[ClockDomain::Memory as usize]),
    number("DCGM_FI_DEV_VIDEO_MAX_CLOCK_HERTZ", |r| r.slow?.clocks_max[ClockDomain::Video as usize]),
    number("DCGM_FI_DEV_FAN_SPEED_RATIO", |r| r.slow?.fan_speed),
    number("DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL", |r| limited(r, ClockLimit::Power).map(|time| time / 1e9)),
    number("DCGM_FI_DEV_FB_CAPACITY_BYTES", |r| Some(r.memory?.total as f64))
        .on(Level::Instance)
        .gauge("Device memory in bytes, with what driver and firmware keep."),
    number("DCGM_FI_DEV_FB_FREE_BYTES", |r| Some(r.memory?.free? as f64))
        .on(Level::Instance)
        .gauge("Device memory that can still be allocated, in bytes."),
    number("DCGM_FI_DEV_FB_USED_BYTES", |r| Some(r.memory?.used as f64))
        .shared(Share::Memory(|bytes| bytes as f64))
        .on(Level::Instance)
        .gauge("Allocated device memory in bytes."),
    number("DCGM_FI_DEV_FB_RESERVED_BYTES", |r| count(r.memory?.reserved))
        .on(Level::Instance)
        .gauge("Device memory kept by driver and firmware, in bytes."),
];
