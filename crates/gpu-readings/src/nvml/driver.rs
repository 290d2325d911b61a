//! The opened driver: its versions, and access to its GPUs, MIG devices and event sets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use nvml_wrapper::{Nvml, cuda_driver_version_major, cuda_driver_version_minor};

use super::device::Device;
use super::error::Error;
use super::mig::MigLayout;
use super::raw::{EventSet, Handle, ListVersion};
use crate::snapshot::{self, Gpu};

pub(super) const UUID_CALL: &str = "nvmlDeviceGetUUID";

/// An open NVML library. Dropping it shuts NVML down and unloads the library.
#[derive(Debug)]
pub struct Driver {
    pub(super) nvml: Nvml,
    pub(super) gpus: Vec<Entry>,
    simulated: bool,
    newest_lists: ListVersion,
}

/// A GPU and what is needed to query it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) gpu: Arc<Gpu>,
    /// `None` for a GPU that NVML counts but cannot open (it fell off the bus before the exporter started).
    pub(super) handle: Option<Handle>,
    /// Whether the GPU may be queried while this driver is open. Its events may be read in any case.
    pub(super) may_query: bool,
    /// The MIG devices, in the order of [`Gpu::mig`]. `None` if the layout could not be read; in that case,
    /// [`Gpu::mig`] is the layout that was read earlier, which may be out of date.
    pub(super) mig: Option<Vec<Handle>>,
    /// Whether the GPU returned its UUID. If not, its earlier UUID is assumed.
    pub(super) has_own_uuid: AtomicBool,
    /// Set once the GPU's Xid events are registered.
    pub(super) events: OnceLock<EventSet>,
}

impl Drop for Driver {
    /// Frees the event sets before NVML is shut down.
    fn drop(&mut self) {
        self.gpus.iter().filter_map(|entry| entry.events.get()).for_each(|set| drop(set.of(&self.nvml)));
    }
}

impl Driver {
    pub(super) fn new(nvml: Nvml, simulated: bool) -> Self {
        // A driver that does not report its version may be one that uses the other layout of process lists (see
        // `has_other_process_layout`).
        let is_known = nvml.sys_driver_version().is_ok_and(|version| !has_other_process_layout(&version));
        let newest_lists = if is_known { ListVersion::Third } else { ListVersion::Second };
        Self { nvml, simulated, newest_lists, gpus: Vec::new() }
    }

    /// The number of GPUs that NVML counts now.
    ///
    /// # Errors
    /// Any NVML error.
    pub fn count(&self) -> Result<u32, Error> {
        self.nvml.device_count().map_err(|error| Error::new("nvmlDeviceGetCount_v2", error))
    }

    /// The GPUs found by [`Driver::discover`], in NVML's order.
    pub fn gpus(&self) -> impl ExactSizeIterator<Item = &Arc<Gpu>> {
        self.gpus.iter().map(|entry| &entry.gpu)
    }

    /// The GPU at a position of [`Driver::gpus`], ready for queries. `None` if it could not be opened, or if a call to
    /// it was hanging when the driver was opened.
    pub fn device(&self, position: usize) -> Option<Device<'_>> {
        Some(self.device_of(self.handle(position)?))
    }

    /// The MIG devices of a GPU, in the order of [`Gpu::mig`]; none if the layout could not be read.
    pub fn mig_devices(&self, position: usize) -> impl Iterator<Item = Device<'_>> {
        let handles = self.gpus.get(position).and_then(|entry| entry.mig.as_deref()).unwrap_or_default();
        handles.iter().map(|&handle| self.device_of(handle))
    }

    /// Whether [`Driver::discover`] could read the MIG layout of a GPU.
    pub fn knows_mig_layout(&self, position: usize) -> bool {
        self.gpus.get(position).is_some_and(|entry| entry.mig.is_some())
    }

    /// Whether a GPU still has the MIG mode and the MIG devices that [`Driver::discover`] found.
    ///
    /// # Errors
    /// Any NVML error; the layout is then unknown.
    pub fn same_mig_layout(&self, position: usize) -> Result<bool, Error> {
        let (Some(entry), Some(device)) = (self.gpus.get(position), self.wrapper_device(position)) else {
            return Ok(true);
        };
        let layout = MigLayout::read(&device, &self.nvml, entry.gpu.mig_mode)?;
        let same = layout.on == entry.gpu.mig_mode && layout.devices == entry.gpu.mig;
        // If the layout could not be read when the driver was opened, there are no handles, which is correct only if
        // there are no MIG devices.
        Ok(same && (entry.mig.is_some() || layout.devices.is_empty()))
    }

    /// Whether a GPU that could be opened has not returned its UUID yet.
    pub fn lacks_uuid(&self, position: usize) -> bool {
        let entry = self.gpus.get(position);
        entry.is_some_and(|entry| entry.handle.is_some() && !entry.has_own_uuid.load(Ordering::Relaxed))
    }

    /// Reads the UUID that a GPU did not return before. `false`: it differs from the assumed one.
    ///
    /// # Errors
    /// Any NVML error.
    pub fn confirm_uuid(&self, position: usize) -> Result<bool, Error> {
        let (Some(entry), Some(device)) = (self.gpus.get(position), self.wrapper_device(position)) else {
            return Ok(true);
        };
        let uuid = device.uuid().map_err(|error| Error::new(UUID_CALL, error))?;
        entry.has_own_uuid.store(entry.gpu.uuid == uuid, Ordering::Relaxed);
        Ok(entry.gpu.uuid == uuid)
    }

    /// The driver's description, to be published.
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

    /// The GPU's device, for calls about its events.
    pub(super) fn event_source(&self, position: usize) -> Option<nvml_wrapper::Device<'_>> {
        Some(self.gpus.get(position)?.handle?.device(&self.nvml))
    }

    fn device_of(&self, handle: Handle) -> Device<'_> {
        Device { nvml: &self.nvml, handle, newest_lists: self.newest_lists }
    }

    fn wrapper_device(&self, position: usize) -> Option<nvml_wrapper::Device<'_>> {
        Some(self.handle(position)?.device(&self.nvml))
    }

    fn handle(&self, position: usize) -> Option<Handle> {
        self.gpus.get(position).filter(|entry| entry.may_query)?.handle
    }

    pub(super) fn event_set(&self, position: usize) -> Option<EventSet> {
        self.gpus.get(position)?.events.get().copied()
    }

    /// Stores the event set of a GPU. If the GPU already has one, the new set is freed.
    pub(super) fn store_event_set(&self, position: usize, set: EventSet) {
        if self.gpus.get(position).is_none_or(|entry| entry.events.set(set).is_err()) {
            drop(set.of(&self.nvml));
        }
    }
}

/// Drivers 535.43 to 535.98 fill the third version of the process list with larger structs than the `nvml.h` of earlier
/// and later drivers declares. The second version of the list is correct on all of them.
fn has_other_process_layout(driver_version: &str) -> bool {
    let mut numbers = driver_version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    numbers.next() == Some(535) && numbers.next().is_some_and(|minor| minor <= 98)
}

#[cfg(test)]
mod tests {
    use super::has_other_process_layout;

    #[test]
    fn only_early_535_drivers_have_another_layout() {
        assert!(has_other_process_layout("535.54.03"));
        assert!(!has_other_process_layout("535.104.05"));
        assert!(!has_other_process_layout("580.159.04"));
        assert!(!has_other_process_layout("nonsense"));
    }
}
