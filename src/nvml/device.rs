//! One GPU or MIG device, asked one question at a time.

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper_sys::bindings::field_id::NVML_FI_DEV_MEMORY_TEMP;
use nvml_wrapper_sys::bindings::{
    nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR as DOUBLE_BIT,
    nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS as SINGLE_BIT,
};

use super::Error;
use super::raw::{self, Handle};
use crate::snapshot::ClockDomain;

/// A device of an open driver.
#[derive(Debug, Clone, Copy)]
pub struct Device<'d> {
    nvml: &'d Nvml,
    handle: Handle,
    second_version_lists: bool,
}

/// Bytes, read at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryReading {
    /// All device memory.
    pub total: u64,
    /// Kept by driver and firmware; `None` from the first version of the call, whose `used` contains it.
    pub reserved: Option<u64>,
    /// Allocated.
    pub used: u64,
    /// Free.
    pub free: u64,
}

/// Row remapping (NVIDIA Ampere and later).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemappedRows {
    /// Because of correctable errors.
    pub correctable: u64,
    /// Because of uncorrectable errors.
    pub uncorrectable: u64,
    /// Whether a remapping waits for a reset.
    pub pending: bool,
    /// Whether a remapping failed.
    pub failed: bool,
}

/// What a process did on the GPU between two moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UtilizationSample {
    /// Whose.
    pub pid: u32,
    /// Microseconds of unix time.
    pub timestamp: u64,
    /// Share of the SMs' time, 0 to 1.
    pub sm: f64,
    /// Whether any engine worked.
    pub active: bool,
}

/// Used and total of a part of memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// All of it.
    pub total: u64,
    /// In use.
    pub used: u64,
}

type Answer<T> = Result<T, Error>;

impl<'d> Device<'d> {
    pub(super) fn new(nvml: &'d Nvml, handle: Handle, second_version_lists: bool) -> Self {
        Self { nvml, handle, second_version_lists }
    }

    pub(super) fn nvml(&self) -> &'d Nvml {
        self.nvml
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    pub(super) fn second_version_lists(&self) -> bool {
        self.second_version_lists
    }

