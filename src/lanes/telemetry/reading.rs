//! The individual readings: which driver call each one makes and which fields it fills.

use crate::nvml::{Device, Error};
use crate::snapshot::{ClockDomain, GpuTelemetry};

/// One driver call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    Utilization,
    Encoder,
    Decoder,
    Temperature,
    MemoryTemperature,
    Power,
    PowerLimit,
    Clock(ClockDomain),
    Throttle,
    EccCorrected,
    EccUncorrected,
    RemappedRows,
    RecoveryAction,
    PcieGeneration,
    PcieWidth,
    /// What each process did. This reading fills no field and has a step of its own.
    Work,
    Bar1,
    PcieReplays,
    Energy,
    RetiredSingleBit,
    RetiredDoubleBit,
    RowRemapBanks,
    PcieGenerationMax,
    PcieWidthMax,
}

impl Reading {
    /// Cheap calls: the driver answers them from a cache, or within 25 µs.
    pub(super) const FAST: [Self; 18] = [
        Self::Utilization,
        Self::Encoder,
        Self::Decoder,
        Self::Temperature,
        Self::MemoryTemperature,
        Self::Power,
        Self::PowerLimit,
        Self::Clock(ClockDomain::Graphics),
        Self::Clock(ClockDomain::Sm),
        Self::Clock(ClockDomain::Memory),
        Self::Clock(ClockDomain::Video),
        Self::Throttle,
        Self::EccCorrected,
        Self::EccUncorrected,
        Self::RemappedRows,
        Self::RecoveryAction,
        Self::PcieGeneration,
        Self::PcieWidth,
    ];

    /// Calls that hold the driver's lock for a long time, and values that hardly ever change.
    pub(super) const SLOW: [Self; 8] = [
        Self::Bar1,
        Self::PcieReplays,
        Self::Energy,
        Self::RetiredSingleBit,
        Self::RetiredDoubleBit,
        Self::RowRemapBanks,
        Self::PcieGenerationMax,
        Self::PcieWidthMax,
    ];

