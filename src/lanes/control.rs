//! What the lanes are told from outside: to end, to let the driver go for a while, to take it up again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The orders that stand.
#[derive(Debug, Default)]
pub(super) struct Control {
    stop: AtomicBool,
    released_until: Mutex<Option<Instant>>,
    /// Who is to be woken by an order.
    listener: OnceLock<Thread>,
}

impl Control {
    pub(super) fn listen(&self, listener: Thread) {
        // There is one listener, and it is set once.
        let _ = self.listener.set(listener);
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake();
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// For how long yet the driver is to be left alone; `None` where it is not.
    pub(super) fn released_for(&self, now: Instant) -> Option<Duration> {
        let mut until = self.released_until.lock().unwrap_or_else(PoisonError::into_inner);
        let left = (*until)?.saturating_duration_since(now);
        if left.is_zero() {
            *until = None;
        }
        until.map(|_| left)
    }

    fn set_released_until(&self, until: Option<Instant>) {
        *self.released_until.lock().unwrap_or_else(PoisonError::into_inner) = until;
        self.wake();
    }

    fn wake(&self) {
        if let Some(listener) = self.listener.get() {
            listener.unpark();
        }
    }
}

/// The hold that the lanes have of the driver. While it is let go, the driver's library is closed and unloaded and no device
/// file is open, so that the driver can be unloaded and replaced.
#[derive(Debug, Clone)]
pub struct DriverLease(Arc<Control>);

impl DriverLease {
    pub(super) fn new(control: Arc<Control>) -> Self {
        Self(control)
    }

    /// Lets the driver go for so long, counted from now. It is taken up again by itself.
    pub fn release(&self, span: Duration) {
        self.0.set_released_until(Some(Instant::now() + span));
    }

    /// Takes the driver up again at once.
    pub fn reacquire(&self) {
        self.0.set_released_until(None);
    }

    /// Whether the driver is to be left alone now.
    pub fn is_released(&self) -> bool {
        self.0.released_for(Instant::now()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_to_let_go_ends_by_itself_or_by_another_order() {
        let control = Arc::new(Control::default());
        let lease = DriverLease::new(control.clone());
        let now = Instant::now();
        assert_eq!(control.released_for(now), None);
        lease.release(Duration::from_secs(60));
        assert!(control.released_for(now).is_some_and(|left| left >= Duration::from_secs(60)));
        assert_eq!(control.released_for(now + Duration::from_secs(120)), None, "the time is over");
        assert_eq!(control.released_for(now), None, "and what is over does not come back");
        lease.release(Duration::from_secs(60));
        assert!(lease.is_released());
        lease.reacquire();
        assert!(!lease.is_released());
    }
}
