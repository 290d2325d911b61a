//! The messages that say what the memory of an allocator is: by role, by call site and by module.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Known, known, number};
use crate::snapshot::MemoryRole;

/// What a client found when it looked at the memory of an allocator, or a part of that: the three messages have one form, and
/// each uses some of it. All numbers but the seconds are bytes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Look<'a> {
    /// The framework's name.
    #[serde(borrow)]
    pub framework: Cow<'a, str>,
    /// The UUID of the device.
    #[serde(borrow)]
    pub device: Cow<'a, str>,
    /// Live memory by role.
    #[serde(default)]
    pub roles: Roles,
    /// The call sites with the most live memory, or those that grew most with their growth.
    #[serde(borrow, default)]
    pub sites: Vec<Named<'a>>,
    /// The modules with the most parameters, gradients, optimizer state and buffers.
    #[serde(borrow, default)]
    pub modules: Vec<Named<'a>>,
    /// Memory of all other call sites or modules.
    #[serde(default, deserialize_with = "known")]
    pub other_bytes: Option<u64>,
    /// Live memory whose call site was not recorded.
    #[serde(default, deserialize_with = "known")]
    pub unknown_bytes: Option<u64>,
    /// Seconds since the look before, rounded up.
    #[serde(default, deserialize_with = "known")]
    pub seconds: Option<u64>,
}

/// Live memory by role, in bytes and in the order of [`MemoryRole::ALL`]. `None`: the client did not look for the role. Names of
/// a newer client count together as unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Roles(pub [Option<u64>; MemoryRole::ALL.len()]);

impl<'d> Deserialize<'d> for Roles {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(RolesVisitor)
    }
}

struct RolesVisitor;

impl<'d> Visitor<'d> for RolesVisitor {
    type Value = Roles;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("bytes by role")
    }

    fn visit_map<A: MapAccess<'d>>(self, mut map: A) -> Result<Roles, A::Error> {
        let mut roles = Roles::default();
        let mut known = [false; MemoryRole::ALL.len()];
        while let Some(name) = map.next_key::<Cow<'d, str>>()? {
            let role = MemoryRole::of(&name);
            if role.label() == name && std::mem::replace(&mut known[role as usize], true) {
                return Err(A::Error::custom("a role occurs twice"));
            }
            let Known(bytes) = map.next_value()?;
            let sum = &mut roles.0[role as usize];
            *sum = [*sum, bytes].into_iter().flatten().reduce(u64::saturating_add);
        }
        Ok(roles)
    }
}

/// The memory of a call site or of a module.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Named<'a> {
    /// The file, the line and the function, or the path of the module in the model.
    #[serde(borrow, alias = "module")]
    pub site: Cow<'a, str>,
    /// What the memory is; a call site has it.
    #[serde(borrow, default)]
    pub role: Option<Cow<'a, str>>,
    /// Bytes.
    #[serde(deserialize_with = "number")]
    pub bytes: u64,
}
