//! What all responses in progress hold together: their number, bytes of memory, and threads that write.
//!
//! Invariants: the sum never exceeds the limit. A share is given back when it is dropped. Of those that wait, the next
//! one is the one whose origin holds least; within an origin, the one that has waited longest.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::origin::Origin;

/// An amount of what can be held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// The number of responses.
    pub(super) responses: usize,
    /// Bytes of memory.
    pub(super) bytes: usize,
    /// Threads that write a long response.
    pub(super) writers: usize,
}

impl Load {
    fn plus(self, more: Self) -> Self {
        Self {
            responses: self.responses + more.responses,
            bytes: self.bytes.saturating_add(more.bytes),
            writers: self.writers + more.writers,
        }
    }

    fn minus(self, less: Self) -> Self {
        Self {
            responses: self.responses - less.responses,
            bytes: self.bytes - less.bytes,
            writers: self.writers - less.writers,
        }
    }

    fn fits(self, limit: Self) -> bool {
        self.responses <= limit.responses && self.bytes <= limit.bytes && self.writers <= limit.writers
    }

    /// The largest of its parts of the limit, in millionths.
    fn part_of(self, limit: Self) -> usize {
        let part = |held: usize, limit: usize| held.saturating_mul(1_000_000) / limit.max(1);
        let (responses, bytes) = (part(self.responses, limit.responses), part(self.bytes, limit.bytes));
        responses.max(bytes).max(part(self.writers, limit.writers))
    }
}

/// The limit, what is held, and who waits.
#[derive(Debug)]
pub(super) struct Shares {
    limit: Load,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: Load,
    /// Only origins that hold something.
    by_origin: HashMap<Origin, Load>,
    next_ticket: u64,
    /// In the order in which they began to wait.
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    origin: Origin,
    load: Load,
    turn: oneshot::Sender<Share>,
}

/// A part of the limit, held until it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    origin: Origin,
    load: Load,
    shares: Arc<Shares>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.give_back(self.origin, self.load);
    }
}

/// A place among those that wait, given up when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    ticket: u64,
    turn: oneshot::Receiver<Share>,
    shares: Arc<Shares>,
}

impl Place {
    /// Waits for the share. `None` is never returned while the place is kept.
    pub(super) async fn turn(&mut self) -> Option<Share> {
        (&mut self.turn).await.ok()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.shares.state.lock();
        state.waiting.retain(|waiting| waiting.ticket != self.ticket);
        // The others may have waited for this one.
        self.shares.grant(state);
    }
}

