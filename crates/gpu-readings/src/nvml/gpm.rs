//! The profiling counters of a GPU or a MIG GPU instance: two samples taken by the driver, and the means between them.
//!
//! Invariants: a value that cannot be true is returned as an error, never as a number. The call that switches GPM
//! streaming on or off is never made, because it would change a setting of the GPU.

use nvml_wrapper_sys::bindings as sys;

use super::device::Device;
use super::error::Error;
use super::raw::gpm::{Comparison, RawMetric, Sample};
use crate::snapshot::{ProfilingMetric, ProfilingValues};

const COMPARE: &str = "nvmlGpmMetricsGet";

/// Percentages from 100 to this one are taken for rounding errors; larger ones are implausible.
const MOST_PERCENT: f64 = 105.0;
/// The most bytes a second that are plausible: several times the rate of the fastest known link (NVLink 5: 1.8 TB/s).
const MOST_BYTES: f64 = 16e12;
const MIB: f64 = 1_048_576.0;

/// The number of metrics at the beginning of [`ProfilingMetric::ALL`] that every driver with GPM has: all but those of
/// NVLink and C2C.
const OLDEST: usize = ProfilingMetric::NvlinkTransmitted as usize;

/// Two samples of one GPU or GPU instance. They are allocated once and freed when this is dropped.
#[derive(Debug)]
pub struct ProfilingSamples<'d> {
    device: Device<'d>,
    /// The GPU instance; `None` for the whole GPU.
    gpu_instance: Option<u32>,
    earlier: Sample<'d>,
    later: Sample<'d>,
    /// How many metrics are requested: all of them, or [`OLDEST`] after a refusal of all of them only.
    requested: usize,
}

/// What is needed to compare samples. One thread uses it for all GPUs.
#[derive(Debug)]
pub struct ProfilingComparison(Comparison);

impl Default for ProfilingComparison {
    fn default() -> Self {
        Self(Comparison::of(ProfilingMetric::ALL.iter().map(|&metric| id(metric))))
    }
}

impl<'d> Device<'d> {
    /// Whether the GPU reports that it supports the profiling counters. A GPU that does may still not fill them.
    ///
    /// # Errors
    /// Any NVML error; `FUNCTION_NOT_FOUND` on drivers without the counters.
    pub fn supports_profiling(&self) -> Result<bool, Error> {
        self.call("nvmlGpmQueryDeviceSupport", |device| device.gpm_support())
    }

    /// Allocates the samples of the GPU, or of one of its GPU instances.
    ///
    /// # Errors
    /// Any NVML error.
    pub fn profiling_samples(&self, gpu_instance: Option<u32>) -> Result<ProfilingSamples<'d>, Error> {
        let allocate = || Sample::allocate(self.nvml);
        let requested = ProfilingMetric::ALL.len();
        Ok(ProfilingSamples { device: *self, gpu_instance, earlier: allocate()?, later: allocate()?, requested })
    }
}

impl ProfilingSamples<'_> {
    /// Takes the later sample.
    ///
    /// # Errors
    /// Any NVML error; the later sample is then unusable.
    pub fn take(&mut self) -> Result<(), Error> {
        self.later.take(self.device.handle, self.gpu_instance)
    }

    /// Makes the later sample the earlier one of the next interval.
    pub fn advance(&mut self) {
        std::mem::swap(&mut self.earlier, &mut self.later);
    }

    /// Requests all metrics again, even if the driver has refused them.
    pub fn reconsider(&mut self) {
        self.requested = ProfilingMetric::ALL.len();
    }

    /// The means between the two samples: shares from 0 to 1, and bytes a second. A metric that the driver did not fill
    /// is `None`. If the driver refuses the comparison, it is repeated without the metrics that a driver may not have. If
    /// this succeeds, they are not requested until [`ProfilingSamples::reconsider`].
    ///
    /// `filled` returns whether a metric was filled earlier. Only then is NaN implausible, because a GPU without the
    /// counter can report NaN too.
    ///
    /// # Errors
    /// Any NVML error; [`crate::faults::Reason::Implausible`] if any value cannot be true.
    pub fn compare(
        &mut self,
        comparison: &mut ProfilingComparison,
        filled: impl Fn(ProfilingMetric) -> bool,
    ) -> Result<ProfilingValues, Error> {
        match self.compare_first(self.requested, comparison, &filled) {
            Err(error) if self.requested > OLDEST && error.is_unavailable() => {
                let values = self.compare_first(OLDEST, comparison, &filled)?;
                self.requested = OLDEST;
                Ok(values)
            }
            answer => answer,
        }
    }

    /// Computes the first `count` metrics from the two samples.
    fn compare_first(
        &self,
        count: usize,
        comparison: &mut ProfilingComparison,
        filled: &impl Fn(ProfilingMetric) -> bool,
    ) -> Result<ProfilingValues, Error> {
        let mut values = ProfilingValues::default();
        let mut implausible = None;
        comparison.0.compare(count, &self.earlier, &self.later, |at, raw| {
            let Some(&metric) = ProfilingMetric::ALL.get(at) else { return };
            match plausible(metric, raw) {
                Ok(value) => values.set(metric, value),
                Err(value) if value.is_nan() && !filled(metric) => {}
                Err(value) => implausible = Some((metric, value)),
            }
        })?;
        match implausible {
            Some((metric, value)) => Err(Error::implausible(COMPARE, format!("{metric:?} = {value}"))),
            None => Ok(values),
        }
    }
}

