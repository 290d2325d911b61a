//! Where the one who asks and the one who reads meet.
//!
//! A round of questions is handed over under one lock and its answers are taken under one lock, so that many new
//! processes cost two changes of threads and not two for each.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Ask, Glimpse, ReadError, Reading};

/// Before a process is said to hang, its reader gets so much more: all threads may have stood still together.
const GRACE: Duration = Duration::from_millis(20);

/// The answers of a round, by pid.
pub(super) type Answers = Vec<(u32, Result<Reading, ReadError>)>;

/// One reader's desk.
#[derive(Debug, Default)]
pub(super) struct Desk {
    state: Mutex<State>,
    asked: Condvar,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct State {
    asks: VecDeque<Ask>,
    under_way: Option<UnderWay>,
    answers: Answers,
    /// Nobody waits for the reader any longer.
    closed: bool,
    /// The reader has ended, by a panic too.
    ended: bool,
}

#[derive(Debug)]
struct UnderWay {
    pid: u32,
    since: Instant,
    glimpse: Option<Glimpse>,
    /// Its round is over: nobody takes the answer, which may be of another process by the next round.
    late: bool,
}

impl Desk {
    /// Asks, and waits until all is answered or the deadline has come. Then a process that has been read for `hangs` is
    /// one that hangs: it is given with what was seen of it, and the desk is closed.
    pub(super) fn ask(
        &self,
        asks: Vec<Ask>,
        mut deadline: Instant,
        hangs: Duration,
    ) -> (Answers, Option<(u32, Option<Glimpse>)>) {
        let mut state = self.state();
        let mut graced = false;
        state.asks.extend(asks);
        self.asked.notify_one();
        while !state.ended && (state.under_way.is_some() || !state.asks.is_empty()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let hanging = state.under_way.as_ref().is_some_and(|under_way| under_way.since.elapsed() >= hangs);
                if graced || !hanging {
                    break;
                }
                (graced, deadline) = (true, Instant::now() + GRACE);
                continue;
            }
            state = self.answered.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        // Who was not read in time is asked for again when it is next looked for.
        state.asks.clear();
        let hung = state.under_way.take_if(|under_way| under_way.since.elapsed() >= hangs);
        state.closed |= hung.is_some();
        if let Some(under_way) = &mut state.under_way {
            under_way.late = true;
        }
        (std::mem::take(&mut state.answers), hung.map(|hung| (hung.pid, hung.glimpse)))
    }

    /// The next question; waits for it. `None` once nobody asks any longer.
    pub(super) fn next(&self) -> Option<Ask> {
        let mut state = self.state();
        while !state.closed {
            if let Some(ask) = state.asks.pop_front() {
                state.under_way = Some(UnderWay { pid: ask.pid, since: Instant::now(), glimpse: None, late: false });
                return Some(ask);
            }
            state = self.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// What was seen of the process so far.
    pub(super) fn note(&self, glimpse: Glimpse) {
        if let Some(under_way) = &mut self.state().under_way {
            under_way.glimpse = Some(glimpse);
        }
    }

    /// Answers the question that is under way.
    pub(super) fn answer(&self, pid: u32, answer: Result<Reading, ReadError>) {
        let mut state = self.state();
        let late = state.under_way.take().is_some_and(|under_way| under_way.late);
        if !state.closed && !late {
            state.answers.push((pid, answer));
        }
        if state.asks.is_empty() {
            self.answered.notify_one();
        }
    }

    /// Lets the reader go home.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.asked.notify_one();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().ended
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the end of the reader when it is dropped.
pub(super) struct End<'d>(pub(super) &'d Desk);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        (state.ended, state.under_way) = (true, None);
        self.0.answered.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_comes_after_its_round_is_nobodys() {
        let gone = || Err(ReadError::gone("/nonexistent".into()));
        let desk = Desk::default();
        let take = |pid| {
            desk.state().asks.push_back(Ask { pid, hold: false, cmdline: true });
            assert_eq!(desk.next().map(|ask| ask.pid), Some(pid));
        };
        let round = || desk.ask(Vec::new(), Instant::now(), Duration::from_secs(60));
        take(1);
        let (answers, hung) = round();
        assert!(answers.is_empty() && hung.is_none());
        desk.answer(1, gone());
        assert!(round().0.is_empty());
        take(2);
        desk.answer(2, gone());
        assert_eq!(round().0.len(), 1);
    }
}
