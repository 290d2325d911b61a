//! The workloads that were short of memory: what the ledger has seen of them, and what the metrics show.

use super::Jobs;
use super::device_use::DeviceUse;
use super::meter;
use crate::recorder::history::failures::Novelty;
use crate::recorder::history::{Failure, Micros, Now, ProcessRef};
use crate::snapshot::{Gpu, WorkloadShortage};

/// The maximum number of shortages that the metrics show.
const MAX_SHORTAGES: usize = 256;

impl Jobs {
    /// Adds a failed allocation, which a process on the GPU reported. Another account of the same failure is not counted;
    /// the framework's tells more than the driver's.
    pub(crate) fn fail(&mut self, gpu: &Gpu, failure: &Failure, at: Micros, novelty: Novelty) {
        if let Some(device) = self.device_of(gpu, failure.who.mig_uuid.as_deref(), failure.who.workload.as_deref()) {
            device.shortage.out_of_memory += u64::from(novelty != Novelty::Account);
            device.shortage.last = Some(at);
            if novelty == Novelty::New || failure.framework.is_some() {
                device.shortage.failure = Some(Box::new(failure.brief()));
            }
        }
    }

    /// Adds that a process ended at its peak while its device was nearly full, and what everything else on it held.
    pub(crate) fn end_at_limit(&mut self, gpu: &Gpu, who: &ProcessRef, others: u64, at: Micros) {
        if let Some(device) = self.device_of(gpu, who.mig_uuid.as_deref(), who.workload.as_deref()) {
            device.shortage.ended_at_limit += 1;
            device.shortage.others = Some(others);
            device.shortage.last = Some(at);
        }
    }

    /// Adds the incident of such an end, or of a failed allocation, to the report of its workload.
    pub(crate) fn note_incident(&mut self, gpu: &Gpu, mig_uuid: Option<&str>, workload: Option<&str>, id: &str) {
        if let Some(device) = self.device_of(gpu, mig_uuid, workload) {
            device.shortage.incident = Some(id.to_owned());
        }
    }

    /// The use of a device by a workload.
    fn device_of(&mut self, gpu: &Gpu, mig_uuid: Option<&str>, workload: Option<&str>) -> Option<&mut DeviceUse> {
        let index = meter::position(&mut self.gpus, gpu);
        let name = workload?;
        let on = self.open.values_mut().filter(|open| open.workload.name == name);
        on.flat_map(|open| &mut open.devices).find(|device| device.is_on(index, mig_uuid))
    }

    /// The workloads of the open reports that were short of memory, on each device.
    pub(crate) fn shortages(&self, now: Now) -> Vec<WorkloadShortage> {
        self.open.values().flat_map(|open| open.shortages(now)).take(MAX_SHORTAGES).collect()
    }
}
