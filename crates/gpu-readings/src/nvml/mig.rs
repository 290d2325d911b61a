//! The MIG layout of a GPU: its mode and its MIG devices.

use std::sync::Arc;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::error::{Error, Severity};
use super::raw::{self, Handle};
use crate::snapshot::MigDevice;

/// Whether MIG is on (`None`: the GPU does not support MIG), and the MIG devices.
#[derive(Default)]
pub(super) struct MigLayout {
    pub(super) on: Option<bool>,
    pub(super) devices: Vec<Arc<MigDevice>>,
    pub(super) handles: Vec<Handle>,
}

impl MigLayout {
    /// `mode_before`: the mode from an earlier reading. If a GPU never returned its mode and still refuses to, it does
    /// not support MIG; any other refusal is an error.
    pub(super) fn read(
        device: &nvml_wrapper::Device<'_>,
        nvml: &Nvml,
        mode_before: Option<bool>,
    ) -> Result<Self, Error> {
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
        // The count is the maximum, not the current number, so an unused index returns NOT_FOUND.
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
