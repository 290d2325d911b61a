//! Event sets: a set reports each Xid that occurs after its GPU was registered, once, in chronological order.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvml_wrapper_sys::bindings as sys;

use super::handles::handle;
use super::output::put;
use super::{Sim, device_calls, pass, system_calls};
use crate::clock::{self, Nanos};
use crate::code::{Answer, Code};
use crate::fault::Target;
use crate::library;
use crate::machine::{Machine, NO_INSTANCE};

/// How long a wait sleeps before it checks again, so that it sees changes to the control file.
const STEP: Nanos = 5_000_000;
/// The event types that the driver supports (recorded); only Xids are ever reported.
pub(super) const SUPPORTED: c_ulonglong = sys::nvmlEventTypeAll as c_ulonglong;
const XID: c_ulonglong = sys::nvmlEventTypeXidCriticalError as c_ulonglong;

/// For each GPU, by index, how far its Xids have been reported: the time of the last one, and the position in the
/// scenario at which the unreported Xids of that time begin.
type Set = BTreeMap<u32, (Nanos, usize)>;

static SETS: Mutex<BTreeMap<usize, Arc<Mutex<Set>>>> = Mutex::new(BTreeMap::new());

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find(set: sys::nvmlEventSet_t) -> Answer<Arc<Mutex<Set>>> {
    lock(&SETS).get(&set.addr()).cloned().ok_or(Code::INVALID_ARGUMENT)
}

/// The next Xid of a set's GPUs: time, position in the scenario, GPU, code.
fn next(machine: &Machine, set: &Set) -> Option<(Nanos, usize, u32, u32)> {
    let of = |(number, xid): (usize, &crate::machine::Xid)| {
        let &(reported, among) = set.get(&xid.gpu)?;
        let at = xid.next(reported)?;
        // An Xid at the same time as the last reported one is new only if its position is higher.
        let at = if at == reported && number < among { xid.next(reported + 1)? } else { at };
        Some((at, number, xid.gpu, xid.code))
    };
    machine.xids.iter().enumerate().filter_map(of).min()
}

/// Waits for the next event. A fault that affects one of the set's GPUs affects the wait too.
unsafe fn wait(sim: &Sim, set: sys::nvmlEventSet_t, data: *mut sys::nvmlEventData_t, timeout: c_uint) -> Answer {
    let set = find(set)?;
    if data.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let gpus: Vec<u32> = lock(&set).keys().copied().collect();
    for gpu in gpus {
        pass(sim.machine, sim.call, Target::gpu(gpu), sim.now)?;
    }
    let deadline = sim.now.saturating_add(Nanos::from(timeout) * 1_000_000);
    loop {
        let now = clock::now();
        let machine = library::machine(now)?;
        let mut set = lock(&set);
        if let Some((at, number, gpu, code)) = next(machine, &set).filter(|(at, ..)| *at <= now) {
            set.insert(gpu, (at, number + 1));
            let event = sys::nvmlEventData_t {
                device: handle(gpu, None),
                eventType: XID,
                eventData: code.into(),
                gpuInstanceId: NO_INSTANCE,
                computeInstanceId: NO_INSTANCE,
            };
            // SAFETY: the caller guarantees that its pointer is valid.
            return unsafe { put(data, event) };
        }
        drop(set);
        if now >= deadline {
            return Err(Code::TIMEOUT);
        }
        std::thread::sleep(Duration::from_nanos((deadline - now).min(STEP).unsigned_abs()));
    }
}

system_calls! {
    fn nvmlEventSetCreate(set: *mut sys::nvmlEventSet_t) |sim| {
        let mut sets = lock(&SETS);
        let word = sets.last_key_value().map_or(0x6E77_0010, |(last, _)| last + 0x10);
        put(set, std::ptr::without_provenance_mut(word))?;
        sets.insert(word, Arc::default());
        Ok(())
    }
    fn nvmlEventSetFree(set: sys::nvmlEventSet_t) |sim| {
        lock(&SETS).remove(&set.addr()).map(drop).ok_or(Code::INVALID_ARGUMENT)
    }
    fn nvmlEventSetWait(set: sys::nvmlEventSet_t, data: *mut sys::nvmlEventData_t, timeout: c_uint)
    = nvmlEventSetWait_v2
    |sim| {
        wait(sim, set, data, timeout)
    }
}

device_calls! {
    fn nvmlDeviceRegisterEvents(types: c_ulonglong, set: sys::nvmlEventSet_t) |on| {
        on.whole()?;
        let set = find(set)?;
        if types & !SUPPORTED != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        if types & XID != 0 {
            lock(&set).entry(on.gpu.index).or_insert((on.now, 0));
        }
        Ok(())
    }
}
