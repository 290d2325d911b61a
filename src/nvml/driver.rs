//! The opened driver: its versions, its GPUs and their MIG devices.

use std::sync::Arc;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Nvml, cuda_driver_version_major, cuda_driver_version_minor};

use super::raw::{self, Handle};
use super::{Device, Error, Severity};
use crate::snapshot::{self, Gpu, MigDevice};

/// An open NVML. Dropping it shuts NVML down and unloads the library.
#[derive(Debug)]
pub struct Driver {
    nvml: Nvml,
    simulated: bool,
    second_version_lists: bool,
    gpus: Vec<Entry>,
}

/// A GPU and what is needed to ask it.
#[derive(Debug)]
struct Entry {
    gpu: Arc<Gpu>,
    /// `None` for a GPU that NVML counts and cannot open (it fell off the bus before the exporter started).
    handle: Option<Handle>,
    /// The MIG devices, in the order of [`Gpu::mig`]. `None` where the layout could not be read: then the identity tells
    /// the layout of an earlier opening, which may not be the present one.
    mig: Option<Vec<Handle>>,
    /// Why the layout could not be read.
    refused: Option<Error>,
}

impl Driver {
    pub(super) fn new(nvml: Nvml, simulated: bool) -> Self {
        // A driver that does not tell its version may be one of them.
        let second_version_lists = nvml.sys_driver_version().map_or(true, |version| has_other_process_layout(&version));
        Self { nvml, simulated, second_version_lists, gpus: Vec::new() }
    }

    /// Finds the GPUs and their MIG devices. `known` are those of an earlier opening: a GPU that cannot be opened
    /// keeps its identity from there, and one whose MIG layout cannot be read keeps that.
    ///
    /// # Errors
    /// When NVML cannot count its GPUs.
    pub fn discover(&mut self, known: &[Arc<Gpu>]) -> Result<(), Error> {
        let count = self.count()?;
        self.gpus = (0..count)
            .map(|index| match self.nvml.device_by_index(index) {
                Ok(device) => {
                    let mut gpu = identify(index, &device);
                    let before = known.iter().find(|before| !gpu.uuid.is_empty() && before.uuid == gpu.uuid);
                    let mode_before = before.and_then(|before| before.mig_mode);
                    let layout = MigLayout::read(&device, &self.nvml, mode_before);
                    let (mig, refused) = match layout {
                        Ok(layout) => {
                            (gpu.mig_mode, gpu.mig) = (layout.on, layout.devices);
                            (Some(layout.handles), None)
                        }
                        Err(error) => {
                            gpu.mig_mode = mode_before;
                            gpu.mig = before.map_or_else(Vec::new, |before| before.mig.clone());
                            (None, Some(error))
                        }
                    };
                    Entry { gpu: Arc::new(gpu), handle: Some(Handle::of(&device)), mig, refused }
                }
                Err(_) => {
                    let gpu = known.iter().find(|gpu| gpu.index == index).cloned();
                    let gpu = gpu.unwrap_or_else(|| Arc::new(Gpu { index, ..Gpu::default() }));
                    Entry { gpu, handle: None, mig: None, refused: None }
                }
            })
            .collect();
        Ok(())
    }

    /// How many GPUs NVML counts now.
    ///
    /// # Errors
    /// Whatever NVML answers.
    pub fn count(&self) -> Result<u32, Error> {
        self.nvml.device_count().map_err(|error| Error::new("nvmlDeviceGetCount_v2", error))
    }

    /// The GPUs found by [`Driver::discover`], in NVML's order.
    pub fn gpus(&self) -> impl ExactSizeIterator<Item = &Arc<Gpu>> {
        self.gpus.iter().map(|entry| &entry.gpu)
    }

