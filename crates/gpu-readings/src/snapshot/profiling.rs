//! What the profiling counters (GPM) report, integrated over time.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::{Gpu, MigDevice};
use crate::closed_enum::closed_enum;

closed_enum! {
    /// A quantity that the driver's profiling counters measure.
    pub enum ProfilingMetric {
        /// Share of time in which the graphics or compute engine was active.
        Graphics,
        /// Share of SMs that were active, on average.
        Sm,
        /// Resident warps as a share of the most that the SMs can hold, on average.
        Occupancy,
        /// Activity of the integer pipe, as a share of its peak.
        Integer,
        /// Activity of the tensor pipes, as a share of their peak.
        Tensor,
        /// Traffic of device memory, as a share of its peak.
        MemoryBandwidth,
        /// Activity of the FP64 pipe, without tensor operations.
        Fp64,
        /// Activity of the FP32 pipe, without tensor operations.
        Fp32,
        /// Activity of the FP16 pipe, without tensor operations.
        Fp16,
        /// Bytes a second from the GPU over PCIe, including the link's own overhead.
        PcieTransmitted,
        /// Bytes a second to the GPU over PCIe, including the link's own overhead.
        PcieReceived,
        /// Bytes a second from the GPU over all NVLinks.
        NvlinkTransmitted,
        /// Bytes a second to the GPU over all NVLinks.
        NvlinkReceived,
        /// Bytes a second from the GPU over its link to the CPU.
        C2cTransmitted,
        /// Bytes a second to the GPU over its link to the CPU.
        C2cReceived,
    }
}

impl ProfilingMetric {
    /// Whether the metric is a share from 0 to 1, as opposed to bytes a second.
    pub fn is_share(self) -> bool {
        (self as usize) < Self::PcieTransmitted as usize
    }
}

/// One number for each metric. `None`: unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProfilingValues([Option<f64>; ProfilingMetric::ALL.len()]);

impl ProfilingValues {
    /// The number of a metric.
    pub fn get(&self, metric: ProfilingMetric) -> Option<f64> {
        self.0[metric as usize]
    }

    /// Sets the value of a metric.
    pub fn set(&mut self, metric: ProfilingMetric, value: Option<f64>) {
        self.0[metric as usize] = value;
    }

    /// Whether no number is known.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}

/// The profiling figures of a GPU or GPU instance.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProfilingFigures {
    /// When the totals were 0; `None` if nothing has been measured yet.
    pub counted_since: Option<SystemTime>,
    /// Since the exporter started: seconds of activity (share × time), or bytes. A metric is `None` until the driver
    /// has filled it once.
    pub totals: ProfilingValues,
    /// The means over the last interval: shares from 0 to 1, or bytes a second. `None` if the interval was not
    /// measured.
    pub latest: ProfilingValues,
}

impl ProfilingFigures {
    /// The total of a metric: seconds of activity, or bytes. `None` if the driver never filled the metric, or did not
    /// fill it in the last interval although it filled others.
    pub fn total(&self, metric: ProfilingMetric) -> Option<f64> {
        let is_current = self.latest.get(metric).is_some() || self.latest.is_empty();
        self.totals.get(metric).filter(|_| is_current)
    }
}

/// The profiling counters of every GPU, in the order of [`super::Driver::gpus`].
#[derive(Debug, Clone, Default)]
pub struct ProfilingPart {
    /// One entry for each GPU.
    pub gpus: Vec<GpuProfiling>,
}

/// One GPU's profiling counters.
#[derive(Debug, Clone)]
pub struct GpuProfiling {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// The end of the last interval in which the driver filled a metric.
    pub at: Option<Instant>,
    /// The figures of the whole GPU.
    pub figures: ProfilingFigures,
    /// The GPU instances, if MIG is on.
    pub mig: Vec<MigProfiling>,
    /// Whether two samples have been attempted in this session, or the GPU does not provide the counters.
    pub settled: bool,
}

impl GpuProfiling {
    /// A GPU that has not been sampled yet.
    pub fn unread(gpu: Arc<Gpu>) -> Self {
        Self { gpu, at: None, figures: ProfilingFigures::default(), mig: Vec::new(), settled: false }
    }
}

/// One GPU instance's profiling counters.
#[derive(Debug, Clone)]
pub struct MigProfiling {
    /// The first MIG device of the GPU instance. The counters are those of the whole GPU instance.
    pub device: Arc<MigDevice>,
    /// The end of the last interval in which the driver filled a metric.
    pub at: Option<Instant>,
    /// The figures.
    pub figures: ProfilingFigures,
}
