//! The virtual machines that have a vGPU of a GPU.

use nvml_wrapper::vgpu::VgpuInstance;

use super::device::Device;
use super::error::Error;
use super::raw;
use crate::faults::Reason;

/// A vGPU of a virtual machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// The id of the virtual machine as the hypervisor's driver reports it: a UUID (KVM), or the number of a domain (Xen).
    pub vm: String,
    /// Bytes of the vGPU's frame buffer that the virtual machine uses.
    pub used: u64,
}

impl Device<'_> {
    /// The vGPUs of a GPU, with one call for the list and two for each vGPU. A virtual machine with several vGPUs is listed
    /// several times. Never measured on a real vGPU host.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` or `INVALID_ARGUMENT` if the GPU hosts no vGPUs.
    pub fn guests(&self) -> Result<Vec<Guest>, Error> {
        let mut guests = Vec::new();
        for vgpu in raw::active_vgpus(self.nvml, self.handle)? {
            let used = |device: &_| VgpuInstance::new(vgpu, device).fb_usage();
            let guest = raw::vm_id(self.nvml, vgpu)
                .and_then(|vm| Ok(Guest { vm, used: self.call("nvmlVgpuInstanceGetFbUsage", used)? }));
            match guest {
                Ok(guest) => guests.push(guest),
                // It ended after the list was read.
                Err(error) if error.reason() == Reason::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(guests)
    }
}
