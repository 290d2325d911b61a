//! GPM, the driver's profiling counters: sample buffers, and the comparison of two samples.
//!
//! Invariants: a sample buffer is freed once, before its library is shut down, because it borrows the `Nvml`. Neither
//! taking nor comparing samples allocates. Only the requested entries of the array in `nvmlGpmMetricsGet_t` are read.
//! An entry that the driver leaves unchanged means that the metric was not filled.

use std::ffi::{CStr, c_uint};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::{nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, nvmlGpmMetric_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN, nvmlReturn_enum_NVML_SUCCESS,
};

use super::{Handle, call};
use crate::nvml::error::Error;

/// The length of the array in the newest known `nvml.h` (13.5), rounded up. The bindings declare a shorter array.
const LONGEST: usize = 512;
const DECLARED: usize = 210;

/// One metric of two compared samples.
#[derive(Debug, Clone, Copy)]
pub(in crate::nvml) struct RawMetric<'r> {
    /// NVML's value; `None` if the driver did not fill the metric.
    pub(in crate::nvml) value: Option<f64>,
    /// The driver's name of the unit, such as `MiB/s`; empty if the driver does not name it.
    pub(in crate::nvml) unit: &'r [u8],
}

/// A sample buffer of the driver.
#[derive(Debug)]
pub(in crate::nvml) struct Sample<'n> {
    nvml: &'n Nvml,
    sample: nvmlGpmSample_t,
}

impl<'n> Sample<'n> {
    pub(in crate::nvml) fn allocate(nvml: &'n Nvml) -> Result<Self, Error> {
        let mut sample = std::ptr::null_mut();
        call("nvmlGpmSampleAlloc", || {
            let sym = nvml_sym(nvml.lib().nvmlGpmSampleAlloc.as_ref())?;
            // SAFETY: the pointer points to a variable of the right type.
            nvml_try(unsafe { sym(&mut sample) })
        })?;
        Ok(Self { nvml, sample })
    }

    /// Fills the buffer with the counters of a GPU, or of one of its GPU instances.
    pub(in crate::nvml) fn take(&mut self, handle: Handle, gpu_instance: Option<u32>) -> Result<(), Error> {
        let lib = self.nvml.lib();
        match gpu_instance {
            None => call("nvmlGpmSampleGet", || {
                let sym = nvml_sym(lib.nvmlGpmSampleGet.as_ref())?;
                // SAFETY: the handle is valid, and the driver allocated the buffer.
                nvml_try(unsafe { sym(handle.0, self.sample) })
            }),
            Some(id) => call("nvmlGpmMigSampleGet", || {
                let sym = nvml_sym(lib.nvmlGpmMigSampleGet.as_ref())?;
                // SAFETY: as above.
                nvml_try(unsafe { sym(handle.0, id, self.sample) })
            }),
        }
    }
}

impl Drop for Sample<'_> {
    fn drop(&mut self) {
        if let Ok(sym) = self.nvml.lib().nvmlGpmSampleFree.as_ref() {
            // SAFETY: the driver allocated the buffer, and nothing uses it after this.
            unsafe { sym(self.sample) };
        }
    }
}

/// The struct that the call reads and fills, with room for the longest array that a driver can assume.
#[repr(C)]
struct Room {
    request: nvmlGpmMetricsGet_t,
    beyond: [nvmlGpmMetric_t; LONGEST - DECLARED],
}

/// Removes what an earlier comparison, perhaps of another GPU, left in an entry. 0 would be a successful result with the
/// value 0. The driver of an H200 (580.159.04) writes the result of every requested entry, and the value of each filled
/// one.
fn clear(entry: &mut nvmlGpmMetric_t) {
    entry.nvmlReturn = nvmlReturn_enum_NVML_ERROR_UNKNOWN;
    entry.value = f64::NAN;
    entry.metricInfo.unit = std::ptr::null_mut();
}

/// The struct in which two samples are compared. It is allocated once.
pub(in crate::nvml) struct Comparison {
    room: Box<Room>,
    count: usize,
}

impl std::fmt::Debug for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Comparison").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Comparison {
    /// A comparison of the metrics with these ids, at most as many as the bindings' array holds.
    pub(in crate::nvml) fn of(ids: impl IntoIterator<Item = u32>) -> Self {
        // SAFETY: the struct consists of integers, floating-point numbers and raw pointers, for which 0 is valid.
        let mut room: Box<Room> = Box::new(unsafe { std::mem::zeroed() });
        let mut count = 0;
        for (entry, id) in room.request.metrics.iter_mut().zip(ids) {
            entry.metricId = id;
            count += 1;
        }
        Self { room, count }
    }

    /// Compares two samples of the same GPU or GPU instance, and passes each of the first `count` metrics to `take`, in
    /// order.
    pub(in crate::nvml) fn compare(
        &mut self,
        count: usize,
        earlier: &Sample<'_>,
        later: &Sample<'_>,
        mut take: impl FnMut(usize, RawMetric<'_>),
    ) -> Result<(), Error> {
        let Self { room, count: all } = self;
        let count = count.min(*all);
        room.request.version = NVML_GPM_METRICS_GET_VERSION;
        room.request.numMetrics = c_uint::try_from(count).unwrap_or(0);
        (room.request.sample1, room.request.sample2) = (earlier.sample, later.sample);
        room.request.metrics.iter_mut().take(count).for_each(clear);
        call("nvmlGpmMetricsGet", || {
            let sym = nvml_sym(later.nvml.lib().nvmlGpmMetricsGet.as_ref())?;
            let request: *mut Room = &raw mut **room;
            // SAFETY: the struct begins with the declared fields, its array has `numMetrics` entries with their ids,
            // and the room after them exceeds that of any known `nvml.h`.
            nvml_try(unsafe { sym(request.cast()) })
        })?;
        for (at, entry) in room.request.metrics.iter().take(count).enumerate() {
            let value = (entry.nvmlReturn == nvmlReturn_enum_NVML_SUCCESS).then_some(entry.value);
            let unit = match entry.metricInfo.unit {
                unit if unit.is_null() || value.is_none() => &[],
                // SAFETY: NVML documents the field of a filled metric as a string or NULL. The string is the driver's
                // and constant.
                unit => unsafe { CStr::from_ptr(unit) }.to_bytes(),
            };
            take(at, RawMetric { value, unit });
        }
        Ok(())
    }
}
