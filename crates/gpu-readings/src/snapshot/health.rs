//! Values with a fixed set of names that say in what state a GPU is.

use crate::closed_enum::closed_enum;

closed_enum! {
    /// What an operator must do to recover a GPU, according to the driver (`nvmlDeviceGpuRecoveryAction_t`): the label
    /// `action`. In the order of NVML's codes: the position is the code.
    pub enum RecoveryAction {
        /// Nothing.
        None => "none",
        /// Reset the GPU.
        GpuReset => "gpu_reset",
        /// Reboot the machine.
        NodeReboot => "node_reboot",
        /// Stop all peer-to-peer traffic, then read the action again.
        DrainP2p => "drain_p2p",
        /// Let the work on the GPU end, start no other work on it, then reset the GPU.
        DrainAndReset => "drain_and_reset",
        /// Recover the domain of the GPU in NVIDIA's internode memory exchange service (IMEX).
        RecoverImexDomain => "recover_imex_domain",
        /// Reset the PCIe bus of the GPU.
        BusReset => "bus_reset",
        /// Reboot the whole system.
        SystemReboot => "system_reboot",
    }
}

impl RecoveryAction {
    /// The action with NVML's code; `None` for a code that `nvml.h` of driver 615 does not have.
    pub fn from_code(code: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }
}

closed_enum! {
    /// How a GPU can address the memory of the CPU (`nvmlDeviceAddressingModeType_t`): the label `addressing_mode`. In the
    /// order of NVML's codes: the position is the code.
    pub enum AddressingMode {
        /// It cannot address memory that the system allocated.
        None => "none",
        /// Heterogeneous memory management: software mirrors the page tables of the CPU.
        Hmm => "hmm",
        /// Address translation services: CPU and GPU use the same page tables.
        Ats => "ats",
    }
}

impl AddressingMode {
    /// The mode with NVML's code; `None` for a code that `nvml.h` of driver 615 does not have.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
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
