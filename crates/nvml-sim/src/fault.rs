//! Faults: which fault affects which call, and when.

use crate::clock::Nanos;
use crate::code::Code;
use crate::scenario::grammar::Implausible;

/// A fault.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fault {
    pub(crate) calls: Calls,
    /// `None`: every GPU, and the calls that take no device.
    pub(crate) gpu: Option<u32>,
    /// Calls on MIG devices are not affected.
    pub(crate) skip_mig: bool,
    /// Only calls on the MIG device with this index.
    pub(crate) mig: Option<u32>,
    pub(crate) kind: Kind,
    pub(crate) from: Nanos,
    pub(crate) until: Nanos,
}

/// The calls that a fault affects.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Calls {
    /// Every call that can fail; for a fault limited to one GPU, every call on that GPU.
    All,
    /// Only these calls.
    Named(Vec<&'static str>),
}

/// What the fault does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// The call returns this.
    Error(Code),
    /// The call does not return until the fault is over.
    Hang,
    /// The call takes this much longer.
    Slow(Nanos),
    /// A process list grows by this many processes between the call for its length and the call for its entries.
    Grow(u32),
    /// The GPU is absent, or only one of its MIG devices.
    Absent(Option<u32>),
    /// The call returns numbers that cannot be true.
    Implausible(Implausible),
    /// The GPU's MIG devices are replaced by others, with other UUIDs and the same ids.
    Recut,
}

/// The target of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// `None`: the call is on the library itself.
    pub(crate) gpu: Option<u32>,
    /// The index of the MIG device; `None`: the call is on the whole GPU.
    pub(crate) slice: Option<u32>,
}

impl Target {
    /// The library itself.
    pub(crate) const LIBRARY: Self = Self { gpu: None, slice: None };

    /// A whole GPU.
    pub(crate) fn gpu(index: u32) -> Self {
        Self { gpu: Some(index), slice: None }
    }
}

/// Calls that `*` does not affect: they cannot fail in a way that a program could act on. Faults that name them do
/// affect them.
const SPARED: &[&str] = &["nvmlShutdown", "nvmlErrorString", "nvmlEventSetFree"];

impl Fault {
    /// Whether it affects a call now.
    pub(crate) fn affects(&self, call: &str, on: Target, now: Nanos) -> bool {
        let spared = (self.skip_mig && on.slice.is_some()) || self.mig.is_some_and(|mig| on.slice != Some(mig));
        if spared || !self.active(now) || self.gpu.is_some_and(|of| on.gpu != Some(of)) {
            return false;
        }
        match &self.calls {
            Calls::All => !SPARED.contains(&call),
            Calls::Named(names) => names.contains(&call),
        }
    }

    /// Whether it is active now.
    pub(crate) fn active(&self, now: Nanos) -> bool {
        (self.from..self.until).contains(&now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_one_gpu_leaves_the_others_and_the_library_alone() {
        let fault = Fault {
            calls: Calls::All,
            gpu: Some(1),
            skip_mig: false,
            mig: None,
            kind: Kind::Hang,
            from: 10,
            until: 20,
        };
        assert!(fault.affects("nvmlDeviceGetName", Target::gpu(1), 10));
        assert!(!fault.affects("nvmlDeviceGetName", Target::gpu(1), 20));
        assert!(!fault.affects("nvmlDeviceGetName", Target::gpu(0), 10));
        assert!(!fault.affects("nvmlEventSetCreate", Target::LIBRARY, 10));
        let all = Fault { gpu: None, ..fault };
        assert!(all.affects("nvmlInit_v2", Target::LIBRARY, 10));
        assert!(!all.affects("nvmlShutdown", Target::LIBRARY, 10));
        let of_a_slice = Fault { mig: Some(2), ..all };
        assert!(of_a_slice.affects("nvmlDeviceGetName", Target { gpu: Some(1), slice: Some(2) }, 10));
        assert!(!of_a_slice.affects("nvmlDeviceGetName", Target { gpu: Some(1), slice: Some(0) }, 10));
        assert!(!of_a_slice.affects("nvmlDeviceGetName", Target::gpu(1), 10));
    }
}
