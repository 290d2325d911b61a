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
    /// Shares, 0 to 1.
    graphics: f64,
    sm: f64,
    occupancy: f64,
    integer: f64,
    tensor: f64,
    fp64: f64,
    fp32: f64,
    fp16: f64,
    memory_bandwidth: f64,
    /// Transmitted and received bytes a second; `None`: the GPU does not fill the metric.
    pcie: [Option<f64>; 2],
    nvlink: [Option<f64>; 2],
    c2c: [Option<f64>; 2],
}

impl Profiler {
    /// The scenario's values, or the model's.
    pub(crate) fn of(model: &Model, written: &grammar::Profiling) -> Self {
        fn number<V: Quantity>(written: Option<&V>, of_model: f64) -> f64 {
            written.map_or(of_model, Quantity::number)
        }
        let share = |written: &Option<Ratio>, of_model| number(written.as_ref(), of_model);
        let rate = |written: &Option<_>, of_model| Some(number(written.as_ref(), of_model));
        let optional = |written: &Option<_>| written.as_ref().map(Quantity::number);
        Self {
            supported: written.supported.unwrap_or(model.profiler != catalog::Profiler::Absent),
            filled: written.filled.unwrap_or(model.profiler != catalog::Profiler::Unfilled),
            untouched: written.untouched,
            known_ids: written.known_ids.unwrap_or(u32::MAX),
            graphics: share(&written.graphics, 1.0),
            sm: share(&written.sm, 0.82),
            occupancy: share(&written.occupancy, 0.36),
            integer: share(&written.integer, 0.14),
            tensor: share(&written.tensor, 0.42),
            fp64: share(&written.fp64, 0.0),
            fp32: share(&written.fp32, 0.11),
            fp16: share(&written.fp16, 0.06),
            memory_bandwidth: share(&written.memory_bandwidth, 0.48),
            pcie: [rate(&written.pcie_transmitted, 1200.0 * MIB), rate(&written.pcie_received, 2400.0 * MIB)],
            nvlink: [rate(&written.nvlink_transmitted, 0.0), rate(&written.nvlink_received, 0.0)],
            c2c: [optional(&written.c2c_transmitted), optional(&written.c2c_received)],
        }
    }

    /// Whether the driver accepts the id of a metric.
    pub(crate) fn knows(&self, id: u32) -> bool {
        id <= self.known_ids
    }

    /// A metric while the GPU is fully utilized: percent, or MiB a second. `None` if the GPU does not fill it.
    pub(crate) fn metric(&self, id: u32) -> Option<f64> {
        let [pcie_out, pcie_in] = self.pcie;
        let [nvlink_out, nvlink_in] = self.nvlink;
        let [c2c_out, c2c_in] = self.c2c;
        let share = |share: f64| Some(share * 100.0);
        let rate = |rate: Option<f64>| rate.map(|bytes| bytes / MIB);
        match id {
            _ if !self.filled => None,
            1 => share(self.graphics),
            2 => share(self.sm),
            3 => share(self.occupancy),
            4 => share(self.integer),
            5 | 7 => share(self.tensor),
            10 => share(self.memory_bandwidth),
            11 => share(self.fp64),
            12 => share(self.fp32),
            13 => share(self.fp16),
            20 => rate(pcie_out),
            21 => rate(pcie_in),
            60 => rate(nvlink_in),
            61 => rate(nvlink_out),
            100 | 102 => rate(c2c_out),
            101 | 103 => rate(c2c_in),
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
