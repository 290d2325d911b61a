//! The calls that nvml-wrapper lacks, made through its symbol table. All unsafe code of the module `nvml` is in this
//! file and its submodules.

#![allow(unsafe_code, reason = "nvml-wrapper has no safe call for these; each block says why it is sound")]

pub(super) mod gpm;
mod health;
mod limits;
mod vgpu;

use std::ffi::{CString, OsStr, c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventSet_t, nvmlMemory_t, nvmlPageRetirementCause_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t,
};

use super::error::Error;
use super::readings::RemappedRows;
use crate::closed_enum::closed_enum;

pub(super) use health::{FIELD_CALL, addressing_mode, fabric, field, fields, module_id, row_remapper_histogram};
pub(super) use limits::{MEMORY_LIMITS_CALL, hard_memory_limit};
pub(super) use vgpu::{active_vgpus, vm_id};

/// The instance id that NVML returns when MIG is off.
pub(super) const NO_INSTANCE: u32 = u32::MAX;

/// The handle of a GPU or MIG device. It stays valid from the call that returns it until the library is shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle(nvmlDevice_t);

// SAFETY: NVML's handles are process-wide and every call on them is thread-safe (nvml.h: "NVML is thread-safe"), which
// is why nvml-wrapper's `Device` is `Send` and `Sync` too.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    pub(super) fn of(device: &nvml_wrapper::Device<'_>) -> Self {
        // SAFETY: only copies the pointer; `Driver` keeps it no longer than the `Nvml` it came from.
        Self(unsafe { device.handle() })
    }

    /// The device that this handle refers to.
    pub(super) fn device(self, nvml: &Nvml) -> nvml_wrapper::Device<'_> {
        // SAFETY: `Driver` owns both `nvml` and every `Handle` taken from it, so the handle is valid while `nvml`
        // lives.
        unsafe { nvml_wrapper::Device::new(self.0, nvml) }
    }
}

/// An event set that does not borrow its `Nvml`, so that one struct can own both.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventSet(nvmlEventSet_t);

// SAFETY: a set is a process-wide handle like a device. `Driver` owns it and requires that only one thread polls it at
// a time.
unsafe impl Send for EventSet {}
// SAFETY: as above.
unsafe impl Sync for EventSet {}

impl EventSet {
    /// Takes ownership of a set, which is then no longer freed automatically.
    pub(super) fn keep(set: nvml_wrapper::EventSet<'_>) -> Self {
        // SAFETY: only copies the pointer; the wrapper that would free the set is forgotten.
        let kept = Self(unsafe { set.handle() });
        std::mem::forget(set);
        kept
    }

    /// The set as nvml-wrapper's type. Dropping it frees the set, which may happen only once.
    pub(super) fn of(self, nvml: &Nvml) -> nvml_wrapper::EventSet<'_> {
        // SAFETY: `Driver` owns both `nvml` and the sets made with it, and frees each once, when it is itself dropped.
        unsafe { nvml_wrapper::EventSet::new(self.0, nvml) }
    }
}

/// `nvmlDeviceGetMemoryInfo`: total, used (including reserved memory) and free bytes.
pub(super) fn memory_v1(nvml: &Nvml, handle: Handle) -> Result<(u64, u64, u64), Error> {
    let mut info = nvmlMemory_t { total: 0, free: 0, used: 0 };
    call("nvmlDeviceGetMemoryInfo", || {
        let sym = nvml_sym(nvml.lib().nvmlDeviceGetMemoryInfo.as_ref())?;
        // SAFETY: the handle is valid and `info` is the struct that this version of the call fills.
        nvml_try(unsafe { sym(handle.0, &mut info) })
    })?;
    Ok((info.total, info.used, info.free))
}

closed_enum! {
    /// The three process lists that NVML keeps.
    pub enum ListKind {
        /// Processes with a CUDA context.
        Compute,
        /// Processes with a graphics context.
        Graphics,
        /// Clients of the Multi-Process Service.
        Mps,
    }
}

/// The versions of the calls that list processes, the newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListVersion {
    /// Driver 510 and later.
    Third,
    /// Driver 455 and later. The structs are those of the third version.
    Second,
    /// In every driver. The structs lack the ids of the MIG device.
    First,
}

impl ListVersion {
    /// The version before this one.
    pub(super) fn older(self) -> Option<Self> {
        match self {
            Self::Third => Some(Self::Second),
            Self::Second => Some(Self::First),
            Self::First => None,
        }
    }
}

impl ListKind {
    /// The name of the call that reads the list.
    fn call_name(self, version: ListVersion) -> &'static str {
        let names = match self {
            Self::Compute => [
                "nvmlDeviceGetComputeRunningProcesses_v3",
                "nvmlDeviceGetComputeRunningProcesses_v2",
                "nvmlDeviceGetComputeRunningProcesses",
            ],
            Self::Graphics => [
                "nvmlDeviceGetGraphicsRunningProcesses_v3",
                "nvmlDeviceGetGraphicsRunningProcesses_v2",
                "nvmlDeviceGetGraphicsRunningProcesses",
            ],
            Self::Mps => [
                "nvmlDeviceGetMPSComputeRunningProcesses_v3",
                "nvmlDeviceGetMPSComputeRunningProcesses_v2",
                "nvmlDeviceGetMPSComputeRunningProcesses",
            ],
        };
        names[version as usize]
    }
}

