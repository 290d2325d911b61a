//! The links of a GPU to other GPUs and to its CPU.

use serde::Deserialize;

use crate::scenario::units::Size;

/// The NVLinks of a GPU.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nvlink {
    pub(crate) links: u32,
    /// The numbers of the links that are not active.
    #[serde(default)]
    pub(crate) down: Vec<u32>,
    /// Errors of each link that has any: its number, then replay, recovery, and CRC errors of flow control and of data.
    #[serde(default)]
    pub(crate) errors: Vec<[u64; 5]>,
    /// Bytes that the GPU sends and receives in a second of scenario time.
    pub(crate) rate: Option<[Size; 2]>,
    /// Whether the driver adds the errors of all links up, as it does before NVLink 5.
    #[serde(default = "yes")]
    pub(crate) totals: bool,
    /// NVLink 5: recoveries are counted, and no other errors.
    #[serde(default)]
    pub(crate) fifth: bool,
}

fn yes() -> bool {
    true
}

/// The C2C links of a GPU.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct C2c {
    pub(crate) links: u32,
    /// How many of the first links are not active.
    #[serde(default)]
    pub(crate) down: u32,
}

/// What NVML says about a GPU's fabric, in NVML's codes.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fabric {
    pub(crate) state: u8,
    #[serde(default)]
    pub(crate) status: u32,
    #[serde(default)]
    pub(crate) clique: u32,
    #[serde(default)]
    pub(crate) health: u32,
    /// Not in the second version of the struct, which is the only one of drivers before 570.
    #[serde(default)]
    pub(crate) summary: u8,
}