    /// The families that show the reading and nothing else does, so that its call is not made if all of them are excluded. Empty
    /// if it is needed in any case.
    pub(super) fn families(self) -> &'static [&'static str] {
        match self {
            // Tell whether the processes are asked for their work.
            Self::Utilization | Self::Work => &[],
            Self::Encoder => &["gpu_encoder_utilization_ratio"],
            Self::Decoder => &["gpu_decoder_utilization_ratio"],
            Self::Temperature => &["gpu_temperature_celsius"],
            Self::MemoryTemperature => &["gpu_memory_temperature_celsius"],
            Self::Power => &["gpu_power_watts"],
            Self::PowerLimit => &["gpu_power_limit_watts"],
            Self::Clock(_) => &["gpu_clock_hertz"],
            Self::Throttle => &["gpu_throttle_active"],
            Self::EccCorrected | Self::EccUncorrected => &["gpu_ecc_errors_total"],
            Self::RemappedRows => &["gpu_remapped_rows", "gpu_row_remap_pending", "gpu_row_remap_failed"],
            Self::RecoveryAction => &["gpu_recovery_action"],
            Self::PcieGeneration => &["gpu_pcie_link_generation"],
            Self::PcieWidth => &["gpu_pcie_link_width"],
            Self::Bar1 => &["gpu_bar1_memory_total_bytes", "gpu_bar1_memory_used_bytes"],
            Self::PcieReplays => &["gpu_pcie_replays_total"],
            Self::Energy => &["gpu_energy_joules_total"],
            Self::RetiredSingleBit | Self::RetiredDoubleBit => &["gpu_retired_pages"],
            Self::RowRemapBanks => &["gpu_row_remap_banks"],
            Self::PcieGenerationMax => &["gpu_pcie_link_generation_max"],
            Self::PcieWidthMax => &["gpu_pcie_link_width_max"],
        }
    }

    /// Queries the device and fills the reading's fields; they become unknown if there is no device or it refuses the
    /// call.
    pub(super) fn take(self, device: Option<Device<'_>>, shown: &mut GpuTelemetry) -> Result<(), Error> {
        let (fast, slow) = (&mut shown.fast, &mut shown.slow);
        match self {
            Self::Utilization => fill(device, Device::utilization, |shares| {
                (fast.utilization, fast.memory_bandwidth_utilization) = shares.unzip();
            }),
            Self::Encoder => fill(device, Device::encoder_utilization, |share| fast.encoder_utilization = share),
            Self::Decoder => fill(device, Device::decoder_utilization, |share| fast.decoder_utilization = share),
            Self::Temperature => fill(device, Device::temperature, |celsius| fast.temperature = celsius),
            Self::MemoryTemperature => {
                fill(device, Device::memory_temperature, |celsius| fast.memory_temperature = celsius)
            }
            Self::Power => fill(device, Device::power, |watts| fast.power = watts),
            Self::PowerLimit => fill(device, Device::power_limit, |watts| fast.power_limit = watts),
            Self::Clock(domain) => fill(device, |gpu| gpu.clock(domain), |hertz| fast.clocks[domain as usize] = hertz),
            Self::Throttle => fill(device, Device::throttle_reasons, |bits| fast.throttle = bits),
            Self::EccCorrected => fill(device, |gpu| gpu.ecc_errors(false), |errors| fast.ecc_corrected = errors),
            Self::EccUncorrected => fill(device, |gpu| gpu.ecc_errors(true), |errors| fast.ecc_uncorrected = errors),
            Self::RemappedRows => fill(device, Device::remapped_rows, |rows| {
                fast.remapped_correctable = rows.map(|rows| rows.correctable);
                fast.remapped_uncorrectable = rows.map(|rows| rows.uncorrectable);
                fast.remap_pending = rows.map(|rows| rows.pending);
                fast.remap_failed = rows.map(|rows| rows.failed);
            }),
            Self::RecoveryAction => fill(device, Device::recovery_action, |action| fast.recovery_action = action),
            Self::PcieGeneration => fill(device, Device::pcie_generation, |number| fast.pcie_generation = number),
            Self::PcieWidth => fill(device, Device::pcie_width, |lanes| fast.pcie_width = lanes),
            Self::Work => Ok(()),
            Self::Bar1 => fill(device, Device::bar1, |bar1| {
                (slow.bar1_total, slow.bar1_used) = bar1.map(|bar1| (bar1.total, bar1.used)).unzip();
            }),
            Self::PcieReplays => fill(device, Device::pcie_replays, |replays| slow.pcie_replays = replays),
            Self::Energy => fill(device, Device::energy, |joules| slow.energy = joules),
            Self::RetiredSingleBit => {
                fill(device, |gpu| gpu.retired_pages(false), |pages| slow.retired_single_bit = pages)
            }
            Self::RetiredDoubleBit => {
                fill(device, |gpu| gpu.retired_pages(true), |pages| slow.retired_double_bit = pages)
            }
            Self::RowRemapBanks => fill(device, Device::row_remap_banks, |banks| slow.row_remap_banks = banks),
            Self::PcieGenerationMax => {
                fill(device, Device::pcie_generation_max, |number| slow.pcie_generation_max = number)
            }
            Self::PcieWidthMax => fill(device, Device::pcie_width_max, |lanes| slow.pcie_width_max = lanes),
        }
    }
}

/// Queries the device, if there is one, and passes its answer to `show`, or `None` if there is no answer.
fn fill<'d, T>(
    device: Option<Device<'d>>,
    ask: impl FnOnce(&Device<'d>) -> Result<T, Error>,
    show: impl FnOnce(Option<T>),
) -> Result<(), Error> {
    match device.as_ref().map(ask).transpose() {
        Ok(answer) => {
            show(answer);
            Ok(())
        }
        Err(error) => {
            show(None);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_of_a_reading_is_served() {
        let reference = include_str!("../../../docs/metrics.md");
        let families = Reading::FAST.into_iter().chain(Reading::SLOW).flat_map(Reading::families);
        for family in families {
            assert!(reference.contains(&format!("| `{family}` |")), "{family}");
        }
    }
}
