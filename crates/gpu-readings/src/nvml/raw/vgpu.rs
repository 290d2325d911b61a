//! The vGPUs that a GPU hosts. nvml-wrapper's calls for them bound no list, and refuse an id that is not UTF-8.

use std::ffi::{CStr, c_char, c_uint};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::nvmlVgpuInstance_t;

use super::{Handle, call};
use crate::nvml::error::Error;

/// The most vGPUs of one GPU that are read; NVIDIA's largest number is 64.
const MOST: usize = 1024;
/// `NVML_DEVICE_UUID_BUFFER_SIZE`: the size of a virtual machine's id with its terminating NUL.
const ID_SIZE: usize = 80;

/// `nvmlDeviceGetActiveVgpus`: the ids of the vGPUs on a GPU.
///
/// # Errors
/// `NOT_SUPPORTED` or `INVALID_ARGUMENT` if the GPU hosts no vGPUs; `INSUFFICIENT_SIZE` if there are too many, or more each
/// time.
pub(in crate::nvml) fn active_vgpus(nvml: &Nvml, handle: Handle) -> Result<Vec<nvmlVgpuInstance_t>, Error> {
    const ATTEMPTS: usize = 4;
    call("nvmlDeviceGetActiveVgpus", || {
        let sym = nvml_sym(nvml.lib().nvmlDeviceGetActiveVgpus.as_ref())?;
        let mut room = 0;
        for _ in 0..ATTEMPTS {
            let mut ids = vec![0; room];
            let mut count = room as c_uint;
            // SAFETY: the handle is valid and `ids` has room for `count` ids.
            match nvml_try(unsafe { sym(handle.0, &mut count, ids.as_mut_ptr()) }) {
                Ok(()) => {
                    ids.truncate(count as usize);
                    return Ok(ids);
                }
                Err(NvmlError::InsufficientSize(_)) if count as usize <= MOST => room = count as usize,
                Err(error) => return Err(error),
            }
        }
        Err(NvmlError::InsufficientSize(Some(room)))
    })
}

/// `nvmlVgpuInstanceGetVmID`: the id of the virtual machine that a vGPU belongs to.
///
/// # Errors
/// `NOT_FOUND` if the vGPU is gone.
pub(in crate::nvml) fn vm_id(nvml: &Nvml, vgpu: nvmlVgpuInstance_t) -> Result<String, Error> {
    let mut text: [c_char; ID_SIZE] = [0; ID_SIZE];
    let mut kind = 0;
    call("nvmlVgpuInstanceGetVmID", || {
        let sym = nvml_sym(nvml.lib().nvmlVgpuInstanceGetVmID.as_ref())?;
        // SAFETY: `text` has room for the size that is passed, and `kind` is an integer of the right type.
        nvml_try(unsafe { sym(vgpu, text.as_mut_ptr(), ID_SIZE as c_uint, &mut kind) })
    })?;
    // A driver that does not terminate the text must not be read beyond it.
    text[ID_SIZE - 1] = 0;
    // SAFETY: the last byte of `text` is NUL.
    let id = unsafe { CStr::from_ptr(text.as_ptr()) };
    Ok(id.to_string_lossy().into_owned())
}
