//! Reading files that may hang, as on a mount that is dead, away from the threads that serve.
//!
//! Invariant: at most one reading is under way. Nothing can end one that hangs; who asks meanwhile waits for it too, and
//! no longer than asked to.

use std::io;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// One kind of reading.
#[derive(Debug)]
pub(super) struct BlockingRead<T>(Mutex<Option<JoinHandle<T>>>);

impl<T> Default for BlockingRead<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Send + 'static> BlockingRead<T> {
    /// What `read` gives, or what the reading gives that is still under way.
    ///
    /// # Errors
    /// `TimedOut` after `limit`, and any other kind when `read` panics.
    pub(super) async fn take(&self, limit: Duration, read: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let taken = async {
            let mut under_way = self.0.lock().await;
            let taken = under_way.get_or_insert_with(|| spawn_blocking(read)).await;
            *under_way = None;
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
    async fn one_that_hangs_is_waited_for_and_no_other_is_started() {
        let (release, released) = channel::<u32>();
        let (reading, begun) = (BlockingRead::default(), Arc::new(AtomicU32::new(0)));
        let counted = begun.clone();
        let hangs = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            released.recv()
        };
        let late = reading.take(SHORT, hangs).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        for _ in 0..3 {
            let counted = begun.clone();
            let another = move || {
                counted.fetch_add(1, Ordering::SeqCst);
                Ok(0)
            };
            assert_eq!(reading.take(SHORT, another).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
        release.send(7).unwrap();
        assert_eq!(reading.take(LONG, || Ok(0)).await.unwrap(), Ok(7), "what hung is not lost");
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        assert_eq!(reading.take(LONG, || Ok(8)).await.unwrap(), Ok(8), "and is read anew thereafter");
    }

    #[tokio::test]
    async fn one_that_panics_is_an_error_and_the_next_one_is_not() {
        let reading = BlockingRead::default();
        let died = reading.take(LONG, || -> u32 { panic!("as a test wants it") }).await.unwrap_err();
        assert!(died.to_string().contains("as a test wants it"), "{died}");
        assert_eq!(reading.take(LONG, || 1).await.unwrap(), 1);
    }
}
