//! The start and the end of the process, around its work.

use std::future::Future;

use anyhow::{Context, Result};

use super::{heap, logging};
use crate::config::Log;

/// Starts the log and a runtime, and does the work on it.
///
/// One thread is enough: a response takes a tenth of a millisecond, and what takes longer (a long scrape, a password, a file that
/// hangs) has its own thread. A connection is served on the thread that accepted it, without waking another one.
pub(super) fn run<T>(log: &Log, work: impl Future<Output = Result<T>>) -> Result<T> {
    logging::start(log)?;
    heap::share();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.thread_name("aside").enable_all().build().context("the web server could not be started")?;
    let outcome = runtime.block_on(work);
    // Not waiting for its threads, because one may hang in a file or a name service for ever.
    runtime.shutdown_background();
    outcome
}
