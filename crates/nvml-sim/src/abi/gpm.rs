//! GPM, the profiler's counters. A sample holds only its GPU and its time; a metric is computed from two samples.
//!
//! Samples are numbered and kept in a list, so that a pointer that is not a sample of this library is refused.

use std::ffi::{c_char, c_uint};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvml_wrapper_sys::bindings as sys;

use super::output::{get, put};
use super::{On, Sim, device_calls, pass, system_calls};
use crate::clock::Nanos;
use crate::code::{Answer, Code};
use crate::fault::Target;
use crate::machine::profiling::is_percentage;
use crate::machine::{Gpu, Instance};
use crate::scenario::grammar::Implausible;

/// What the two calls for GPM streaming return: its state cannot be read or changed.
const ABSENT: Code = Code::FUNCTION_NOT_FOUND;
/// The base of the pointers that identify samples: 1 and the sample's number are added to it.
const MARK: usize = 0x6770_0000_0000;
/// The most samples that a program can have: far more than two for each GPU and MIG device.
const MOST: usize = 4096;
/// An implausible percentage, and an implausible number of MiB a second.
const ABOVE: [f64; 2] = [250.0, 1e12];

/// A sample: what was sampled, and when.
#[derive(Debug, Clone, Copy)]
struct Taken {
    gpu: u32,
    gpu_instance: Option<u32>,
    at: Nanos,
}

/// An entry of the list of samples: `None` if its number is free, `Some(None)` if its sample has not been filled yet.
#[derive(Debug, Clone, Copy)]
struct Slot(Option<Option<Taken>>);

static SAMPLES: Mutex<Vec<Slot>> = Mutex::new(Vec::new());

fn samples() -> MutexGuard<'static, Vec<Slot>> {
    SAMPLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a sample.
fn number(sample: sys::nvmlGpmSample_t) -> Answer<usize> {
    let number = sample.addr().checked_sub(MARK + 1).ok_or(Code::INVALID_ARGUMENT)?;
    let is_allocated = samples().get(number).is_some_and(|slot| slot.0.is_some());
    if is_allocated { Ok(number) } else { Err(Code::INVALID_ARGUMENT) }
}

fn taken(sample: sys::nvmlGpmSample_t) -> Answer<Taken> {
    let number = number(sample)?;
    samples().get(number).and_then(|slot| slot.0?).ok_or(Code::INVALID_ARGUMENT)
}

/// Fills a sample of the GPU, or of one of its GPU instances.
fn take(on: &On, gpu_instance: Option<u32>, sample: sys::nvmlGpmSample_t) -> Answer {
    if !on.gpu.profiler.supported {
        return Err(Code::NOT_SUPPORTED);
    }
    if let Some(id) = gpu_instance {
        instance(on.gpu, id).ok_or(Code::INVALID_ARGUMENT)?;
    }
    let number = number(sample)?;
    samples()[number] = Slot(Some(Some(Taken { gpu: on.gpu.index, gpu_instance, at: on.now })));
    Ok(())
}

fn instance(gpu: &Gpu, gpu_instance: u32) -> Option<&Instance> {
    gpu.mig.as_ref()?.iter().flatten().find(|instance| instance.gpu_instance == gpu_instance)
}

