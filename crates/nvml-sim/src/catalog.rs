//! The GPU models: one table of real sizes and limits. Nothing else in the simulator refers to a model by name.
//!
//! The H200 is as recorded on a real one (driver 580.159.04); the others have the sizes that `nvidia-smi` shows for
//! them and the limits from their published specifications.

mod integrated;
pub(crate) mod mig;

use nvml_wrapper_sys::bindings as sys;

use crate::scenario::grammar::AddressingMode;
use mig::Profile;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The factory setting for ECC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ecc {
    /// On.
    On,
    /// The board supports ECC, but it is disabled.
    Off,
    /// The board does not support ECC.
    Absent,
}

/// Whether a model has the profiler's counters (GPM).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profiler {
    /// The model reports that it does not support GPM.
    Absent,
    /// The model supports GPM and fills the counters.
    Filled,
    /// The model reports that it supports GPM, but fills no counter.
    Unfilled,
}

/// A GPU model.
#[derive(Debug)]
pub(crate) struct Model {
    /// The name in a scenario.
    pub(crate) key: &'static str,
    /// The name that NVML reports.
    pub(crate) name: &'static str,
    pub(crate) architecture: u32,
    pub(crate) brand: u32,
    pub(crate) capability: (i32, i32),
    /// The size of the memory in bytes; with `unified`, of the memory shared with the CPU.
    pub(crate) total: u64,
    /// Bytes that the driver and the firmware reserve.
    pub(crate) reserved: u64,
    /// The memory is shared with the system: NVML reports no memory info.
    pub(crate) unified: bool,
    pub(crate) bar1: u64,
    pub(crate) cores: u32,
    pub(crate) bus_width: u32,
    /// MHz: graphics and SM, memory, video.
    pub(crate) clocks: [u32; 3],
    /// MHz with no process on the GPU.
    pub(crate) idle_clock: u32,
    /// Watts: with no process, with a context that does nothing, at the default limit; the lowest limit.
    pub(crate) power: [f64; 4],
    /// Degrees Celsius: idle, at full power.
    pub(crate) temperature: [f64; 2],
    /// Degrees Celsius: shutdown, slowdown, memory, GPU maximum; 0 for memory without a temperature sensor.
    pub(crate) thresholds: [u32; 4],
    /// PCIe generation and width; `None` if the GPU has no PCIe link of its own.
    pub(crate) pcie: Option<(u32, u32)>,
    pub(crate) pci_device: u32,
    pub(crate) pci_subsystem: u32,
    pub(crate) vbios: &'static str,
    pub(crate) part: &'static str,
    pub(crate) fans: u32,
    pub(crate) ecc: Ecc,
    /// Memory banks that have spare rows; 0 if the GPU does not remap rows. The L4's number is half of that of boards
    /// with a memory bus of 384 bits.
    pub(crate) remap_banks: u32,
    /// Whether the GPU is a module on a baseboard.
    pub(crate) on_baseboard: bool,
    pub(crate) addressing_mode: AddressingMode,
    /// Whether the performance state falls when the GPU is idle, as on boards with a display.
    pub(crate) drops_state: bool,
    pub(crate) profiler: Profiler,
    pub(crate) mig: &'static [Profile],
}

/// A server board; each model lists only what differs.
const SERVER: Model = Model {
    key: "",
    name: "",
    architecture: sys::NVML_DEVICE_ARCH_HOPPER,
    brand: sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA,
    capability: (9, 0),
    total: 0,
    reserved: 0,
    unified: false,
    bar1: 0,
    cores: 16896,
    bus_width: 5120,
    clocks: [1980, 2619, 1545],
    idle_clock: 345,
    power: [70.0, 115.0, 700.0, 200.0],
    temperature: [30.0, 56.0],
    thresholds: [95, 89, 95, 87],
    pcie: Some((5, 16)),
    pci_device: 0,
    pci_subsystem: 0,
    vbios: "",
    part: "",
    fans: 0,
    ecc: Ecc::On,
    remap_banks: 0,
    on_baseboard: true,
    addressing_mode: AddressingMode::None,
    drops_state: false,
    profiler: Profiler::Filled,
    mig: &[],
};