impl Shares {
    pub(super) fn new(limit: Load) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default() })
    }

    /// Takes a share if it is free and no one waits.
    pub(super) fn try_take(self: &Arc<Self>, origin: Origin, load: Load) -> Option<Share> {
        let mut state = self.state.lock();
        let is_free = state.waiting.is_empty() && state.held.plus(load).fits(self.limit);
        is_free.then(|| self.take(&mut state, origin, load))
    }

    /// Waits for a share; `None` if it is larger than the limit.
    pub(super) fn wait(self: &Arc<Self>, origin: Origin, load: Load) -> Option<Place> {
        if !load.fits(self.limit) {
            return None;
        }
        let (turn, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push(Waiting { ticket, origin, load, turn });
        self.grant(state);
        Some(Place { ticket, turn: receiver, shares: self.clone() })
    }

    /// How many responses an origin has in progress.
    pub(super) fn responses_of(&self, origin: Origin) -> usize {
        self.state.lock().by_origin.get(&origin).map_or(0, |held| held.responses)
    }

    /// How many responses are in progress.
    pub(super) fn responses(&self) -> usize {
        self.state.lock().held.responses
    }

    fn take(self: &Arc<Self>, state: &mut State, origin: Origin, load: Load) -> Share {
        state.held = state.held.plus(load);
        let held = state.by_origin.entry(origin).or_default();
        *held = held.plus(load);
        Share { origin, load, shares: self.clone() }
    }

    fn give_back(self: &Arc<Self>, origin: Origin, load: Load) {
        let mut state = self.state.lock();
        state.held = state.held.minus(load);
        if let Some(held) = state.by_origin.get_mut(&origin) {
            *held = held.minus(load);
            if *held == Load::default() {
                state.by_origin.remove(&origin);
            }
        }
        self.grant(state);
    }

    /// Gives the next ones their shares, for as long as there is room. A large share is waited for, so that small ones
    /// cannot delay it forever.
    fn grant(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        // The shares of those that no longer wait. Dropping one needs the lock.
        let mut unwanted = Vec::new();
        while let Some(next) = self.next(&state) {
            if !state.held.plus(state.waiting[next].load).fits(self.limit) {
                break;
            }
            let Waiting { origin, load, turn, .. } = state.waiting.remove(next);
            let share = self.take(&mut state, origin, load);
            unwanted.extend(turn.send(share).err());
        }
        drop(state);
        drop(unwanted);
    }

    fn next(&self, state: &State) -> Option<usize> {
        let part = |origin: &Origin| state.by_origin.get(origin).map_or(0, |held| held.part_of(self.limit));
        let waiting = state.waiting.iter().enumerate();
        waiting.min_by_key(|(_, waiting)| (part(&waiting.origin), waiting.ticket)).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use futures_util::FutureExt as _;

    use super::*;

    const ONE: Load = Load { responses: 1, bytes: 10, writers: 0 };

    fn origin(last: u8) -> Origin {
        SocketAddr::from(([10, 0, 0, last], 1)).into()
    }

    fn shares(responses: usize, bytes: usize) -> Arc<Shares> {
        Shares::new(Load { responses, bytes, writers: 1 })
    }

    #[test]
    fn the_sum_of_all_shares_stays_within_each_limit() {
        let shares = shares(3, 25);
        let first = shares.try_take(origin(1), ONE).unwrap();
        let _second = shares.try_take(origin(1), ONE).unwrap();
        assert!(shares.try_take(origin(2), ONE).is_none(), "the bytes are used up");
        assert!(shares.try_take(origin(2), Load { bytes: 5, ..ONE }).is_some());
        let writer = Load { writers: 1, ..Load::default() };
        let writing = shares.try_take(origin(2), writer).unwrap();
        assert!(shares.try_take(origin(2), writer).is_none());
        drop((first, writing));
        assert!(shares.try_take(origin(2), Load { writers: 1, ..ONE }).is_some());
        assert!(shares.wait(origin(2), Load { bytes: 26, ..ONE }).is_none(), "it could never be free");
        assert_eq!(shares.responses_of(origin(1)), 1);
    }

    #[test]
    fn the_origin_that_holds_least_is_next_and_no_one_overtakes_a_large_share() {
        let shares = shares(3, 100);
        let mut held: Vec<_> = (0..3).map(|_| shares.try_take(origin(1), ONE).unwrap()).collect();
        let mut greedy: Vec<_> = (0..5).map(|_| shares.wait(origin(1), ONE).unwrap()).collect();
        let mut honest = shares.wait(origin(2), ONE).unwrap();
        held.pop();
        assert!(greedy.iter_mut().all(|place| place.turn().now_or_never().is_none()));
        let honest = honest.turn().now_or_never().unwrap().unwrap();
        assert!(shares.try_take(origin(3), ONE).is_none(), "the others wait");
        drop(honest);
        let first = greedy[0].turn().now_or_never().unwrap().unwrap();
        assert!(greedy[1].turn().now_or_never().is_none(), "they have their turn in the order in which they came");
        drop((greedy, first));
        held.clear();
        let small = shares.try_take(origin(1), Load { bytes: 60, ..Load::default() }).unwrap();
        let mut large = shares.wait(origin(2), Load { bytes: 50, ..Load::default() }).unwrap();
        let mut little = shares.wait(origin(2), ONE).unwrap();
        assert!(large.turn().now_or_never().is_none() && little.turn().now_or_never().is_none());
        drop(small);
        assert!(large.turn().now_or_never().is_some() && little.turn().now_or_never().is_some());
    }

    #[test]
    fn a_place_that_is_given_up_keeps_nothing() {
        let shares = shares(1, 100);
        let held = shares.try_take(origin(1), ONE).unwrap();
        let given_up = shares.wait(origin(2), ONE).unwrap();
        let mut next = shares.wait(origin(3), ONE).unwrap();
        drop(given_up);
        drop(held);
        drop(next.turn().now_or_never().unwrap().unwrap());
        let granted_and_dropped = {
            let held = shares.try_take(origin(1), ONE).unwrap();
            let place = shares.wait(origin(2), ONE).unwrap();
            drop(held);
            place
        };
        drop(granted_and_dropped);
        assert_eq!(shares.responses(), 0);
    }
}
