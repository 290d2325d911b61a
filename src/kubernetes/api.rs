//! The API server: the containers of this node's pods, listed and then watched.
//!
//! Invariants: only `GET /api/v1/pods` of this node is ever asked. A name is published as the server gave it or not at
//! all, and stays while the server does not answer. A list is taken whole or not; whenever an event may have been lost,
//! all pods are listed anew. What is read, kept and waited for is bounded.

mod blocking_read;
mod bounded;
mod caller;
mod connection;
pub(crate) mod container_index;
mod endpoint;
mod error;
mod gate;
mod pause;
pub(crate) mod pod;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{FutureExt, Stream, StreamExt};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio::time::sleep_until;

use crate::faults::{Faults, Source};
use crate::snapshot::{Pods, Snapshot};

use bounded::ANSWER_LIMIT;
use connection::Connection;
use container_index::ContainerIndex;
use error::Error;
use pause::{Pauses, jitter};
use pod::Pod;

/// How long changes are gathered before they are published together.
const GATHER: Duration = Duration::from_millis(100);
/// After so many seconds the server ends a watch, and 5 s later it is held for dead (kube adds them); the next one
/// follows.
const WATCH_SECONDS: u32 = 60;
/// A starting server answers 403 until it has read the cluster's roles. A 403 that lasts for longer is a lack of permission.
const STARTING: Duration = Duration::from_secs(10);
/// Where several servers share an address, list and watch can reach different ones, and a watch from the version of
/// another server's list is answered with 410; a watch ends soon where its server is stopped. More than this many in a row
/// are a fault.
const BY_CHANCE: u32 = 3;
/// A watch that lost events says nothing of it: after its store was restored from a backup the server counts from a lower
/// version, and a watch from a higher one is silent until that is reached. What a list tells does not depend on it.
pub const LIST_AGAIN: Duration = Duration::from_secs(600);
/// The longest time between two looks at what is due.
const IDLE: Duration = Duration::from_secs(60);

/// Whom to ask, and for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where the API server is.
    pub server: Server,
    /// This node's name: only its pods are asked for.
    pub node: String,
    /// How long connecting, the beginning of an answer, and listing all pods, may take.
    pub timeout: Duration,
    /// After how long all pods are listed again, of which a random part of up to a half is left out: [`LIST_AGAIN`].
    pub list_again: Duration,
}

/// Where the API server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    /// As the service account of the exporter's own pod says.
    InCluster,
    /// Somewhere else.
    At {
        /// `https://host:port`, or `http://` for a proxy on this machine.
        url: String,
        /// A file with a bearer token, read again as it changes.
        token_file: Option<PathBuf>,
        /// A PEM file with the certificates to trust; the system's are not. Without it the system's are trusted, and
        /// nobody where the system has none.
        ca_file: Option<PathBuf>,
    },
}

/// Follows the pods of this node for ever. What fails is a fault, and is tried again.
pub async fn follow(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) {
    let watching = Arc::new(Notify::new());
    let connection = Connection::new(settings.clone(), watching.clone());
    let mut follower = Follower::new(settings, snapshot, faults);
    follower.publish();
    loop {
        let attended = match connection.open().await {
            Ok(client) => follower.attend(client, &watching).await,
            Err(error) => Err(error),
        };
        if let Err(error) = attended {
            follower.narrow |= matches!(error, Error::TooLong(ANSWER_LIMIT) | Error::TooMany(_));
            follower.endure(error).await;
        }
    }
}

struct Follower {
    settings: Settings,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    names: ContainerIndex,
    /// When to publish what changed; `None` where nothing did.
    publish: Option<Instant>,
    /// Since when the pods are followed; `None` while they are not.
    followed: Option<Instant>,
    /// Since when the server answers 403; `None` where it answered otherwise, or not at all, since.
    forbidden: Option<Instant>,
    /// Whether pods that have ended are not asked for, because all pods of the node are too many. It stays so: a node on which
    /// they pile up does so again.
    narrow: bool,
    pauses: Pauses,
}

