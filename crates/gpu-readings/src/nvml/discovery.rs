//! Discovery: finds the GPUs of an opened driver, their identity and their MIG devices.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::Brand;
use nvml_wrapper::error::NvmlError;

use super::device::Device;
use super::driver::{Driver, Entry, UUID_CALL};
use super::error::{Error, Severity};
use super::health;
use super::identity::{ReportedIdentity, inherit};
use super::mig::MigLayout;
use super::raw::{Handle, ListVersion};
use super::unified::unified_memory;
use crate::snapshot::Gpu;

const PCI_CALL: &str = "nvmlDeviceGetPciInfo_v3";

/// What was found when the driver was opened earlier, and which GPU is being queried now. The thread that runs the
/// discovery shares this with the supervisor, which detects a call that hangs.
#[derive(Debug, Default)]
pub struct Discovery {
    known: Vec<Arc<Gpu>>,
    stalled: Vec<Arc<Gpu>>,
    skipped: Vec<u32>,
    /// The index that is being queried, plus 1; 0 if there is none.
    current: AtomicU32,
}

impl Discovery {
    /// `known`: the GPUs found earlier. A GPU that does not return its identity now keeps its earlier one,
    /// including its MIG layout. `stalled`: the known GPUs on which a call hangs; they are looked up but not queried.
    /// `skipped`: the indices of the GPUs on which an earlier attempt to open the driver hangs; no call is made
    /// for them.
    pub fn new(known: Vec<Arc<Gpu>>, stalled: Vec<Arc<Gpu>>, skipped: Vec<u32>) -> Self {
        Self { known, stalled, skipped, current: AtomicU32::new(0) }
    }

    /// The index of the GPU that is being queried; `None` between GPUs, before the first and after the last.
    pub fn current_gpu(&self) -> Option<u32> {
        self.current.load(Ordering::Relaxed).checked_sub(1)
    }

    fn set_current(&self, index: Option<u32>) {
        self.current.store(index.map_or(0, |index| index.saturating_add(1)), Ordering::Relaxed);
    }
}

impl Driver {
    /// Finds the GPUs and their MIG devices. Returns every failed call to a GPU, with the GPU's index.
    ///
    /// # Errors
    /// When NVML cannot count its GPUs.
    pub fn discover(&mut self, discovery: &Discovery) -> Result<Vec<(u32, Error)>, Error> {
        let mut failures = Vec::new();
        let look_up = |index| {
            if discovery.skipped.contains(&index) {
                return Candidate { index, handle: None, may_query: false, reported: ReportedIdentity::default() };
            }
            discovery.set_current(Some(index));
            Candidate::look_up(index, &self.nvml, &discovery.stalled, &mut failures)
        };
        let candidates: Vec<_> = (0..self.count()?).map(look_up).collect();
        discovery.set_current(None);
        let reported: Vec<_> = candidates.iter().map(|candidate| candidate.reported.clone()).collect();
        // If a GPU is skipped, all known GPUs count as present, because the skipped one is in the machine, and looking
        // up its PCI bus id might hang too.
        let present = |pci_bus_id: &str| {
            !discovery.skipped.is_empty()
                || !matches!(
                    self.nvml.device_by_pci_bus_id(pci_bus_id),
                    Err(NvmlError::NotFound | NvmlError::InvalidArg)
                )
        };
        let earlier = inherit(&reported, &discovery.known, present);
        let identify = |(candidate, earlier): (Candidate, _)| {
            discovery.set_current(Some(candidate.index));
            candidate.identify(earlier, &self.nvml, &mut failures)
        };
        let gpus = candidates.into_iter().zip(earlier).map(identify).collect();
        discovery.set_current(None);
        self.gpus = gpus;
        Ok(failures)
    }
}

/// What the driver returns for an index before the GPU is identified.
struct Candidate {
    index: u32,
    handle: Option<Handle>,
    /// `false` while a call to the GPU hangs.
    may_query: bool,
    reported: ReportedIdentity,
}

impl Candidate {
    fn look_up(index: u32, nvml: &Nvml, stalled: &[Arc<Gpu>], failures: &mut Vec<(u32, Error)>) -> Self {
        let mut fail = |call, error| failures.push((index, Error::new(call, error)));
        let device = nvml.device_by_index(index).map_err(|error| fail("nvmlDeviceGetHandleByIndex_v2", error)).ok();
        let pci = device.as_ref().and_then(|device| device.pci_info().map_err(|error| fail(PCI_CALL, error)).ok());
        let pci_bus_id = pci.map(|pci| pci.bus_id);
        let hangs = stalled.iter().find(|gpu| pci_bus_id.is_some() && gpu.pci_bus_id == pci_bus_id);
        let uuid = match (&device, hangs) {
            (_, Some(gpu)) => Some(gpu.uuid.clone()),
            (Some(device), None) => device.uuid().map_err(|error| fail(UUID_CALL, error)).ok(),
            (None, None) => None,
        };
        let handle = device.as_ref().map(Handle::of);
        Self { index, handle, may_query: hangs.is_none(), reported: ReportedIdentity { uuid, pci_bus_id } }
    }

