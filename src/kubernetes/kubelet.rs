//! Follows the kubelet's pod-resources socket: which device is allocated to which container, by a device plugin or by a claim.
//!
//! Invariant: what is published is one complete response of the kubelet, with the time at which it arrived. A failure
//! removes nothing and does not renew that time: a reader of the snapshot judges the response by its age.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pod_resources::{ClaimedDevice, Device, Error, Kubelet};
use tokio::time::timeout_at;

use super::api;
use super::claims::Claims;
pub use super::claims::PATIENCE;
use crate::backoff::Backoff;
use crate::faults::{Faults, Reason, Source, chain};
use crate::snapshot::{Allocations, Snapshot};

/// How often the allocatable devices are requested. They change when GPUs are partitioned or a plugin restarts.
const ALLOCATABLE_EVERY: Duration = Duration::from_secs(60);
/// The pause after the first failure; each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after a failure, unless the interval is shorter.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What to follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The kubelet's socket, such as `/var/lib/kubelet/pod-resources/kubelet.sock`.
    pub socket: PathBuf,
    /// The time between two requests.
    pub interval: Duration,
    /// The time limit for connecting, and for a response.
    pub timeout: Duration,
    /// The API server that knows the GPUs of claims; `None` if the exporter does not use one.
    pub claims: Option<api::Settings>,
    /// How long a device of a claim may be without a GPU before that is a fault. Default: [`PATIENCE`].
    pub patience: Duration,
}

/// Follows the kubelet's allocations for ever.
pub async fn follow(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) {
    let mut pauses = pauses(settings.interval);
    let claims = Claims::new(settings.claims.clone(), settings.patience, faults.clone());
    let (known, listed) = (Allocations::default(), Vec::new());
    let mut follower =
        Follower { settings, snapshot, faults, known, listed, claims, asked: None, refusal_logged: false };
    follower.publish(false);
    loop {
        let wait = match follower.round().await {
            Ok(()) => {
                pauses.reset();
                follower.settings.interval
            }
            Err(error) => {
                follower.raise(&error);
                follower.asked = None;
                follower.publish(false);
                pauses.next_pause()
            }
        };
        follower.rest(wait).await;
    }
}

/// The pauses after failures. A kubelet that responds is queried once per interval, so one that fails may be queried
/// just as often.
fn pauses(interval: Duration) -> Backoff {
    Backoff::new(FIRST_PAUSE, interval.clamp(FIRST_PAUSE, LONGEST_PAUSE))
}

/// What is known, and what still has to be requested.
struct Follower {
    settings: Settings,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    known: Allocations,
    /// The devices of claims, as the kubelet last listed them.
    listed: Vec<ClaimedDevice>,
    claims: Claims,
    /// When the kubelet last listed its allocatable devices, or refused to.
    asked: Option<Instant>,
    /// Whether a refusal to list the allocatable devices was logged.
    refusal_logged: bool,
}

impl Follower {
    /// Queries the kubelet once, over a new connection.
    async fn round(&mut self) -> Result<(), Error> {
        let mut kubelet = Kubelet::connect(&self.settings.socket, self.settings.timeout).await?;
        let allocated = kubelet.allocated().await?;
        if *self.known.allocated != allocated.devices {
            self.known.allocated = Arc::new(allocated.devices);
        }
        self.listed = allocated.claimed;
        self.known.at = Some(Instant::now());
        self.join();
        // Published before the second request, which can take as long again.
        self.publish(true);
        if self.asked.is_none_or(|asked| asked.elapsed() >= ALLOCATABLE_EVERY) {
            let answer = kubelet.allocatable().await;
            self.take_allocatable(answer);
            self.publish(true);
        }
        Ok(())
    }

    /// Waits, and assigns the devices of claims to their GPUs when something is learnt about them.
    async fn rest(&mut self, wait: Duration) {
        let until = Instant::now() + wait;
        while timeout_at(until.into(), self.claims.changed()).await.is_ok() {
            self.join();
            self.publish(self.known.up == Some(true));
        }
    }

    fn join(&mut self) {
        let joined = self.claims.join(&self.listed, &self.snapshot.driver.load(), Instant::now());
        if *self.known.claimed != joined.assigned {
            self.known.claimed = Arc::new(joined.assigned);
        }
        if *self.known.unassigned != joined.unassigned {
            self.known.unassigned = Arc::new(joined.unassigned);
        }
        self.known.pending = self.claims.is_pending();
    }

    /// If there is no response, the allocatable devices become unknown: the old list must not be published with the
    /// new time.
    fn take_allocatable(&mut self, answer: Result<Vec<Device>, Error>) {
        match answer {
            Ok(devices) => {
                if self.known.allocatable.as_deref() != Some(&devices) {
                    self.known.allocatable = Some(Arc::new(devices));
                }
                self.asked = Some(Instant::now());
            }
            Err(error @ Error::Refused { .. }) => {
                self.known.allocatable = None;
                self.asked = Some(Instant::now());
                if !std::mem::replace(&mut self.refusal_logged, true) {
                    let error = chain(&error);
                    tracing::debug!(error, "the kubelet does not list allocatable devices");
                }
            }
            Err(error) => {
                self.known.allocatable = None;
                self.asked = None;
                self.raise(&error);
            }
        }
    }

    fn publish(&mut self, up: bool) {
        self.known.up = Some(up);
        self.snapshot.allocations.store(Arc::new(self.known.clone()));
    }

    fn raise(&self, error: &Error) {
        self.faults.raise(Source::PodResources, reason(error), None, error);
    }
}

/// The reason under which an error is counted as a fault.
fn reason(error: &Error) -> Reason {
    match error {
        Error::Absent { .. } => Reason::NotFound,
        Error::Forbidden { .. } => Reason::NoPermission,
        Error::Closed { .. } | Error::Broken { .. } => Reason::Connection,
        Error::Late { .. } => Reason::Timeout,
        Error::Malformed { .. } => Reason::Malformed,
        Error::Refused { .. } => Reason::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_that_fails_is_asked_as_often_as_one_that_answers() {
        let seconds = |interval| {
            let mut pauses = pauses(Duration::from_secs(interval));
            std::iter::repeat_with(|| pauses.next_pause().as_secs()).take(7).collect::<Vec<_>>()
        };
        assert_eq!(seconds(1), [1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(seconds(10), [1, 2, 4, 8, 10, 10, 10]);
        assert_eq!(seconds(3600), [1, 2, 4, 8, 16, 30, 30]);
    }
}