/// A list that is not complete yet.
struct Listing {
    pods: Vec<Pod>,
    deadline: Instant,
}

impl Listing {
    fn begin(timeout: Duration) -> Self {
        Self { pods: Vec::new(), deadline: Instant::now() + timeout }
    }
}

impl Follower {
    fn new(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) -> Self {
        let (names, pauses) = (ContainerIndex::default(), Pauses::default());
        Self {
            settings,
            snapshot,
            faults,
            names,
            publish: None,
            followed: None,
            forbidden: None,
            narrow: false,
            pauses,
        }
    }

    /// Lists and watches with one client, until both have to start again: by an error, or because the list is old.
    async fn attend(&mut self, client: Client, watching: &Notify) -> Result<(), Error> {
        let mut events = pin!(watcher::watcher(Api::<Pod>::all(client), self.selection()));
        // When all is to be listed again; `None` until it was listed.
        let (mut listing, mut again) = (None, None);
        loop {
            let event = match self.next(&mut events, watching, &listing).await {
                Ok(Some(event)) => self.take(event, &mut listing),
                Ok(None) if again.is_some_and(|at| at <= Instant::now()) => return Ok(()),
                Ok(None) => {
                    self.rise(again.is_some());
                    continue;
                }
                Err(error) => Err(error),
            };
            if matches!(event, Ok(true)) {
                again = Some(Instant::now() + jitter(self.settings.list_again));
            }
            let Err(error) = event else { continue };
            match error {
                // A list cannot be too old: something else is wrong.
                Error::Gone if again.is_none() => return Err(Error::Refused { code: 410, text: error.to_string() }),
                _ if again.is_none() || !error.leaves_the_watch() => return Err(error),
                // kube goes on from the version that it saw last.
                _ => self.endure(error).await,
            }
            let _ = watching.notified().now_or_never();
        }
    }

    /// This node's pods. With version 0 and no limit the server answers from its own memory, where it finds them by
    /// node; anything else makes it read every pod of the cluster. An older state than the last is then possible, and
    /// does no harm: an id keeps its names, and the watch goes on from that state.
    fn selection(&self) -> watcher::Config {
        let mut chosen = format!("spec.nodeName={}", self.settings.node);
        if self.narrow {
            chosen += ",status.phase!=Succeeded,status.phase!=Failed";
        }
        let config = watcher::Config::default().fields(&chosen).timeout(WATCH_SECONDS).any_semantic();
        watcher::Config { page_size: None, ..config }
    }

    /// The next event; `None` when a watch has begun. Meanwhile does what is due.
    async fn next(
        &mut self,
        events: &mut (impl Stream<Item = watcher::Result<Event<Pod>>> + Unpin),
        watching: &Notify,
        listing: &Option<Listing>,
    ) -> Result<Option<Event<Pod>>, Error> {
        loop {
            let deadline = listing.as_ref().map(|listing| listing.deadline);
            let due = deadline.map_or(self.due(), |deadline| deadline.min(self.due()));
            tokio::select! {
                biased;
                () = watching.notified() => return Ok(None),
                () = sleep_until(due.into()) => self.settle(),
                event = events.next() => return match event {
                    Some(event) => event.map(Some).map_err(Error::from),
                    None => Err(Error::Connection("the watch has ended".to_owned())),
                },
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(Error::Timeout(self.settings.timeout));
            }
        }
    }

    /// Takes an event. True at the end of a list.
    fn take(&mut self, event: Event<Pod>, listing: &mut Option<Listing>) -> Result<bool, Error> {
        let now = Instant::now();
        match event {
            Event::Init => *listing = Some(Listing::begin(self.settings.timeout)),
            Event::InitApply(pod) => {
                listing.get_or_insert_with(|| Listing::begin(self.settings.timeout)).pods.push(pod)
            }
            Event::InitDone => {
                let pods = listing.take().map(|listing| listing.pods).unwrap_or_default();
                self.names.replace(&pods, now)?;
                self.followed = Some(now);
                self.publish();
                return Ok(true);
            }
            Event::Apply(pod) => self.names.put(&pod, now)?,
            Event::Delete(pod) => self.names.remove(&pod, now)?,
        }
        self.gather(now);
        Ok(false)
    }

