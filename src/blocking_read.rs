//! Reads files on a separate thread, because a read may hang, for example on a dead mount.
//!
//! Invariant: at most one read is in progress. A read that hangs cannot be cancelled; a later caller waits for the same
//! read, up to its own limit.

use std::io;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// One kind of read.
#[derive(Debug)]
pub(crate) struct BlockingRead<T>(Mutex<Option<JoinHandle<T>>>);

impl<T> Default for BlockingRead<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Send + 'static> BlockingRead<T> {
    /// The result of `read`, or of the read that is still in progress.
    ///
    /// # Errors
    /// `TimedOut` after `limit`; `Other` when `read` panics.
    pub(crate) async fn take(&self, limit: Duration, read: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let taken = async {
            let mut in_progress = self.0.lock().await;
            let taken = in_progress.get_or_insert_with(|| spawn_blocking(read)).await;
            *in_progress = None;
            taken.map_err(io::Error::other)
        };
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("it could not be read within {limit:?}"));
        timeout(limit, taken).await.map_err(late)?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_read_that_hangs_is_waited_for_and_no_other_is_started() {
        let (release, released) = channel::<u32>();
        let (reads, begun) = (BlockingRead::default(), Arc::new(AtomicU32::new(0)));
        let counted = begun.clone();
        let hangs = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            released.recv()
        };
        let late = reads.take(SHORT, hangs).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        for _ in 0..3 {
            let counted = begun.clone();
            let another = move || {
                counted.fetch_add(1, Ordering::SeqCst);
                Ok(0)
            };
            assert_eq!(reads.take(SHORT, another).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
        release.send(7).unwrap();
        assert_eq!(reads.take(LONG, || Ok(0)).await.unwrap(), Ok(7), "what hung is not lost");
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        assert_eq!(reads.take(LONG, || Ok(8)).await.unwrap(), Ok(8), "and the next read is a new one");
    }

    #[tokio::test]
    async fn a_read_that_panics_is_an_error_and_the_next_one_is_not() {
        let reads = BlockingRead::default();
        let died = reads.take(LONG, || -> u32 { panic!("on purpose") }).await.unwrap_err();
        assert!(died.to_string().contains("on purpose"), "{died}");
        assert_eq!(reads.take(LONG, || 1).await.unwrap(), 1);
    }
}
