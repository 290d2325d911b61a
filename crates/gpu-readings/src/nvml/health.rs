//! The health of a GPU: what its driver recommends, what has limited its clocks, how many spare rows its memory has, and its
//! PCIe link.

use nvml_wrapper::Device as Wrapped;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION,
    NVML_FI_DEV_PERF_POLICY_POWER, NVML_FI_DEV_PERF_POLICY_RELIABILITY, NVML_FI_DEV_PERF_POLICY_SYNC_BOOST,
    NVML_FI_DEV_PERF_POLICY_THERMAL,
};

use super::device::Device;
use super::error::{Error, Severity};
use super::raw::{self, Handle};
use crate::snapshot::{AddressingMode, ClockLimit, RecoveryAction, SPARE_ROWS};

/// The highest generation and width of a PCIe link that are taken for plausible. PCIe has had seven generations so far,
/// and the specification allows at most 32 lanes.
const MOST_GENERATION: u32 = 15;
const MOST_WIDTH: u32 = 32;

/// The fields with the time for which each [`ClockLimit`] held. Their numbers are the same in every `nvml.h`, unlike those of
/// the later fields for software and hardware slowdown: 251 is a setting of power smoothing for driver 570 and in the `nvml.h`
/// of driver 615, and a time for drivers 575 and 580. `nvmlDeviceGetViolationStatus` has the same times, one in each call of
/// 0.4 to 0.7 ms (H200), and ends with CUDA 14 (`nvml.h`).
const LIMIT_FIELDS: [u32; ClockLimit::ALL.len()] = [
    NVML_FI_DEV_PERF_POLICY_POWER,
    NVML_FI_DEV_PERF_POLICY_THERMAL,
    NVML_FI_DEV_PERF_POLICY_SYNC_BOOST,
    NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT,
    NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION,
    NVML_FI_DEV_PERF_POLICY_RELIABILITY,
];

impl<'d> Device<'d> {
    /// What an operator must do to recover the GPU (driver 565 and later).
    ///
    /// # Errors
    /// [`crate::faults::Reason::Implausible`] for an action that is not known.
    pub fn recovery_action(&self) -> Result<RecoveryAction, Error> {
        let code = raw::field(self.nvml, self.handle, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)?;
        RecoveryAction::from_code(code)
            .ok_or_else(|| Error::implausible(raw::FIELD_CALL, format!("recovery action {code}")))
    }

    /// For how many nanoseconds each [`ClockLimit`] has limited the clocks, as the driver counts; `None` for one that this
    /// GPU does not count.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if the GPU counts none of them; [`crate::faults::Reason::Implausible`] for a time of all ones.
    pub fn clock_limited(&self) -> Result<[Option<u64>; ClockLimit::ALL.len()], Error> {
        let mut times = [None; ClockLimit::ALL.len()];
        for (time, field) in
            times.iter_mut().zip(raw::fields(self.nvml, self.handle, LIMIT_FIELDS.map(|field| (field, 0)))?)
        {
            *time = match field {
                Ok(nanoseconds) => Some(nanoseconds),
                Err(error) if error.severity() == Severity::Absent => None,
                Err(error) => return Err(error),
            };
        }
        if times.iter().any(Option::is_some) {
            Ok(times)
        } else {
            Err(Error::new(raw::FIELD_CALL, NvmlError::NotSupported))
        }
    }

    /// The number of memory banks by the spare rows that are left, in the order of [`SPARE_ROWS`] (driver 455 and
    /// later, Ampere and later).
    ///
    /// # Errors
    /// `NOT_SUPPORTED` also if the GPU reports no bank at all.
    pub fn row_remap_banks(&self) -> Result<[u32; SPARE_ROWS.len()], Error> {
        let banks = raw::row_remapper_histogram(self.nvml, self.handle)?;
        if banks.iter().any(|&banks| banks > 0) {
            Ok(banks)
        } else {
            Err(Error::new("nvmlDeviceGetRowRemapperHistogram", NvmlError::NotSupported))
        }
    }

    /// The generation of the PCIe link now.
    pub fn pcie_generation(&self) -> Result<u32, Error> {
        self.link("nvmlDeviceGetCurrPcieLinkGeneration", MOST_GENERATION, Wrapped::current_pcie_link_gen)
    }

    /// The highest generation of the PCIe link that the GPU and the machine allow.
    pub fn pcie_generation_max(&self) -> Result<u32, Error> {
        self.link("nvmlDeviceGetMaxPcieLinkGeneration", MOST_GENERATION, Wrapped::max_pcie_link_gen)
    }

    /// The number of lanes of the PCIe link now.
    pub fn pcie_width(&self) -> Result<u32, Error> {
        self.link("nvmlDeviceGetCurrPcieLinkWidth", MOST_WIDTH, Wrapped::current_pcie_link_width)
    }

    /// The highest number of lanes of the PCIe link that the GPU and the machine allow.
    pub fn pcie_width_max(&self) -> Result<u32, Error> {
        self.link("nvmlDeviceGetMaxPcieLinkWidth", MOST_WIDTH, Wrapped::max_pcie_link_width)
    }

    fn link(
        &self,
        call: &'static str,
        most: u32,
        query: impl FnOnce(&Wrapped<'d>) -> Result<u32, NvmlError>,
    ) -> Result<u32, Error> {
        match self.call(call, query)? {
            // A GPU without a PCIe link.
            0 => Err(Error::new(call, NvmlError::NotSupported)),
            value if value > most => Err(Error::implausible(call, value.to_string())),
            value => Ok(value),
        }
    }
}

/// How the GPU can address the memory of the CPU (driver 580 and later, Turing and later).
///
/// # Errors
/// [`crate::faults::Reason::Implausible`] for a mode that is not known.
pub(super) fn addressing_mode(nvml: &Nvml, handle: Handle) -> Result<AddressingMode, Error> {
    let code = raw::addressing_mode(nvml, handle)?;
    AddressingMode::from_code(code)
        .ok_or_else(|| Error::implausible("nvmlDeviceGetAddressingMode", format!("addressing mode {code}")))
}

/// The id of the GPU's module on its baseboard (driver 535 and later).
///
/// # Errors
/// `NOT_SUPPORTED` also for a GPU that is not on a baseboard, for which NVML returns 0.
pub(super) fn module_id(nvml: &Nvml, handle: Handle) -> Result<u32, Error> {
    match raw::module_id(nvml, handle)? {
        0 => Err(Error::new("nvmlDeviceGetModuleId", NvmlError::NotSupported)),
        id => Ok(id),
    }
}
