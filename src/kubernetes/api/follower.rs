//! Follows the pods of this node: lists them, watches them, waits after failures, and publishes their names.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use super::Settings;
use super::body::ANSWER_LIMIT;
use super::budget_index::{BudgetIndex, Problem};
use super::client::Client;
use super::container_index::ContainerIndex;
use super::error::Error;
use super::list_watch::{Change, Watch, list};
use super::pause::{Pauses, WatchThrottle, jitter};
use crate::faults::{Faults, Source};
use crate::snapshot::{Pods, Snapshot};

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

/// Follows the pods of this node for ever. A failure is counted as a fault, and followed by another attempt.
pub async fn follow(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) {
    let client = Client::new(&settings);
    let mut follower = Follower::new(settings, snapshot, faults);
    follower.publish();
    loop {
        if let Err(error) = follower.list_and_watch(&client).await {
            follower.without_ended |= matches!(error, Error::TooLong(ANSWER_LIMIT) | Error::TooMany(_));
            follower.back_off(error).await;
        }
    }
}

struct Follower {
    settings: Settings,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    index: ContainerIndex,
    budgets: BudgetIndex,
    /// When to publish the changes; `None` if there are none.
    publish: Option<Instant>,
    /// The time since which the pods have been followed; `None` while they are not.
    followed: Option<Instant>,
    /// When the server began to respond with 403; `None` after any other response.
    forbidden: Option<Instant>,
    /// Whether pods that have ended are left out of the request, because the node has too many pods in total. Never
    /// reset, because on such a node the pods that have ended would pile up again.
    without_ended: bool,
    pauses: Pauses,
}

impl Follower {
    fn new(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) -> Self {
        Self {
            settings,
            snapshot,
            faults,
            index: ContainerIndex::default(),
            budgets: BudgetIndex::default(),
            publish: None,
            followed: None,
            forbidden: None,
            without_ended: false,
            pauses: Pauses::default(),
        }
    }

    /// Lists the pods, then watches them until they have to be listed again, because the list is old or an error
    /// occurred.
    async fn list_and_watch(&mut self, client: &Client) -> Result<(), Error> {
        let selector = self.selector();
        let (pods, mut version) = self.during(list(client, &selector)).await.map_err(|error| match error {
            // A request for a list names no version that could be too old, so the 410 must have another cause.
            Error::Gone => Error::Refused { code: 410, text: error.to_string() },
            error => error,
        })?;
        let now = Instant::now();
        self.index.replace(&pods, now)?;
        let problems = self.budgets.replace(&pods);
        self.report_budgets(&problems);
        drop(pods);
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

    /// Selects this node's pods.
    fn selector(&self) -> String {
        let ended = if self.without_ended { ",status.phase!=Succeeded,status.phase!=Failed" } else { "" };
        format!("spec.nodeName={}{ended}", self.settings.node)
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
        let mut watch = self.during(Watch::open(client, selector, version)).await?;
        throttle.began = Some(Instant::now());
        if self.followed.is_none() {
            self.followed = Some(Instant::now());
            self.publish();
        }
        while let Some(change) = self.during(watch.next(version)).await? {
            let now = Instant::now();
            match change {
                Change::Put(pod) => {
                    let problems = self.budgets.put(&pod);
                    self.report_budgets(&problems);
                    self.index.put(&pod, now)?;
                }
                Change::Remove(pod) => {
                    self.budgets.remove(&pod);
                    self.index.remove(&pod, now)?;
                }
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

    /// Counts a failure and waits. During the pause the pods do not count as followed.
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
            self.faults.raise(Source::KubernetesApi, error.reason(), None, &error);
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
        [self.publish, self.index.due()].into_iter().flatten().fold(idle, Instant::min)
    }

    /// Forgets old names and publishes changes, each only if it is due.
    fn do_due(&mut self) {
        let now = Instant::now();
        self.index.forget(now);
        self.gather(now);
        if self.publish.is_some_and(|at| at <= now) {
            self.publish();
        }
    }

    /// Schedules a change to be published, together with those that follow soon.
    fn gather(&mut self, now: Instant) {
        if self.index.take_change() | self.budgets.take_change() {
            self.publish.get_or_insert(now + GATHER);
        }
    }

    fn publish(&mut self) {
        let changed = self.index.take_change() | self.budgets.take_change() | self.publish.take().is_some();
        let up = Some(self.followed.is_some());
        let pods = if changed {
            Pods {
                up,
                containers: Arc::new(self.index.shown()),
                ended: Arc::new(self.index.ended()),
                budgets: Arc::new(self.budgets.shown()),
            }
        } else {
            Pods { up, ..(**self.snapshot.pods.load()).clone() }
        };
        self.snapshot.pods.store(Arc::new(pods));
    }

    fn report_budgets(&self, problems: &[Problem]) {
        for problem in problems {
            self.faults.raise(Source::Budget, problem.reason, None, problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Reason;
    use crate::kubernetes::api::{LIST_AGAIN, Server};

    #[test]
    fn a_403_counts_as_no_permission_only_once_it_lasts() {
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
        assert_eq!(judged(forbidden(), begin + STARTING), Reason::Unknown, "the server starts once more");
        assert_eq!(judged(forbidden(), begin + STARTING * 2), Reason::NoPermission);
        follower.followed = Some(begin);
        let again = follower.judge(forbidden(), begin + STARTING * 3);
        assert_eq!(again.reason(), Reason::Unknown, "it was allowed in between");
    }
}
