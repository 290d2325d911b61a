//! The ids of vGPUs.

/// The id of the first vGPU. Real ids are as large.
const FIRST: u32 = 3_251_634_176;

/// The id of the vGPU at an index.
pub(crate) fn id(index: usize) -> u32 {
    FIRST.wrapping_add(u32::try_from(index).unwrap_or(u32::MAX))
}
