//! Runs a task that is not meant to end, and starts it again after a panic.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};

/// The pause before the restart of a task that asks a server.
pub const PAUSE: Duration = Duration::from_secs(5);

/// A task panicked.
#[derive(Debug, thiserror::Error)]
#[error("a task panicked and will be restarted in {pause:?}")]
struct Panicked {
    pause: Duration,
    source: JoinError,
}

/// Runs the task that `start` returns. If the task panics, passes what happened to `panicked`. However the task ended, it is
/// started again after `pause`. The task ends when this future is dropped.
pub async fn supervise<F>(start: impl Fn() -> F, panicked: impl Fn(&dyn Error), pause: Duration)
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let mut task = JoinSet::new();
        task.spawn(start());
        if let Some(Err(source)) = task.join_next().await {
            panicked(&Panicked { pause, source });
        }
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const SOON: Duration = Duration::from_millis(1);
    const PATIENCE: Duration = Duration::from_secs(30);

    async fn eventually(done: impl Fn() -> bool) {
        let wait = async {
            while !done() {
                tokio::time::sleep(SOON).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("in time");
    }

    #[tokio::test]
    async fn a_task_that_panics_or_ends_is_started_again_and_only_a_panic_is_passed_on() {
        let (starts, panics) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (counted, passed_on) = (starts.clone(), panics.clone());
        let start = move || {
            let before = counted.fetch_add(1, Ordering::SeqCst);
            async move {
                assert!(before >= 2, "on purpose");
                if before >= 3 {
                    pending().await
                }
            }
        };
        let panicked = move |error: &dyn Error| {
            assert_eq!(error.to_string(), "a task panicked and will be restarted in 1ms");
            passed_on.fetch_add(1, Ordering::SeqCst);
        };
        let task = tokio::spawn(supervise(start, panicked, SOON));
        eventually(|| starts.load(Ordering::SeqCst) == 4).await;
        assert_eq!(panics.load(Ordering::SeqCst), 2);
        task.abort();
    }

    #[tokio::test]
    async fn a_task_ends_with_its_supervisor() {
        let held = Arc::new(());
        let inside = held.clone();
        let start = move || {
            let inside = inside.clone();
            async move {
                let _inside = inside;
                pending().await
            }
        };
        let task = tokio::spawn(supervise(start, |_| (), SOON));
        eventually(|| Arc::strong_count(&held) == 3).await;
        task.abort();
        eventually(|| Arc::strong_count(&held) == 1).await;
    }
}
