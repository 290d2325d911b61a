//! Driver calls that are slow or do not return: detected by the supervisor, which leaves a slow GPU to the thread that is
//! in the call, and abandons a thread whose call does not return.
//!
//! Invariant: the supervisor and the thread agree on each call: it returned in time, it was left to its thread, or its
//! thread was superseded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::bell::Bell;
use crate::snapshot::Lane;

/// No call is under way.
const IDLE: u64 = 0;
/// The thread was abandoned because its call hangs, and another continues in its place.
const SUPERSEDED: u64 = 1;
/// Added to the time at which a call began when its slot is left to the thread.
const LEFT: u64 = 1 << 63;
/// Added to it when the thread is abandoned in a slow call, because its session was replaced.
const OUTLIVED: u64 = 1 << 62;
/// The thread has no slot of its own.
const SHARED: usize = usize::MAX;
/// How long after its limit a call is looked at, because it must have exceeded the limit.
pub(super) const LATE: Duration = Duration::from_millis(1);

/// Which slots a thread of a lane serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// All slots that no other thread of the lane has for itself.
    Shared,
    /// Only this slot, whose calls are slow.
    Own(usize),
}

/// The driver calls of one worker thread, as its supervisor sees them.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) lane: Lane,
    /// A call that takes longer than this is slow.
    slow_after: Duration,
    base: Instant,
    /// [`IDLE`], [`SUPERSEDED`], or the time at which the current call began, in nanoseconds after `base`, possibly with
    /// [`LEFT`] and [`OUTLIVED`].
    state: AtomicU64,
    slot: AtomicUsize,
    /// The thread's own slot, or [`SHARED`]. Written by the thread alone.
    own: AtomicUsize,
    /// The number of calls for the own slot since the last slow one.
    quick: AtomicU32,
    /// When the current round of calls began, in nanoseconds after `base`; 0 if the thread rests.
    round: AtomicU64,
    /// Wakes the supervisor; `None` if there is none.
    bell: Option<Arc<Bell>>,
}

/// A call that is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnderWay {
    state: u64,
    pub(super) slot: usize,
}

/// Another thread took over during a call of this thread, so this thread must end without touching anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Superseded {
    /// The slot of the call.
    pub(super) slot: usize,
    pub(super) why: Why,
}

/// Why another thread took over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The call did not return within its limit.
    Hung,
    /// The session was replaced during a slow call.
    Outlived,
}

impl Watch {
    pub(super) fn new(lane: Lane, role: Role, slow_after: Duration) -> Self {
        let own = match role {
            Role::Shared => SHARED,
            Role::Own(slot) => slot,
        };
        Self {
            lane,
            slow_after,
            base: Instant::now(),
            state: AtomicU64::new(IDLE),
            slot: AtomicUsize::new(0),
            own: AtomicUsize::new(own),
            quick: AtomicU32::new(0),
            round: AtomicU64::new(0),
            bell: None,
        }
    }

    /// The watch whose rounds set the lane's alarm.
    pub(super) fn ringing(self, bell: Arc<Bell>) -> Self {
        Self { bell: Some(bell), ..self }
    }

    /// Begins a round of calls. Unless another begins, or the thread rests, before a call can be slow, the supervisor looks at
    /// the thread.
    pub(super) fn begin_round(&self) {
        if let Some(bell) = self.shared_bell() {
            self.round.store(self.now(), Ordering::Relaxed);
            bell.ring_after(self.lane, self.slow_after + LATE);
        }
    }

    /// Ends a round that no other follows soon.
    pub(super) fn rest(&self) {
        if let Some(bell) = self.shared_bell() {
            self.round.store(0, Ordering::Relaxed);
            bell.stop_alarm(self.lane);
        }
    }

    /// The bell, if slow calls of the thread delay other GPUs.
    fn shared_bell(&self) -> Option<&Bell> {
        self.bell.as_deref().filter(|_| self.role() == Role::Shared)
    }

    /// What the thread serves. It changes only during a call of the thread.
    pub(super) fn role(&self) -> Role {
        match self.own.load(Ordering::Relaxed) {
            SHARED => Role::Shared,
            slot => Role::Own(slot),
        }
    }

    /// The number of calls for the thread's own slot since the last slow one.
    pub(super) fn quick_calls(&self) -> u32 {
        self.quick.load(Ordering::Relaxed)
    }

