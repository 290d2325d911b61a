//! The devices whose memory is measured: each GPU, or its MIG devices instead.

use std::sync::Arc;

use gpu_readings::snapshot::{Driver, Gpu, MigDevice};

/// A GPU, or a MIG device of a GPU.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) gpu: Arc<Gpu>,
    pub(super) mig: Option<Arc<MigDevice>>,
}

impl Place {
    /// The UUID of the GPU or MIG device.
    pub(super) fn uuid(&self) -> &str {
        self.gpu.device_uuid(self.mig.as_deref())
    }
}

/// The machine on which the command runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Machine {
    pub(super) simulated: bool,
    pub(super) driver_version: Option<String>,
    pub(super) places: Vec<Place>,
    /// GPUs that the driver counts but cannot open.
    pub(super) unreachable: Vec<u32>,
}

impl Machine {
    /// Adds what a driver reports that has been opened.
    pub(super) fn open(&mut self, driver: &Driver) {
        self.simulated = driver.simulated;
        self.driver_version.clone_from(&driver.driver_version);
        // A GPU that could not be opened has no UUID.
        let unreachable = driver.gpus.iter().filter(|gpu| gpu.uuid.is_empty());
        self.unreachable = unreachable.map(|gpu| gpu.index).collect();
        driver.gpus.iter().filter(|gpu| !gpu.uuid.is_empty()).for_each(|gpu| self.add(gpu));
    }

    /// The position of the device with this UUID, which is the GPU or one of its MIG devices.
    pub(super) fn place(&mut self, gpu: &Arc<Gpu>, uuid: &str) -> Option<usize> {
        let of = |places: &[Place]| places.iter().position(|place| place.uuid() == uuid);
        of(&self.places).or_else(|| {
            // It answers, although it did not return its UUID.
            self.unreachable.retain(|index| *index != gpu.index);
            self.add(gpu);
            of(&self.places)
        })
    }

    fn add(&mut self, gpu: &Arc<Gpu>) {
        let mig = gpu.mig.iter().map(|mig| Place { gpu: gpu.clone(), mig: Some(mig.clone()) });
        let whole = gpu.mig.is_empty().then(|| Place { gpu: gpu.clone(), mig: None });
        for place in mig.chain(whole) {
            if !self.places.iter().any(|known| known.uuid() == place.uuid()) {
                self.places.push(place);
            }
        }
    }
}
