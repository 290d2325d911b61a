//! Utilization, temperature, power and clocks.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use super::output::{check_version, get, put, struct_version};
use super::{On, device_calls};
use crate::clock::{self, Nanos, SECOND};
use crate::code::{Answer, Code};
use crate::machine::activity::LOOK;

/// The smallest buffer, in samples, that the driver requests for the utilization of processes (recorded).
const SAMPLES: c_uint = 72;
/// How often a process's utilization is sampled, and how long a sample is kept.
const SAMPLE_PERIOD: Nanos = LOOK;
const KEPT: Nanos = 20 * SECOND;
/// The sampling period of the engines' utilization, in microseconds (recorded).
const ENGINE_PERIOD: c_uint = 100_000;

fn percent(share: f64) -> c_uint {
    (share * 100.0).round() as c_uint
}

fn known(value: u32) -> Answer<c_uint> {
    if value == 0 { Err(Code::NOT_SUPPORTED) } else { Ok(value) }
}

/// Selects one of the clocks: graphics and SM, memory, video.
fn clock_of(clocks: [u32; 3], kind: sys::nvmlClockType_t) -> Answer<c_uint> {
    match kind {
        sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS | sys::nvmlClockType_enum_NVML_CLOCK_SM => known(clocks[0]),
        sys::nvmlClockType_enum_NVML_CLOCK_MEM => known(clocks[1]),
        sys::nvmlClockType_enum_NVML_CLOCK_VIDEO => known(clocks[2]),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

fn temperature(on: &On, sensor: sys::nvmlTemperatureSensors_t) -> Answer<f64> {
    on.whole()?;
    match sensor {
        sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU => Ok(on.machine.temperature(on.gpu, on.now).round()),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// A power limit in milliwatts.
pub(super) fn power_limit(on: &On, which: usize) -> Answer<c_uint> {
    on.whole()?;
    // A GPU without a board of its own (it is built into a system chip) has no power limit.
    if on.gpu.model.pcie.is_none() { Err(Code::NOT_SUPPORTED) } else { Ok((on.gpu.model.power[which] * 1e3) as c_uint) }
}

/// The last sample of each process that did work after `since` (Unix time in microseconds).
fn samples(on: &On, since: c_ulonglong) -> Vec<sys::nvmlProcessUtilizationSample_t> {
    let newest = on.now - on.now % SAMPLE_PERIOD;
    let activity = on.machine.activity(on.gpu, None, newest);
    let shared = if activity.busy >= 1.0 { activity.processes.max(1) as f64 } else { 1.0 };
    let mut found = Vec::new();
    for &member in &on.gpu.members {
        let process = &on.machine.processes[member as usize];
        let Some(life) = process.life(on.now) else { continue };
        let mut at = newest;
        while at > life.start && at >= 0 && newest - at < KEPT {
            let stamp = ((clock::zero() + at) / 1_000) as c_ulonglong;
            if stamp <= since {
                break;
            }
            let busy = process.busy(life, at);
            if busy >= 0.005 {
                let share = percent((busy / shared).clamp(0.01, 1.0));
                found.push(sys::nvmlProcessUtilizationSample_t {
                    pid: process.pid(life.number),
                    timeStamp: stamp,
                    smUtil: share,
                    memUtil: share / 2,
                    encUtil: 0,
                    decUtil: 0,
                });
                break;
            }
            at -= SAMPLE_PERIOD;
        }
    }
    found
}

pub(super) fn reasons(on: &On) -> Answer<c_ulonglong> {
    on.whole()?;
    let idle = on.machine.activity(on.gpu, None, on.now).processes == 0;
    let heat = match () {
        () if on.machine.burning(on.gpu, on.now) => {
            sys::nvmlClocksThrottleReasonHwSlowdown | sys::nvmlClocksThrottleReasonHwThermalSlowdown
        }
        () if on.machine.hot(on.gpu, on.now) => sys::nvmlClocksEventReasonSwThermalSlowdown,
        () => 0,
    };
    let load = match () {
        () if idle => sys::nvmlClocksEventReasonGpuIdle,
        () if on.machine.capped(on.gpu, on.now) => sys::nvmlClocksEventReasonSwPowerCap,
        () => 0,
    };
    Ok((heat | load).into())
}

pub(super) fn state(on: &On) -> Answer<sys::nvmlPstates_t> {
    on.whole()?;
    let idle = on.machine.activity(on.gpu, None, on.now).processes == 0;
    Ok(if idle && on.gpu.model.drops_state {
        sys::nvmlPStates_enum_NVML_PSTATE_8
    } else {
        sys::nvmlPStates_enum_NVML_PSTATE_0
    })
}

device_calls! {
    fn nvmlDeviceGetUtilizationRates(rates: *mut sys::nvmlUtilization_t) |on| {
        on.uncut()?;
        let busy = on.machine.activity(on.gpu, None, on.now).busy;
        put(rates, sys::nvmlUtilization_t { gpu: percent(busy), memory: percent(busy * 0.55) })
    }
    /// Without a buffer, the call returns the size of a buffer that holds all samples; with one, it returns `NOT_FOUND`
    /// if there is no sample.
    fn nvmlDeviceGetProcessUtilization(
        utilization: *mut sys::nvmlProcessUtilizationSample_t,
        count: *mut c_uint,
        since: c_ulonglong,
    ) |on| {
        on.uncut()?;
        let room = get(count)?;
        let found = samples(on, since);
        let enough = SAMPLES.max(found.len() as c_uint);
        if utilization.is_null() || (room as usize) < found.len() {
            put(count, enough)?;
            return Err(Code::INSUFFICIENT_SIZE);
        }
        if found.is_empty() {
            return Err(Code::NOT_FOUND);
        }
        put(count, found.len() as c_uint)?;
        for (at, sample) in found.into_iter().enumerate() {
            put(utilization.wrapping_add(at), sample)?;
        }
        Ok(())
    }
    /// Engines that no simulated process uses.
    fn nvmlDeviceGetEncoderUtilization(utilization: *mut c_uint, period: *mut c_uint)
    = nvmlDeviceGetDecoderUtilization
    = nvmlDeviceGetJpgUtilization
    = nvmlDeviceGetOfaUtilization
    |on| {
        on.uncut()?;
        put(utilization, 0)?;
        put(period, ENGINE_PERIOD)
    }
    fn nvmlDeviceGetTemperature(sensor: sys::nvmlTemperatureSensors_t, degrees: *mut c_uint) |on| {
        put(degrees, temperature(on, sensor)? as c_uint)
    }
    fn nvmlDeviceGetTemperatureV(reading: *mut sys::nvmlTemperature_t) |on| {
        check_version(reading, 1)?;
        let sensor = (*reading).sensorType;
        let degrees = temperature(on, sensor)? as c_int;
        let version = struct_version::<sys::nvmlTemperature_t>(1);
        put(reading, sys::nvmlTemperature_t { version, sensorType: sensor, temperature: degrees })
    }
    fn nvmlDeviceGetTemperatureThreshold(kind: sys::nvmlTemperatureThresholds_t, degrees: *mut c_uint) |on| {
        on.whole()?;
        match on.gpu.model.thresholds.get(kind as usize) {
            Some(&threshold) => put(degrees, known(threshold)?),
            None if kind < sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_COUNT => {
                Err(Code::NOT_SUPPORTED)
            }
            None => Err(Code::INVALID_ARGUMENT),
        }
    }
    fn nvmlDeviceGetPowerManagementLimitConstraints(least: *mut c_uint, most: *mut c_uint) |on| {
        put(least, power_limit(on, 3)?)?;
        put(most, power_limit(on, 2)?)
    }
    fn nvmlDeviceGetClockInfo(kind: sys::nvmlClockType_t, mhz: *mut c_uint) |on| {
        on.whole()?;
        put(mhz, clock_of(on.machine.clocks(on.gpu, on.now), kind)?)
    }
    fn nvmlDeviceGetMaxClockInfo(kind: sys::nvmlClockType_t, mhz: *mut c_uint)
    = nvmlDeviceGetMaxCustomerBoostClock
    = nvmlDeviceGetApplicationsClock
    |on| {
        on.whole()?;
        put(mhz, clock_of(on.gpu.model.clocks, kind)?)
    }
    fn nvmlDeviceGetClock(kind: sys::nvmlClockType_t, id: sys::nvmlClockId_t, mhz: *mut c_uint) |on| {
        on.whole()?;
        let clocks = match id {
            sys::nvmlClockId_enum_NVML_CLOCK_ID_CURRENT => on.machine.clocks(on.gpu, on.now),
            id if id < sys::nvmlClockId_enum_NVML_CLOCK_ID_COUNT => on.gpu.model.clocks,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        put(mhz, clock_of(clocks, kind)?)
    }
    fn nvmlDeviceGetFanSpeed_v2(number: c_uint, speed: *mut c_uint) |on| {
        put(speed, fan(on, number, Code::INVALID_ARGUMENT)?)
    }
}

/// The speed of a fan in percent: 0 while the GPU is cool, higher as it gets hotter. `absent`: the answer if the GPU has no
/// such fan.
pub(super) fn fan(on: &On, number: c_uint, absent: Code) -> Answer<c_uint> {
    on.whole()?;
    if number >= on.gpu.model.fans {
        return Err(absent);
    }
    let [cool, hot] = on.gpu.model.temperature;
    Ok(percent(((on.machine.temperature(on.gpu, on.now) - cool) / (hot - cool) * 0.7).clamp(0.0, 1.0)))
}
