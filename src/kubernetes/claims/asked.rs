//! What the API server is asked about claims: the slices of this node, followed from the first claim on, and each claim once.
//!
//! Invariant: a node without claims sends no request. At most [`MOST_AT_ONCE`] claims are being read at a time, and one that
//! cannot be read is asked for again after a growing pause.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pod_resources::Claim;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Problem;
use crate::backoff::{Backoff, jitter};
use crate::faults::{Faults, Reason, Source};
use crate::kubernetes::api::claim::{ClaimReader, ClaimResult};
use crate::kubernetes::api::error::Error;
use crate::kubernetes::api::slices::{Slices, follow_slices};
use crate::kubernetes::api::{self};
use crate::supervise::{PAUSE, supervise};

/// The most claims that are read at a time.
const MOST_AT_ONCE: usize = 4;
/// The pauses after a failure: each twice as long as the one before.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// The number of a request, the claim that was read, and its devices.
type Answer = (u64, Arc<Claim>, Result<Vec<ClaimResult>, Error>);

/// What a claim consumes cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("in the claim {}/{}, {what}: it is no budget", claim.namespace, claim.name)]
struct Unreadable {
    claim: Arc<Claim>,
    what: String,
}

/// The requests and their answers.
#[derive(Debug)]
pub(super) struct Asked {
    server: Option<Server>,
    /// The state of each claim that is wanted.
    claims: HashMap<Arc<Claim>, State>,
}

#[derive(Debug)]
struct Server {
    settings: api::Settings,
    faults: Arc<Faults>,
    reader: ClaimReader,
    to: watch::Sender<Arc<Slices>>,
    slices: watch::Receiver<Arc<Slices>>,
    /// Follows the slices; empty until the first claim.
    follower: JoinSet<()>,
    reading: JoinSet<Answer>,
    /// How many claims have been asked for.
    requests: u64,
}

#[derive(Debug)]
enum State {
    /// To be asked for. After failures, not before this time.
    Wanted {
        at: Instant,
        pauses: Backoff,
        last: Option<Error>,
    },
    /// The answer is awaited.
    Reading {
        pauses: Backoff,
        last: Option<Error>,
        /// The number of the request. An earlier one may be answered with an earlier claim of the same name.
        request: u64,
    },
    Read {
        results: Vec<ClaimResult>,
        pauses: Backoff,
    },
}

impl State {
    /// Has the claim read after a pause.
    fn again(&mut self) {
        let (pauses, last) = match self {
            Self::Wanted { .. } => return,
            Self::Reading { pauses, last, .. } => (pauses, last.take()),
            Self::Read { pauses, .. } => (pauses, None),
        };
        let at = Instant::now() + jitter(pauses.next_pause());
        *self = Self::Wanted { at, pauses: *pauses, last };
    }
}

impl Asked {
    pub(super) fn new(settings: Option<api::Settings>, faults: Arc<Faults>) -> Self {
        let server = settings.map(|settings| {
            let (to, slices) = watch::channel(Arc::default());
            let reader = ClaimReader::new(&settings);
            let (follower, reading) = (JoinSet::new(), JoinSet::new());
            Server { settings, faults, reader, to, slices, follower, reading, requests: 0 }
        });
        Self { server, claims: HashMap::new() }
    }

    pub(super) fn has_server(&self) -> bool {
        self.server.is_some()
    }

    /// Whether no claim is known.
    pub(super) fn is_idle(&self) -> bool {
        self.claims.is_empty()
    }

    /// Starts to follow the slices, unless they are followed already.
    pub(super) fn follow_slices(&mut self) {
        let Some(Server { settings, faults, to, follower, .. }) = &mut self.server else { return };
        if follower.is_empty() {
            let (settings, to, raised) = (settings.clone(), to.clone(), faults.clone());
            let faults = faults.clone();
            let start = move || follow_slices(settings.clone(), to.clone(), faults.clone());
            let panicked = move |error: &dyn std::error::Error| {
                raised.raise(Source::ResourceClaims, Reason::Panicked, None, error)
            };
            follower.spawn(supervise(start, panicked, PAUSE));
        }
    }

    /// For a follower of the slices other than the one of [`Asked::follow_slices`].
    pub(super) fn publisher(&self) -> watch::Sender<Arc<Slices>> {
        self.server.as_ref().map_or_else(|| watch::channel(Arc::default()).0, |server| server.to.clone())
    }

