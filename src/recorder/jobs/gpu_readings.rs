//! What is known about each GPU apart from its workloads.

use super::meter::Meter;
use crate::recorder::history::series::Micros;
use crate::snapshot::{Gpu, MigDevice};

/// One GPU.
#[derive(Debug, Default)]
pub(super) struct GpuReadings {
    /// [`Gpu::key`].
    key: String,
    pub(super) meters: Vec<Meter>,
    /// When its last list was read.
    pub(super) listed: Option<Micros>,
}

/// The position of a GPU, which is added if it is new.
pub(super) fn position(gpus: &mut Vec<GpuReadings>, gpu: &Gpu) -> usize {
    let key = gpu.key();
    gpus.iter().position(|known| known.key == key).unwrap_or_else(|| {
        gpus.push(GpuReadings { key, ..GpuReadings::default() });
        gpus.len() - 1
    })
}

impl GpuReadings {
    /// Forgets the meters of MIG devices that are gone, unless a report uses the GPU instance (`used`).
    pub(super) fn forget_meters(&mut self, gpu: &Gpu, used: &[u32]) {
        let is_needed = |mig: &MigDevice| {
            used.contains(&mig.gpu_instance) || gpu.mig.iter().any(|present| present.uuid == mig.uuid)
        };
        self.meters.retain(|meter| meter.mig.as_deref().is_none_or(is_needed));
    }
}
