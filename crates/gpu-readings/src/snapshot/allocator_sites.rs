//! What the memory of an allocator is, as a process reports it: by role, and by the line of code that allocated it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::closed_enum::closed_enum;

/// The maximum number of call sites of one look.
pub const MOST_SITES: usize = 10;
/// The maximum number of modules of one look.
pub const MOST_MODULES: usize = 10;
/// The maximum number of frames of a failed allocation.
pub const MOST_FRAMES: usize = 16;
/// A look is not shown any longer than this.
const SITES_FOR: Duration = Duration::from_secs(120);

closed_enum! {
    /// What memory is to a training program or a server: the label `role`.
    pub enum MemoryRole {
        /// Parameters of a model: its weights.
        Parameters => "parameters",
        /// Gradients of parameters.
        Gradients => "gradients",
        /// The state of an optimizer.
        OptimizerState => "optimizer_state",
        /// What is kept for the backward pass.
        Activations => "activations",
        /// Keys and values of earlier tokens.
        KvCache => "kv_cache",
        /// Memory that the program holds for none of these.
        Other => "other",
        /// Memory of which the role is not known.
        Unknown => "unknown",
    }
}

impl MemoryRole {
    /// The role with this label; [`MemoryRole::Unknown`] for a label of a newer client.
    pub fn of(label: &str) -> Self {
        Self::ALL.into_iter().find(|role| role.label() == label).unwrap_or(Self::Unknown)
    }
}

/// What a process found when it last looked at the memory of an allocator.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocatorSites {
    /// When it arrived.
    pub at: Instant,
    /// Bytes by role, in the order of [`MemoryRole::ALL`]. `None`: the process did not look for the role.
    pub roles: [Option<u64>; MemoryRole::ALL.len()],
    /// The call sites with the most bytes, at most [`MOST_SITES`]. No two have the same site and role.
    pub sites: Vec<Site>,
    /// Bytes of all other call sites.
    pub other: Option<u64>,
    /// Bytes whose call site was not recorded.
    pub unrecorded: Option<u64>,
    /// What grew before it. `None`: there was no look before, or the process did not tell.
    pub growth: Option<SiteGrowth>,
    /// The modules with the most parameters, gradients, optimizer state and buffers, at most [`MOST_MODULES`], the largest
    /// first; empty if the process did not tell.
    pub modules: Vec<Module>,
    /// Bytes of all other modules.
    pub other_modules: Option<u64>,
}

/// How call sites grew between two looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteGrowth {
    /// Seconds between the looks, rounded up: at least 1.
    pub seconds: u64,
    /// The call sites that grew most, at most [`MOST_SITES`], the largest first. The bytes are the growth, never 0.
    pub sites: Vec<Site>,
}

/// A module of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its path in the model: 1 to 128 characters without control characters, which the process chose.
    pub module: Arc<str>,
    /// Bytes of its own.
    pub bytes: u64,
}

/// A call site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The file, the line and the function: 1 to 128 characters without control characters, which the process chose.
    pub site: Arc<str>,
    /// What the memory is.
    pub role: MemoryRole,
    /// Bytes in live blocks that it allocated.
    pub bytes: u64,
}

impl AllocatorSites {
    /// The roles that the process looked for, with their bytes.
    pub fn roles(&self) -> impl Iterator<Item = (MemoryRole, u64)> {
        MemoryRole::ALL.into_iter().zip(self.roles).filter_map(|(role, bytes)| Some((role, bytes?)))
    }

    /// Bytes of all call sites and of what was not recorded.
    pub fn total(&self) -> u64 {
        let sites = self.sites.iter().map(|site| site.bytes);
        sites.chain(self.other).chain(self.unrecorded).fold(0, u64::saturating_add)
    }

    /// Whether it is too old to be shown.
    pub fn is_old(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) > SITES_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_of_a_newer_client_is_a_role_that_is_not_known() {
        assert!(MemoryRole::ALL.into_iter().all(|role| MemoryRole::of(role.label()) == role));
        assert_eq!(MemoryRole::of("lora_adapters"), MemoryRole::Unknown);
    }
}
