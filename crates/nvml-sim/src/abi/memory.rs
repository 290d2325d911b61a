//! Memory: total = reserved + used + free; the first version of the call counts reserved memory as used.

use nvml_wrapper_sys::bindings as sys;

use super::output::{check_version, put, struct_version};
use super::{On, device_calls};
use crate::code::{Answer, Code};
use crate::library;
use crate::scenario::grammar::Implausible;

/// The memory of a GPU or MIG device, in bytes.
struct Memory {
    total: u64,
    reserved: u64,
    used: u64,
}

/// A MIG device has the memory of its profile, and all of it can be allocated.
fn memory(on: &On) -> Answer<Memory> {
    if on.gpu.model.unified {
        // The machine's own account of its memory is as new as the answer.
        library::update_meminfo();
    }
    if on.gpu.written.memory_unsupported || on.gpu.model.unified {
        return Err(Code::NOT_SUPPORTED);
    }
    let (total, reserved) = match on.instance {
        Some(instance) => (instance.load.capacity(), 0),
        None => (on.gpu.model.total, on.gpu.model.reserved),
    };
    Ok(Memory { total, reserved, used: on.machine.used(on.gpu, on.instance, on.now) })
}

/// The figures, unchanged or made implausible. The first three are total, free and used.
fn twisted<const N: usize>(implausible: Option<Implausible>, mut figures: [u64; N]) -> [u64; N] {
    match implausible {
        None => {}
        Some(Implausible::Above) => figures[2] = figures[0] + 1,
        Some(Implausible::Ones) => figures = [u64::MAX; N],
        Some(Implausible::Zeros) => figures = [0; N],
    }
    figures
}

/// The bytes that BAR1 maps when there is no process, and those that the first process adds (as recorded).
const BAR1_IDLE: u64 = 1_703_936;
const BAR1_BUSY: u64 = 65_536;
/// A MIG device has a share of BAR1 in proportion to its memory slices, minus this amount, and maps little of it:
/// nvidia-smi shows 2 to 4 MiB of 32767 MiB for half of an A100 with processes.
const BAR1_UNSLICED: u64 = 1 << 20;
const BAR1_SLICE_BUSY: u64 = 2 << 20;
const MEMORY_SLICES: u64 = 8;

device_calls! {
    fn nvmlDeviceGetMemoryInfo(info: *mut sys::nvmlMemory_t) |on| {
        let Memory { total, reserved, used } = memory(on)?;
        let used = used + reserved;
        let [total, free, used] = twisted(on.implausible(), [total, total - used, used]);
        put(info, sys::nvmlMemory_t { total, free, used })
    }
    fn nvmlDeviceGetMemoryInfo_v2(info: *mut sys::nvmlMemory_v2_t) |on| {
        // Recorded: with a wrong version, this call fails as if it did not exist.
        check_version(info, 2).map_err(|code| match code {
            Code::ARGUMENT_VERSION_MISMATCH => Code::FUNCTION_NOT_FOUND,
            code => code,
        })?;
        let Memory { total, reserved, used } = memory(on)?;
        let version = struct_version::<sys::nvmlMemory_v2_t>(2);
        let [total, free, used, reserved] = twisted(on.implausible(), [total, total - reserved - used, used, reserved]);
        put(info, sys::nvmlMemory_v2_t { version, total, reserved, free, used })
    }
    fn nvmlDeviceGetBAR1MemoryInfo(info: *mut sys::nvmlBAR1Memory_t) |on| {
        let whole = on.gpu.model.bar1;
        if whole == 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let (total, mapped) = match (on.instance, on.machine.used(on.gpu, on.instance, on.now)) {
            (None, 0) => (whole, BAR1_IDLE),
            (None, used) => (whole, used + BAR1_IDLE + BAR1_BUSY),
            (Some(slice), used) => {
                let total = whole / MEMORY_SLICES * u64::from(slice.profile.memory_slices) - BAR1_UNSLICED;
                (total, if used == 0 { 0 } else { BAR1_SLICE_BUSY })
            }
        };
        let used = mapped.min(total);
        put(info, sys::nvmlBAR1Memory_t { bar1Total: total, bar1Free: total - used, bar1Used: used })
    }
    fn nvmlDeviceGetConfComputeMemSizeInfo(info: *mut sys::nvmlConfComputeMemSizeInfo_t) |on| {
        let Memory { total, reserved, .. } = memory(on)?;
        // Recorded on an H200: no protected memory, and all that can be allocated is unprotected.
        let unprotectedMemSizeKib = (total - reserved) / 1024;
        put(info, sys::nvmlConfComputeMemSizeInfo_t { protectedMemSizeKib: 0, unprotectedMemSizeKib })
    }
}
