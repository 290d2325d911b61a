//! The driver, its GPUs and their MIG devices: everything that stays the same while the driver is open.

use std::sync::Arc;

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
    /// `domain:bus:device.function` as NVML writes it.
    pub pci_bus_id: Option<String>,
    /// The architecture's name, such as `Hopper`.
    pub architecture: Option<String>,
    /// The VBIOS version.
    pub vbios: Option<String>,
    /// CUDA compute capability, such as `9.0`.
    pub compute_capability: Option<String>,
    /// Whether MIG is on; the last known mode if it cannot be read now. `None` if the GPU does not support MIG.
    pub mig_mode: Option<bool>,
    /// The MIG devices in the order of their indices, as last read; empty if MIG is off.
    pub mig: Vec<Arc<MigDevice>>,
}

impl Gpu {
    /// The key under which the GPU's values are kept when the driver is closed and opened again: its UUID, since an
    /// index can change when GPUs come and go. A GPU that could never be opened has no UUID; its index is used instead.
    pub fn key(&self) -> String {
        if self.uuid.is_empty() { format!("index {}", self.index) } else { self.uuid.clone() }
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
