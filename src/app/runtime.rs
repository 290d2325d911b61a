//! Sets up the process before its work, and shuts it down afterwards.

use std::future::Future;

use anyhow::{Context, Result};

use super::{heap, logging};
use crate::config::Log;

/// Starts logging and a runtime, and runs `work` on the runtime.
///
/// One thread is enough: a response takes a tenth of a millisecond, and what takes longer (a long scrape, a password, a
/// file that hangs) has its own thread. A connection is served on the thread that accepted it, without waking
/// another.
pub(super) fn run<T>(log: &Log, work: impl Future<Output = Result<T>>) -> Result<T> {
    logging::start(log)?;
    heap::share();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.thread_name("aside").enable_all().build().context("the web server could not be started")?;
    let outcome = runtime.block_on(work);
    // Does not wait for the runtime's threads, because one may hang forever on a file or a name service.
    runtime.shutdown_background();
    outcome
}
