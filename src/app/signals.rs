//! The signals that the exporter follows: SIGTERM and SIGINT end it, SIGUSR1 lets the driver go for a while, SIGHUP has files
//! read again.
//!
//! Invariant: a signal is listened to before anything is opened, since by default each of them ends the process.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use web_config::Guard;

use crate::lanes::DriverLease;

/// Begins to listen to what ends the exporter; ready when it came. To be called within a runtime.
///
/// # Errors
/// When the system refuses.
pub(super) fn stop_signal() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be listened to")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be listened to")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!(signal = "SIGTERM", "ending"),
            _ = interrupt.recv() => tracing::info!(signal = "SIGINT", "ending"),
        }
    })
}

/// Begins to listen to SIGUSR1. To be called within a runtime.
///
/// # Errors
/// When the system refuses.
pub(super) fn release_signal() -> Result<Signal> {
    signal(SignalKind::user_defined1()).context("SIGUSR1 cannot be listened to")
}

/// Begins to listen to SIGHUP. To be called within a runtime.
///
/// # Errors
/// When the system refuses.
pub(super) fn reread_signal() -> Result<Signal> {
    signal(SignalKind::hangup()).context("SIGHUP cannot be listened to")
}

/// Has the web-config file read at each SIGHUP, for ever. The configuration itself is read once: what it says is how the
/// parts were built.
pub(super) async fn follow_reread(mut signal: Signal, guard: Arc<Guard>) {
    while signal.recv().await.is_some() {
        let asked = guard.clone();
        match tokio::task::spawn_blocking(move || asked.reload()).await {
            Ok(Ok(_)) => {
                tracing::info!(signal = "SIGHUP", settings = %guard.summary(), "what guards the web server is as its file says")
            }
            // Counted by the guard itself; told at each asking, since somebody waits for the answer.
            Ok(Err(error)) => tracing::warn!(signal = "SIGHUP", error = %error, "the web-config file stays as it was"),
            Err(died) => {
                tracing::error!(signal = "SIGHUP", error = %died, "the web-config file could not be looked at")
            }
        }
    }
}

/// Lets the driver go at each SIGUSR1, for ever; at the next one within the time it is taken up again.
pub(super) async fn follow_release_signal(mut signal: Signal, lease: DriverLease, span: Duration) {
    while signal.recv().await.is_some() {
        if lease.is_released() {
            tracing::info!(signal = "SIGUSR1", "the driver may be taken up again");
            lease.reacquire();
        } else {
            tracing::info!(signal = "SIGUSR1", ?span, "letting the driver go");
            lease.release(span);
        }
    }
}
