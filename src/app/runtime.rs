//! The runtime of the web server and of everything that waits for the network.

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

/// Starts it. One thread is enough: a response takes a tenth of a millisecond, and what takes longer (a long scrape, a password, a file that
/// hangs) has its own thread. A connection is served on the thread that accepted it, without waking another one.
pub(super) fn start() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .thread_name("aside")
        .enable_all()
        .build()
        .context("the web server could not be started")
}

/// Ends it without waiting for its threads, because one may hang in a file or a name service for ever.
pub(super) fn leave(runtime: Runtime) {
    runtime.shutdown_background();
}