    /// Makes a driver call and records its slot number, such as a GPU's position.
    pub(super) fn call<T>(&self, slot: usize, body: impl FnOnce() -> T) -> Result<T, Superseded> {
        let began = self.now();
        self.slot.store(slot, Ordering::Relaxed);
        self.state.store(began, Ordering::Release);
        let answer = body();
        let ended = |from| self.state.compare_exchange(from, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if ended(began) {
            if self.own.load(Ordering::Relaxed) == slot {
                self.count(began);
            }
            return Ok(answer);
        }
        if ended(began | LEFT) {
            self.own.store(slot, Ordering::Relaxed);
            return Ok(answer);
        }
        let why = if ended(began | LEFT | OUTLIVED) { Why::Outlived } else { Why::Hung };
        Err(Superseded { slot, why })
    }

    /// Counts a call for the own slot.
    fn count(&self, began: u64) {
        let is_quick = Duration::from_nanos(self.now().saturating_sub(began)) <= self.slow_after;
        let quick = if is_quick { self.quick.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.quick.store(quick, Ordering::Relaxed);
    }

    /// The call that has been under way for longer than the limit.
    pub(super) fn hanging(&self, limit: Duration) -> Option<UnderWay> {
        let state = self.under_way_for(limit)?;
        Some(UnderWay { state, slot: self.slot.load(Ordering::Relaxed) })
    }

    /// The call that is slow.
    pub(super) fn slow(&self) -> Option<UnderWay> {
        self.hanging(self.slow_after)
    }

    /// Supersedes the thread, unless the call has returned in the meantime. Returns whether it is superseded.
    pub(super) fn supersede(&self, call: UnderWay) -> bool {
        self.settle(call.state, SUPERSEDED).is_some()
    }

    /// Abandons the thread, whose session is replaced, unless the call has returned in the meantime. Returns whether it is
    /// abandoned. It may still be superseded.
    pub(super) fn outlive(&self, call: UnderWay) -> bool {
        self.settle(call.state, call.state | LEFT | OUTLIVED).is_some()
    }

    /// Whether no call is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.state.load(Ordering::Acquire) == IDLE
    }

    /// How much longer the current call may take before it counts as hanging; `None` if no call is under way.
    pub(super) fn until_hanging(&self, limit: Duration) -> Option<Duration> {
        let state = self.state.load(Ordering::Acquire);
        (state > SUPERSEDED).then(|| limit.saturating_sub(self.since(state)))
    }

    /// Whether the current round of calls has lasted for longer than a call may, so that its alarm has gone off.
    pub(super) fn is_round_long(&self) -> bool {
        let round = self.round.load(Ordering::Relaxed);
        round != 0 && self.since(round) > self.slow_after
    }

    /// Leaves a slow call's slot to the thread, which serves nothing else from then on, and returns the slot. `None` if
    /// the thread is in no slow call.
    pub(super) fn leave_slow(&self) -> Option<usize> {
        let state = self.under_way_for(self.slow_after).filter(|state| state & LEFT == 0)?;
        self.settle(state, state | LEFT)
    }

    /// How much longer the current call may take before it is slow; `None` if no call is under way.
    pub(super) fn until_slow(&self) -> Option<Duration> {
        let state = self.state.load(Ordering::Acquire);
        (state > SUPERSEDED && state & LEFT == 0).then(|| self.slow_after.saturating_sub(self.since(state)))
    }

    /// How much longer than its limit the current call has taken; `None` if it is not slow.
    pub(super) fn slow_for(&self) -> Option<Duration> {
        let state = self.under_way_for(self.slow_after).filter(|state| state & LEFT == 0)?;
        Some(self.since(state) - self.slow_after)
    }

    /// The state, if a call has been under way for longer than the limit.
    fn under_way_for(&self, limit: Duration) -> Option<u64> {
        let state = self.state.load(Ordering::Acquire);
        (state > SUPERSEDED && self.since(state) > limit).then_some(state)
    }

    /// Replaces the state of the current call, unless the call has returned, and returns the call's slot.
    fn settle(&self, state: u64, next: u64) -> Option<usize> {
        let slot = self.slot.load(Ordering::Relaxed);
        self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire).ok().map(|_| slot)
    }

