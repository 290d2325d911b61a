//! The single readings: which driver call each makes and which field it fills.

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
    /// What each process did; it has a step of its own.
    Work,
    Bar1,
    PcieReplays,
    Energy,
    RetiredSingleBit,
    RetiredDoubleBit,
}

impl Reading {
    /// Calls that cost next to nothing: the driver answers them from a cache.
    pub(super) const QUICK: [Self; 15] = [
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
    ];

    /// Calls that hold the driver's lock for long.
    pub(super) const SLOW: [Self; 5] =
        [Self::Bar1, Self::PcieReplays, Self::Energy, Self::RetiredSingleBit, Self::RetiredDoubleBit];

    /// Asks the driver and fills the reading's fields.
    pub(super) fn take(self, device: Device<'_>, shown: &mut GpuTelemetry) -> Result<(), Error> {
        let (quick, slow) = (&mut shown.quick, &mut shown.slow);
        match self {
            Self::Utilization => {
                let (busy, bandwidth) = device.utilization()?;
                (quick.utilization, quick.memory_bandwidth_utilization) = (Some(busy), Some(bandwidth));
            }
            Self::Encoder => quick.encoder_utilization = Some(device.encoder_utilization()?),
            Self::Decoder => quick.decoder_utilization = Some(device.decoder_utilization()?),
            Self::Temperature => quick.temperature = Some(device.temperature()?),
            Self::Power => quick.power = Some(device.power()?),
            Self::PowerLimit => quick.power_limit = Some(device.power_limit()?),
            Self::Clock(domain) => quick.clocks[domain as usize] = Some(device.clock(domain)?),
            Self::Throttle => quick.throttle = Some(device.throttle_reasons()?),
            Self::EccCorrected => quick.ecc_corrected = Some(device.ecc_errors(false)?),
            Self::EccUncorrected => quick.ecc_uncorrected = Some(device.ecc_errors(true)?),
            Self::RemappedRows => {
                let rows = device.remapped_rows()?;
                quick.remapped_correctable = Some(rows.correctable);
                quick.remapped_uncorrectable = Some(rows.uncorrectable);
                quick.remap_pending = Some(rows.pending);
                quick.remap_failed = Some(rows.failed);
            }
            Self::Work => {}
            Self::Bar1 => {
                let bar1 = device.bar1()?;
                (slow.bar1_total, slow.bar1_used) = (Some(bar1.total), Some(bar1.used));
            }
            Self::MemoryTemperature => quick.memory_temperature = Some(device.memory_temperature()?),
            Self::PcieReplays => slow.pcie_replays = Some(device.pcie_replays()?),
            Self::Energy => slow.energy = Some(device.energy()?),
            Self::RetiredSingleBit => slow.retired_single_bit = Some(device.retired_pages(false)?),
            Self::RetiredDoubleBit => slow.retired_double_bit = Some(device.retired_pages(true)?),
        }
        Ok(())
    }

    /// What the reading filled is not known any longer.
    pub(super) fn clear(self, shown: &mut GpuTelemetry) {
        let (quick, slow) = (&mut shown.quick, &mut shown.slow);
        match self {
            Self::Utilization => (quick.utilization, quick.memory_bandwidth_utilization) = (None, None),
            Self::Encoder => quick.encoder_utilization = None,
            Self::Decoder => quick.decoder_utilization = None,
            Self::Temperature => quick.temperature = None,
            Self::Power => quick.power = None,
            Self::PowerLimit => quick.power_limit = None,
            Self::Clock(domain) => quick.clocks[domain as usize] = None,
            Self::Throttle => quick.throttle = None,
            Self::EccCorrected => quick.ecc_corrected = None,
            Self::EccUncorrected => quick.ecc_uncorrected = None,
            Self::RemappedRows => {
                (quick.remapped_correctable, quick.remapped_uncorrectable) = (None, None);
                (quick.remap_pending, quick.remap_failed) = (None, None);
            }
            Self::Work => {}
            Self::Bar1 => (slow.bar1_total, slow.bar1_used) = (None, None),
            Self::MemoryTemperature => quick.memory_temperature = None,
            Self::PcieReplays => slow.pcie_replays = None,
            Self::Energy => slow.energy = None,
            Self::RetiredSingleBit => slow.retired_single_bit = None,
            Self::RetiredDoubleBit => slow.retired_double_bit = None,
        }
    }
}
