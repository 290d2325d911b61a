//! Pids for processes to which the scenario gives none.
//!
//! Every such process has a range of its own, and no range holds a pid that the scenario fixes, so two live processes
//! never share a pid by accident.

use std::collections::BTreeSet;

use super::process::FRESH_PIDS;

/// Where the ranges begin: the upper half of Linux's pids, above the pids of real processes that a test may use.
const FIRST: u32 = 2_097_152;

/// Hands out ranges.
#[derive(Debug)]
pub(crate) struct FreshPids {
    fixed: BTreeSet<u32>,
    next: u32,
}

impl FreshPids {
    pub(crate) fn around(fixed: BTreeSet<u32>) -> Self {
        Self { fixed, next: FIRST }
    }

    /// Avoids additional pids from now on; the ranges already handed out stay.
    pub(crate) fn avoid(&mut self, fixed: impl IntoIterator<Item = u32>) {
        self.fixed.extend(fixed);
    }

    /// The first pid of the next range.
    pub(crate) fn range(&mut self) -> u32 {
        loop {
            let base = self.next;
            self.next += FRESH_PIDS;
            if self.fixed.range(base..base + FRESH_PIDS).next().is_none() {
                return base;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_avoids_fixed_pids() {
        let mut pids = FreshPids::around(BTreeSet::from([FIRST + 5, FIRST + FRESH_PIDS + 44]));
        assert_eq!(pids.range(), FIRST + 2 * FRESH_PIDS);
        assert_eq!(pids.range(), FIRST + 3 * FRESH_PIDS);
    }
}
