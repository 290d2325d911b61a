//! Process lists, in all versions of the calls.

use std::ffi::{c_uint, c_ulonglong};
use std::sync::atomic::Ordering;

use nvml_wrapper_sys::bindings as sys;

use super::output::{check_version, get, put};
use super::{On, device_calls};
use crate::code::{Answer, Code};
use crate::fault::Kind;
use crate::library;
use crate::machine::Listed;
use crate::machine::process::ProcessList;
use crate::scenario::grammar::Implausible;

/// NVML's value for memory that it does not report.
const UNKNOWN_MEMORY: c_ulonglong = c_ulonglong::MAX;
/// The number of failed calls after which a growing list stops growing until it is fetched.
const GROWTH_ROUNDS: u32 = 3;
/// The first pid of the processes that a growing list gains; the scenario's processes have none of these pids.
const GROWN_PIDS: u32 = 2_000_000;

/// Writes a list into the caller's array of `T`, or as much of it as fits.
///
/// # Errors
/// `INSUFFICIENT_SIZE`, with the number of processes in `count`, when there is no room for all.
unsafe fn fill<T>(
    on: &On,
    list: ProcessList,
    count: *mut c_uint,
    entries: *mut T,
    entry: impl Fn(&Listed) -> T,
) -> Answer {
    library::update_processes();
    // SAFETY: the caller guarantees that its pointers are valid and that `entries` has room for `count` entries.
    unsafe {
        let room = get(count)?;
        if room > 0 && entries.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let mut found: c_uint = 0;
        let implausible = on.implausible();
        let mut write = |listed: &Listed| {
            if found < room {
                entries.add(found as usize).write(entry(&twisted(implausible, on.gpu.model.total, *listed)));
            }
            found += 1;
        };
        on.machine.listed(on.gpu, on.instance, list, on.now, &mut write);
        for number in 0..grown(on) {
            let ids = (crate::machine::NO_INSTANCE, crate::machine::NO_INSTANCE);
            write(&Listed { pid: GROWN_PIDS + number, memory: Some(0), ids });
        }
        put(count, found)?;
        if found > room {
            on.gpu.growth.fetch_add(1, Ordering::Relaxed);
            return Err(Code::INSUFFICIENT_SIZE);
        }
        on.gpu.growth.store(0, Ordering::Relaxed);
        Ok(())
    }
}

/// An entry, unchanged or with implausible memory.
fn twisted(implausible: Option<Implausible>, total: u64, listed: Listed) -> Listed {
    let memory = match implausible {
        None => listed.memory,
        Some(Implausible::Above) => Some(total + 1),
        Some(Implausible::Ones) => Some(u64::MAX),
        Some(Implausible::Zeros) => Some(0),
    };
    Listed { memory, ..listed }
}

/// How many processes a growing list has gained.
fn grown(on: &On) -> u32 {
    let by = on.machine.faults.iter().find_map(|fault| match fault.kind {
        Kind::Grow(by) if fault.affects(on.call, on.target(), on.now) => Some(by),
        _ => None,
    });
    by.map_or(0, |by| by.saturating_mul(on.gpu.growth.load(Ordering::Relaxed).min(GROWTH_ROUNDS)))
}

fn memory(listed: &Listed) -> c_ulonglong {
    listed.memory.unwrap_or(UNKNOWN_MEMORY)
}

fn first(listed: &Listed) -> sys::nvmlProcessInfo_v1_t {
    sys::nvmlProcessInfo_v1_t { pid: listed.pid, usedGpuMemory: memory(listed) }
}

fn second(listed: &Listed) -> sys::nvmlProcessInfo_v2_t {
    let (gpuInstanceId, computeInstanceId) = listed.ids;
    sys::nvmlProcessInfo_v2_t { pid: listed.pid, usedGpuMemory: memory(listed), gpuInstanceId, computeInstanceId }
}

fn detail(listed: &Listed) -> sys::nvmlProcessDetail_v1_t {
    let (gpuInstanceId, computeInstanceId) = listed.ids;
    sys::nvmlProcessDetail_v1_t {
        pid: listed.pid,
        usedGpuMemory: memory(listed),
        gpuInstanceId,
        computeInstanceId,
        usedGpuCcProtectedMemory: 0,
    }
}

type V1 = *mut sys::nvmlProcessInfo_v1_t;
type V2 = *mut sys::nvmlProcessInfo_v2_t;

device_calls! {
    fn nvmlDeviceGetComputeRunningProcesses(count: *mut c_uint, infos: V1) |on| {
        fill(on, ProcessList::Compute, count, infos, first)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v2(count: *mut c_uint, infos: V2)
    = nvmlDeviceGetComputeRunningProcesses_v3
    |on| {
        fill(on, ProcessList::Compute, count, infos, second)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses(count: *mut c_uint, infos: V1) |on| {
        fill(on, ProcessList::Graphics, count, infos, first)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(count: *mut c_uint, infos: V2)
    = nvmlDeviceGetGraphicsRunningProcesses_v3
    |on| {
        fill(on, ProcessList::Graphics, count, infos, second)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses(count: *mut c_uint, infos: V1) |on| {
        fill(on, ProcessList::Mps, count, infos, first)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(count: *mut c_uint, infos: V2)
    = nvmlDeviceGetMPSComputeRunningProcesses_v3
    |on| {
        fill(on, ProcessList::Mps, count, infos, second)
    }
    fn nvmlDeviceGetRunningProcessDetailList(list: *mut sys::nvmlProcessDetailList_t) |on| {
        check_version(list, 1)?;
        let kind = match (*list).mode {
            0 => ProcessList::Compute,
            1 => ProcessList::Graphics,
            2 => ProcessList::Mps,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        fill(on, kind, &raw mut (*list).numProcArrayEntries, (*list).procArray, detail)
    }
}
