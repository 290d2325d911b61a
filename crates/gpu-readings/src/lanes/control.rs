//! Controls the lanes from outside: stops them, releases the driver for a while, and reacquires it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::bell::Bell;

/// The requests that are currently in effect.
#[derive(Debug)]
pub(super) struct Control {
    stop: AtomicBool,
    released_until: Mutex<Option<Instant>>,
    /// Rings on each request.
    pub(super) bell: Arc<Bell>,
}

impl Control {
    /// Without a request.
    pub(super) fn new(bell: Bell) -> Self {
        Self { stop: AtomicBool::new(false), released_until: Mutex::new(None), bell: Arc::new(bell) }
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// How much longer the driver must stay released; `None` if it is not released.
    pub(super) fn released_for(&self, now: Instant) -> Option<Duration> {
        let mut until = self.released_until.lock();
        let left = (*until)?.saturating_duration_since(now);
        if left.is_zero() {
            *until = None;
        }
        until.map(|_| left)
    }

    fn set_released_until(&self, until: Option<Instant>) {
        *self.released_until.lock() = until;
        self.bell.ring();
    }
}

/// Releases and reacquires the driver for the lanes. While it is released, its library is closed and unloaded and no
/// device file is open, so that the driver can be unloaded and replaced.
#[derive(Debug, Clone)]
pub struct DriverLease(pub(super) Arc<Control>);

impl DriverLease {
    /// Releases the driver for this long from now. It is reacquired automatically.
    pub fn release(&self, duration: Duration) {
        self.0.set_released_until(Some(Instant::now() + duration));
    }

    /// Reacquires the driver at once.
    pub fn reacquire(&self) {
        self.0.set_released_until(None);
    }

    /// Whether the driver must stay released now.
    pub fn is_released(&self) -> bool {
        self.0.released_for(Instant::now()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_ends_by_itself_or_on_request() {
        let control = Arc::new(Control::new(Bell::new().unwrap()));
        let lease = DriverLease(control.clone());
        let now = Instant::now();
        assert_eq!(control.released_for(now), None);
        lease.release(Duration::from_secs(60));
        assert!(control.released_for(now).is_some_and(|left| left >= Duration::from_secs(60)));
        assert_eq!(control.released_for(now + Duration::from_secs(120)), None, "the release has expired");
        assert_eq!(control.released_for(now), None, "and stays expired");
        lease.release(Duration::from_secs(60));
        assert!(lease.is_released());
        lease.reacquire();
        assert!(!lease.is_released());
    }
}