/// Reads a process list into the caller's buffer. If processes were added in the meantime, enlarges the buffer and
/// repeats the call. Entries of the first version have [`NO_INSTANCE`] for both ids.
pub(super) fn processes(
    nvml: &Nvml,
    handle: Handle,
    kind: ListKind,
    version: ListVersion,
    buffer: &mut Vec<nvmlProcessInfo_t>,
) -> Result<(), Error> {
    let lib = nvml.lib();
    // The structs of the second and third versions have the same layout (nvml.h: nvmlProcessInfo_v2_t,
    // nvmlProcessInfo_t), but bindgen gives them different names, so the symbols have different types. The structs of the
    // first version (nvmlProcessInfo_v1_t) are smaller and have no stricter alignment.
    macro_rules! list {
        ($third:ident, $second:ident, $first:ident, $count:ident, $entries:ident) => {
            match version {
                ListVersion::Third => nvml_sym(lib.$third.as_ref())?(handle.0, $count, $entries),
                ListVersion::Second => nvml_sym(lib.$second.as_ref())?(handle.0, $count, $entries.cast()),
                ListVersion::First => nvml_sym(lib.$first.as_ref())?(handle.0, $count, $entries.cast()),
            }
        };
    }
    let list = |count: &mut c_uint, entries: *mut nvmlProcessInfo_t| {
        // SAFETY: the handle is valid and `entries` has room for `count` structs of this layout.
        unsafe {
            Ok::<_, NvmlError>(match kind {
                ListKind::Compute => list!(
                    nvmlDeviceGetComputeRunningProcesses_v3,
                    nvmlDeviceGetComputeRunningProcesses_v2,
                    nvmlDeviceGetComputeRunningProcesses,
                    count,
                    entries
                ),
                ListKind::Graphics => list!(
                    nvmlDeviceGetGraphicsRunningProcesses_v3,
                    nvmlDeviceGetGraphicsRunningProcesses_v2,
                    nvmlDeviceGetGraphicsRunningProcesses,
                    count,
                    entries
                ),
                ListKind::Mps => list!(
                    nvmlDeviceGetMPSComputeRunningProcesses_v3,
                    nvmlDeviceGetMPSComputeRunningProcesses_v2,
                    nvmlDeviceGetMPSComputeRunningProcesses,
                    count,
                    entries
                ),
            })
        }
    };
    call(kind.call_name(version), || {
        const HEADROOM: usize = 16;
        /// No machine has pids for more processes than this, so a larger count cannot be right.
        const MOST: usize = 1 << 22;
        const ATTEMPTS: usize = 5;
        let mut needed = 0;
        for _ in 0..ATTEMPTS {
            buffer.clear();
            if needed > MOST || buffer.try_reserve(needed + HEADROOM).is_err() {
                break;
            }
            let mut count = c_uint::try_from(buffer.capacity()).unwrap_or(c_uint::MAX);
            match nvml_try(list(&mut count, buffer.as_mut_ptr())?) {
                Ok(()) => {
                    let count = (count as usize).min(buffer.capacity());
                    // SAFETY: the driver filled `count` entries of this version, no more than there is room for.
                    unsafe {
                        if version == ListVersion::First {
                            widen(buffer.as_mut_ptr(), count);
                        }
                        buffer.set_len(count);
                    }
                    return Ok(());
                }
                Err(NvmlError::InsufficientSize(_)) => needed = (count as usize).max(buffer.capacity()),
                Err(error) => return Err(error),
            }
        }
        Err(NvmlError::InsufficientSize(Some(needed)))
    })
}

/// Replaces entries of the first version by entries of the later ones, in place.
///
/// # Safety
/// `entries` begins with `count` initialised structs of the first version and has room for as many of the later ones.
unsafe fn widen(entries: *mut nvmlProcessInfo_t, count: usize) {
    let first = entries.cast::<nvmlProcessInfo_v1_t>();
    // From the last to the first: a wide entry begins behind all narrow ones before it, which are still to be read.
    for index in (0..count).rev() {
        // SAFETY: the caller guarantees that both places are within the buffer and that the first one is initialised.
        unsafe {
            let nvmlProcessInfo_v1_t { pid, usedGpuMemory } = first.add(index).read();
            entries.add(index).write(nvmlProcessInfo_t {
                pid,
                usedGpuMemory,
                gpuInstanceId: NO_INSTANCE,
                computeInstanceId: NO_INSTANCE,
            });
        }
    }
}

