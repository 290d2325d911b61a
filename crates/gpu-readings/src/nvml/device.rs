//! One GPU or MIG device: each method makes one NVML call, or its fallback.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PerformanceState, TemperatureSensor, TemperatureThreshold as Threshold,
};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_ECC_DBE_AGG_TOTAL, NVML_FI_DEV_ECC_SBE_AGG_TOTAL, NVML_FI_DEV_MEMORY_TEMP, NVML_FI_DEV_POWER_INSTANT,
    NVML_FI_DEV_RETIRED_PENDING,
};
use nvml_wrapper_sys::bindings::{
    nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR as DOUBLE_BIT,
    nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS as SINGLE_BIT,
};

use super::error::{Error, Severity};
use super::raw::{self, Handle, ListVersion};
use super::readings::{Bar1, MemoryReading, RemappedRows, UtilizationSample};
use crate::snapshot::{ClockDomain, TemperatureThreshold};

/// A GPU or MIG device of an open driver.
#[derive(Debug, Clone, Copy)]
pub struct Device<'d> {
    pub(super) nvml: &'d Nvml,
    pub(super) handle: Handle,
    /// The newest version of the calls for process lists that is made.
    pub(super) newest_lists: ListVersion,
}

/// The highest number of fans that is taken for plausible.
const MOST_FANS: u32 = 32;

type Result<T> = std::result::Result<T, Error>;