    /// The GPU at a position of [`Driver::gpus`], to be asked; `None` where it could not be opened.
    pub fn device(&self, position: usize) -> Option<Device<'_>> {
        let handle = self.gpus.get(position)?.handle?;
        Some(Device::new(&self.nvml, handle, self.second_version_lists))
    }

    /// The MIG devices of a GPU, in the order of [`Gpu::mig`]; none where the layout could not be read.
    pub fn mig_devices(&self, position: usize) -> impl Iterator<Item = Device<'_>> {
        let handles = self.gpus.get(position).and_then(|entry| entry.mig.as_deref()).unwrap_or_default();
        handles.iter().map(|&handle| Device::new(&self.nvml, handle, self.second_version_lists))
    }

    /// Whether [`Driver::discover`] could read the MIG layout of a GPU.
    pub fn knows_mig_layout(&self, position: usize) -> bool {
        self.gpus.get(position).is_some_and(|entry| entry.mig.is_some())
    }

    /// The GPUs whose MIG layout [`Driver::discover`] could not read, and why.
    pub fn refused_mig_layouts(&self) -> impl Iterator<Item = (&Gpu, &Error)> {
        self.gpus.iter().filter_map(|entry| Some((&*entry.gpu, entry.refused.as_ref()?)))
    }

    /// Whether the machine still has the MIG devices of a GPU that [`Driver::discover`] found.
    ///
    /// # Errors
    /// Whatever NVML answers: then nothing is said of the layout.
    pub fn same_mig_layout(&self, position: usize) -> Result<bool, Error> {
        let (Some(entry), Some(device)) = (self.gpus.get(position), self.wrapped(position)) else { return Ok(true) };
        let layout = MigLayout::read(&device, &self.nvml, entry.gpu.mig_mode)?;
        let same = layout.on == entry.gpu.mig_mode && layout.devices == entry.gpu.mig;
        // What could not be read at the opening has no handles, which only a GPU without MIG devices can do without.
        Ok(same && (entry.mig.is_some() || layout.devices.is_empty()))
    }

    /// What to publish of the driver.
    pub fn describe(&self) -> snapshot::Driver {
        let cuda = self.nvml.sys_cuda_driver_version().ok();
        snapshot::Driver {
            up: true,
            problem: None,
            driver_version: self.nvml.sys_driver_version().ok(),
            nvml_version: self.nvml.sys_nvml_version().ok(),
            cuda_version: cuda.map(|v| format!("{}.{}", cuda_driver_version_major(v), cuda_driver_version_minor(v))),
            simulated: self.simulated,
            gpus: self.gpus().cloned().collect(),
        }
    }

    pub(super) fn nvml(&self) -> &Nvml {
        &self.nvml
    }

    pub(super) fn wrapped(&self, position: usize) -> Option<nvml_wrapper::Device<'_>> {
        Some(self.gpus.get(position)?.handle?.device(&self.nvml))
    }

    pub(super) fn position(&self, handle: Handle) -> Option<usize> {
        self.gpus.iter().position(|entry| {
            entry.handle == Some(handle) || entry.mig.as_ref().is_some_and(|devices| devices.contains(&handle))
        })
    }
}

/// Drivers 535.43 to 535.98 fill the third version of the process list with larger structs than `nvml.h` declares
/// before and after them; the second version is right on all of them.
fn has_other_process_layout(driver_version: &str) -> bool {
    let mut numbers = driver_version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    numbers.next() == Some(535) && numbers.next().is_some_and(|minor| minor <= 98)
}

/// What the GPU tells of itself, but for its MIG layout.
fn identify(index: u32, device: &nvml_wrapper::Device<'_>) -> Gpu {
    let capability = device.cuda_compute_capability().ok();
    Gpu {
        index,
        uuid: device.uuid().unwrap_or_default(),
        minor: device.minor_number().ok(),
        name: device.name().ok(),
        pci_bus_id: device.pci_info().ok().map(|pci| pci.bus_id),
        architecture: device.architecture().ok().map(|architecture| architecture.to_string()),
        vbios: device.vbios_version().ok(),
        compute_capability: capability.map(|c| format!("{}.{}", c.major, c.minor)),
        mig_mode: None,
        mig: Vec::new(),
    }
}

/// Whether MIG is on (`None`: the GPU knows no MIG), and the MIG devices.
#[derive(Default)]
struct MigLayout {
    on: Option<bool>,
    devices: Vec<Arc<MigDevice>>,
    handles: Vec<Handle>,
}

impl MigLayout {
    /// `mode_before`: the mode at an earlier reading. A GPU that never gave its mode and refuses it knows no MIG; any
    /// other refusal is an error.
    fn read(device: &nvml_wrapper::Device<'_>, nvml: &Nvml, mode_before: Option<bool>) -> Result<Self, Error> {
        const ENABLED: u32 = 1;
        let mode = match device.mig_mode().map_err(|error| Error::new("nvmlDeviceGetMigMode", error)) {
            Ok(mode) => mode,
            Err(error) if error.severity() == Severity::Absent && mode_before.is_none() => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        let mut layout = Self { on: Some(mode.current == ENABLED), ..Self::default() };
        if layout.on == Some(false) {
            return Ok(layout);
        }
        // The count is the maximum, not the present one: a hole answers NOT_FOUND.
        let count = device.mig_device_count().map_err(|error| Error::new("nvmlDeviceGetMaxMigDeviceCount", error))?;
        for index in 0..count {
            let slice = match device.mig_device_by_index(index) {
                Ok(slice) => slice,
                Err(NvmlError::NotFound) => continue,
                Err(error) => return Err(Error::new("nvmlDeviceGetMigDeviceHandleByIndex", error)),
            };
            let handle = Handle::of(&slice);
            let (gpu_instance, compute_instance) = raw::instance_ids(nvml, handle)?;
            let profile = slice.name().ok().and_then(|name| Some(name.split_once(" MIG ")?.1.trim().to_owned()));
            let uuid = slice.uuid().map_err(|error| Error::new("nvmlDeviceGetUUID", error))?;
            layout.devices.push(Arc::new(MigDevice { index, uuid, gpu_instance, compute_instance, profile }));
            layout.handles.push(handle);
        }
        Ok(layout)
    }
}

#[cfg(test)]
mod tests {
    use super::has_other_process_layout;

    #[test]
    fn only_the_early_535_drivers_have_the_other_layout() {
        assert!(has_other_process_layout("535.54.03"));
        assert!(!has_other_process_layout("535.104.05"));
        assert!(!has_other_process_layout("580.159.04"));
        assert!(!has_other_process_layout("nonsense"));
    }
}
