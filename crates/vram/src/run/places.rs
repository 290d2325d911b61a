//! The devices whose memory is sampled: each GPU, or its MIG devices instead.

use std::sync::Arc;

use gpu_readings::nvml::{Device, Driver};
use gpu_readings::snapshot::{Gpu, MigDevice};

/// A GPU, or a MIG device of a GPU.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) gpu: Arc<Gpu>,
    pub(super) mig: Option<Arc<MigDevice>>,
}

impl Place {
    /// The UUID of the GPU or MIG device.
    pub(super) fn uuid(&self) -> &str {
        self.mig.as_ref().map_or(&self.gpu.uuid, |mig| &mig.uuid)
    }
}

/// The machine on which the command runs.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) simulated: bool,
    pub(super) driver_version: Option<String>,
    pub(super) places: Vec<Place>,
    /// GPUs that the driver counts but cannot open.
    pub(super) unreachable: Vec<u32>,
}

/// The machine that a driver reports, and its devices in the order of [`Machine::places`].
pub(super) fn of(driver: &Driver) -> (Machine, Vec<Device<'_>>) {
    let (mut places, mut devices, mut unreachable) = (Vec::new(), Vec::new(), Vec::new());
    for (position, gpu) in driver.gpus().enumerate() {
        if !gpu.mig.is_empty() {
            for (mig, device) in gpu.mig.iter().zip(driver.mig_devices(position)) {
                places.push(Place { gpu: gpu.clone(), mig: Some(mig.clone()) });
                devices.push(device);
            }
        } else if let Some(device) = driver.device(position) {
            places.push(Place { gpu: gpu.clone(), mig: None });
            devices.push(device);
        } else {
            unreachable.push(gpu.index);
        }
    }
    let about = driver.describe();
    (Machine { simulated: about.simulated, driver_version: about.driver_version, places, unreachable }, devices)
}
