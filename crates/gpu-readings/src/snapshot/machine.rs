//! The driver, its GPUs and their MIG devices: everything that stays the same while the driver is open.

use std::sync::Arc;

use pod_resources::DeviceName;

use super::health::AddressingMode;

/// The NVIDIA driver as it was last opened, or why it is closed.
#[derive(Debug, Clone, Default)]
pub struct Driver {
    /// Whether NVML is open.
    pub up: bool,
    /// Why NVML is not open, as text for users. `None` while it is open, or before the first attempt has ended.
    pub problem: Option<String>,
    /// The driver's version (`nvmlSystemGetDriverVersion`).
    pub driver_version: Option<String>,
    /// NVML's version (`nvmlSystemGetNVMLVersion`).
    pub nvml_version: Option<String>,
    /// The highest CUDA version that the driver supports, such as `13.0` (`nvmlSystemGetCudaDriverVersion_v2`).
    pub cuda_version: Option<String>,
    /// Whether the library is the simulator. If it is, no number is a measurement.
    pub simulated: bool,
    /// The GPUs in NVML's order.
    pub gpus: Vec<Arc<Gpu>>,
}

impl Driver {
    /// The GPU, and the MIG device on it, that the kubelet names. `None` if the driver does not list them.
    pub fn find(&self, device: &DeviceName) -> Option<(&Gpu, Option<&MigDevice>)> {
        let gpu_with = |uuid: &str| self.gpus.iter().find(|gpu| gpu.uuid == uuid).map(|gpu| &**gpu);
        match device {
            DeviceName::Gpu(uuid) => Some((gpu_with(uuid)?, None)),
            DeviceName::Mig(uuid) => {
                self.gpus.iter().find_map(|gpu| within(gpu, Some(uuid), |mig, uuid| mig.uuid == *uuid))
            }
            DeviceName::Minor { minor, gpu_instance } => {
                let gpu = self.gpus.iter().find(|gpu| gpu.minor == Some(*minor))?;
                within(gpu, gpu_instance.as_ref(), |mig, &instance| mig.gpu_instance == instance)
            }
            DeviceName::Index { gpu, mig } => {
                let gpu = self.gpus.iter().find(|known| known.index == *gpu)?;
                within(gpu, mig.as_ref(), |mig, &index| mig.index == index)
            }
            DeviceName::Instance { gpu, gpu_instance, compute_instance } => {
                within(gpu_with(gpu)?, Some(&(*gpu_instance, *compute_instance)), |mig, &ids| {
                    (mig.gpu_instance, mig.compute_instance) == ids
                })
            }
        }
    }
}

/// A GPU, or the requested MIG device on it; `None` if the GPU has no such device.
fn within<'a, T>(
    gpu: &'a Gpu,
    asked: Option<&T>,
    is: impl Fn(&MigDevice, &T) -> bool,
) -> Option<(&'a Gpu, Option<&'a MigDevice>)> {
    match asked {
        None => Some((gpu, None)),
        Some(asked) => gpu.mig.iter().find(|mig| is(mig, asked)).map(|mig| (gpu, Some(&**mig))),
    }
}

/// What identifies a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's index.
    pub index: u32,
    /// NVML's UUID, `GPU-…`.
    pub uuid: String,
    /// The number in `/dev/nvidia<minor>`; it can differ from the index.
    pub minor: Option<u32>,
    /// The product's name.
    pub name: Option<String>,
    /// The brand, such as `GeForce RTX`.
    pub brand: Option<&'static str>,
    /// The serial number of the board. `None` also for a board without one.
    pub serial: Option<String>,
    /// `domain:bus:device.function` as NVML writes it.
    pub pci_bus_id: Option<String>,
    /// The architecture's name, such as `Hopper`.
    pub architecture: Option<String>,
    /// The VBIOS version.
    pub vbios: Option<String>,
    /// CUDA compute capability, such as `9.0`.
    pub compute_capability: Option<String>,
    /// How the GPU can address the memory of the CPU. `None` if the driver (before 580) or the GPU does not report it.
    pub addressing_mode: Option<AddressingMode>,
    /// How the GPU shares the memory of the machine. `None` if it has memory of its own, or the driver does not tell.
    pub unified_memory: Option<UnifiedMemory>,
    /// The id of the GPU's module on its baseboard, from 1. `None` if the GPU is not on a baseboard, or the driver
    /// (before 535) does not report the id.
    pub module_id: Option<u32>,
    /// Whether MIG is on; the last known mode if it cannot be read now. `None` if the GPU does not support MIG.
    pub mig_mode: Option<bool>,
    /// The MIG devices in the order of their indices, as last read; empty if MIG is off.
    pub mig: Vec<Arc<MigDevice>>,
}

/// A GPU that has no memory of its own: it shares the memory of the machine with the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnifiedMemory {
    /// The driver reports the memory that each process holds on the GPU.
    Listed,
    /// The driver `nvgpu` of Jetson modules up to Orin. What its lists of processes contain is not documented, so the memory
    /// in use is unknown.
    Unlisted,
}

impl Gpu {
    /// The key under which the GPU's values are kept when the driver is closed and opened again: its UUID, since an
    /// index can change when GPUs come and go. A GPU that could never be opened has no UUID; its index is used instead.
    pub fn key(&self) -> String {
        if self.uuid.is_empty() { format!("index {}", self.index) } else { self.uuid.clone() }
    }

    /// The UUID of a MIG device on the GPU, or of the GPU itself.
    pub fn device_uuid<'d>(&'d self, mig: Option<&'d MigDevice>) -> &'d str {
        mig.map_or(&self.uuid, |mig| &mig.uuid)
    }

    /// Whether a MIG device is the first one of its GPU instance. Values of a GPU instance are shown for its first
    /// device only.
    pub fn is_first_of_its_instance(&self, device: &MigDevice) -> bool {
        let first = self.mig.iter().find(|other| other.gpu_instance == device.gpu_instance);
        first.is_none_or(|first| first.uuid == device.uuid)
    }
}

/// A MIG device: a compute instance in a GPU instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MigDevice {
    /// The index within the parent GPU.
    pub index: u32,
    /// `MIG-…`.
    pub uuid: String,
    /// The GPU instance's id.
    pub gpu_instance: u32,
    /// The compute instance's id.
    pub compute_instance: u32,
    /// The profile, such as `1g.10gb`; `None` if the driver's name for the device does not contain it.
    pub profile: Option<String>,
}

impl MigDevice {
    /// Whether both are the same MIG device, or there is none.
    pub fn are_same(one: Option<&Self>, other: Option<&Self>) -> bool {
        one.map(|mig| &mig.uuid) == other.map(|mig| &mig.uuid)
    }
}
