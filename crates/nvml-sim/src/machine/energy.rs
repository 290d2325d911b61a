//! Energy: the power, summed since scenario time zero.
//!
//! The sum does not depend on when it is requested; earlier sums are kept only to save time.

use std::sync::{Mutex, PoisonError};

use super::{Gpu, Machine};
use crate::clock::{Nanos, SECOND};

/// By GPU: how many whole seconds have been summed, and the millijoules used in them.
static SUMS: Mutex<Vec<(Nanos, f64)>> = Mutex::new(Vec::new());

impl Machine {
    /// Millijoules since scenario time zero.
    pub(crate) fn energy(&self, gpu: &Gpu, now: Nanos) -> u64 {
        let mut sums = SUMS.lock().unwrap_or_else(PoisonError::into_inner);
        let index = gpu.index as usize;
        if sums.len() <= index {
            sums.resize(index + 1, (0, 0.0));
        }
        let (mut second, mut sum) = sums[index];
        if now < second * SECOND {
            // The scenario was replaced, or scenario time zero was moved.
            (second, sum) = (0, 0.0);
        }
        while (second + 1) * SECOND <= now {
            sum += self.power(gpu, second * SECOND) * 1e3;
            second += 1;
        }
        sums[index] = (second, sum);
        let part = (now - second * SECOND) as f64 / SECOND as f64;
        (sum + self.power(gpu, second * SECOND) * 1e3 * part) as u64
    }
}
