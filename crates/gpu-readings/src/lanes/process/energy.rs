//! The energy of one GPU, apportioned to its workloads by their share of the time of the SMs.
//!
//! Invariants: each joule of the GPU is counted in one place, and no count falls. Energy of which the driver does not tell whose
//! it is belongs to no workload: nothing is guessed.

use std::sync::Arc;
use std::time::Instant;

use super::list::Instance;
use super::table::ProcessTable;
use super::tracked::when;
use super::workloads::Workloads;
use crate::lanes::telemetry::{Spent, Work};
use crate::snapshot::{RestOfEnergy, Workload};

/// What has been apportioned, and what the processes did since.
#[derive(Debug, Default)]
pub(super) struct EnergyLedger {
    /// Joules of the GPU that have been apportioned.
    apportioned: f64,
    /// `None` before the first joule.
    rest: Option<RestOfEnergy>,
    /// When the processes were last asked for their work.
    asked: Option<Instant>,
    shares: Vec<Share>,
    has_samples: bool,
}

/// The work of a process since the energy was last apportioned.
#[derive(Debug)]
struct Share {
    workload: Arc<Workload>,
    instance: Instance,
    /// Share of the SMs' time, 0 to 1. On an H200 (driver 580.159.04) the driver averages it over the time since the samples
    /// that were read before, so that the shares of processes that take turns sum to 1.
    sm: f64,
}

impl EnergyLedger {
    /// Records what the processes in the table did.
    pub(super) fn see(&mut self, table: &ProcessTable, work: &Work) {
        self.shares.clear();
        let since = self.asked.replace(work.asked_at.0);
        for sample in work.samples.iter().flatten().filter(|sample| sample.sm > 0.0) {
            let at = when(sample.timestamp, work.asked_at);
            // What an earlier sample tells has been apportioned without it.
            let process = table.at_work(sample.pid, at).filter(|_| since.is_some_and(|since| at > since));
            if let Some((process, workload)) =
                process.and_then(|process| Some((process, process.owner.workload.as_ref()?)))
            {
                self.shares.push(Share { workload: workload.clone(), instance: process.instance, sm: sample.sm });
            }
        }
    }

    /// Apportions the energy since the last time. A workload has its share of the time of the SMs; if all shares are together more
    /// than that time, as with clients of MPS, each is less by the same factor. The time in which no kernel ran is idle.
    pub(super) fn apportion(&mut self, spent: &Spent, workloads: &mut Workloads) {
        let shares = std::mem::take(&mut self.shares);
        self.has_samples = spent.has_samples;
        let Some(energy) = spent.energy else { return };
        let joules = (energy.joules - std::mem::replace(&mut self.apportioned, energy.joules)).max(0.0);
        let sum: f64 = shares.iter().map(|share| share.sm).sum();
        let busy = spent.utilization.unwrap_or(1.0).max(sum).min(1.0);
        let of = |share: &Share| joules * share.sm / sum.max(1.0);
        let known: f64 =
            shares.iter().map(|share| workloads.add_energy(&share.workload, share.instance, of(share))).sum();
        let idle = joules * (1.0 - busy);
        let new = RestOfEnergy { counted_since: energy.counted_since, idle: 0.0, other: 0.0 };
        let rest = self.rest.get_or_insert(new);
        rest.idle += idle;
        rest.other += (joules - idle - known).max(0.0);
    }

    /// What belongs to no workload; `None` if the driver does not report whose kernels run.
    pub(super) fn shown(&self) -> Option<RestOfEnergy> {
        self.rest.filter(|_| self.has_samples)
    }
}

#[cfg(test)]
mod tests;
