//! What adds up from scenario time zero: energy, and the time for which the clocks were limited.
//!
//! A sum does not depend on when it is requested; earlier sums are kept only to save time.

use std::sync::{Mutex, PoisonError};

use super::{Gpu, Machine};
use crate::clock::{Nanos, SECOND};

/// The sums of one GPU.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    /// Millijoules.
    pub(crate) energy: f64,
    /// For how long the power limit reduced the clocks.
    pub(crate) capped: Nanos,
    /// For how long heat did.
    pub(crate) hot: Nanos,
}

/// By GPU: how many whole seconds have been summed, and the sums of them.
static SUMS: Mutex<Vec<(Nanos, Sums)>> = Mutex::new(Vec::new());

impl Machine {
    /// The sums since scenario time zero.
    pub(crate) fn sums(&self, gpu: &Gpu, now: Nanos) -> Sums {
        let mut kept = SUMS.lock().unwrap_or_else(PoisonError::into_inner);
        let index = gpu.index as usize;
        if kept.len() <= index {
            kept.resize(index + 1, (0, Sums::default()));
        }
        let (mut second, mut sums) = kept[index];
        if now < second * SECOND {
            // The scenario was replaced, or scenario time zero was moved.
            (second, sums) = (0, Sums::default());
        }
        while (second + 1) * SECOND <= now {
            sums = self.add(sums, gpu, second * SECOND, SECOND);
            second += 1;
        }
        kept[index] = (second, sums);
        self.add(sums, gpu, second * SECOND, now - second * SECOND)
    }

    /// The sums after another `part` of the second that begins at `begin`, which is as it was at its beginning.
    fn add(&self, sums: Sums, gpu: &Gpu, begin: Nanos, part: Nanos) -> Sums {
        let during = |holds: bool| if holds { part } else { 0 };
        Sums {
            energy: sums.energy + self.power(gpu, begin) * 1e3 * (part as f64 / SECOND as f64),
            capped: sums.capped + during(self.capped(gpu, begin)),
            hot: sums.hot + during(self.hot(gpu, begin)),
        }
    }
}