/// `nvmlDeviceGetRemappedRows`.
pub(super) fn remapped_rows(nvml: &Nvml, handle: Handle) -> Result<RemappedRows, Error> {
    let (mut correctable, mut uncorrectable, mut pending, mut failed) = (0, 0, 0, 0);
    call("nvmlDeviceGetRemappedRows", || {
        let sym = nvml_sym(nvml.lib().nvmlDeviceGetRemappedRows.as_ref())?;
        // SAFETY: the handle is valid and all four pointers point to integers of the right type.
        nvml_try(unsafe { sym(handle.0, &mut correctable, &mut uncorrectable, &mut pending, &mut failed) })
    })?;
    Ok(RemappedRows {
        correctable: correctable.into(),
        uncorrectable: uncorrectable.into(),
        pending: pending != 0,
        failed: failed != 0,
    })
}

/// `nvmlDeviceGetRetiredPages`, called only to get the length of its list.
pub(super) fn retired_pages(nvml: &Nvml, handle: Handle, cause: nvmlPageRetirementCause_t) -> Result<u32, Error> {
    let (mut count, mut address) = (0, 0);
    call("nvmlDeviceGetRetiredPages", || {
        let sym = nvml_sym(nvml.lib().nvmlDeviceGetRetiredPages.as_ref())?;
        // SAFETY: the handle is valid; `count` is 0, so no address is written, but the pointer must not be NULL.
        match nvml_try(unsafe { sym(handle.0, cause, &mut count, &mut address) }) {
            // The list is longer than the buffer, as intended. If the call returned no length, the length is unknown.
            Err(NvmlError::InsufficientSize(_)) if count > 0 => Ok(()),
            answer => answer,
        }
    })?;
    Ok(count)
}

/// `nvmlDeviceGetFanSpeed`: percent.
pub(super) fn fan_speed(nvml: &Nvml, handle: Handle) -> Result<u32, Error> {
    let mut percent = 0;
    call("nvmlDeviceGetFanSpeed", || {
        let sym = nvml_sym(nvml.lib().nvmlDeviceGetFanSpeed.as_ref())?;
        // SAFETY: the handle is valid and the pointer points to an integer of the right type.
        nvml_try(unsafe { sym(handle.0, &mut percent) })
    })?;
    Ok(percent)
}

/// `nvmlDeviceGetGpuInstanceId` and `nvmlDeviceGetComputeInstanceId` of a MIG device.
pub(super) fn instance_ids(nvml: &Nvml, handle: Handle) -> Result<(u32, u32), Error> {
    let (mut gpu, mut compute) = (0, 0);
    call("nvmlDeviceGetGpuInstanceId", || {
        let sym = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
        // SAFETY: the handle is valid and the pointer points to an integer of the right type.
        nvml_try(unsafe { sym(handle.0, &mut gpu) })
    })?;
    call("nvmlDeviceGetComputeInstanceId", || {
        let sym = nvml_sym(nvml.lib().nvmlDeviceGetComputeInstanceId.as_ref())?;
        // SAFETY: as above.
        nvml_try(unsafe { sym(handle.0, &mut compute) })
    })?;
    Ok((gpu, compute))
}

fn call<T>(name: &'static str, body: impl FnOnce() -> Result<T, NvmlError>) -> Result<T, Error> {
    body().map_err(|error| Error::new(name, error))
}

/// Whether the library is this project's simulator, which exports a symbol of its own.
pub(super) fn is_simulator(library: &Path) -> bool {
    // SAFETY: the library was just loaded under the same name, so this only increments its reference count; the symbol
    // is looked up but not called.
    unsafe { libloading::Library::new(library).is_ok_and(|lib| lib.get::<*const ()>(b"nvmlSimVersion\0").is_ok()) }
}

/// Passes the scenario to the simulator before NVML is initialised. The library stays loaded for good, so that the
/// scenario outlives a shutdown and the next initialisation finds the same simulated machine.
pub(super) fn configure_simulator(library: &Path, scenario: &OsStr, procfs: &Path) -> Result<(), String> {
    type Configure = unsafe extern "C" fn(*const c_char, *const c_char, *const c_char) -> c_int;
    let text = |value: &OsStr| CString::new(value.as_bytes()).map_err(|_| "a NUL byte in a path".to_owned());
    let (scenario, procfs) = (text(scenario)?, text(procfs.as_os_str())?);
    // SAFETY: the path is that of this project's own simulator, whose initialisation has no preconditions.
    let lib = unsafe { libloading::Library::new(library) }.map_err(|error| error.to_string())?;
    // SAFETY: the simulator declares the symbol with exactly this type; the strings outlive the call, and the simulator
    // copies them.
    let code = unsafe {
        let configure = lib.get::<Configure>(b"nvmlSimConfigure\0").map_err(|error| error.to_string())?;
        configure(scenario.as_ptr(), procfs.as_ptr(), std::ptr::null())
    };
    std::mem::forget(lib);
    match code {
        0 => Ok(()),
        code => Err(format!("it returned NVML code {code}; see standard error for details")),
    }
}