/// Computes the requested metrics. The struct's array is read and written only up to the requested number, because
/// its length differs between the headers of different drivers.
unsafe fn compute(sim: &Sim, request: *mut sys::nvmlGpmMetricsGet_t) -> Answer {
    // SAFETY: the caller of the C function guarantees a pointer to the fields before the array.
    let (version, count, [first, second]) = unsafe {
        if request.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let field = |field: *const sys::nvmlGpmSample_t| get(field);
        let samples = [field(&raw const (*request).sample1)?, field(&raw const (*request).sample2)?];
        (get(&raw const (*request).version)?, get(&raw const (*request).numMetrics)?, samples)
    };
    if version != sys::NVML_GPM_METRICS_GET_VERSION {
        return Err(Code::ARGUMENT_VERSION_MISMATCH);
    }
    let (first, second) = (taken(first)?, taken(second)?);
    // A fault that affects the GPU affects this call too.
    let target = Target::gpu(second.gpu);
    let (machine, now) = pass(sim.machine, sim.call, target, sim.now)?;
    let gpu = machine.gpus.get(second.gpu as usize).ok_or(Code::INVALID_ARGUMENT)?;
    if (first.gpu, first.gpu_instance) != (second.gpu, second.gpu_instance) || first.at >= second.at {
        return Err(Code::INVALID_ARGUMENT);
    }
    let part = second.gpu_instance.map(|id| instance(gpu, id).ok_or(Code::INVALID_ARGUMENT)).transpose()?;
    let busy = machine.mean_utilization(gpu, part, first.at, second.at);
    let on = On { machine, gpu, instance: None, now, call: sim.call };
    let implausible = on.implausible();
    // SAFETY: as above, and the array has at least `count` entries.
    let metrics = unsafe { (&raw mut (*request).metrics).cast::<sys::nvmlGpmMetric_t>() };
    for at in 0..count as usize {
        let entry = metrics.wrapping_add(at);
        // SAFETY: as above.
        unsafe {
            let id = get(&raw const (*entry).metricId)?;
            if !gpu.profiler.knows(id) {
                return Err(Code::INVALID_ARGUMENT);
            }
            if gpu.profiler.untouched {
                continue;
            }
            put(entry, metric(id, gpu.profiler.metric(id).map(|full| full * busy), implausible))?;
        }
    }
    Ok(())
}

fn metric(id: u32, value: Option<f64>, implausible: Option<Implausible>) -> sys::nvmlGpmMetric_t {
    let value = match implausible {
        Some(Implausible::Above) => value.map(|_| ABOVE[usize::from(!is_percentage(id))]),
        // A double in which every bit is set is NaN.
        Some(Implausible::Ones) => value.map(|_| f64::from_bits(u64::MAX)),
        Some(Implausible::Zeros) => value.map(|_| 0.0),
        None => value,
    };
    let unit = if is_percentage(id) { c"%" } else { c"MiB/s" };
    let unit = unit.as_ptr().cast::<c_char>().cast_mut();
    sys::nvmlGpmMetric_t {
        metricId: id,
        nvmlReturn: if value.is_some() { sys::nvmlReturn_enum_NVML_SUCCESS } else { Code::NOT_SUPPORTED.0 },
        value: value.unwrap_or(0.0),
        metricInfo: sys::nvmlGpmMetric_t__bindgen_ty_1 {
            shortName: std::ptr::null_mut(),
            longName: std::ptr::null_mut(),
            unit,
        },
    }
}

system_calls! {
    fn nvmlGpmSampleAlloc(sample: *mut sys::nvmlGpmSample_t) |sim| {
        let mut samples = samples();
        let number = samples.iter().position(|slot| slot.0.is_none()).unwrap_or(samples.len());
        if number == MOST {
            return Err(Code::MEMORY);
        }
        if number == samples.len() {
            samples.push(Slot(None));
        }
        samples[number] = Slot(Some(None));
        put(sample, std::ptr::without_provenance_mut(MARK + 1 + number))
    }
    fn nvmlGpmSampleFree(sample: sys::nvmlGpmSample_t) |sim| {
        let number = number(sample)?;
        samples()[number] = Slot(None);
        Ok(())
    }
    fn nvmlGpmMetricsGet(metrics: *mut sys::nvmlGpmMetricsGet_t) |sim| { compute(sim, metrics) }
}

device_calls! {
    fn nvmlGpmQueryDeviceSupport(support: *mut sys::nvmlGpmSupport_t) |on| {
        if get(support.cast::<c_uint>())? != sys::NVML_GPM_SUPPORT_VERSION {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let supported = c_uint::from(on.gpu.profiler.supported);
        put(support, sys::nvmlGpmSupport_t {
            version: sys::NVML_GPM_SUPPORT_VERSION,
            isSupportedDevice: supported,
        })
    }
    fn nvmlGpmSampleGet(sample: sys::nvmlGpmSample_t) |on| {
        take(on, on.instance.map(|instance| instance.gpu_instance), sample)
    }
    fn nvmlGpmMigSampleGet(instance: c_uint, sample: sys::nvmlGpmSample_t) |on| {
        on.whole()?;
        take(on, Some(instance), sample)
    }
    fn nvmlGpmQueryIfStreamingEnabled(state: *mut c_uint) |on| { Err(ABSENT) }
    fn nvmlGpmSetStreamingEnabled(state: c_uint) |on| { Err(ABSENT) }
}
