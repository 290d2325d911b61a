//! How much of one GPU's or MIG device's memory each process holds.
//!
//! Memory is assigned in the order of the scenario, and a process gets at most what is left: if its request exceeds
//! that, it gets the rest. If all requests together always fit, the order does not matter and a call is cheap.

use super::process::{Life, Process};
use crate::clock::Nanos;

/// The processes that share the memory of one GPU or MIG device.
#[derive(Debug, Default)]
pub struct Load {
    /// Bytes that can be allocated.
    capacity: u64,
    /// All processes, as indexes.
    members: Vec<u32>,
    /// Bytes held by the processes whose memory never changes.
    fixed: u64,
    /// The processes whose memory changes.
    varying: Vec<u32>,
    /// Whether all requests together always fit.
    fits: bool,
}

impl Load {
    pub(crate) fn new(capacity: u64, members: Vec<u32>, processes: &[Process]) -> Self {
        let of = |&member: &u32| &processes[member as usize];
        let most = members.iter().fold(0_u64, |sum, member| sum.saturating_add(of(member).most()));
        let varying = members.iter().copied().filter(|member| of(member).fixed().is_none()).collect();
        let fixed = members.iter().filter_map(|member| of(member).fixed()).sum();
        Self { capacity, members, fixed, varying, fits: most <= capacity }
    }

    /// Bytes that can be allocated.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes in use.
    pub(crate) fn used(&self, processes: &[Process], now: Nanos) -> u64 {
        if !self.fits {
            let mut sum = 0;
            self.each(processes, now, |process, _, held| sum += held + process.overhead());
            return sum.min(self.capacity);
        }
        let varying = self.varying.iter().map(|&member| {
            let process = &processes[member as usize];
            process.life(now).map_or(0, |life| process.wants(life, now) + process.overhead())
        });
        self.fixed + varying.sum::<u64>()
    }

    /// Every live process.
    pub(crate) fn living<'p>(
        &'p self,
        processes: &'p [Process],
        now: Nanos,
    ) -> impl Iterator<Item = (&'p Process, Life)> + 'p {
        let of = |&member: &u32| &processes[member as usize];
        self.members.iter().map(of).filter_map(move |process| Some((process, process.life(now)?)))
    }

    /// Every live process with what it holds.
    pub(crate) fn each(&self, processes: &[Process], now: Nanos, mut visit: impl FnMut(&Process, Life, u64)) {
        let mut left = self.capacity;
        for (process, life) in self.living(processes, now) {
            let overhead = process.overhead().min(left);
            let held = process.wants(life, now).min(left - overhead);
            left -= held + overhead;
            visit(process, life, held);
        }
    }
}