    /// `earlier` is the same GPU as it was found earlier. A value that cannot be read now is taken from `earlier`.
    fn identify(self, earlier: Option<Arc<Gpu>>, nvml: &Nvml, failures: &mut Vec<(u32, Error)>) -> Entry {
        let Self { index, handle, may_query, reported } = self;
        let has_own_uuid = AtomicBool::new(reported.uuid.is_some());
        let before = Gpu { index, ..earlier.as_deref().cloned().unwrap_or_default() };
        let entry =
            |gpu, mig| Entry { gpu: Arc::new(gpu), handle, may_query, mig, has_own_uuid, events: OnceLock::new() };
        let Some(known) = handle.filter(|_| may_query) else {
            return entry(before, None);
        };
        let device = known.device(nvml);
        let (mig_mode, mig, handles) = match MigLayout::read(&device, nvml, before.mig_mode) {
            Ok(layout) => (layout.on, layout.devices, Some(layout.handles)),
            Err(error) => {
                failures.push((index, error));
                (before.mig_mode, before.mig, None)
            }
        };
        let mut report =
            |error: Error| failures.extend((error.severity() != Severity::Absent).then_some((index, error)));
        let addressing_mode = health::addressing_mode(nvml, known).map_err(&mut report).ok();
        let module_id = health::module_id(nvml, known).map_err(&mut report).ok();
        let mut fail = |call, error| report(Error::new(call, error));
        let minor = device.minor_number().map_err(|error| fail("nvmlDeviceGetMinorNumber", error)).ok();
        let name = device.name().map_err(|error| fail("nvmlDeviceGetName", error)).ok();
        let brand = device.brand().map_err(|error| fail("nvmlDeviceGetBrand", error)).ok().and_then(brand_name);
        let serial = device.serial().map_err(|error| fail("nvmlDeviceGetSerial", error)).ok();
        let architecture = device.architecture().map_err(|error| fail("nvmlDeviceGetArchitecture", error)).ok();
        let vbios = device.vbios_version().map_err(|error| fail("nvmlDeviceGetVbiosVersion", error)).ok();
        let capability = device.cuda_compute_capability();
        let capability = capability.map_err(|error| fail("nvmlDeviceGetCudaComputeCapability", error)).ok();
        let mut gpu = Gpu {
            index,
            uuid: reported.uuid.unwrap_or(before.uuid),
            minor: minor.or(before.minor),
            name: name.or(before.name),
            brand: brand.or(before.brand),
            serial: serial.filter(|serial| !serial.is_empty()).or(before.serial),
            pci_bus_id: reported.pci_bus_id.or(before.pci_bus_id),
            architecture: architecture.map(|a| a.to_string()).or(before.architecture),
            vbios: vbios.or(before.vbios),
            compute_capability: capability.map(|c| format!("{}.{}", c.major, c.minor)).or(before.compute_capability),
            addressing_mode: addressing_mode.or(before.addressing_mode),
            unified_memory: None,
            module_id: module_id.or(before.module_id),
            mig_mode,
            mig,
        };
        // Only the version of the call for memory matters, which no setting changes.
        let device = Device { nvml, handle: known, newest_lists: ListVersion::Third };
        gpu.unified_memory = unified_memory(&gpu, || device.memory()).map_err(report).unwrap_or(before.unified_memory);
        entry(gpu, handles)
    }
}

/// The name of a brand, as `nvidia-smi` and DCGM write it; `None` if NVML does not know it.
fn brand_name(brand: Brand) -> Option<&'static str> {
    Some(match brand {
        Brand::Quadro => "Quadro",
        Brand::Tesla => "Tesla",
        Brand::NVS => "NVS",
        Brand::GRID => "Grid",
        Brand::VApps => "NVIDIA Virtual Applications",
        Brand::VPC => "NVIDIA Virtual PC",
        Brand::VCS => "NVIDIA Virtual Compute Server",
        Brand::VWS => "NVIDIA RTX Virtual Workstation",
        Brand::GeForce => "GeForce",
        Brand::Titan => "Titan",
        Brand::QuadroRTX => "Quadro RTX",
        Brand::NvidiaRTX => "NVIDIA RTX",
        Brand::Nvidia => "NVIDIA",
        Brand::GeForceRTX => "GeForce RTX",
        Brand::TitanRTX => "Titan RTX",
        Brand::CloudGaming | Brand::VGaming => "NVIDIA vGaming",
        Brand::Unknown => return None,
    })
}
