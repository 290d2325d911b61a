//! The kubelet's pod-resources socket: which device was given to which container.
//!
//! Invariant: what is published is one answer of the kubelet, whole and with the time at which it came. A failure takes
//! nothing away and makes nothing younger: the reader judges by the age.

pub(crate) mod answer;
pub(crate) mod device;
mod error;
mod kubelet;
// Generated from v1.proto; tests/it/pod_resources.rs makes it again and compares.
#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub, reason = "the generator writes it so")]
pub(crate) mod v1;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::error::Error;
use self::kubelet::Kubelet;
use crate::faults::{Faults, Source};
use crate::snapshot::{AllocatedDevice, Allocations, Snapshot};

/// How often the kubelet is asked what it can hand out: that changes when GPUs are cut anew or a plugin restarts.
const ALLOCATABLE_EVERY: Duration = Duration::from_secs(60);
/// The pause after a first failure; each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after a failure, where the interval is no shorter.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Whom to ask, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The kubelet's socket, such as `/var/lib/kubelet/pod-resources/kubelet.sock`.
    pub socket: PathBuf,
    /// The time between two questions.
    pub interval: Duration,
    /// How long connecting, or an answer, may take.
    pub timeout: Duration,
}

/// Follows the kubelet's allocations for ever.
pub async fn follow(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) {
    let mut follower = Follower { settings, snapshot, faults, known: Allocations::default(), asked: None, told: false };
    follower.publish(false);
    let mut pause = FIRST_PAUSE;
    loop {
        let wait = match follower.round().await {
            Ok(()) => {
                pause = FIRST_PAUSE;
                follower.settings.interval
            }
            Err(error) => {
                follower.report(&error);
                follower.asked = None;
                follower.publish(false);
                let wait = pause;
                pause = after(pause, follower.settings.interval);
                wait
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// The pause after the failure that follows a `pause`. A kubelet that answers is asked once per interval, so that one
/// that does not may be asked as often.
fn after(pause: Duration, interval: Duration) -> Duration {
    (pause * 2).min(interval.clamp(FIRST_PAUSE, LONGEST_PAUSE))
}

/// What is known, and what is to be asked.
struct Follower {
    settings: Settings,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    known: Allocations,
    /// When the kubelet last said what it can hand out, or that it does not tell.
    asked: Option<Instant>,
    /// Whether it was written to the log that the kubelet does not tell.
    told: bool,
}

impl Follower {
    /// Asks once over a fresh connection.
    async fn round(&mut self) -> Result<(), Error> {
        let settings = self.settings.clone();
        let mut kubelet = Kubelet::connect(&settings).await?;
        let allocated = kubelet.allocated().await?;
        if *self.known.allocated != allocated {
            self.known.allocated = Arc::new(allocated);
        }
        self.known.at = Some(Instant::now());
        // Not held up by the second question, which can take as long again.
        self.publish(true);
        if self.asked.is_none_or(|asked| asked.elapsed() >= ALLOCATABLE_EVERY) {
            let answer = kubelet.allocatable().await;
            self.take_allocatable(answer);
            self.publish(true);
        }
        Ok(())
    }

    /// Without an answer nothing is known of what can be handed out: no time is published that tells an old list.
    fn take_allocatable(&mut self, answer: Result<Vec<AllocatedDevice>, Error>) {
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
                if !std::mem::replace(&mut self.told, true) {
                    let error = crate::faults::chain(&error);
                    tracing::debug!(error, "the kubelet does not tell which devices can be handed out");
                }
            }
            Err(error) => {
                self.known.allocatable = None;
                self.asked = None;
                self.report(&error);
            }
        }
    }

    fn publish(&mut self, up: bool) {
        self.known.up = Some(up);
        self.snapshot.allocations.store(Arc::new(self.known.clone()));
    }

    fn report(&self, error: &Error) {
        self.faults.report(Source::PodResources, error.reason(), None, error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_that_fails_is_asked_as_often_as_one_that_answers() {
        let pauses = |interval| {
            let longer = |pause: &Duration| Some(after(*pause, Duration::from_secs(interval)));
            std::iter::successors(Some(FIRST_PAUSE), longer).map(|pause| pause.as_secs()).take(7).collect::<Vec<_>>()
        };
        assert_eq!(pauses(1), [1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(pauses(10), [1, 2, 4, 8, 10, 10, 10]);
        assert_eq!(pauses(3600), [1, 2, 4, 8, 16, 30, 30]);
    }
}
