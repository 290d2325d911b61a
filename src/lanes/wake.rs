//! How one lane wakes another: a set of bits that are pending, and taken all at once by the one who waits.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Rung by any thread, heard by one.
#[derive(Debug, Default)]
pub(super) struct WakeBits {
    pending: Mutex<u64>,
    changed: Condvar,
}

impl WakeBits {
    /// The bit that stands for a GPU. From 65 GPUs on, several share one: then one is asked for nothing, none is missed.
    pub(super) fn bit(position: usize) -> u64 {
        1 << (position % 64)
    }

    /// Adds bits and wakes whoever waits.
    pub(super) fn notify(&self, bits: u64) {
        *self.pending.lock().unwrap_or_else(PoisonError::into_inner) |= bits;
        self.changed.notify_one();
    }

    /// Waits for a ring, at the longest until the deadline, and takes the bits (0 at the deadline).
    pub(super) fn wait_until(&self, deadline: Instant) -> u64 {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        while *pending == 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            pending = self.changed.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::take(&mut pending)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_not_lost_and_is_heard_once() {
        let wake = WakeBits::default();
        wake.notify(0b10);
        wake.notify(0b01);
        assert_eq!(wake.wait_until(Instant::now() + Duration::from_secs(60)), 0b11);
        assert_eq!(wake.wait_until(Instant::now()), 0);
    }

    #[test]
    fn a_ring_wakes_the_one_who_waits() {
        let wake = Arc::new(WakeBits::default());
        let ringer = {
            let wake = wake.clone();
            std::thread::spawn(move || wake.notify(4))
        };
        assert_eq!(wake.wait_until(Instant::now() + Duration::from_secs(60)), 4);
        ringer.join().unwrap();
    }
}
