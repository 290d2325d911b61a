//! What became of the pushes to an OTLP receiver.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The counts of pushes since the exporter started. `otlp` writes them, and `metrics` reads them.
#[derive(Debug, Default)]
pub struct Pushes {
    delivered: AtomicU64,
    dropped: AtomicU64,
    rejected_points: AtomicU64,
    /// In milliseconds since the Unix epoch; 0 before the first.
    last_delivery: AtomicU64,
}

impl Pushes {
    /// Counts a push that the receiver accepted, and the points in it that it rejected.
    pub fn delivered(&self, at: SystemTime, rejected_points: u64) {
        let millis = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis();
        self.delivered.fetch_add(1, Ordering::Relaxed);
        self.rejected_points.fetch_add(rejected_points, Ordering::Relaxed);
        self.last_delivery.store(millis.try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Counts a push that was not delivered and is not tried again.
    pub fn dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// The pushes that were delivered, and those that were dropped.
    pub fn counts(&self) -> [u64; 2] {
        [&self.delivered, &self.dropped].map(|count| count.load(Ordering::Relaxed))
    }

    /// The points that the receiver rejected in pushes that it accepted.
    pub fn rejected_points(&self) -> u64 {
        self.rejected_points.load(Ordering::Relaxed)
    }

    /// When the last push was delivered, as the time since the Unix epoch; `None` before the first.
    pub fn last_delivery(&self) -> Option<Duration> {
        Some(self.last_delivery.load(Ordering::Relaxed)).filter(|&millis| millis > 0).map(Duration::from_millis)
    }
}