/// The value in the unit of the metric; `None` if it was not filled. A value that cannot be true is an error.
fn plausible(metric: ProfilingMetric, raw: RawMetric<'_>) -> Result<Option<f64>, f64> {
    let Some(value) = raw.value else { return Ok(None) };
    if metric.is_share() {
        return if (0.0..=MOST_PERCENT).contains(&value) { Ok(Some((value / 100.0).min(1.0))) } else { Err(value) };
    }
    let bytes = value * unit_bytes(raw.unit);
    if (0.0..=MOST_BYTES).contains(&bytes) { Ok(Some(bytes)) } else { Err(value) }
}

/// The number of bytes in the driver's unit of a rate. `nvml.h` documents MiB a second for all rates.
fn unit_bytes(unit: &[u8]) -> f64 {
    match unit.split(|&byte| byte == b'/').next().unwrap_or_default() {
        b"B" => 1.0,
        b"KB" => 1e3,
        b"KiB" => 1024.0,
        b"MB" => 1e6,
        b"GB" => 1e9,
        b"GiB" => 1024.0 * MIB,
        _ => MIB,
    }
}

/// NVML's id of a metric.
fn id(metric: ProfilingMetric) -> u32 {
    match metric {
        ProfilingMetric::Graphics => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_GRAPHICS_UTIL,
        ProfilingMetric::Sm => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL,
        ProfilingMetric::Occupancy => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_OCCUPANCY,
        ProfilingMetric::Integer => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_INTEGER_UTIL,
        ProfilingMetric::Tensor => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_ANY_TENSOR_UTIL,
        ProfilingMetric::MemoryBandwidth => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL,
        ProfilingMetric::Fp64 => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_FP64_UTIL,
        ProfilingMetric::Fp32 => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_FP32_UTIL,
        ProfilingMetric::Fp16 => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_FP16_UTIL,
        ProfilingMetric::PcieTransmitted => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_TX_PER_SEC,
        ProfilingMetric::PcieReceived => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_RX_PER_SEC,
        ProfilingMetric::NvlinkTransmitted => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
        ProfilingMetric::NvlinkReceived => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
        ProfilingMetric::C2cTransmitted => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC,
        ProfilingMetric::C2cReceived => sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_C2C_TOTAL_RX_PER_SEC,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(metric: ProfilingMetric, value: f64, unit: &str) -> Result<Option<f64>, f64> {
        plausible(metric, RawMetric { value: Some(value), unit: unit.as_bytes() })
    }

    #[test]
    fn shares_are_percentages_and_at_most_one() {
        let tensor = |value| read(ProfilingMetric::Tensor, value, "%");
        assert_eq!([tensor(0.0), tensor(85.0), tensor(100.4)], [Ok(Some(0.0)), Ok(Some(0.85)), Ok(Some(1.0))]);
        for value in [-0.5, 106.0, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(tensor(value), Err(value));
        }
        assert!(tensor(f64::NAN).is_err_and(f64::is_nan));
        assert_eq!(plausible(ProfilingMetric::Tensor, RawMetric { value: None, unit: b"" }), Ok(None));
    }

    #[test]
    fn rates_are_mebibytes_unless_the_driver_names_another_unit() {
        let pcie = |value, unit| read(ProfilingMetric::PcieReceived, value, unit);
        assert_eq!([pcie(2.0, ""), pcie(2.0, "MiB/s"), pcie(2.0, "%")], [Ok(Some(2.0 * MIB)); 3]);
        assert_eq!([pcie(2.0, "MB/s"), pcie(2.0, "B/s")], [Ok(Some(2e6)), Ok(Some(2.0))]);
        assert_eq!([pcie(2.0, "GiB"), pcie(2.0, "KiB/sec")], [Ok(Some(2048.0 * MIB)), Ok(Some(2048.0))]);
        for value in [-1.0, 1e9, f64::INFINITY] {
            assert_eq!(pcie(value, "MiB/s"), Err(value));
        }
    }

    #[test]
    fn every_metric_has_an_id_of_its_own() {
        let ids: std::collections::BTreeSet<u32> = ProfilingMetric::ALL.iter().map(|&metric| id(metric)).collect();
        assert_eq!(ids, [1, 2, 3, 4, 5, 10, 11, 12, 13, 20, 21, 60, 61, 100, 101].into());
    }
}
