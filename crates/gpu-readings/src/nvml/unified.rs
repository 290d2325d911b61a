//! Whether a GPU shares the memory of the machine, by what the driver answers. docs/unified-memory.md has the sources.
//!
//! Invariant: where the driver tells nothing, nothing is assumed: not under WSL2, and not for a GPU with MIG.

use super::error::Error;
use super::readings::MemoryReading;
use crate::faults::Reason;
use crate::snapshot::{AddressingMode, Gpu, UnifiedMemory};

/// The names of integrated GPUs that NVIDIA's own container tools look for. The first is that of the driver `nvgpu`.
const NVGPU: &str = "(nvgpu)";
const THOR: &str = "NVIDIA Thor";

/// How a GPU shares the memory of the machine. `memory` asks for the GPU's own memory; it is called only for a GPU that has a
/// sign of being integrated: page tables shared with the CPU (`ats`, driver 580 and later), or a name by which NVIDIA's tools
/// know it. The driver must refuse the memory as `NOT_SUPPORTED`: a GPU with memory of its own that has the sign, such as a
/// GH200, answers the call.
///
/// # Errors
/// A failure of the call that tells nothing about the GPU.
pub(super) fn unified_memory(
    gpu: &Gpu,
    memory: impl FnOnce() -> Result<MemoryReading, Error>,
) -> Result<Option<UnifiedMemory>, Error> {
    let Some(sign) = sign(gpu).filter(|_| gpu.mig_mode != Some(true) && gpu.mig.is_empty()) else { return Ok(None) };
    match memory() {
        Ok(_) => Ok(None),
        Err(error) if error.reason() == Reason::NotSupported => Ok(Some(sign)),
        Err(error) => Err(error),
    }
}

fn sign(gpu: &Gpu) -> Option<UnifiedMemory> {
    let name = gpu.name.as_deref().unwrap_or_default();
    if name.ends_with(NVGPU) {
        return Some(UnifiedMemory::Unlisted);
    }
    (gpu.addressing_mode == Some(AddressingMode::Ats) || name == THOR).then_some(UnifiedMemory::Listed)
}

#[cfg(test)]
mod tests {
    use nvml_wrapper::error::NvmlError;

    use super::*;

    fn gpu(name: &str, addressing_mode: Option<AddressingMode>, mig_mode: Option<bool>) -> Gpu {
        Gpu { name: Some(name.to_owned()), addressing_mode, mig_mode, ..Gpu::default() }
    }

    #[test]
    fn only_a_refused_memory_with_a_sign_of_an_integrated_gpu_is_unified() {
        let refuse = || Err(Error::new("nvmlDeviceGetMemoryInfo_v2", NvmlError::NotSupported));
        let refused = |gpu: &Gpu| unified_memory(gpu, refuse).unwrap();
        let ats = Some(AddressingMode::Ats);
        assert_eq!(refused(&gpu("NVIDIA GB10", ats, None)), Some(UnifiedMemory::Listed));
        assert_eq!(refused(&gpu("NVIDIA Thor", None, None)), Some(UnifiedMemory::Listed));
        assert_eq!(refused(&gpu("Orin (nvgpu)", None, None)), Some(UnifiedMemory::Unlisted));

        let others = [Some(AddressingMode::None), Some(AddressingMode::Hmm), None];
        for other in others.map(|mode| gpu("NVIDIA RTX A1000", mode, None)).into_iter().chain([Gpu::default()]) {
            assert_eq!(refused(&other), None, "{other:?}");
        }
        assert_eq!(refused(&gpu("NVIDIA GH200 480GB", ats, Some(true))), None, "the parent of MIG devices");
    }

    #[test]
    fn memory_of_its_own_is_not_unified_and_a_failure_tells_nothing() {
        let gb10 = gpu("NVIDIA GB10", Some(AddressingMode::Ats), None);
        assert_eq!(unified_memory(&gb10, || Ok(MemoryReading::of_call(100, Some(1), 9, 90))).unwrap(), None);
        for error in [NvmlError::NoPermission, NvmlError::GpuLost, NvmlError::Timeout, NvmlError::FunctionNotFound] {
            assert!(unified_memory(&gb10, || Err(Error::new("nvmlDeviceGetMemoryInfo_v2", error))).is_err());
        }
        let asked = || -> Result<MemoryReading, Error> { unreachable!("no sign, so no call") };
        assert_eq!(unified_memory(&Gpu::default(), asked).unwrap(), None);
    }
}
