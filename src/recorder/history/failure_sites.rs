//! What the memory of a process was when an allocation failed: by role, by call site and by module.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::{HeapUse, allocation};
use crate::snapshot::{AllocatorSites, Module, Site};

/// What a process found when it last looked at its memory before a failure.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FailureSites {
    /// How many seconds before the failure arrived the look did.
    pub seconds_before: f64,
    /// Bytes by role; a role that the process does not look for is absent.
    pub roles: BTreeMap<String, u64>,
    /// The call sites with the most live memory, the largest first.
    pub sites: Vec<SiteUse>,
    /// Bytes of all other call sites.
    pub other_bytes: Option<u64>,
    /// Bytes whose call site was not recorded.
    pub unrecorded_bytes: Option<u64>,
    /// What grew before the look; absent if the process had not looked before, or did not report it.
    pub grew: Option<SitesGrown>,
    /// The modules of the model with the most parameters, gradients, optimizer state and buffers, the largest first; empty
    /// if the process did not report them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<ModuleUse>,
    /// Bytes of all other modules.
    pub other_modules_bytes: Option<u64>,
}

/// The growth of call sites between two looks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SitesGrown {
    /// Seconds between the looks, rounded up.
    pub seconds: u64,
    /// The call sites that grew most, the largest first; the bytes are the growth. Empty: none grew.
    pub sites: Vec<SiteUse>,
}

/// The memory of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleUse {
    /// Its path in the model, as the process reported it.
    pub module: String,
    /// Bytes of its own.
    pub bytes: u64,
}

/// The live memory of a call site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteUse {
    /// The file, the line and the function, as the process reported them.
    pub site: String,
    /// What the memory is.
    pub role: String,
    /// Bytes.
    pub bytes: u64,
}

impl FailureSites {
    /// A look, as it is shown with a failure that arrived at `at`.
    pub(crate) fn of(look: &AllocatorSites, at: Instant) -> Self {
        let roles = look.roles().map(|(role, bytes)| (role.label().to_owned(), bytes)).collect();
        let grew = look.growth.as_ref();
        let module = |known: &Module| ModuleUse { module: known.module.to_string(), bytes: known.bytes };
        Self {
            seconds_before: at.saturating_duration_since(look.at).as_secs_f64(),
            roles,
            sites: uses(&look.sites),
            other_bytes: look.other,
            unrecorded_bytes: look.unrecorded,
            grew: grew.map(|grew| SitesGrown { seconds: grew.seconds, sites: uses(&grew.sites) }),
            modules: look.modules.iter().map(module).collect(),
            other_modules_bytes: look.other_modules,
        }
    }

    /// The three call sites with the most, and nothing else.
    pub(super) fn brief(&self) -> Self {
        let sites = self.sites.iter().take(3).cloned().collect();
        Self { seconds_before: self.seconds_before, sites, ..Self::default() }
    }

    /// The roles with memory, the largest first.
    pub(crate) fn largest(&self) -> Vec<(&str, u64)> {
        let mut roles: Vec<_> = self.roles.iter().map(|(role, bytes)| (&**role, *bytes)).collect();
        roles.retain(|(_, bytes)| *bytes > 0);
        roles.sort_unstable_by_key(|(role, bytes)| (Reverse(*bytes), *role));
        roles
    }
}

/// Call sites, the largest first.
fn uses(sites: &[Site]) -> Vec<SiteUse> {
    let of = |Site { site, role, bytes }: &Site| SiteUse {
        site: site.to_string(),
        role: role.label().to_owned(),
        bytes: *bytes,
    };
    let mut uses: Vec<SiteUse> = sites.iter().map(of).collect();
    uses.sort_by_key(|site| Reverse(site.bytes));
    uses
}

impl HeapUse for FailureSites {
    fn heap_use(&self) -> usize {
        let roles = self.roles.keys().map(HeapUse::heap_use).sum::<usize>();
        // A node of the map has room for eleven roles.
        let node = if self.roles.is_empty() { 0 } else { allocation(11 * size_of::<(String, u64)>() + 64) };
        let grew = self.grew.as_ref().map_or(0, |grew| grew.sites.heap_use());
        roles + node + self.sites.heap_use() + grew + self.modules.heap_use()
    }
}

impl HeapUse for SiteUse {
    fn heap_use(&self) -> usize {
        self.site.heap_use() + self.role.heap_use()
    }
}

impl HeapUse for ModuleUse {
    fn heap_use(&self) -> usize {
        self.module.heap_use()
    }
}
