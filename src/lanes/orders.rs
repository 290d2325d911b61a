//! What the lanes are told from outside: to end, to let the driver go for a while, to take it up again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The orders that stand.
#[derive(Debug, Default)]
pub(super) struct Orders {
    stop: AtomicBool,
    away_until: Mutex<Option<Instant>>,
    /// Who is to be woken by an order.
    listener: OnceLock<Thread>,
}

impl Orders {
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
    pub(super) fn away(&self, now: Instant) -> Option<Duration> {
        let mut until = self.away_until.lock().unwrap_or_else(PoisonError::into_inner);
        let left = (*until)?.saturating_duration_since(now);
        if left.is_zero() {
            *until = None;
        }
        until.map(|_| left)
    }

    fn set_away(&self, until: Option<Instant>) {
        *self.away_until.lock().unwrap_or_else(PoisonError::into_inner) = until;
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
pub struct Grip(Arc<Orders>);

impl Grip {
    pub(super) fn new(orders: Arc<Orders>) -> Self {
        Self(orders)
    }

    /// Lets the driver go for so long, counted from now. It is taken up again by itself.
    pub fn let_go(&self, span: Duration) {
        self.0.set_away(Some(Instant::now() + span));
    }

    /// Takes the driver up again at once.
    pub fn take_up(&self) {
        self.0.set_away(None);
    }

    /// Whether the driver is to be left alone now.
    pub fn is_let_go(&self) -> bool {
        self.0.away(Instant::now()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_to_let_go_ends_by_itself_or_by_another_order() {
        let orders = Arc::new(Orders::default());
        let grip = Grip::new(orders.clone());
        let now = Instant::now();
        assert_eq!(orders.away(now), None);
        grip.let_go(Duration::from_secs(60));
        assert!(orders.away(now).is_some_and(|left| left >= Duration::from_secs(60)));
        assert_eq!(orders.away(now + Duration::from_secs(120)), None, "the time is over");
        assert_eq!(orders.away(now), None, "and what is over does not come back");
        grip.let_go(Duration::from_secs(60));
        assert!(grip.is_let_go());
        grip.take_up();
        assert!(!grip.is_let_go());
    }
}
