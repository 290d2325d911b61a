//! Counts requests and calls by device and by workload.
//!
//! Invariant: bounded; a workload is counted as long as it is on a device, and for a while after.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::places::Device;
use super::requests::Outcome;
use gpu_readings::snapshot::{CORRECTION_BUCKETS, CallPart, Gpu, GpuCalls, Workload, WorkloadCalls, WorkloadRequests};

/// The maximum number of workloads whose requests, and whose calls, are counted.
const WORKLOADS: usize = 1024;

/// The counts.
#[derive(Debug, Default)]
pub(super) struct Tally {
    gpus: Vec<GpuCalls>,
    requests: Vec<(Instant, WorkloadRequests)>,
    workloads: Vec<(Instant, WorkloadCalls)>,
    /// Whether anything can have changed since this was last false.
    pub(super) is_new: bool,
}

impl Tally {
    /// A GPU that was listed, from then on with its counts.
    pub(super) fn gpu(&mut self, gpu: &Arc<Gpu>) -> &mut GpuCalls {
        let position = self.gpus.iter().position(|known| known.gpu.uuid == gpu.uuid).unwrap_or_else(|| {
            self.gpus.push(GpuCalls::new(gpu.clone()));
            self.gpus.len() - 1
        });
        self.is_new = true;
        let counted = &mut self.gpus[position];
        counted.gpu = gpu.clone();
        counted
    }

    /// Counts how far what calls told was from a reading.
    pub(super) fn correct(&mut self, gpu: &Arc<Gpu>, bytes: u64) {
        let counted = self.gpu(gpu);
        let bucket = CORRECTION_BUCKETS.partition_point(|bound| *bound < bytes as f64);
        counted.corrections[bucket] += 1;
        counted.corrected = counted.corrected.saturating_add(bytes);
    }

    /// Counts a request. `device`: `None` if it is not known.
    pub(super) fn request(&mut self, workload: Option<&Arc<Workload>>, device: Option<&Device>, outcome: Outcome) {
        if let (Outcome::Refused, Some(device)) = (outcome, device) {
            self.gpu(&device.gpu).refused += 1;
        }
        let Some(workload) = workload else { return };
        self.is_new = true;
        let (gpu, mig) = device.map(|device| (&device.gpu, device.mig.as_ref())).unzip();
        let mig = mig.flatten();
        let is_it = |(_, known): &(Instant, WorkloadRequests)| {
            let its = known.gpu.as_ref().map(|gpu| gpu.device_uuid(known.mig.as_deref()));
            known.workload == *workload && its == device.map(Device::uuid)
        };
        let position = self.requests.iter().position(is_it).unwrap_or_else(|| {
            let (workload, since) = (workload.clone(), SystemTime::now());
            let new =
                WorkloadRequests { workload, gpu: gpu.cloned(), mig: mig.cloned(), since, refused: 0, retried: 0 };
            add(&mut self.requests, new)
        });
        let (counted, known) = &mut self.requests[position];
        *counted = Instant::now();
        match outcome {
            Outcome::Refused => known.refused += 1,
            Outcome::Retried => known.retried += 1,
        }
    }

    /// Counts a call of a workload and the time in it.
    pub(super) fn call(&mut self, workload: &Arc<Workload>, time: Duration) {
        let position = self.workloads.iter().position(|(_, known)| known.workload == *workload).unwrap_or_else(|| {
            let (workload, since) = (workload.clone(), SystemTime::now());
            add(&mut self.workloads, WorkloadCalls { workload, since, calls: 0, time: Duration::ZERO })
        });
        self.is_new = true;
        let (counted, known) = &mut self.workloads[position];
        *counted = Instant::now();
        known.calls += 1;
        known.time = known.time.saturating_add(time);
    }

    /// Forgets workloads that are on no device and have not been counted for this long.
    pub(super) fn sweep(&mut self, linger: Duration, is_listed: impl Fn(&Workload) -> bool) {
        self.is_new = true;
        let stays = |counted: &Instant, workload: &Workload| is_listed(workload) || counted.elapsed() < linger;
        self.requests.retain(|(counted, known)| stays(counted, &known.workload));
        self.workloads.retain(|(counted, known)| stays(counted, &known.workload));
    }

    /// Fills in what is published.
    pub(super) fn show(&self, part: &mut CallPart) {
        part.gpus.clone_from(&self.gpus);
        part.requests = self.requests.iter().map(|(_, known)| known.clone()).collect();
        part.workloads = self.workloads.iter().map(|(_, known)| known.clone()).collect();
    }
}

/// Adds an entry, in place of the one that has not been counted for the longest if there are too many. Returns its position.
fn add<T>(entries: &mut Vec<(Instant, T)>, new: T) -> usize {
    let new = (Instant::now(), new);
    if entries.len() < WORKLOADS {
        entries.push(new);
        return entries.len() - 1;
    }
    let oldest = entries.iter().enumerate().min_by_key(|(_, (counted, _))| *counted).map_or(0, |(at, _)| at);
    entries[oldest] = new;
    oldest
}
