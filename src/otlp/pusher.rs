//! Pushes once per interval, tries again what failed, and pushes a last time at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

use super::batch::{self, Batch, Order};
use super::client::{self, Access, Push, Rejected};
use super::error::Error;
use super::ledger::Ledger;
use super::resource;
use super::settings::Settings;
use crate::backoff::{Backoff, jitter};
use crate::blocking_read::BlockingRead;
use crate::faults::{Faults, Reason, Source};
use crate::server_url::ServerUrl;
use crate::snapshot::Snapshot;
use crate::supervise::{PAUSE, supervise};
use gpu_metrics::{Metrics, Parts};

/// The longest time until the first push.
const FIRST_PUSH: Duration = Duration::from_secs(10);
/// The first pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long a push is tried again at most, however long the interval is.
const LONGEST_EFFORT: Duration = Duration::from_secs(300);
/// How long the last push may take, with what follows it.
const LAST_PUSH: Duration = Duration::from_secs(3);

/// The pushes. They end when this value is dropped.
pub struct Pusher {
    work: Arc<Work>,
    _task: JoinSet<()>,
}

struct Work {
    settings: Settings,
    url: ServerUrl,
    metrics: Arc<Metrics>,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    ledger: Mutex<Ledger>,
    /// The headers and certificates. A read that hangs occupies one thread, however many attempts wait for it.
    access: BlockingRead<Result<Access, Error>>,
    /// Whether the last push was delivered; `None` before the first.
    delivers: Mutex<Option<bool>>,
}

impl Pusher {
    /// Starts to push. Requires a runtime.
    ///
    /// # Errors
    /// When the endpoint is not a URL.
    pub fn start(
        settings: Settings,
        metrics: Arc<Metrics>,
        snapshot: Arc<Snapshot>,
        faults: Arc<Faults>,
    ) -> Result<Self, Error> {
        let url = client::url(&settings.endpoint)?;
        tracing::info!(endpoint = %url, interval = ?settings.interval, "metrics are pushed to an OTLP receiver");
        let ledger = Mutex::new(Ledger::new(batch::nanos(settings.started)));
        let (access, delivers) = (BlockingRead::default(), Mutex::default());
        let work = Arc::new(Work { settings, url, metrics, snapshot, faults, ledger, access, delivers });
        let mut task = JoinSet::new();
        let (pushing, raising) = (work.clone(), work.clone());
        let start = move || pushing.clone().follow();
        let panicked =
            move |error: &dyn std::error::Error| raising.faults.raise(Source::Otlp, Reason::Panicked, None, error);
        task.spawn(supervise(start, panicked, PAUSE));
        Ok(Self { work, _task: task })
    }

    /// Ends the pushes: pushes the last values, and then that there are no more. Takes no longer than a few seconds.
    pub async fn finish(self) {
        let Self { work, _task } = self;
        drop(_task);
        let limit = work.settings.timeout.min(LAST_PUSH);
        if timeout(limit, work.push_last()).await.is_err() {
            work.snapshot.pushes.dropped();
            tracing::warn!(endpoint = %work.url, ?limit, "the last push to the OTLP receiver took too long and was dropped");
        }
    }
}

impl Work {
    async fn follow(self: Arc<Self>) {
        let interval = self.settings.interval;
        // Not all at once after the exporters of a cluster were started together.
        let mut ticks = interval_at(Instant::now() + jitter(interval.min(FIRST_PUSH)), interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let began = ticks.tick().await;
            self.push(began + interval.min(LONGEST_EFFORT)).await;
        }
    }

