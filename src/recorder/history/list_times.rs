//! When the process lists of a GPU were read in the last two minutes.

use std::collections::VecDeque;

use super::{FINE, Micros};

/// The maximum number of times that are kept.
const MOST: usize = 12_000;
/// The number of times that are kept if there is little memory.
const LEAST: usize = 32;

/// The times, oldest first.
#[derive(Debug, Default)]
pub(crate) struct ListTimes(VecDeque<Micros>);

impl ListTimes {
    /// Adds the time of a list, which is later than all others.
    pub(crate) fn add(&mut self, at: Micros) {
        self.0.push_back(at);
        while self.0.len() > MOST || self.0.front().is_some_and(|oldest| oldest + FINE < at) {
            self.0.pop_front();
        }
    }

    /// The last time at or before a moment.
    pub(crate) fn last_until(&self, moment: Micros) -> Option<Micros> {
        let after = self.0.partition_point(|&at| at <= moment);
        after.checked_sub(1).map(|index| self.0[index])
    }

    /// The first time after `after` and at or before `to`.
    pub(crate) fn first_within(&self, after: Micros, to: Micros) -> Option<Micros> {
        let first = self.0.partition_point(|&at| at <= after);
        self.0.get(first).copied().filter(|&at| at <= to)
    }

    /// Gives up the older half of the times until they use at most `bytes`, or are few.
    pub(crate) fn bound(&mut self, bytes: usize) {
        while self.bytes() > bytes && self.0.len() > LEAST {
            self.0.drain(..self.0.len() / 2);
            self.0.shrink_to_fit();
        }
    }

    /// The memory that the times use.
    pub(crate) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<Micros>()
    }
}
