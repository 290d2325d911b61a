//! The driver's accounting, if an administrator enabled it: exact maxima for processes that are alive or have ended.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use super::output::{get, put};
use super::{On, device_calls};
use crate::clock::{self, Nanos};
use crate::code::Code;
use crate::machine::process::{Life, Process};

const MICROSECOND: Nanos = 1_000;
const MILLISECOND: Nanos = 1_000_000;

/// The runs that accounting reports: for each process the current one, or the last one if the process has ended.
fn accounted(on: &On) -> impl Iterator<Item = (&'static Process, Life, Option<Nanos>)> {
    let (machine, now) = (on.machine, on.now);
    let members = if on.gpu.accounting { &on.gpu.members[..] } else { &[] };
    members.iter().filter_map(move |&member| {
        let process = &machine.processes[member as usize];
        if process.is_orphaned() {
            return None;
        }
        let ended = || process.last_ended(now).map(|(life, end)| (process, life, Some(end)));
        process.life(now).map(|life| (process, life, None)).or_else(ended)
    })
}

device_calls! {
    /// A buffer of length 0 is never long enough, even if there are no processes (recorded).
    fn nvmlDeviceGetAccountingPids(count: *mut c_uint, pids: *mut c_uint) |on| {
        on.whole()?;
        let room = get(count)?;
        let found: Vec<c_uint> = accounted(on).map(|(process, life, _)| process.pid(life.number)).collect();
        put(count, found.len() as c_uint)?;
        if (room as usize) < found.len().max(1) {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        for (at, pid) in found.iter().enumerate() {
            put(pids.wrapping_add(at), *pid)?;
        }
        Ok(())
    }
    fn nvmlDeviceGetAccountingStats(pid: c_uint, stats: *mut sys::nvmlAccountingStats_t) |on| {
        on.whole()?;
        let (process, life, end) =
            accounted(on).find(|(process, life, _)| process.pid(life.number) == pid).ok_or(Code::NOT_FOUND)?;
        let until = end.unwrap_or(on.now);
        let percent = (process.busy(life, until) * 100.0) as c_uint;
        put(stats, sys::nvmlAccountingStats_t {
            gpuUtilization: percent,
            memoryUtilization: percent / 2,
            maxMemoryUsage: process.peak(life, until) as c_ulonglong,
            // Reported only for a process that has ended.
            time: end.map_or(0, |end| ((end - life.start) / MILLISECOND) as c_ulonglong),
            startTime: ((clock::zero() + life.start) / MICROSECOND) as c_ulonglong,
            isRunning: c_uint::from(end.is_none()),
            reserved: [0; 5],
        })
    }
}
