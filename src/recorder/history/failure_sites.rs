//! What the memory of a process was when an allocation failed: by role, and by call site.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::{HeapUse, allocation};
use crate::snapshot::AllocatorSites;

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
}

/// The live memory of a call site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
        let of = |site: &crate::snapshot::Site| SiteUse {
            site: site.site.to_string(),
            role: site.role.label().to_owned(),
            bytes: site.bytes,
        };
        let mut sites: Vec<SiteUse> = look.sites.iter().map(of).collect();
        sites.sort_by_key(|site| std::cmp::Reverse(site.bytes));
        Self {
            seconds_before: at.saturating_duration_since(look.at).as_secs_f64(),
            roles,
            sites,
            other_bytes: look.other,
            unrecorded_bytes: look.unrecorded,
        }
    }

    /// The roles with memory, the largest first.
    pub(crate) fn largest(&self) -> Vec<(&str, u64)> {
        let mut roles: Vec<_> = self.roles.iter().map(|(role, bytes)| (&**role, *bytes)).collect();
        roles.retain(|(_, bytes)| *bytes > 0);
        roles.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        roles
    }
}

impl HeapUse for FailureSites {
    fn heap_use(&self) -> usize {
        let names = self.sites.iter().map(|site| site.site.heap_use() + site.role.heap_use()).sum::<usize>();
        let roles = self.roles.keys().map(HeapUse::heap_use).sum::<usize>();
        // A node of the map has room for eleven roles.
        let node = if self.roles.is_empty() { 0 } else { allocation(11 * size_of::<(String, u64)>() + 64) };
        allocation(self.sites.capacity() * size_of::<SiteUse>()) + names + roles + node
    }
}
