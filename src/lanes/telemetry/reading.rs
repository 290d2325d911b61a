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
    pub(super) const FAST: [Self; 15] = [
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
        let (fast, slow) = (&mut shown.fast, &mut shown.slow);
        match self {
            Self::Utilization => {
                let (busy, bandwidth) = device.utilization()?;
                (fast.utilization, fast.memory_bandwidth_utilization) = (Some(busy), Some(bandwidth));
            }
            Self::Encoder => fast.encoder_utilization = Some(device.encoder_utilization()?),
            Self::Decoder => fast.decoder_utilization = Some(device.decoder_utilization()?),
            Self::Temperature => fast.temperature = Some(device.temperature()?),
            Self::Power => fast.power = Some(device.power()?),
            Self::PowerLimit => fast.power_limit = Some(device.power_limit()?),
            Self::Clock(domain) => fast.clocks[domain as usize] = Some(device.clock(domain)?),
            Self::Throttle => fast.throttle = Some(device.throttle_reasons()?),
            Self::EccCorrected => fast.ecc_corrected = Some(device.ecc_errors(false)?),
            Self::EccUncorrected => fast.ecc_uncorrected = Some(device.ecc_errors(true)?),
            Self::RemappedRows => {
                let rows = device.remapped_rows()?;
                fast.remapped_correctable = Some(rows.correctable);
                fast.remapped_uncorrectable = Some(rows.uncorrectable);
                fast.remap_pending = Some(rows.pending);
                fast.remap_failed = Some(rows.failed);
            }
            Self::Work => {}
            Self::Bar1 => {
                let bar1 = device.bar1()?;
                (slow.bar1_total, slow.bar1_used) = (Some(bar1.total), Some(bar1.used));
            }
            Self::MemoryTemperature => fast.memory_temperature = Some(device.memory_temperature()?),
            Self::PcieReplays => slow.pcie_replays = Some(device.pcie_replays()?),
            Self::Energy => slow.energy = Some(device.energy()?),
            Self::RetiredSingleBit => slow.retired_single_bit = Some(device.retired_pages(false)?),
            Self::RetiredDoubleBit => slow.retired_double_bit = Some(device.retired_pages(true)?),
        }
        Ok(())
    }

    /// What the reading filled is not known any longer.
    pub(super) fn clear(self, shown: &mut GpuTelemetry) {
        let (fast, slow) = (&mut shown.fast, &mut shown.slow);
        match self {
            Self::Utilization => (fast.utilization, fast.memory_bandwidth_utilization) = (None, None),
            Self::Encoder => fast.encoder_utilization = None,
            Self::Decoder => fast.decoder_utilization = None,
            Self::Temperature => fast.temperature = None,
            Self::Power => fast.power = None,
            Self::PowerLimit => fast.power_limit = None,
            Self::Clock(domain) => fast.clocks[domain as usize] = None,
            Self::Throttle => fast.throttle = None,
            Self::EccCorrected => fast.ecc_corrected = None,
            Self::EccUncorrected => fast.ecc_uncorrected = None,
            Self::RemappedRows => {
                (fast.remapped_correctable, fast.remapped_uncorrectable) = (None, None);
                (fast.remap_pending, fast.remap_failed) = (None, None);
            }
            Self::Work => {}
            Self::Bar1 => (slow.bar1_total, slow.bar1_used) = (None, None),
            Self::MemoryTemperature => fast.memory_temperature = None,
            Self::PcieReplays => slow.pcie_replays = None,
            Self::Energy => slow.energy = None,
            Self::RetiredSingleBit => slow.retired_single_bit = None,
            Self::RetiredDoubleBit => slow.retired_double_bit = None,
        }
    }
}
