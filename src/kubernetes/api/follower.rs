//! Follows the objects of one kind on this node: lists them, watches them, waits after failures, and has them published.
//!
//! Invariant: a change is published within [`GATHER`], together with those that follow it in that time.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use super::Settings;
use super::body::ANSWER_LIMIT;
use super::client::Client;
use super::error::Error;
use super::list_watch::{Change, Object, Watch, list};
use super::pause::{Pauses, WatchThrottle, jitter};
use crate::faults::{Faults, Source};

/// How long changes are gathered before they are published together.
const GATHER: Duration = Duration::from_millis(100);
/// A server that is starting responds with 403 until it has read the cluster's roles. A 403 that lasts longer
/// indicates a lack of permission.
const STARTING: Duration = Duration::from_secs(10);
/// How many consecutive 410 responses, or consecutive watches that end early, do not yet count as a fault. If several
/// servers share an address, the list and the watch can reach different ones, and a watch that starts at the version of
/// another server's list is answered with 410. When a server is stopped, its watches end early.
const BY_CHANCE: u32 = 3;
/// The longest sleep while nothing is due.
const IDLE: Duration = Duration::from_secs(60);

/// What is kept of the objects that are followed, and published.
pub(crate) trait Store {
    /// The kind of the objects.
    type Object: Object;

    /// Selects the objects of a node.
    fn selector(&self, node: &str) -> String;

    /// A list was too large; the next selector may select less.
    fn shorten(&mut self) {}

    /// Applies a complete list.
    fn replace(&mut self, all: Vec<Self::Object>, now: Instant) -> Result<(), Error>;

    /// Records the present state of an object.
    fn put(&mut self, object: &Self::Object, now: Instant) -> Result<(), Error>;

    /// Records the deletion of an object. `last` is its final state.
    fn remove(&mut self, last: &Self::Object, now: Instant) -> Result<(), Error>;

    /// Drops what is kept no longer.
    fn forget(&mut self, _now: Instant) {}

    /// When [`Store::forget`] is due next.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Whether anything to be published has changed since the last call.
    fn take_change(&mut self) -> bool;

    /// Publishes whether the objects are followed and, if they have `changed`, the objects.
    fn publish(&mut self, followed: bool, changed: bool);
}

/// Follows this node's objects of a kind for ever. A failure is counted as a fault of `source`, and followed by another attempt.
pub(super) async fn follow_objects<S: Store>(settings: Settings, store: S, source: Source, faults: Arc<Faults>) {
    let client = Client::new(&settings);
    let mut follower = Follower::new(settings, store, source, faults);
    follower.publish();
    loop {
        if let Err(error) = follower.list_and_watch(&client).await {
            if matches!(error, Error::TooLong(ANSWER_LIMIT) | Error::TooMany(_)) {
                follower.store.shorten();
            }
            follower.back_off(error).await;
        }
    }
}

struct Follower<S> {
    settings: Settings,
    store: S,
    source: Source,
    faults: Arc<Faults>,
    /// When to publish the changes; `None` if there are none.
    publish: Option<Instant>,
    /// The time since which the objects have been followed; `None` while they are not.
    followed: Option<Instant>,
    /// When the server began to respond with 403; `None` after any other response.
    forbidden: Option<Instant>,
    pauses: Pauses,
}

impl<S: Store> Follower<S> {
    fn new(settings: Settings, store: S, source: Source, faults: Arc<Faults>) -> Self {
        let pauses = Pauses::default();
        Self { settings, store, source, faults, publish: None, followed: None, forbidden: None, pauses }
    }

    /// Lists the objects, then watches them until they have to be listed again, because the list is old or an error
    /// occurred.
    async fn list_and_watch(&mut self, client: &Client) -> Result<(), Error> {
        let selector = self.store.selector(&self.settings.node);
        let (all, mut version) = self.during(list(client, &selector)).await.map_err(|error| match error {
            // A request for a list names no version that could be too old, so the 410 must have another cause.
            Error::Gone => Error::Refused { code: 410, text: error.to_string() },
            error => error,
        })?;
        let now = Instant::now();
        self.store.replace(all, now)?;
        self.followed = Some(now);
        self.publish();
        let list_again = now + jitter(self.settings.list_again);
        let mut throttle = WatchThrottle::default();
        while Instant::now() < list_again {
            match self.watch(client, &selector, &mut version, &mut throttle).await {
                Err(error) if error.leaves_the_watch() => self.back_off(error).await,
                ended => ended?,
            }
        }
        Ok(())
    }

