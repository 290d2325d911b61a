//! Tells a driver call that is slow from one whose thread gets no processor: on a machine that is too busy, every call takes
//! long, and no GPU is to blame.
//!
//! Invariant: a call is left alone for at most [`LONGEST`] times its limit for this reason.

use std::fs;
use std::time::{Duration, Instant};

use crate::lanes::worker::Worker;

/// The time over which the threads' waiting is measured.
const MEASURED: Duration = Duration::from_millis(10);
/// A call that takes this many times the limit is slow, however busy the machine is.
const LONGEST: u32 = 4;

/// How long the threads of the lanes wait for a processor.
#[derive(Debug, Default)]
pub(super) struct Starvation {
    /// When they were last looked at while a call was slow, and how long they had waited altogether.
    seen: Option<(Instant, Duration)>,
}

impl Starvation {
    /// Whether a slow call may be due to the machine. `slow_after` is the limit of a call.
    pub(super) fn may_explain(&mut self, workers: &[Worker], slow_after: Duration) -> bool {
        let Some(longest) = workers.iter().filter_map(Worker::slow_for).max() else {
            self.seen = None;
            return false;
        };
        let threads: Vec<&str> = workers.iter().filter_map(Worker::thread_path).collect();
        if longest >= slow_after * (LONGEST - 1) || !threads.iter().any(|thread| is_runnable(thread)) {
            return false;
        }
        let (now, waited) = (Instant::now(), threads.iter().filter_map(|thread| waited(thread)).sum::<Duration>());
        let Some((at, before)) = self.seen else {
            self.seen = Some((now, waited));
            return true;
        };
        let took = now.saturating_duration_since(at);
        if took < MEASURED {
            return true;
        }
        self.seen = Some((now, waited));
        waited.saturating_sub(before) > took / 2
    }
}

/// Whether a thread runs or waits for a processor, and so does not sleep in a call.
fn is_runnable(thread: &str) -> bool {
    let stat = fs::read_to_string(format!("{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}

/// How long a thread has waited for a processor since it began; `None` if the kernel does not report it.
fn waited(thread: &str) -> Option<Duration> {
    let stat = fs::read_to_string(format!("{thread}/schedstat")).ok()?;
    stat.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_runs_is_runnable_and_one_that_sleeps_is_not() {
        assert!(is_runnable("/proc/thread-self"));
        assert!(waited("/proc/thread-self").is_some());
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            tell.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
            let _ = ended.recv();
        });
        let path = format!("/proc/{}", told.recv().unwrap().display());
        while is_runnable(&path) {
            std::thread::yield_now();
        }
        drop(end);
        sleeper.join().unwrap();
        assert!(!is_runnable("/nonexistent") && waited("/nonexistent").is_none());
    }

    #[test]
    fn without_a_slow_call_nothing_is_explained() {
        assert!(!Starvation::default().may_explain(&[], Duration::ZERO));
    }
}
