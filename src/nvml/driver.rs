//! The opened driver: its versions, its GPUs and their MIG devices.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Nvml, cuda_driver_version_major, cuda_driver_version_minor};

use super::identity::{Answers, inherit};
use super::raw::{self, EventSet, Handle};
use super::{Device, Error, Severity};
use crate::snapshot::{self, Gpu, MigDevice};

const UUID: &str = "nvmlDeviceGetUUID";
const PCI_INFO: &str = "nvmlDeviceGetPciInfo_v3";

/// An open NVML. Dropping it shuts NVML down and unloads the library.
#[derive(Debug)]
pub struct Driver {
    nvml: Nvml,
    simulated: bool,
    second_version_lists: bool,
    gpus: Vec<Entry>,
}

/// Which GPU an opening is asking, for who sees it hang, and which GPUs it leaves out, since an earlier one hangs there.
#[derive(Debug)]
pub struct Discovery {
    now: AtomicU32,
    left_out: Vec<u32>,
}

impl Discovery {
    /// No GPU.
    pub const NONE: u32 = u32::MAX;

    /// No GPU is asked yet.
    pub fn all_but(left_out: Vec<u32>) -> Self {
        Self { now: AtomicU32::new(Self::NONE), left_out }
    }

    /// The index that is asked now, or [`Discovery::NONE`].
    pub fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    fn tell(&self, index: u32) {
        self.now.store(index, Ordering::Relaxed);
    }

    fn leaves_out(&self, index: u32) -> bool {
        self.left_out.contains(&index)
    }
}

/// A GPU and what is needed to ask it.
#[derive(Debug)]
struct Entry {
    gpu: Arc<Gpu>,
    /// `None` for a GPU that NVML counts and cannot open (it fell off the bus before the exporter started).
    handle: Option<Handle>,
    /// Whether the GPU may be asked in this opening. Its events may in any case.
    is_asked: bool,
    /// The MIG devices, in the order of [`Gpu::mig`]. `None` where the layout could not be read: then the identity tells
    /// the layout of an earlier opening, which may not be the present one.
    mig: Option<Vec<Handle>>,
    /// Whether the GPU gave its UUID; else the one of an earlier opening is assumed.
    is_certain: AtomicBool,
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

    /// Finds the GPUs and their MIG devices. `known` are those of earlier openings: a GPU that does not give its identity now
    /// keeps it from there, its MIG layout included. Those of them that are `stalled` are only looked up and not asked: a call to them hangs.
    /// `asking` gets the index that is asked and, at the end, [`Discovery::NONE`]. Returns, with the index, what a GPU failed to give.
    ///
    /// # Errors
    /// When NVML cannot count its GPUs.
    pub fn discover(
        &mut self,
        known: &[Arc<Gpu>],
        stalled: &[Arc<Gpu>],
        asking: &Discovery,
    ) -> Result<Vec<(u32, Error)>, Error> {
        let mut failures = Vec::new();
        let open = |index| {
            if asking.leaves_out(index) {
                return Opened { index, handle: None, is_asked: false, answers: Answers::default() };
            }
            asking.tell(index);
            Opened::open(index, &self.nvml, stalled, &mut failures)
        };
        let opened: Vec<_> = (0..self.count()?).map(open).collect();
        asking.tell(Discovery::NONE);
        let answers: Vec<_> = opened.iter().map(|opened| opened.answers.clone()).collect();
        // One that is left out is in the machine; to ask for its place might hang too.
        let present = |place: &str| {
            !asking.left_out.is_empty()
                || !matches!(self.nvml.device_by_pci_bus_id(place), Err(NvmlError::NotFound | NvmlError::InvalidArg))
        };
        let earlier = inherit(&answers, known, present);
        let identify = |(opened, earlier): (Opened, _)| {
            asking.tell(opened.index);
            opened.identify(earlier, &self.nvml, &mut failures)
        };
        self.gpus = opened.into_iter().zip(earlier).map(identify).collect();
        asking.tell(Discovery::NONE);
        Ok(failures)
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

    /// The GPU at a position of [`Driver::gpus`], to be asked; `None` where it could not be opened, or was stalled then.
    pub fn device(&self, position: usize) -> Option<Device<'_>> {
        let handle = self.asked(position)?;
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

    /// Whether a GPU that answers did not give its UUID yet.
    pub fn lacks_uuid(&self, position: usize) -> bool {
        let entry = self.gpus.get(position);
        entry.is_some_and(|entry| entry.handle.is_some() && !entry.is_certain.load(Ordering::Relaxed))
    }

    /// Asks a GPU for the UUID that it did not give before. `false`: it is not the one that was assumed.
    ///
    /// # Errors
    /// Whatever NVML answers.
    pub fn confirm_uuid(&self, position: usize) -> Result<bool, Error> {
        let (Some(entry), Some(device)) = (self.gpus.get(position), self.wrapped(position)) else { return Ok(true) };
        let uuid = device.uuid().map_err(|error| Error::new(UUID, error))?;
        entry.is_certain.store(entry.gpu.uuid == uuid, Ordering::Relaxed);
        Ok(entry.gpu.uuid == uuid)
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

    /// The GPU for calls on its events.
    pub(super) fn reporting(&self, position: usize) -> Option<nvml_wrapper::Device<'_>> {
        Some(self.gpus.get(position)?.handle?.device(&self.nvml))
    }

    fn wrapped(&self, position: usize) -> Option<nvml_wrapper::Device<'_>> {
        Some(self.asked(position)?.device(&self.nvml))
    }

