//! Who may have a password checked next.
//!
//! Invariants: one password is checked at a time, and a bounded number wait. Of those that wait, the next one is that of
//! the client whose passwords were checked least often of late; within a client, the one that has waited longest. When
//! there is no room, the client with the most places loses its newest one to a client with fewer.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// How many passwords may wait to be checked.
pub(super) const MAX_WAITING: usize = 16;
/// How many of the latest checks are remembered.
const REMEMBERED: usize = 64;

/// A client, as far as it is known.
type Client = Option<IpAddr>;

/// The check in progress, and those that wait.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_busy: bool,
    /// In the order in which they came.
    waiting: Vec<(Client, oneshot::Sender<Turn>)>,
    latest: VecDeque<Client>,
}

/// The right to have a password checked, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn(Arc<Turns>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.next();
    }
}

impl Turns {
    /// Waits for a turn; `None` if there is no room to wait, or the place is lost to another client.
    pub(super) async fn wait(self: &Arc<Self>, client: Client) -> Option<Turn> {
        let turn = {
            let mut state = self.state.lock();
            // A client that is gone needs no place.
            state.waiting.retain(|(_, turn)| !turn.is_closed());
            if !state.is_busy {
                return Some(self.begin(&mut state, client));
            }
            if state.waiting.len() >= MAX_WAITING {
                let loses = state.loses_to(client)?;
                state.waiting.remove(loses);
            }
            let (give, turn) = oneshot::channel();
            state.waiting.push((client, give));
            turn
        };
        turn.await.ok()
    }

    fn begin(self: &Arc<Self>, state: &mut State, client: Client) -> Turn {
        state.is_busy = true;
        state.latest.push_back(client);
        if state.latest.len() > REMEMBERED {
            state.latest.pop_front();
        }
        Turn(self.clone())
    }

    fn next(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.is_busy = false;
        state.waiting.retain(|(_, turn)| !turn.is_closed());
        let Some(next) = state.next() else { return };
        let (client, give) = state.waiting.remove(next);
        let turn = self.begin(&mut state, client);
        drop(state);
        // If the client has gone in this moment, the turn is dropped here, which passes it on.
        drop(give.send(turn));
    }
}

impl State {
    fn next(&self) -> Option<usize> {
        let checks = |client: Client| self.latest.iter().filter(|latest| **latest == client).count();
        (0..self.waiting.len()).min_by_key(|&index| (checks(self.waiting[index].0), index))
    }

    fn places(&self, client: Client) -> usize {
        self.waiting.iter().filter(|(waiting, _)| *waiting == client).count()
    }

    /// The newest place of the client with the most places, if it has more than this one would have.
    fn loses_to(&self, client: Client) -> Option<usize> {
        let places = |index: usize| self.places(self.waiting[index].0);
        let most = (0..self.waiting.len()).max_by_key(|&index| (places(index), index))?;
        (places(most) > self.places(client) + 1).then_some(most)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;

    use futures_util::FutureExt as _;

    use super::*;

    fn client(last: u8) -> Client {
        Some([10, 0, 0, last].into())
    }

    type Waiting = Pin<Box<dyn Future<Output = Option<Turn>>>>;

    fn begin(turns: &Arc<Turns>, who: Client) -> Waiting {
        let turns = turns.clone();
        let mut waiting: Waiting = Box::pin(async move { turns.wait(who).await });
        assert!((&mut waiting).now_or_never().is_none());
        waiting
    }

    #[test]
    fn a_new_client_is_next_whatever_another_one_does() {
        let turns = Arc::new(Turns::default());
        let turn = turns.wait(client(1)).now_or_never().unwrap().unwrap();
        let mut guessing: Vec<_> = (0..MAX_WAITING).map(|_| begin(&turns, client(1))).collect();
        assert!(turns.wait(client(1)).now_or_never().unwrap().is_none(), "there is no room for more of its own");
        let mut honest = begin(&turns, client(2));
        assert!((&mut guessing[MAX_WAITING - 1]).now_or_never().unwrap().is_none(), "the newest place is lost");
        assert!((&mut guessing[0]).now_or_never().is_none());
        drop(turn);
        let turn = (&mut honest).now_or_never().unwrap().unwrap();
        drop(turn);
        assert!((&mut guessing[0]).now_or_never().unwrap().is_some(), "then the others in their order");
    }

    #[test]
    fn clients_take_turns() {
        let turns = Arc::new(Turns::default());
        let mut turn = turns.wait(client(1)).now_or_never().unwrap().unwrap();
        let mut waiting: Vec<_> = [1, 1, 1, 2, 2, 3].into_iter().map(|who| (who, begin(&turns, client(who)))).collect();
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(turn);
            let (index, next) =
                waiting.iter_mut().enumerate().find_map(|(index, (_, w))| Some((index, w.now_or_never()?))).unwrap();
            turn = next.unwrap();
            order.push(waiting.remove(index).0);
        }
        assert_eq!(order, [2, 3, 1, 2, 1, 1]);
    }

    #[test]
    fn a_client_that_is_gone_keeps_no_place_and_no_turn() {
        let turns = Arc::new(Turns::default());
        let turn = turns.wait(client(1)).now_or_never().unwrap().unwrap();
        drop((0..MAX_WAITING).map(|_| begin(&turns, client(1))).collect::<Vec<_>>());
        let mut later = begin(&turns, client(1));
        drop(turn);
        assert!((&mut later).now_or_never().unwrap().is_some());
        drop(later);
        assert!(turns.wait(client(3)).now_or_never().unwrap().is_some());
    }
}
