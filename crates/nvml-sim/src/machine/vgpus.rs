//! The vGPUs of virtual machines.

/// The id of the first vGPU. Real ids are as large.
const FIRST: u32 = 3_251_634_176;

/// A vGPU. Its memory is only reported: what the GPU has in use comes from the processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Vgpu {
    pub(crate) gpu: u32,
    pub(crate) vm: String,
    /// Bytes of its frame buffer that the virtual machine uses.
    pub(crate) memory: u64,
}

impl Vgpu {
    /// The id of the vGPU at an index.
    pub(crate) fn id(index: usize) -> u32 {
        FIRST.wrapping_add(u32::try_from(index).unwrap_or(u32::MAX))
    }
}
