//! The profiler's counters (GPM) of a GPU or GPU instance, and what they report for an interval.
//!
//! Every metric is proportional to the utilization, which changes only when the driver samples it, once per [`LOOK`].
//! The mean over an interval is therefore exact.

use super::activity::LOOK;
use super::{Gpu, Instance, Machine};
use crate::catalog::{self, Model};
use crate::clock::Nanos;
use crate::scenario::curves::{Quantity, Ratio};
use crate::scenario::grammar;
use crate::scenario::units::Size;

/// How many compute slices a GPU has.
const SLICES: f64 = 7.0;
/// The most utilization values that are summed for one interval. A longer interval is sampled less often.
const MOST_LOOKS: Nanos = 1000;
const MIB: f64 = 1_048_576.0;

/// Whether a GPU has the counters, and what they report while the GPU is fully utilized.
#[derive(Debug)]
pub(crate) struct Profiler {
    /// What the GPU reports about its support for GPM.
    pub(crate) supported: bool,
    filled: bool,
    /// Whether a comparison of two samples succeeds without writing any metric entry.
    pub(crate) untouched: bool,
    /// The highest metric id that the driver accepts.
    known_ids: u32,
    /// The scenario's values; the others are in [`Self::metric`].
    written: grammar::Profiling,
}

impl Profiler {
    /// The scenario's values, or the model's.
    pub(crate) fn of(model: &Model, written: &grammar::Profiling) -> Self {
        Self {
            supported: written.supported.unwrap_or(model.profiler != catalog::Profiler::Absent),
            filled: written.filled.unwrap_or(model.profiler != catalog::Profiler::Unfilled),
            untouched: written.untouched,
            known_ids: written.known_ids.unwrap_or(u32::MAX),
            written: written.clone(),
        }
    }

    /// Whether the driver accepts the id of a metric.
    pub(crate) fn knows(&self, id: u32) -> bool {
        id <= self.known_ids
    }

    /// A metric while the GPU is fully utilized: percent, or MiB a second. `None` if the GPU does not fill it.
    pub(crate) fn metric(&self, id: u32) -> Option<f64> {
        let written = &self.written;
        let share = |share: Option<Ratio>, usual: f64| Some(100.0 * share.map_or(usual, |share| share.number()));
        let rate = |bytes: Option<Size>, usual: Option<f64>| bytes.map(|bytes| bytes.number() / MIB).or(usual);
        match id {
            _ if !self.filled => None,
            1 => share(written.graphics, 1.0),
            2 => share(written.sm, 0.82),
            3 => share(written.occupancy, 0.36),
            4 => share(written.integer, 0.14),
            5 | 7 => share(written.tensor, 0.42),
            10 => share(written.memory_bandwidth, 0.48),
            11 => share(written.fp64, 0.0),
            12 => share(written.fp32, 0.11),
            13 => share(written.fp16, 0.06),
            20 => rate(written.pcie_transmitted, Some(1200.0)),
            21 => rate(written.pcie_received, Some(2400.0)),
            60 => rate(written.nvlink_received, Some(0.0)),
            61 => rate(written.nvlink_transmitted, Some(0.0)),
            100 | 102 => rate(written.c2c_transmitted, None),
            101 | 103 => rate(written.c2c_received, None),
            _ => None,
        }
    }
}

/// Whether the values of a metric are percentages, as opposed to MiB a second.
pub(crate) fn is_percentage(id: u32) -> bool {
    id < 20
}

impl Machine {
    /// The mean utilization of a GPU or MIG device over an interval, 0 to 1. That of a GPU with MIG devices is their
    /// mean, weighted by their compute slices.
    pub(crate) fn mean_utilization(&self, gpu: &Gpu, instance: Option<&Instance>, from: Nanos, until: Nanos) -> f64 {
        let looks = (until - from) / LOOK + 1;
        let stride = LOOK * (looks / MOST_LOOKS + 1);
        let (mut at, mut sum) = (from, 0.0);
        while at < until {
            let next = (at - at % LOOK + stride).min(until);
            sum += self.utilization(gpu, instance, at) * (next - at) as f64;
            at = next;
        }
        sum / (until - from).max(1) as f64
    }

    fn utilization(&self, gpu: &Gpu, instance: Option<&Instance>, now: Nanos) -> f64 {
        match (instance, &gpu.mig) {
            (None, Some(mig)) => {
                let busy =
                    |of: &Instance| self.activity(gpu, Some(of), now).busy * f64::from(of.profile.compute) / SLICES;
                mig.iter().flatten().map(busy).sum()
            }
            _ => self.activity(gpu, instance, now).busy,
        }
    }
}
