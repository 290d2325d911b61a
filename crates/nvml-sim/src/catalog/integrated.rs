//! GPUs without memory of their own: they share the memory of the machine with the CPU, so NVML reports no memory info.

use nvml_wrapper_sys::bindings as sys;

use super::{AddressingMode, Ecc, GIB, Model, Profiler, SERVER};

const INTEGRATED: Model = Model {
    unified: true,
    bus_width: 256,
    thresholds: [0, 0, 0, 0],
    pcie: None,
    ecc: Ecc::Absent,
    on_baseboard: false,
    addressing_mode: AddressingMode::Ats,
    drops_state: true,
    profiler: Profiler::Absent,
    ..SERVER
};

/// DGX Spark.
pub(super) const GB10: Model = Model {
    key: "GB10",
    name: "NVIDIA GB10",
    architecture: sys::NVML_DEVICE_ARCH_BLACKWELL,
    capability: (12, 1),
    total: 119 * GIB,
    cores: 6144,
    clocks: [3003, 0, 0],
    idle_clock: 208,
    power: [4.5, 11.0, 140.0, 5.0],
    temperature: [39.0, 78.0],
    pci_device: 0x2E12_10DE,
    vbios: "9A.0B.1F.00.00",
    ..INTEGRATED
};

/// Jetson AGX Thor: the driver of servers, which lists the memory of processes.
pub(super) const THOR: Model = Model {
    key: "Thor",
    name: "NVIDIA Thor",
    architecture: sys::NVML_DEVICE_ARCH_BLACKWELL,
    capability: (11, 0),
    total: 122 * GIB,
    cores: 2560,
    clocks: [1575, 0, 0],
    idle_clock: 315,
    power: [4.0, 9.0, 130.0, 5.0],
    temperature: [40.0, 80.0],
    ..INTEGRATED
};

/// Jetson AGX Orin: the driver nvgpu, whose NVML knows little more than the name.
pub(super) const ORIN: Model = Model {
    key: "Orin",
    name: "Orin (nvgpu)",
    architecture: sys::NVML_DEVICE_ARCH_AMPERE,
    capability: (8, 7),
    total: 61 * GIB,
    cores: 2048,
    clocks: [0, 0, 0],
    power: [0.0, 0.0, 0.0, 0.0],
    temperature: [40.0, 80.0],
    addressing_mode: AddressingMode::None,
    ..INTEGRATED
};