    /// Pushes the current values. Tries again until `end`, and then drops them.
    async fn push(self: &Arc<Self>, end: Instant) {
        let batch = match self.collect(false).await {
            Ok(batch) => batch,
            Err(error) => return self.failed(&error),
        };
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let error = match self.attempt(&batch).await {
                Ok(rejected) => return self.delivered(&batch, rejected),
                Err(error) => error,
            };
            let asked = error.asked_to_wait();
            let next = Instant::now() + jitter(backoff.next_pause()).max(asked.unwrap_or_default());
            if !error.is_transient() || next >= end {
                self.failed(&error);
                // The receiver's wish also applies to the next push.
                return sleep(asked.map_or(Duration::ZERO, |_| next - Instant::now())).await;
            }
            self.faults.raise(Source::Otlp, error.reason(), None, &error);
            tokio::time::sleep_until(next).await;
        }
    }

    async fn push_last(self: &Arc<Self>) {
        let mut delivered = true;
        for end in [false, true] {
            let pushed = match self.collect(end).await {
                // The receiver shows nothing that could end.
                Ok(batch) if end && batch.points == 0 => continue,
                Ok(batch) => self.attempt(&batch).await.map(|rejected| (batch, rejected)),
                Err(error) => Err(error),
            };
            match pushed {
                // That there are no more values is not a push of its own, and is reported although the values were not
                // delivered.
                Ok(_) if end => {}
                Ok((batch, rejected)) => self.delivered(&batch, rejected),
                Err(error) if delivered => {
                    delivered = false;
                    self.failed(&error);
                }
                Err(error) => self.faults.raise(Source::Otlp, error.reason(), None, &error),
            }
        }
        if delivered {
            tracing::info!(endpoint = %self.url, "the last values were pushed to the OTLP receiver");
        }
    }

    /// Collects the current values, or with `end` reports that there are no more. Runs on a thread of its own, because a
    /// large machine has thousands of series.
    async fn collect(self: &Arc<Self>, end: bool) -> Result<Batch, Error> {
        let work = self.clone();
        let collected = spawn_blocking(move || {
            let parts = Parts::load(&work.snapshot);
            let resource = resource::read(&work.settings, parts.driver.simulated)?;
            let (names, gzip) = (work.settings.names, work.settings.gzip);
            // A receiver that keeps milliseconds would take an end in the same millisecond for a second value.
            let time = SystemTime::now() + if end { Duration::from_millis(1) } else { Duration::ZERO };
            let order = Order { names, gzip, resource: &resource, time };
            let mut ledger = work.ledger.lock();
            let batch = if !end {
                batch::collect(&work.metrics, &parts, &order, &mut ledger)
            } else {
                batch::end(&parts, &order, &mut ledger)
            };
            batch.map_err(Error::Encoding)
        });
        collected.await.unwrap_or_else(|died| Err(Error::Encoding(std::io::Error::other(died))))
    }

    /// Sends a push once.
    async fn attempt(self: &Arc<Self>, batch: &Batch) -> Result<Option<Rejected>, Error> {
        let work = self.clone();
        let (gzip, after, sent) = (self.settings.gzip, self.settings.timeout, AtomicBool::new(false));
        let attempt = async {
            // Half the timeout, so that a file whose read hangs is reported as such and not as the receiver's timeout.
            let access = self.access.take(after / 2, move || Access::read(&work.settings)).await;
            let access = access.map_err(Error::Unread)??;
            let push = Push { body: batch.body.clone(), points: batch.points, gzip, sent: &sent };
            client::post(&self.url, access, push).await
        };
        let late = |_| Error::Timeout { endpoint: self.url.to_string(), after };
        let answer = timeout(after, attempt).await.map_err(late).flatten();
        if sent.load(Ordering::Relaxed) && answer.as_ref().is_err_and(Error::leaves_delivery_open) {
            self.ledger.lock().may_be_delivered();
        }
        answer
    }

    fn delivered(&self, batch: &Batch, rejected: Option<Rejected>) {
        self.ledger.lock().delivered();
        let points = rejected.as_ref().map_or(0, |rejected| rejected.points);
        self.snapshot.pushes.delivered(SystemTime::now(), points);
        if let Some(Rejected { points, text }) = rejected {
            let error = Error::Partial { endpoint: self.url.to_string(), points, text };
            // A message without rejected points is a warning, not a fault.
            match points {
                0 => tracing::debug!(endpoint = %self.url, "{error}"),
                _ => self.faults.raise(Source::Otlp, error.reason(), None, &error),
            }
        }
        if self.delivers.lock().replace(true) != Some(true) {
            let (points, bytes) = (batch.points, batch.body.len());
            tracing::info!(endpoint = %self.url, points, bytes, "the OTLP receiver accepts the pushes");
        }
    }

    fn failed(&self, error: &Error) {
        self.faults.raise(Source::Otlp, error.reason(), None, error);
        self.snapshot.pushes.dropped();
        *self.delivers.lock() = Some(false);
    }
}
