//! Values with a fixed set of names that say in what state a GPU is.

/// What an operator must do to recover a GPU, according to the driver (`nvmlDeviceGpuRecoveryAction_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryAction {
    /// Nothing.
    None,
    /// Reset the GPU.
    GpuReset,
    /// Reboot the machine.
    NodeReboot,
    /// Stop all peer-to-peer traffic, then read the action again.
    DrainP2p,
    /// Let the work on the GPU end, start no other work on it, then reset the GPU.
    DrainAndReset,
    /// Recover the domain of the GPU in NVIDIA's internode memory exchange service (IMEX).
    RecoverImexDomain,
    /// Reset the PCIe bus of the GPU.
    BusReset,
    /// Reboot the whole system.
    SystemReboot,
}

impl RecoveryAction {
    /// Every action, in the order of NVML's codes: the position is the code.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::GpuReset,
        Self::NodeReboot,
        Self::DrainP2p,
        Self::DrainAndReset,
        Self::RecoverImexDomain,
        Self::BusReset,
        Self::SystemReboot,
    ];

    /// The action with NVML's code; `None` for a code that `nvml.h` of driver 615 does not have.
    pub fn from_code(code: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// The value of the `action` label.
    pub fn label(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::GpuReset => "gpu_reset",
            Self::NodeReboot => "node_reboot",
            Self::DrainP2p => "drain_p2p",
            Self::DrainAndReset => "drain_and_reset",
            Self::RecoverImexDomain => "recover_imex_domain",
            Self::BusReset => "bus_reset",
            Self::SystemReboot => "system_reboot",
        }
    }
}

/// How a GPU can address the memory of the CPU (`nvmlDeviceAddressingModeType_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressingMode {
    /// It cannot address memory that the system allocated.
    None,
    /// Heterogeneous memory management: software mirrors the page tables of the CPU.
    Hmm,
    /// Address translation services: CPU and GPU use the same page tables.
    Ats,
}

impl AddressingMode {
    /// The mode with NVML's code; `None` for a code that `nvml.h` of driver 615 does not have.
    pub fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            1 => Some(Self::Hmm),
            2 => Some(Self::Ats),
            _ => None,
        }
    }

    /// The value of the `addressing_mode` label.
    pub fn label(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Hmm => "hmm",
            Self::Ats => "ats",
        }
    }
}

/// The values of the `available` label of `gpu_row_remap_banks`: how many of a bank's spare rows are left. The order is
/// that of NVML's struct (`nvmlRowRemapperHistogramValues_t`).
pub const SPARE_ROWS: [&str; 5] = ["max", "high", "partial", "low", "none"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_header_has_its_name_and_no_other_code_has_one() {
        let labels: Vec<_> = (0..8).map(|code| RecoveryAction::from_code(code).map(RecoveryAction::label)).collect();
        let names = ["none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"];
        assert_eq!(labels[..5], names.map(Some));
        assert_eq!(labels[5..], ["recover_imex_domain", "bus_reset", "system_reboot"].map(Some));
        assert_eq!((RecoveryAction::from_code(8), RecoveryAction::from_code(u64::MAX)), (None, None));
        let modes: Vec<_> = (0..4).map(|code| AddressingMode::from_code(code).map(AddressingMode::label)).collect();
        assert_eq!(modes, [Some("none"), Some("hmm"), Some("ats"), None]);
    }
}