impl<'d> Device<'d> {
    /// Makes a call of nvml-wrapper. The error names the call. A reading of one number makes its call with this
    /// (`lanes/telemetry/reading.rs`), so that the number is declared in one place.
    pub(crate) fn call<T>(
        &self,
        call: &'static str,
        query: impl FnOnce(&nvml_wrapper::Device<'d>) -> std::result::Result<T, NvmlError>,
    ) -> Result<T> {
        query(&self.handle.device(self.nvml)).map_err(|error| Error::new(call, error))
    }

    /// Reads memory with the second version of the call, or with the first if the driver is too old for the second.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` on GPUs that share the system's memory; [`crate::faults::Reason::Implausible`] for values that
    /// cannot be true.
    pub fn memory(&self) -> Result<MemoryReading> {
        const V2: &str = "nvmlDeviceGetMemoryInfo_v2";
        match self.call(V2, |device| device.memory_info()) {
            Ok(info) => plausible(V2, MemoryReading::of_call(info.total, Some(info.reserved), info.used, info.free)),
            Err(error) if error.is_missing_call() => {
                let (total, used, free) = raw::memory_v1(self.nvml, self.handle)?;
                plausible("nvmlDeviceGetMemoryInfo", MemoryReading::of_call(total, None, used, free))
            }
            Err(error) => Err(error),
        }
    }

    /// The shares of time, 0 to 1, during which a kernel was running and during which memory was being read or written.
    pub fn utilization(&self) -> Result<(f64, f64)> {
        let rates = self.call("nvmlDeviceGetUtilizationRates", |device| device.utilization_rates())?;
        Ok((f64::from(rates.gpu) / 100.0, f64::from(rates.memory) / 100.0))
    }

    /// The share of time during which the encoder was busy, 0 to 1.
    pub fn encoder_utilization(&self) -> Result<f64> {
        let info = self.call("nvmlDeviceGetEncoderUtilization", |device| device.encoder_utilization())?;
        Ok(f64::from(info.utilization) / 100.0)
    }

    /// The share of time during which the decoder was busy, 0 to 1.
    pub fn decoder_utilization(&self) -> Result<f64> {
        let info = self.call("nvmlDeviceGetDecoderUtilization", |device| device.decoder_utilization())?;
        Ok(f64::from(info.utilization) / 100.0)
    }

    /// GPU temperature in degrees Celsius.
    pub fn temperature(&self) -> Result<f64> {
        self.call("nvmlDeviceGetTemperature", |device| device.temperature(TemperatureSensor::Gpu)).map(f64::from)
    }

    /// The temperature at which something happens, in degrees Celsius.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` also for a threshold of 0, which the driver returns for what the GPU does not have.
    pub fn temperature_threshold(&self, threshold: TemperatureThreshold) -> Result<f64> {
        const CALL: &str = "nvmlDeviceGetTemperatureThreshold";
        let threshold = match threshold {
            TemperatureThreshold::Shutdown => Threshold::Shutdown,
            TemperatureThreshold::Slowdown => Threshold::Slowdown,
            TemperatureThreshold::MemoryMax => Threshold::MemoryMax,
            TemperatureThreshold::GpuMax => Threshold::GpuMax,
        };
        match self.call(CALL, |device| device.temperature_threshold(threshold))? {
            0 => Err(Error::new(CALL, NvmlError::NotSupported)),
            celsius => Ok(f64::from(celsius)),
        }
    }

    /// The lowest and the highest power limit that somebody can set, in watts.
    pub fn power_limits(&self) -> Result<(f64, f64)> {
        const CALL: &str = "nvmlDeviceGetPowerManagementLimitConstraints";
        let limits = self.call(CALL, |device| device.power_management_limit_constraints())?;
        Ok((f64::from(limits.min_limit) / 1e3, f64::from(limits.max_limit) / 1e3))
    }

    /// The intended speed of each fan, as a share of its highest. A blocked fan has it too.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` also for a GPU without fans.
    pub fn fan_speeds(&self) -> Result<Vec<f64>> {
        const CALL: &str = "nvmlDeviceGetNumFans";
        match self.call(CALL, |device| device.num_fans())? {
            0 => Err(Error::new(CALL, NvmlError::NotSupported)),
            fans if fans > MOST_FANS => Err(Error::implausible(CALL, fans.to_string())),
            fans => (0..fans)
                .map(|fan| self.call("nvmlDeviceGetFanSpeed_v2", |device| device.fan_speed(fan)))
                .map(|percent| percent.map(|percent| f64::from(percent) / 100.0))
                .collect(),
        }
    }

    /// The intended speed of the GPU's fan, as a share of its highest: the first version of the call, which knows one fan.
    pub fn fan_speed(&self) -> Result<f64> {
        raw::fan_speed(self.nvml, self.handle).map(|percent| f64::from(percent) / 100.0)
    }

    /// The power that the GPU draws at this moment, in watts.
    pub fn power_now(&self) -> Result<f64> {
        raw::field(self.nvml, self.handle, NVML_FI_DEV_POWER_INSTANT).map(|milliwatts| milliwatts as f64 / 1e3)
    }

    /// The power limit that somebody has set, in watts. The enforced limit can be lower.
    pub fn power_limit_requested(&self) -> Result<f64> {
        self.call("nvmlDeviceGetPowerManagementLimit", |device| device.power_management_limit())
            .map(|milliwatts| f64::from(milliwatts) / 1e3)
    }

    /// The highest clock of each domain in hertz; `None` for one that the GPU does not have.
    pub fn clocks_max(&self) -> Result<[Option<f64>; ClockDomain::ALL.len()]> {
        let mut clocks = [None; ClockDomain::ALL.len()];
        for (clock, domain) in clocks.iter_mut().zip(ClockDomain::ALL) {
            *clock = match self.call("nvmlDeviceGetMaxClockInfo", |device| device.max_clock_info(wrapped(domain))) {
                Ok(mega) => Some(f64::from(mega) * 1e6),
                Err(error) if error.severity() == Severity::Absent => None,
                Err(error) => return Err(error),
            };
        }
        Ok(clocks)
    }

    /// The performance state, from 0 (highest performance) to 15.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` also if the driver does not know the state.
    pub fn performance_state(&self) -> Result<u32> {
        const CALL: &str = "nvmlDeviceGetPerformanceState";
        match self.call(CALL, |device| device.performance_state())? {
            PerformanceState::Unknown => Err(Error::new(CALL, NvmlError::NotSupported)),
            state => Ok(state.as_c()),
        }
    }

    /// Current clock in hertz.
    pub fn clock(&self, domain: ClockDomain) -> Result<f64> {
        self.call("nvmlDeviceGetClockInfo", |device| device.clock_info(wrapped(domain)))
            .map(|mega| f64::from(mega) * 1e6)
    }

    /// The current throttle reasons, as the bits of [`crate::snapshot::THROTTLE_REASONS`].
    pub fn throttle_reasons(&self) -> Result<u64> {
        self.call("nvmlDeviceGetCurrentClocksThrottleReasons", |device| device.current_throttle_reasons())
            .map(|reasons| reasons.bits())
    }

    /// ECC errors that were corrected since the driver was loaded.
    pub fn corrected_ecc_errors(&self) -> Result<u64> {
        self.ecc_errors(MemoryError::Corrected)
    }

    /// ECC errors that could not be corrected since the driver was loaded.
    pub fn uncorrected_ecc_errors(&self) -> Result<u64> {
        self.ecc_errors(MemoryError::Uncorrected)
    }

    fn ecc_errors(&self, kind: MemoryError) -> Result<u64> {
        self.call("nvmlDeviceGetTotalEccErrors", |device| device.total_ecc_errors(kind, EccCounter::Volatile))
    }

    /// ECC errors over the life of the GPU: those that were corrected, and those that could not be.
    pub fn lifetime_ecc_errors(&self) -> Result<(u64, u64)> {
        let ids = [(NVML_FI_DEV_ECC_SBE_AGG_TOTAL, 0), (NVML_FI_DEV_ECC_DBE_AGG_TOTAL, 0)];
        let [corrected, uncorrected] = raw::fields(self.nvml, self.handle, ids)?;
        Ok((corrected?, uncorrected?))
    }

    /// Whether pages wait for a reboot to be retired.
    pub fn retirement_pending(&self) -> Result<bool> {
        raw::field(self.nvml, self.handle, NVML_FI_DEV_RETIRED_PENDING).map(|pending| pending != 0)
    }

    /// Reads the counts and flags of row remapping.
    pub fn remapped_rows(&self) -> Result<RemappedRows> {
        raw::remapped_rows(self.nvml, self.handle)
    }

    /// The work of each process after `since` (microseconds of Unix time). Empty if the driver has no samples.
    pub fn process_utilization(&self, since: u64) -> Result<Vec<UtilizationSample>> {
        let samples =
            self.call("nvmlDeviceGetProcessUtilization", |device| match device.process_utilization_stats(since) {
                Err(NvmlError::NotFound) => Ok(Vec::new()),
                answer => answer,
            })?;
        Ok(samples
            .iter()
            // The driver fills unused slots with pid 0 and occasionally returns a percentage above 100.
            .filter(|sample| sample.pid != 0 && sample.sm_util <= 100)
            .map(|sample| UtilizationSample {
                pid: sample.pid,
                timestamp: sample.timestamp,
                sm: f64::from(sample.sm_util) / 100.0,
                active: [sample.sm_util, sample.mem_util, sample.enc_util, sample.dec_util].iter().any(|&u| u > 0),
            })
            .collect())
    }

    /// Whether an administrator has enabled the driver's accounting.
    pub fn accounting(&self) -> Result<bool> {
        self.call("nvmlDeviceGetAccountingMode", |device| device.is_accounting_enabled())
    }

    /// The driver's own maximum for a running process, in bytes. `None` if the driver has none.
    pub fn accounted_peak(&self, pid: u32) -> Result<Option<u64>> {
        match self.call("nvmlDeviceGetAccountingStats", |device| device.accounting_stats_for(pid)) {
            Ok(stats) if stats.is_running => Ok(stats.max_memory_usage),
            Ok(_) => Ok(None),
            Err(error) if error.reason() == crate::faults::Reason::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The driver's hard memory limit for a cgroup in bytes; `None` if the cgroup has none on this GPU. `cgroup` is the
    /// cgroup's path in the unified hierarchy.
    ///
    /// # Errors
    /// `FUNCTION_NOT_FOUND` before NVML 13.5; `OPERATING_SYSTEM` if the cgroup does not exist below `/sys/fs/cgroup`.
    pub fn memory_limit_of(&self, cgroup: &Path) -> Result<Option<u64>> {
        // NVML wants the full path. Systems with version 2 alone mount its hierarchy here.
        let path = [b"/sys/fs/cgroup", cgroup.as_os_str().as_bytes()].concat();
        let path = CString::new(path).map_err(|_| Error::new(raw::MEMORY_LIMITS_CALL, NvmlError::InvalidArg))?;
        raw::hard_memory_limit(self.nvml, self.handle, &path)
    }

    /// Reads the BAR1 window.
    pub fn bar1(&self) -> Result<Bar1> {
        let info = self.call("nvmlDeviceGetBAR1MemoryInfo", |device| device.bar1_memory_info())?;
        Ok(Bar1 { total: info.total, used: info.used })
    }

    /// Memory temperature in degrees Celsius.
    pub fn memory_temperature(&self) -> Result<f64> {
        match raw::field(self.nvml, self.handle, NVML_FI_DEV_MEMORY_TEMP)? {
            // NVML returns 0 for GPUs that have no memory temperature sensor.
            0 => Err(Error::new(raw::FIELD_CALL, NvmlError::NotSupported)),
            celsius => Ok(celsius as f64),
        }
    }

    /// Pages retired because of several single-bit errors.
    pub fn pages_retired_for_single_bit_errors(&self) -> Result<u64> {
        raw::retired_pages(self.nvml, self.handle, SINGLE_BIT).map(u64::from)
    }

    /// Pages retired because of a double-bit error.
    pub fn pages_retired_for_double_bit_errors(&self) -> Result<u64> {
        raw::retired_pages(self.nvml, self.handle, DOUBLE_BIT).map(u64::from)
    }
}

fn wrapped(domain: ClockDomain) -> Clock {
    match domain {
        ClockDomain::Graphics => Clock::Graphics,
        ClockDomain::Sm => Clock::SM,
        ClockDomain::Memory => Clock::Memory,
        ClockDomain::Video => Clock::Video,
    }
}

fn plausible(call: &'static str, reading: MemoryReading) -> Result<MemoryReading> {
    let MemoryReading { total, reserved, used, free, .. } = reading;
    let parts = [reserved.unwrap_or(0), used, free.unwrap_or(0)];
    if total == 0 || total == u64::MAX || parts.iter().any(|&part| part > total) {
        return Err(Error::implausible(
            call,
            format!("total {total}, reserved {reserved:?}, used {used}, free {free:?}"),
        ));
    }
    Ok(reading)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implausible_numbers_are_refused() {
        let good = MemoryReading::of_call(100, Some(5), 15, 80);
        assert_eq!(plausible("call", good).unwrap(), good);
        for bad in [
            MemoryReading { used: 101, ..good },
            MemoryReading::of_call(0, None, 0, 0),
            MemoryReading { total: u64::MAX, used: u64::MAX, ..good },
            MemoryReading { free: Some(u64::MAX), ..good },
            MemoryReading { reserved: Some(101), ..good },
        ] {
            assert!(plausible("call", bad).is_err(), "{bad:?}");
        }
    }
}
