//! How one lane wakes another: bits that any thread may set, and that the threads of a lane wait for and clear.
//!
//! Invariant: a thread takes only its own bits, so that none is lost to another thread.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Bits set by any thread, each taken by one.
///
/// The memory lane waits here 100 times a second, each time with cold caches, so the locks are those of the standard library:
/// they consist of a futex and little code. No thread panics while it holds one.
#[derive(Debug, Default)]
pub(super) struct WakeBits {
    pending: Mutex<u64>,
    changed: Condvar,
}

impl WakeBits {
    /// The bit of a GPU. With more than 64 GPUs, several GPUs share a bit. In that case, a GPU may be queried
    /// needlessly, but none is missed.
    pub(super) fn bit(position: usize) -> u64 {
        1 << (position % 64)
    }

    /// Sets bits and wakes the waiting threads.
    pub(super) fn notify(&self, bits: u64) {
        *self.pending.lock().unwrap_or_else(PoisonError::into_inner) |= bits;
        self.changed.notify_all();
    }

    /// Waits until one of the `wanted` bits is set, but not beyond the deadline. Clears and returns the wanted bits;
    /// returns 0 at the deadline.
    pub(super) fn wait_until(&self, wanted: u64, deadline: Instant) -> u64 {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if *pending & wanted != 0 || left.is_zero() {
                break;
            }
            let woken = self.changed.wait_timeout(pending, left);
            pending = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        let taken = *pending & wanted;
        *pending &= !wanted;
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn bits_set_before_the_wait_are_taken_once() {
        let wake = WakeBits::default();
        wake.notify(0b10);
        wake.notify(0b01);
        assert_eq!(wake.wait_until(0b10, Instant::now() + Duration::from_secs(60)), 0b10);
        assert_eq!(wake.wait_until(0b11, Instant::now() + Duration::from_secs(60)), 0b01);
        assert_eq!(wake.wait_until(u64::MAX, Instant::now()), 0);
    }

    #[test]
    fn setting_a_bit_wakes_the_waiting_thread() {
        let wake = Arc::new(WakeBits::default());
        let notifier = {
            let wake = wake.clone();
            std::thread::spawn(move || wake.notify(4))
        };
        assert_eq!(wake.wait_until(u64::MAX, Instant::now() + Duration::from_secs(60)), 4);
        notifier.join().unwrap();
    }
}