const AMPERE: Model = Model {
    architecture: sys::NVML_DEVICE_ARCH_AMPERE,
    capability: (8, 0),
    cores: 6912,
    idle_clock: 210,
    power: [52.0, 78.0, 400.0, 100.0],
    temperature: [29.0, 62.0],
    thresholds: [95, 92, 95, 85],
    pcie: Some((4, 16)),
    vbios: "92.00.45.00.05",
    remap_banks: 640,
    profiler: Profiler::Absent,
    ..SERVER
};

/// A board with fans and without the repairs of a server's.
const GEFORCE: Model = Model {
    brand: sys::nvmlBrandType_enum_NVML_BRAND_GEFORCE,
    bar1: 32 * GIB,
    fans: 2,
    ecc: Ecc::Off,
    on_baseboard: false,
    drops_state: true,
    ..SERVER
};

/// All models.
pub(crate) const MODELS: &[Model] = &[
    Model {
        key: "H200",
        name: "NVIDIA H200",
        total: 150_754_820_096,
        reserved: 644_939_776,
        bar1: 256 * GIB,
        bus_width: 6016,
        clocks: [1980, 3201, 1545],
        power: [77.5, 119.0, 700.0, 200.0],
        pci_device: 0x2335_10DE,
        pci_subsystem: 0x18BF_10DE,
        vbios: "96.00.A5.00.1A",
        part: "900-21010-0040-000",
        remap_banks: 3072,
        mig: mig::H200,
        ..SERVER
    },
    Model {
        key: "H100",
        name: "NVIDIA H100 80GB HBM3",
        total: 81_559 * MIB,
        reserved: 551 * MIB,
        bar1: 128 * GIB,
        pci_device: 0x2330_10DE,
        pci_subsystem: 0x16C1_10DE,
        vbios: "96.00.89.00.01",
        part: "692-2G520-0200-000",
        remap_banks: 2560,
        mig: mig::H100,
        ..SERVER
    },
    Model {
        key: "A100-80GB",
        name: "NVIDIA A100-SXM4-80GB",
        total: 81_920 * MIB,
        reserved: 634 * MIB,
        bar1: 128 * GIB,
        clocks: [1410, 1593, 1290],
        pci_device: 0x20B2_10DE,
        pci_subsystem: 0x147F_10DE,
        part: "692-2G506-0212-002",
        mig: mig::A100_80,
        ..AMPERE
    },
    Model {
        key: "A100-40GB",
        name: "NVIDIA A100-SXM4-40GB",
        total: 40_960 * MIB,
        reserved: 571 * MIB,
        bar1: 64 * GIB,
        clocks: [1410, 1215, 1290],
        pci_device: 0x20B0_10DE,
        pci_subsystem: 0x134F_10DE,
        part: "692-2G506-0200-002",
        mig: mig::A100_40,
        ..AMPERE
    },
    Model {
        key: "L4",
        name: "NVIDIA L4",
        architecture: sys::NVML_DEVICE_ARCH_ADA,
        capability: (8, 9),
        total: 23_034 * MIB,
        reserved: 484 * MIB,
        bar1: 32 * GIB,
        cores: 7424,
        bus_width: 192,
        clocks: [2040, 6251, 1770],
        idle_clock: 210,
        power: [16.0, 28.0, 72.0, 40.0],
        temperature: [38.0, 74.0],
        thresholds: [101, 96, 0, 85],
        pcie: Some((4, 16)),
        pci_device: 0x27B8_10DE,
        pci_subsystem: 0x16CA_10DE,
        vbios: "95.04.29.00.06",
        part: "900-2G193-0000-001",
        remap_banks: 96,
        on_baseboard: false,
        drops_state: true,
        profiler: Profiler::Absent,
        ..SERVER
    },
    Model {
        key: "RTX 4090",
        name: "NVIDIA GeForce RTX 4090",
        architecture: sys::NVML_DEVICE_ARCH_ADA,
        capability: (8, 9),
        total: 24_564 * MIB,
        reserved: 399 * MIB,
        cores: 16384,
        bus_width: 384,
        clocks: [3105, 10501, 2415],
        idle_clock: 210,
        power: [22.0, 58.0, 450.0, 150.0],
        temperature: [36.0, 71.0],
        thresholds: [100, 97, 0, 90],
        pcie: Some((4, 16)),
        pci_device: 0x2684_10DE,
        pci_subsystem: 0x16F3_10DE,
        vbios: "95.02.3C.00.8C",
        profiler: Profiler::Absent,
        ..GEFORCE
    },
    Model {
        key: "B200",
        name: "NVIDIA B200",
        architecture: sys::NVML_DEVICE_ARCH_BLACKWELL,
        capability: (10, 0),
        total: 183_359 * MIB,
        reserved: 715 * MIB,
        bar1: 256 * GIB,
        cores: 18_944,
        bus_width: 8192,
        clocks: [1965, 3996, 1965],
        idle_clock: 120,
        power: [140.0, 190.0, 1000.0, 200.0],
        pci_device: 0x2901_10DE,
        pci_subsystem: 0x1999_10DE,
        vbios: "97.00.88.00.0F",
        part: "692-2G525-0220-000",
        remap_banks: 3072,
        mig: mig::B200,
        ..SERVER
    },
    Model {
        key: "RTX 5090",
        name: "NVIDIA GeForce RTX 5090",
        architecture: sys::NVML_DEVICE_ARCH_BLACKWELL,
        capability: (12, 0),
        total: 32_607 * MIB,
        reserved: 490 * MIB,
        cores: 21_760,
        bus_width: 512,
        clocks: [3090, 14_001, 2415],
        idle_clock: 180,
        power: [18.0, 60.0, 575.0, 400.0],
        temperature: [34.0, 72.0],
        thresholds: [95, 92, 0, 90],
        pci_device: 0x2B85_10DE,
        pci_subsystem: 0x2057_10DE,
        vbios: "98.02.2E.00.04",
        // As reported for consumer Blackwell boards: NVML reports that they support GPM, but no counter is filled.
        profiler: Profiler::Unfilled,
        ..GEFORCE
    },
    integrated::GB10,
    integrated::THOR,
    integrated::ORIN,
];

