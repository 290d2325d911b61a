//! The keys for the profiler's counters.

use serde::Deserialize;

use crate::scenario::curves::Ratio;
use crate::scenario::units::Size;

/// What the profiler's counters (GPM) of a GPU report while it is fully utilized. While it is less utilized, the values
/// are lower in proportion. Absent keys have the model's values.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Profiling {
    /// What the GPU reports about its support for GPM.
    pub(crate) supported: Option<bool>,
    /// Whether a GPU that supports GPM fills the counters.
    pub(crate) filled: Option<bool>,
    /// Whether a comparison succeeds without writing any result.
    pub(crate) untouched: bool,
    /// The highest metric id that the driver accepts; a request that contains a higher one is refused as a whole.
    pub(crate) known_ids: Option<u32>,
    pub(crate) graphics: Option<Ratio>,
    pub(crate) sm: Option<Ratio>,
    pub(crate) occupancy: Option<Ratio>,
    pub(crate) integer: Option<Ratio>,
    pub(crate) tensor: Option<Ratio>,
    pub(crate) fp64: Option<Ratio>,
    pub(crate) fp32: Option<Ratio>,
    pub(crate) fp16: Option<Ratio>,
    pub(crate) memory_bandwidth: Option<Ratio>,
    /// Bytes a second, like the others that follow.
    pub(crate) pcie_transmitted: Option<Size>,
    pub(crate) pcie_received: Option<Size>,
    pub(crate) nvlink_transmitted: Option<Size>,
    pub(crate) nvlink_received: Option<Size>,
    pub(crate) c2c_transmitted: Option<Size>,
    pub(crate) c2c_received: Option<Size>,
}
