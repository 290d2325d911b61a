//! Driver calls that do not return: detected by the supervisor, which abandons their threads.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// No call is under way.
const IDLE: u64 = 0;
/// The thread was abandoned, and another continues in its place.
const SUPERSEDED: u64 = 1;

/// The driver calls of one worker thread, as its supervisor sees them.
#[derive(Debug)]
pub(super) struct Watch {
    base: Instant,
    /// [`IDLE`], [`SUPERSEDED`], or the time at which the current call began, in nanoseconds after `base`.
    state: AtomicU64,
    slot: AtomicUsize,
}

/// Another thread took over because the call of this thread did not return within its limit, so this thread must end
/// without touching anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Superseded {
    /// The slot of the call that hung.
    pub(super) slot: usize,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { base: Instant::now(), state: AtomicU64::new(IDLE), slot: AtomicUsize::new(0) }
    }

    /// Makes a driver call and records its slot number, such as a GPU's position.
    pub(super) fn call<T>(&self, slot: usize, body: impl FnOnce() -> T) -> Result<T, Superseded> {
        let began = self.now();
        self.slot.store(slot, Ordering::Relaxed);
        self.state.store(began, Ordering::Release);
        let answer = body();
        match self.state.compare_exchange(began, IDLE, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(answer),
            Err(_) => Err(Superseded { slot }),
        }
    }

    /// Supersedes the thread if its call has been under way for longer than the limit, and returns the call's slot.
    pub(super) fn give_up_after(&self, limit: Duration) -> Option<usize> {
        let began = self.state.load(Ordering::Acquire);
        if began <= SUPERSEDED || Duration::from_nanos(self.now().saturating_sub(began)) <= limit {
            return None;
        }
        let slot = self.slot.load(Ordering::Relaxed);
        self.state.compare_exchange(began, SUPERSEDED, Ordering::AcqRel, Ordering::Acquire).ok().map(|_| slot)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX).max(SUPERSEDED + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_call_within_its_limit_is_left_alone() {
        let watch = Watch::new();
        assert_eq!(watch.give_up_after(Duration::ZERO), None);
        assert_eq!(watch.call(3, || watch.give_up_after(Duration::from_secs(60))), Ok(None));
    }

    #[test]
    fn a_hanging_call_is_given_up_once_and_its_thread_sees_it() {
        let watch = &Watch::new();
        let (release, wait) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let stuck = scope.spawn(move || watch.call(5, || wait.recv().unwrap()));
            let given_up = std::iter::repeat_with(|| watch.give_up_after(Duration::from_nanos(1)));
            assert_eq!(given_up.flatten().next(), Some(5));
            assert_eq!(watch.give_up_after(Duration::ZERO), None);
            release.send(()).unwrap();
            assert_eq!(stuck.join().unwrap(), Err(Superseded { slot: 5 }));
        });
    }
}
