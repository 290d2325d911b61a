//! Whether a lane serves a GPU with a thread of its own, because the GPU's calls are slow, and when the GPU comes back to
//! the thread that serves the others.
//!
//! Invariant: a GPU that is slow again and again costs the others ever fewer readings, because each time it stays away for
//! twice as many quick calls, up to [`MOST_CALLS`].

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The quick calls in a row after which a GPU comes back for the first time: at 100 Hz a second. Each return risks one
/// slow call, which costs the other GPUs about 50 ms, so a GPU that alternates loses them at most 5 % of one second.
const FIRST_CALLS: u32 = 100;
/// The most quick calls that are demanded: at 100 Hz a minute, so that a GPU that is slow once a minute costs the others
/// less than 0.1 % of their readings.
const MOST_CALLS: u32 = 6400;
/// A GPU that was not slow for this long after it came back starts again with [`FIRST_CALLS`].
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

/// Whether a thread of a lane serves a GPU alone.
#[derive(Debug, Default)]
pub(super) struct Apart {
    is_apart: AtomicBool,
    /// The quick calls after which the GPU comes back.
    demanded: AtomicU32,
    /// When it last came back.
    back_at: Mutex<Option<Instant>>,
    /// The threads of earlier sessions that are in a slow call of the lane for the GPU.
    pub(super) outlived: AtomicU32,
}

impl Apart {
    /// Whether the GPU is left to a thread of its own.
    pub(super) fn is_apart(&self) -> bool {
        self.is_apart.load(Ordering::Acquire)
    }

    /// Leaves the GPU to a thread of its own. Returns whether that is new.
    pub(super) fn leave(&self, now: Instant) -> bool {
        let is_again = self.back_at.lock().is_some_and(|at| now.saturating_duration_since(at) < FORGIVEN_AFTER);
        let demanded = if is_again { self.demanded.load(Ordering::Relaxed) * 2 } else { FIRST_CALLS };
        self.demanded.store(demanded.min(MOST_CALLS), Ordering::Relaxed);
        !self.is_apart.swap(true, Ordering::AcqRel)
    }

    /// Whether this many quick calls in a row are enough to come back.
    pub(super) fn is_quick(&self, calls: u32) -> bool {
        calls >= self.demanded.load(Ordering::Relaxed).max(FIRST_CALLS)
    }

    /// Gives the GPU back to the thread that serves the others. Returns whether that is new.
    pub(super) fn come_back(&self, now: Instant) -> bool {
        *self.back_at.lock() = Some(now);
        self.is_apart.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_is_slow_again_stays_away_for_longer_until_it_is_forgiven() {
        let apart = Apart::default();
        let begin = Instant::now();
        let mut demanded = Vec::new();
        for episode in 0..9 {
            let now = begin + Duration::from_secs(episode);
            assert!(apart.leave(now));
            demanded.push(apart.demanded.load(Ordering::Relaxed));
            assert!(apart.is_apart() && !apart.is_quick(demanded[demanded.len() - 1] - 1));
            assert!(apart.is_quick(demanded[demanded.len() - 1]));
            assert!(apart.come_back(now) && !apart.come_back(now) && !apart.is_apart());
        }
        assert_eq!(demanded, [100, 200, 400, 800, 1600, 3200, 6400, 6400, 6400]);
        apart.leave(begin + Duration::from_secs(8) + FORGIVEN_AFTER);
        assert_eq!(apart.demanded.load(Ordering::Relaxed), FIRST_CALLS);
    }
}