    fn asked(&self, position: usize) -> Option<Handle> {
        self.gpus.get(position).filter(|entry| entry.is_asked)?.handle
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

/// What the driver gives of an index at an opening.
struct Opened {
    index: u32,
    handle: Option<Handle>,
    /// Whether no call to the GPU hangs.
    is_asked: bool,
    answers: Answers,
}

impl Opened {
    fn open(index: u32, nvml: &Nvml, stalled: &[Arc<Gpu>], failures: &mut Vec<(u32, Error)>) -> Self {
        let mut fail = |call, error| failures.push((index, Error::new(call, error)));
        let device = nvml.device_by_index(index).map_err(|error| fail("nvmlDeviceGetHandleByIndex_v2", error)).ok();
        let pci = device.as_ref().and_then(|device| device.pci_info().map_err(|error| fail(PCI_INFO, error)).ok());
        let pci_bus_id = pci.map(|pci| pci.bus_id);
        let hangs = stalled.iter().find(|gpu| pci_bus_id.is_some() && gpu.pci_bus_id == pci_bus_id);
        let uuid = match (&device, hangs) {
            (_, Some(gpu)) => Some(gpu.uuid.clone()),
            (Some(device), None) => device.uuid().map_err(|error| fail(UUID, error)).ok(),
            (None, None) => None,
        };
        let handle = device.as_ref().map(Handle::of);
        Self { index, handle, is_asked: hangs.is_none(), answers: Answers { uuid, pci_bus_id } }
    }

    /// `earlier` is the same GPU at an earlier opening: what fails now is as it was.
    fn identify(self, earlier: Option<Arc<Gpu>>, nvml: &Nvml, failures: &mut Vec<(u32, Error)>) -> Entry {
        let Self { index, handle, is_asked, answers } = self;
        let is_certain = AtomicBool::new(answers.uuid.is_some());
        let before = Gpu { index, ..earlier.as_deref().cloned().unwrap_or_default() };
        let entry = |gpu, mig| Entry { gpu: Arc::new(gpu), handle, is_asked, mig, is_certain, events: OnceLock::new() };
        let Some(device) = handle.filter(|_| is_asked).map(|handle| handle.device(nvml)) else {
            return entry(before, None);
        };
        let (mig_mode, mig, handles) = match MigLayout::read(&device, nvml, before.mig_mode) {
            Ok(layout) => (layout.on, layout.devices, Some(layout.handles)),
            Err(error) => {
                failures.push((index, error));
                (before.mig_mode, before.mig, None)
            }
        };
        let mut fail = |call, error| {
            let error = Error::new(call, error);
            failures.extend((error.severity() != Severity::Absent).then_some((index, error)));
        };
        let minor = device.minor_number().map_err(|error| fail("nvmlDeviceGetMinorNumber", error)).ok();
        let name = device.name().map_err(|error| fail("nvmlDeviceGetName", error)).ok();
        let architecture = device.architecture().map_err(|error| fail("nvmlDeviceGetArchitecture", error)).ok();
        let vbios = device.vbios_version().map_err(|error| fail("nvmlDeviceGetVbiosVersion", error)).ok();
        let capability = device.cuda_compute_capability();
        let capability = capability.map_err(|error| fail("nvmlDeviceGetCudaComputeCapability", error)).ok();
        let gpu = Gpu {
            index,
            uuid: answers.uuid.unwrap_or(before.uuid),
            minor: minor.or(before.minor),
            name: name.or(before.name),
            pci_bus_id: answers.pci_bus_id.or(before.pci_bus_id),
            architecture: architecture.map(|a| a.to_string()).or(before.architecture),
            vbios: vbios.or(before.vbios),
            compute_capability: capability.map(|c| format!("{}.{}", c.major, c.minor)).or(before.compute_capability),
            mig_mode,
            mig,
        };
        entry(gpu, handles)
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
            let uuid = slice.uuid().map_err(|error| Error::new(UUID, error))?;
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
