//! The opened driver: its versions, its GPUs and their MIG devices.

use std::sync::{Arc, OnceLock};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Nvml, cuda_driver_version_major, cuda_driver_version_minor};

use super::raw::{self, EventSet, Handle};
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
    mig: Vec<Handle>,
    /// There once the GPU's Xid events were registered for.
    events: OnceLock<EventSet>,
}

impl Drop for Driver {
    /// Frees the event sets while NVML is still open.
    fn drop(&mut self) {
        self.gpus.iter().filter_map(|entry| entry.events.get()).for_each(|set| drop(set.of(&self.nvml)));
    }
}

impl Driver {
    pub(super) fn new(nvml: Nvml, simulated: bool) -> Self {
        // A driver that does not tell its version may be one of them.
        let second_version_lists = nvml.sys_driver_version().map_or(true, |version| has_other_process_layout(&version));
        Self { nvml, simulated, second_version_lists, gpus: Vec::new() }
    }

    /// Finds the GPUs and their MIG devices. `known` are those of an earlier opening: a GPU that cannot be opened
    /// keeps its identity from there.
    ///
    /// # Errors
    /// When NVML cannot count its GPUs.
    pub fn discover(&mut self, known: &[Arc<Gpu>]) -> Result<(), Error> {
        let count = self.count()?;
        self.gpus = (0..count)
            .map(|index| match self.nvml.device_by_index(index) {
                Ok(device) => {
                    let (gpu, mig) = identify(index, &device, &self.nvml);
                    Entry { gpu: Arc::new(gpu), handle: Some(Handle::of(&device)), mig, events: OnceLock::new() }
                }
                Err(_) => {
                    let gpu = known.iter().find(|gpu| gpu.index == index).cloned();
                    let gpu = gpu.unwrap_or_else(|| Arc::new(Gpu { index, ..Gpu::default() }));
                    Entry { gpu: Arc::new(Gpu { mig: Vec::new(), ..(*gpu).clone() }), handle: None, mig: Vec::new(), events: OnceLock::new() }
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

    /// The MIG devices of a GPU, in the order of [`Gpu::mig`].
    pub fn mig_devices(&self, position: usize) -> impl Iterator<Item = Device<'_>> {
        let handles = self.gpus.get(position).map_or(&[][..], |entry| &entry.mig);
        handles.iter().map(|&handle| Device::new(&self.nvml, handle, self.second_version_lists))
    }

    /// Whether the machine still has the MIG devices of a GPU that [`Driver::discover`] found.
    ///
    /// # Errors
    /// Whatever NVML answers but that the GPU knows no MIG: then nothing is said of the layout.
    pub fn same_mig_layout(&self, position: usize) -> Result<bool, Error> {
        let (Some(entry), Some(device)) = (self.gpus.get(position), self.wrapped(position)) else { return Ok(true) };
        let layout = MigLayout::read(&device, &self.nvml)?;
        Ok(layout.on == entry.gpu.mig_mode && layout.devices == entry.gpu.mig)
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

    pub(super) fn event_set(&self, position: usize) -> Option<EventSet> {
        self.gpus.get(position)?.events.get().copied()
    }

    /// A set that comes second is freed.
    pub(super) fn keep_event_set(&self, position: usize, set: EventSet) {
        if self.gpus.get(position).is_none_or(|entry| entry.events.set(set).is_err()) {
            drop(set.of(&self.nvml));
        }
    }
}

/// Drivers 535.43 to 535.98 fill the third version of the process list with larger structs than `nvml.h` declares
/// before and after them; the second version is right on all of them.
fn has_other_process_layout(driver_version: &str) -> bool {
    let mut numbers = driver_version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    numbers.next() == Some(535) && numbers.next().is_some_and(|minor| minor <= 98)
}

fn identify(index: u32, device: &nvml_wrapper::Device<'_>, nvml: &Nvml) -> (Gpu, Vec<Handle>) {
    // A layout that cannot be read now differs from the one that is read later, which is then taken up.
    let layout = MigLayout::read(device, nvml).unwrap_or_default();
    let capability = device.cuda_compute_capability().ok();
    let gpu = Gpu {
        index,
        uuid: device.uuid().unwrap_or_default(),
        minor: device.minor_number().ok(),
        name: device.name().ok(),
        pci_bus_id: device.pci_info().ok().map(|pci| pci.bus_id),
        architecture: device.architecture().ok().map(|architecture| architecture.to_string()),
        vbios: device.vbios_version().ok(),
        compute_capability: capability.map(|c| format!("{}.{}", c.major, c.minor)),
        mig_mode: layout.on,
        mig: layout.devices,
    };
    (gpu, layout.handles)
}

/// Whether MIG is on (`None`: the GPU knows no MIG), and the MIG devices.
#[derive(Default)]
struct MigLayout {
    on: Option<bool>,
    devices: Vec<Arc<MigDevice>>,
    handles: Vec<Handle>,
}

impl MigLayout {
    fn read(device: &nvml_wrapper::Device<'_>, nvml: &Nvml) -> Result<Self, Error> {
        const ENABLED: u32 = 1;
        let mode = match device.mig_mode().map_err(|error| Error::new("nvmlDeviceGetMigMode", error)) {
            Ok(mode) => mode,
            Err(error) if error.severity() == Severity::Absent => return Ok(Self::default()),
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