    fn ask<T>(
        &self,
        call: &'static str,
        question: impl FnOnce(&nvml_wrapper::Device<'d>) -> Result<T, NvmlError>,
    ) -> Answer<T> {
        question(&self.handle.device(self.nvml)).map_err(|error| Error::new(call, error))
    }

    /// Memory, by the second version of the call, or by the first where the driver is too old for it.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` on parts that share the system's memory; [`crate::faults::Reason::Implausible`] for an answer
    /// that cannot be true.
    pub fn memory(&self) -> Answer<MemoryReading> {
        const V2: &str = "nvmlDeviceGetMemoryInfo_v2";
        match self.ask(V2, |device| device.memory_info()) {
            Ok(info) => plausible(
                V2,
                MemoryReading { total: info.total, reserved: Some(info.reserved), used: info.used, free: info.free },
            ),
            Err(error) if error.is_missing_call() => {
                let (total, used, free) = raw::memory_v1(self.nvml, self.handle)?;
                plausible("nvmlDeviceGetMemoryInfo", MemoryReading { total, reserved: None, used, free })
            }
            Err(error) => Err(error),
        }
    }

    /// Shares of time, 0 to 1: a kernel ran; memory was read or written.
    pub fn utilization(&self) -> Answer<(f64, f64)> {
        let rates = self.ask("nvmlDeviceGetUtilizationRates", |device| device.utilization_rates())?;
        Ok((f64::from(rates.gpu) / 100.0, f64::from(rates.memory) / 100.0))
    }

    /// Share of time, 0 to 1.
    pub fn encoder_utilization(&self) -> Answer<f64> {
        let info = self.ask("nvmlDeviceGetEncoderUtilization", |device| device.encoder_utilization())?;
        Ok(f64::from(info.utilization) / 100.0)
    }

    /// Share of time, 0 to 1.
    pub fn decoder_utilization(&self) -> Answer<f64> {
        let info = self.ask("nvmlDeviceGetDecoderUtilization", |device| device.decoder_utilization())?;
        Ok(f64::from(info.utilization) / 100.0)
    }

    /// Degrees Celsius.
    pub fn temperature(&self) -> Answer<f64> {
        self.ask("nvmlDeviceGetTemperature", |device| device.temperature(TemperatureSensor::Gpu)).map(f64::from)
    }

    /// Watts.
    pub fn power(&self) -> Answer<f64> {
        self.ask("nvmlDeviceGetPowerUsage", |device| device.power_usage()).map(|milli| f64::from(milli) / 1e3)
    }

    /// Watts: the limit in force.
    pub fn power_limit(&self) -> Answer<f64> {
        self.ask("nvmlDeviceGetEnforcedPowerLimit", |device| device.enforced_power_limit())
            .map(|milli| f64::from(milli) / 1e3)
    }

    /// Hertz.
    pub fn clock(&self, domain: ClockDomain) -> Answer<f64> {
        let clock = match domain {
            ClockDomain::Graphics => Clock::Graphics,
            ClockDomain::Sm => Clock::SM,
            ClockDomain::Memory => Clock::Memory,
            ClockDomain::Video => Clock::Video,
        };
        self.ask("nvmlDeviceGetClockInfo", |device| device.clock_info(clock)).map(|mega| f64::from(mega) * 1e6)
    }

    /// The bits of [`crate::snapshot::THROTTLE_REASONS`].
    pub fn throttle_reasons(&self) -> Answer<u64> {
        self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", |device| device.current_throttle_reasons())
            .map(|reasons| reasons.bits())
    }

    /// Corrected (`false`) or uncorrected (`true`) ECC errors since the driver was loaded.
    pub fn ecc_errors(&self, uncorrected: bool) -> Answer<u64> {
        let kind = if uncorrected { MemoryError::Uncorrected } else { MemoryError::Corrected };
        self.ask("nvmlDeviceGetTotalEccErrors", |device| device.total_ecc_errors(kind, EccCounter::Volatile))
    }

    /// Row remapping.
    pub fn remapped_rows(&self) -> Answer<RemappedRows> {
        raw::remapped_rows(self.nvml, self.handle)
    }

    /// What each process did since `since` (microseconds of unix time). Empty where the driver has no sample.
    pub fn process_utilization(&self, since: u64) -> Answer<Vec<UtilizationSample>> {
        let samples =
            self.ask("nvmlDeviceGetProcessUtilization", |device| match device.process_utilization_stats(since) {
                Err(NvmlError::NotFound) => Ok(Vec::new()),
                answer => answer,
            })?;
        Ok(samples
            .iter()
            // The driver fills unused slots with pid 0, and now and then gives a share above 100.
            .filter(|sample| sample.pid != 0 && sample.sm_util <= 100)
            .map(|sample| UtilizationSample {
                pid: sample.pid,
                timestamp: sample.timestamp,
                sm: f64::from(sample.sm_util) / 100.0,
                active: [sample.sm_util, sample.mem_util, sample.enc_util, sample.dec_util].iter().any(|&u| u > 0),
            })
            .collect())
    }

    /// Whether an administrator has turned the driver's accounting on.
    pub fn accounting(&self) -> Answer<bool> {
        self.ask("nvmlDeviceGetAccountingMode", |device| device.is_accounting_enabled())
    }

    /// Bytes: the driver's own maximum for a running process. `None` where it does not know one.
    pub fn accounted_peak(&self, pid: u32) -> Answer<Option<u64>> {
        match self.ask("nvmlDeviceGetAccountingStats", |device| device.accounting_stats_for(pid)) {
            Ok(stats) if stats.is_running => Ok(stats.max_memory_usage),
            Ok(_) => Ok(None),
            Err(error) if error.reason() == crate::faults::Reason::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The window through which the host reaches device memory.
    pub fn bar1(&self) -> Answer<Slice> {
        let info = self.ask("nvmlDeviceGetBAR1MemoryInfo", |device| device.bar1_memory_info())?;
        Ok(Slice { total: info.total, used: info.used })
    }

    /// Degrees Celsius.
    pub fn memory_temperature(&self) -> Answer<f64> {
        const CALL: &str = "nvmlDeviceGetFieldValues";
        self.ask(CALL, |device| {
            let fields = device.field_values_for(&[FieldId(NVML_FI_DEV_MEMORY_TEMP)])?;
            let sample = fields.into_iter().next().ok_or(NvmlError::NotFound)??;
            match sample.value? {
                SampleValue::U32(value) => Ok(f64::from(value)),
                SampleValue::U64(value) => Ok(value as f64),
                SampleValue::F64(value) => Ok(value),
                _ => Err(NvmlError::NotSupported),
            }
        })
        // NVML answers 0 for the memory temperature of parts that have no such sensor.
        .and_then(|celsius| match celsius > 0.0 {
            true => Ok(celsius),
            false => Err(Error::new(CALL, NvmlError::NotSupported)),
        })
    }

    /// PCIe replays since the driver was loaded.
    pub fn pcie_replays(&self) -> Answer<u64> {
        self.ask("nvmlDeviceGetPcieReplayCounter", |device| device.pcie_replay_counter()).map(u64::from)
    }

    /// Joules since the driver was loaded.
    pub fn energy(&self) -> Answer<f64> {
        self.ask("nvmlDeviceGetTotalEnergyConsumption", |device| device.total_energy_consumption())
            .map(|milli| milli as f64 / 1e3)
    }

    /// Pages retired because of a double-bit error (`true`) or of several single-bit errors.
    pub fn retired_pages(&self, double_bit: bool) -> Answer<u64> {
        let cause = if double_bit { DOUBLE_BIT } else { SINGLE_BIT };
        raw::retired_pages(self.nvml, self.handle, cause).map(u64::from)
    }
}

fn plausible(call: &'static str, reading: MemoryReading) -> Answer<MemoryReading> {
    let MemoryReading { total, reserved, used, free } = reading;
    let parts = [reserved.unwrap_or(0), used, free];
    if total == 0 || total == u64::MAX || parts.iter().any(|&part| part > total) {
        return Err(Error::implausible(
            call,
            format!("total {total}, reserved {reserved:?}, used {used}, free {free}"),
        ));
    }
    Ok(reading)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_true_are_refused() {
        let good = MemoryReading { total: 100, reserved: Some(5), used: 15, free: 80 };
        assert_eq!(plausible("call", good).unwrap(), good);
        for bad in [
            MemoryReading { used: 101, ..good },
            MemoryReading { total: 0, reserved: None, used: 0, free: 0 },
            MemoryReading { total: u64::MAX, used: u64::MAX, ..good },
            MemoryReading { free: u64::MAX, ..good },
            MemoryReading { reserved: Some(101), ..good },
        ] {
            assert!(plausible("call", bad).is_err(), "{bad:?}");
        }
    }
}