    /// Applies the changes since `version` until the watch ends.
    async fn watch(
        &mut self,
        client: &Client,
        selector: &str,
        version: &mut String,
        throttle: &mut WatchThrottle,
    ) -> Result<(), Error> {
        throttle.check(Instant::now())?;
        let mut watch = self.during(Watch::<S::Object>::open(client, selector, version)).await?;
        throttle.began = Some(Instant::now());
        if self.followed.is_none() {
            self.followed = Some(Instant::now());
            self.publish();
        }
        while let Some(change) = self.during(watch.next(version)).await? {
            let now = Instant::now();
            match change {
                Change::Put(object) => self.store.put(&object, now)?,
                Change::Remove(last) => self.store.remove(&last, now)?,
            }
            self.gather(now);
        }
        Ok(())
    }

    /// Awaits `step`, and in the meantime performs every action that becomes due.
    async fn during<T>(&mut self, step: impl Future<Output = T>) -> T {
        let mut step = pin!(step);
        loop {
            tokio::select! {
                biased;
                () = sleep_until(self.due().into()) => self.do_due(),
                result = &mut step => return result,
            }
        }
    }

    /// Counts a failure and waits. During the pause the objects do not count as followed.
    async fn back_off(&mut self, error: Error) {
        let now = Instant::now();
        let error = self.judge(error, now);
        let followed = self.followed.take().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let until = now + self.pauses.next(&error, followed);
        let row = match &error {
            Error::Gone => self.pauses.gone.failures(),
            Error::Brief { row, .. } => *row,
            _ => u32::MAX,
        };
        if row <= BY_CHANCE {
            tracing::debug!("{error}");
        } else {
            self.faults.raise(self.source, error.reason(), None, &error);
        }
        self.publish();
        self.during(sleep_until(until.into())).await;
    }

    /// Turns the error for a 403 into the error for a missing permission if the 403 has lasted too long.
    fn judge(&mut self, error: Error, now: Instant) -> Error {
        let Error::NotYetAllowed(text) = error else {
            self.forbidden = None;
            return error;
        };
        let since = if self.followed.is_some() { now } else { self.forbidden.unwrap_or(now) };
        self.forbidden = Some(since);
        if now.saturating_duration_since(since) >= STARTING {
            Error::Forbidden(text)
        } else {
            Error::NotYetAllowed(text)
        }
    }

    /// When the next action is due.
    fn due(&self) -> Instant {
        let idle = Instant::now() + IDLE;
        [self.publish, self.store.due()].into_iter().flatten().fold(idle, Instant::min)
    }

    /// Forgets what is old and publishes changes, each only if it is due.
    fn do_due(&mut self) {
        let now = Instant::now();
        self.store.forget(now);
        self.gather(now);
        if self.publish.is_some_and(|at| at <= now) {
            self.publish();
        }
    }

    /// Schedules a change to be published, together with those that follow soon.
    fn gather(&mut self, now: Instant) {
        if self.store.take_change() {
            self.publish.get_or_insert(now + GATHER);
        }
    }

    fn publish(&mut self) {
        let changed = self.store.take_change() | self.publish.take().is_some();
        self.store.publish(self.followed.is_some(), changed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Reason;
    use crate::kubernetes::api::pods::Pods;
    use crate::kubernetes::api::{LIST_AGAIN, Server};
    use crate::snapshot::Snapshot;

    #[test]
    fn a_403_counts_as_no_permission_only_once_it_lasts() {
        let server = Server::InCluster;
        let (node, timeout) = ("node-1".to_owned(), Duration::from_secs(20));
        let settings = Settings { server, node, timeout, list_again: LIST_AGAIN, labels: Arc::default() };
        let store = Pods::new(Arc::default(), Snapshot::new(), Arc::default());
        let mut follower = Follower::new(settings, store, Source::KubernetesApi, Arc::default());
        let (begin, short) = (Instant::now(), STARTING - Duration::from_millis(1));
        let mut judged = |error: Error, now| follower.judge(error, now).reason();
        let forbidden = || Error::NotYetAllowed("no".to_owned());
        assert_eq!(judged(forbidden(), begin), Reason::Unknown);
        assert_eq!(judged(forbidden(), begin + short), Reason::Unknown);
        assert_eq!(judged(forbidden(), begin + STARTING), Reason::NoPermission);
        assert_eq!(judged(Error::Unreachable("no".to_owned()), begin + STARTING), Reason::Connection);
        assert_eq!(judged(forbidden(), begin + STARTING), Reason::Unknown, "the server starts once more");
        assert_eq!(judged(forbidden(), begin + STARTING * 2), Reason::NoPermission);
        follower.followed = Some(begin);
        let again = follower.judge(forbidden(), begin + STARTING * 3);
        assert_eq!(again.reason(), Reason::Unknown, "it was allowed in between");
    }
}
