//! What the driver's calls mean for memory.

use cuda_probe::{Call, Place as Location};

use super::held::{BLOCK, Class};

/// What names an allocation: an address, a handle or an array.
pub(super) type Name = (Kind, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Address,
    Handle,
    Array,
}

/// What a request names, how much it asks for, and where the driver takes it from. `None` if the call asks for nothing.
pub(super) fn request(call: &Call) -> Option<(Name, u64, Class)> {
    let packed = |bytes: u64| if bytes < BLOCK { Class::Packed } else { Class::Own };
    let address = |address: Option<u64>| Some((Kind::Address, address?));
    Some(match *call {
        Call::Allocate { size, address: at } => (address(at)?, size, packed(size)),
        Call::AllocatePitch { height, pitch, address: at, .. } => {
            let size = height.saturating_mul(pitch?);
            (address(at)?, size, packed(size))
        }
        Call::AllocateManaged { size, address: at } => (address(at)?, size, Class::Unfollowed),
        Call::AllocateAsync { size, address: at, .. } | Call::AllocateFromPool { size, address: at, .. } => {
            (address(at)?, size, Class::Pool)
        }
        Call::Create { size, place: Location::Device(_), handle } => ((Kind::Handle, handle?), size, Class::Own),
        Call::Create { size, handle, .. } => ((Kind::Handle, handle?), size, Class::Unfollowed),
        Call::CreateArray { shape, array } => {
            let size = shape.and_then(|shape| shape.bytes());
            ((Kind::Array, array?), size.unwrap_or(0), size.map_or(Class::Unfollowed, packed))
        }
        Call::OpenShared { address: at } => (address(at)?, 0, Class::Unfollowed),
        Call::Import { handle } => ((Kind::Handle, handle?), 0, Class::Unfollowed),
        _ => return None,
    })
}

/// How many bytes a call asked for; `None` if it names no size.
pub(super) fn asked(call: &Call) -> Option<u64> {
    match *call {
        Call::Allocate { size, .. }
        | Call::AllocateManaged { size, .. }
        | Call::AllocateAsync { size, .. }
        | Call::AllocateFromPool { size, .. }
        | Call::Create { size, .. } => Some(size),
        Call::AllocatePitch { width, height, .. } => width.checked_mul(height),
        Call::CreateArray { shape, .. } => shape?.bytes(),
        _ => None,
    }
}