impl Model {
    /// The model with this name; case does not matter.
    pub(crate) fn named(key: &str) -> Option<&'static Self> {
        MODELS.iter().find(|model| model.key.eq_ignore_ascii_case(key))
    }

    /// Bytes that processes can allocate.
    pub(crate) fn allocatable(&self) -> u64 {
        self.total - self.reserved
    }

    /// Whether the memory has a temperature sensor.
    pub(crate) fn has_memory_sensor(&self) -> bool {
        self.thresholds[2] > 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use text_and_sizes::sizing::boards;

    use super::*;

    /// The advice has its own table of sizes, and neither crate depends on the other.
    #[test]
    fn the_advice_has_the_same_mig_profiles() {
        /// Bytes that a MIG device uses before any process does.
        const USED: u64 = 16 * MIB;
        let mut compared = 0;
        for model in MODELS {
            let sizes: BTreeMap<u64, &str> =
                boards::profiles(model.name, model.total).map(|(name, bytes)| (bytes + USED, name)).collect();
            // Of the profiles with the same memory, the advice has only the smallest.
            let smallest: BTreeMap<u64, &str> = model.mig.iter().rev().map(|p| (p.memory, p.name)).collect();
            assert_eq!(sizes, smallest, "{}", model.name);
            compared += sizes.len();
        }
        assert!(compared >= 20, "{compared}");
    }
}
