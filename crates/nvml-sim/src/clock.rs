//! Scenario time: nanoseconds since scenario time zero, which may be before the start of this process.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A scenario time or a time span, in nanoseconds.
pub type Nanos = i64;

/// A second.
pub const SECOND: Nanos = 1_000_000_000;

/// Unix time of the scenario's zero, in nanoseconds.
static ZERO: AtomicI64 = AtomicI64::new(0);

/// The current Unix time, in nanoseconds.
pub(crate) fn unix_now() -> Nanos {
    // The system clock is assumed to be between 1970 and 2262.
    SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|d| Nanos::try_from(d.as_nanos()).ok()).unwrap_or(0)
}

/// Sets the scenario's zero.
pub(crate) fn set_zero(unix: Nanos) {
    ZERO.store(unix, Ordering::Relaxed);
}

/// Unix time of the scenario's zero.
pub(crate) fn zero() -> Nanos {
    ZERO.load(Ordering::Relaxed)
}

/// The scenario time now, never before its zero.
pub(crate) fn now() -> Nanos {
    (unix_now() - zero()).max(0)
}