    fn since(&self, state: u64) -> Duration {
        Duration::from_nanos(self.now().saturating_sub(state & !(LEFT | OUTLIVED)))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX).max(SUPERSEDED + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    impl Watch {
        fn give_up_after(&self, limit: Duration) -> Option<usize> {
            self.hanging(limit).filter(|&call| self.supersede(call)).map(|call| call.slot)
        }

        fn outlive_slow(&self) -> Option<usize> {
            self.slow().filter(|&call| self.outlive(call)).map(|call| call.slot)
        }
    }

    fn shared(slow_after: Duration) -> Watch {
        Watch::new(Lane::Memory, Role::Shared, slow_after)
    }

    #[test]
    fn a_call_within_its_limit_is_left_alone() {
        let watch = shared(MINUTE);
        assert_eq!((watch.give_up_after(Duration::ZERO), watch.leave_slow(), watch.until_slow()), (None, None, None));
        assert_eq!(watch.call(3, || watch.give_up_after(MINUTE)), Ok(None));
        assert_eq!(watch.call(3, || watch.leave_slow()), Ok(None));
        assert!(watch.call(3, || watch.until_slow()).unwrap() > Some(MINUTE / 2));
        assert_eq!(watch.role(), Role::Shared);
    }

    /// Makes a call for slot 4 that is slow.
    fn slow_call<T>(watch: &Watch, body: impl FnOnce() -> T) -> Result<T, Superseded> {
        watch.call(4, || {
            std::thread::sleep(Duration::from_millis(1));
            body()
        })
    }

    #[test]
    fn a_slow_call_makes_its_slot_the_thread_s_own_and_its_answer_counts() {
        let watch = shared(Duration::from_nanos(1));
        assert_eq!(slow_call(&watch, || (watch.leave_slow(), watch.leave_slow())), Ok((Some(4), None)));
        assert_eq!(watch.role(), Role::Own(4));
        // The thread may still hang in a later call, or in the one that it was left in.
        let hung = Superseded { slot: 4, why: Why::Hung };
        assert_eq!(slow_call(&watch, || watch.give_up_after(Duration::ZERO)), Err(hung));
        let watch = shared(Duration::from_nanos(1));
        let hangs = slow_call(&watch, || (watch.leave_slow(), watch.give_up_after(Duration::ZERO)));
        assert_eq!(hangs, Err(hung));
        assert_eq!(watch.role(), Role::Shared, "a superseded thread owns nothing");
    }

    #[test]
    fn a_session_that_is_replaced_abandons_slow_calls_alone() {
        let superseded = |why| Err(Superseded { slot: 4, why });
        let watch = shared(Duration::from_nanos(1));
        let outlived = slow_call(&watch, || (watch.leave_slow(), watch.outlive_slow()));
        assert_eq!((outlived, watch.role()), (superseded(Why::Outlived), Role::Shared));
        assert!(watch.is_idle() && watch.slow().is_none() && watch.until_slow().is_none());
        // It may turn out to hang.
        let hung = slow_call(&watch, || (watch.outlive_slow(), watch.give_up_after(Duration::ZERO)));
        assert_eq!((hung, watch.is_idle()), (superseded(Why::Hung), false));
        let watch = shared(MINUTE);
        assert_eq!(watch.call(3, || watch.outlive_slow()), Ok(None));
    }

    #[test]
    fn a_round_sets_the_alarm_of_a_shared_thread_and_a_rest_stops_it() {
        let bell = Arc::new(Bell::new().unwrap());
        let watch = shared(Duration::ZERO).ringing(bell.clone());
        watch.begin_round();
        bell.wait(MINUTE);
        assert!(watch.is_round_long(), "the alarm went off within the round");
        watch.begin_round();
        watch.rest();
        assert!(!bell.rings() && !watch.is_round_long());
        let own = Watch::new(Lane::Memory, Role::Own(4), Duration::ZERO).ringing(bell.clone());
        own.begin_round();
        assert!(!bell.rings(), "it delays nobody");
        let relaxed = shared(MINUTE).ringing(bell.clone());
        relaxed.begin_round();
        assert!(!bell.rings() && !relaxed.is_round_long());
    }

    #[test]
    fn calls_are_quick_until_one_is_slow() {
        let watch = Watch::new(Lane::Memory, Role::Own(4), MINUTE);
        (0..3).for_each(|_| watch.call(4, || ()).unwrap());
        watch.call(5, || ()).unwrap();
        assert_eq!(watch.quick_calls(), 3, "a call for another slot says nothing about this one");
        let watch = Watch { slow_after: Duration::from_micros(100), ..watch };
        slow_call(&watch, || ()).unwrap();
        assert_eq!(watch.quick_calls(), 0);
    }

    #[test]
    fn a_hanging_call_is_given_up_once_and_its_thread_sees_it() {
        let watch = &shared(MINUTE);
        let (release, wait) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let stuck = scope.spawn(move || watch.call(5, || wait.recv().unwrap()));
            let given_up = std::iter::repeat_with(|| watch.give_up_after(Duration::from_nanos(1)));
            assert_eq!(given_up.flatten().next(), Some(5));
            assert_eq!(watch.give_up_after(Duration::ZERO), None);
            release.send(()).unwrap();
            assert_eq!(stuck.join().unwrap(), Err(Superseded { slot: 5, why: Why::Hung }));
        });
    }
}
