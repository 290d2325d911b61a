//! How one lane wakes another: bits that any thread may set, and that one thread waits for and clears.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Bits set by any thread and taken by one.
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

    /// Sets bits and wakes the waiting thread.
    pub(super) fn notify(&self, bits: u64) {
        *self.pending.lock() |= bits;
        self.changed.notify_one();
    }

    /// Waits until a bit is set, but not beyond the deadline. Clears and returns all bits; returns 0 at the deadline.
    pub(super) fn wait_until(&self, deadline: Instant) -> u64 {
        let mut pending = self.pending.lock();
        self.changed.wait_while_until(&mut pending, |bits| *bits == 0, deadline);
        std::mem::take(&mut pending)
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
        assert_eq!(wake.wait_until(Instant::now() + Duration::from_secs(60)), 0b11);
        assert_eq!(wake.wait_until(Instant::now()), 0);
    }

    #[test]
    fn setting_a_bit_wakes_the_waiting_thread() {
        let wake = Arc::new(WakeBits::default());
        let notifier = {
            let wake = wake.clone();
            std::thread::spawn(move || wake.notify(4))
        };
        assert_eq!(wake.wait_until(Instant::now() + Duration::from_secs(60)), 4);
        notifier.join().unwrap();
    }
}