    /// Takes over the devices of a claim in place of an answer. False if the claim is not wanted.
    pub(super) fn hear(&mut self, claim: &Claim, results: Vec<ClaimResult>) -> bool {
        let state = self.claims.get_mut(claim);
        state.map(|state| *state = State::Read { results, pauses: PAUSES }).is_some()
    }

    /// The slices as they are known now.
    pub(super) fn slices(&mut self) -> Arc<Slices> {
        self.server.as_mut().map_or_else(Arc::default, |server| server.slices.borrow_and_update().clone())
    }

    /// The devices of a claim, if it has been read.
    pub(super) fn results(&mut self, claim: &Arc<Claim>, now: Instant) -> Result<&[ClaimResult], Problem> {
        let new = || State::Wanted { at: now, pauses: PAUSES, last: None };
        match self.claims.entry(claim.clone()).or_insert_with(new) {
            State::Read { results, .. } => Ok(results),
            State::Wanted { last, .. } | State::Reading { last, .. } => Err(match last.clone() {
                None => Problem::Unread,
                // This becomes a fault only after a time in which any server has started.
                Some(Error::NotYetAllowed(text)) => Problem::Claim(Error::Forbidden(text)),
                Some(error) => Problem::Claim(error),
            }),
        }
    }

    /// Has a claim read again.
    pub(super) fn forget(&mut self, claim: &Claim) {
        if let Some(state) = self.claims.get_mut(claim) {
            state.again();
        }
    }

    /// Has a claim read at once, because another one may have its name.
    pub(super) fn renew(&mut self, claim: &Claim, now: Instant) {
        if let Some(state) = self.claims.get_mut(claim)
            && let State::Reading { pauses, .. } | State::Read { pauses, .. } = state
        {
            *state = State::Wanted { at: now, pauses: *pauses, last: None };
        }
    }

    /// Forgets all claims but these, and asks for those whose time has come.
    pub(super) fn keep(&mut self, wanted: &HashSet<Arc<Claim>>, now: Instant) {
        self.claims.retain(|claim, _| wanted.contains(claim));
        let Some(Server { reader, reading, requests, .. }) = &mut self.server else { return };
        for (claim, state) in &mut self.claims {
            if let State::Wanted { at, pauses, last } = state
                && *at <= now
                && reading.len() < MOST_AT_ONCE
            {
                *requests += 1;
                let (reader, claim, request) = (reader.clone(), claim.clone(), *requests);
                reading.spawn(async move {
                    let answer = reader.read(&claim).await.map(|claim| claim.into_results());
                    (request, claim, answer)
                });
                *state = State::Reading { pauses: *pauses, last: last.take(), request };
            }
        }
    }

    /// Waits until the slices have changed, a claim has been answered, or one is to be asked for again.
    pub(super) async fn changed(&mut self) {
        let Self { server: Some(Server { slices, reading, faults, .. }), claims } = self else {
            return std::future::pending().await;
        };
        let next = claims.values().filter_map(|state| match state {
            State::Wanted { at, .. } if reading.len() < MOST_AT_ONCE => Some(*at),
            _ => None,
        });
        let next = next.min();
        let due = async {
            match next {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The sender lives as long as the receiver.
            _ = slices.changed() => {}
            Some(answer) = reading.join_next() => {
                match answer {
                    Ok(answer) => {
                        let (_, claim, results) = &answer;
                        for what in results.iter().flatten().filter_map(|result| result.memory().err()) {
                            let error = Unreadable { claim: claim.clone(), what };
                            faults.raise(Source::Budget, Reason::Malformed, None, &error);
                        }
                        take(claims, answer);
                    }
                    Err(panicked) => {
                        faults.raise(Source::ResourceClaims, Reason::Panicked, None, &panicked);
                        // It is not known which claim was being read.
                        let being_read = claims.values_mut().filter(|state| matches!(state, State::Reading { .. }));
                        being_read.for_each(State::again);
                    }
                }
            }
            () = due => {}
        }
    }
}

/// Records the answer for a claim that is still wanted.
fn take(claims: &mut HashMap<Arc<Claim>, State>, (request, claim, answer): Answer) {
    let Some(state) = claims.get_mut(&claim) else { return };
    let State::Reading { pauses, request: awaited, .. } = state else { return };
    if *awaited != request {
        return;
    }
    *state = match answer {
        Ok(results) => State::Read { results, pauses: *pauses },
        Err(error) => {
            let pause = jitter(pauses.next_pause());
            let pause = if let Error::Busy { after, .. } = &error { pause.max(*after) } else { pause };
            State::Wanted { at: Instant::now() + pause, pauses: *pauses, last: Some(error) }
        }
    };
}