    /// Counts what went wrong and waits, during which names are still forgotten in time and the pods do not count as
    /// followed.
    async fn endure(&mut self, error: Error) {
        let now = Instant::now();
        let error = self.judge(error, now);
        let followed = self.followed.take().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let until = now + self.pauses.next(&error, followed);
        let row = match &error {
            Error::Gone => self.pauses.gone_in_a_row(),
            Error::Brief { row, .. } => *row,
            _ => u32::MAX,
        };
        if row <= BY_CHANCE {
            tracing::debug!("{error}");
        } else {
            self.faults.report(Source::KubernetesApi, error.reason(), None, &error);
        }
        self.publish();
        while Instant::now() < until {
            sleep_until(self.due().min(until).into()).await;
            self.settle();
        }
    }

    /// Makes a 403 that lasts a lack of permission.
    fn judge(&mut self, error: Error, now: Instant) -> Error {
        let Error::NotYetAllowed(text) = error else {
            self.forbidden = None;
            return error;
        };
        let since = if self.followed.is_some() { now } else { self.forbidden.unwrap_or(now) };
        self.forbidden = Some(since);
        match now.saturating_duration_since(since) >= STARTING {
            true => Error::Forbidden(text),
            false => Error::NotYetAllowed(text),
        }
    }

    /// A watch has begun: the server answers again.
    fn rise(&mut self, listed: bool) {
        if listed && self.followed.is_none() {
            self.followed = Some(Instant::now());
            self.publish();
        }
    }

    /// When something is to be done next.
    fn due(&self) -> Instant {
        let idle = Instant::now() + IDLE;
        [self.publish, self.names.due()].into_iter().flatten().fold(idle, Instant::min)
    }

    /// Does what is due.
    fn settle(&mut self) {
        let now = Instant::now();
        self.names.forget(now);
        self.gather(now);
        if self.publish.is_some_and(|at| at <= now) {
            self.publish();
        }
    }

    /// Sees to it that a change is published, with those that follow soon.
    fn gather(&mut self, now: Instant) {
        if self.names.take_change() {
            self.publish.get_or_insert(now + GATHER);
        }
    }

    fn publish(&mut self) {
        let changed = self.names.take_change() | self.publish.take().is_some();
        let (containers, ended) = match changed {
            true => (Arc::new(self.names.shown()), Arc::new(self.names.ended())),
            false => {
                let pods = self.snapshot.pods.load();
                (pods.containers.clone(), pods.ended.clone())
            }
        };
        self.snapshot.pods.store(Arc::new(Pods { up: Some(self.followed.is_some()), containers, ended }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Reason;

    #[test]
    fn a_server_that_starts_is_no_lack_of_permission_and_one_that_goes_on_is() {
        let server = Server::InCluster;
        let settings =
            Settings { server, node: "node-1".to_owned(), timeout: Duration::from_secs(20), list_again: LIST_AGAIN };
        let mut follower = Follower::new(settings, Snapshot::new(), Arc::default());
        let (begin, short) = (Instant::now(), STARTING - Duration::from_millis(1));
        let mut judged = |error: Error, now| follower.judge(error, now).reason();
        let forbidden = || Error::NotYetAllowed("no".to_owned());
        assert_eq!(judged(forbidden(), begin), Reason::Unknown);
        assert_eq!(judged(forbidden(), begin + short), Reason::Unknown);
        assert_eq!(judged(forbidden(), begin + STARTING), Reason::NoPermission);
        assert_eq!(judged(Error::Unreachable("no".to_owned()), begin + STARTING), Reason::Connection);
        assert_eq!(judged(forbidden(), begin + STARTING), Reason::Unknown, "it starts once more");
        assert_eq!(judged(forbidden(), begin + STARTING * 2), Reason::NoPermission);
        follower.followed = Some(begin);
        let again = follower.judge(forbidden(), begin + STARTING * 3);
        assert_eq!(again.reason(), Reason::Unknown, "it was allowed in between");
    }
}
