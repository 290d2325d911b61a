//! Signals: SIGTERM and SIGINT end the exporter, SIGUSR1 releases the driver for a while, SIGHUP reads the web-config
//! file again.
//!
//! Invariant: the handlers are installed before anything is opened, because by default each of these signals ends the
//! process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use web_config::Guard;

use super::service;
use crate::lanes::DriverLease;

/// The signals for which the exporter has handlers.
pub(super) struct Signals {
    pub(super) stop: Stop,
    /// SIGHUP.
    pub(super) reread: Signal,
    /// SIGUSR1.
    pub(super) release: Signal,
}

/// The signals that end the exporter.
pub(super) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers. Call it within a runtime.
    ///
    /// # Errors
    /// When the system refuses to install them.
    pub(super) fn install() -> Result<Self> {
        let install = |kind, name: &str| signal(kind).with_context(|| format!("{name} cannot be handled"));
        let terminate = install(SignalKind::terminate(), "SIGTERM")?;
        let interrupt = install(SignalKind::interrupt(), "SIGINT")?;
        Ok(Self {
            stop: Stop { terminate, interrupt },
            reread: install(SignalKind::hangup(), "SIGHUP")?,
            release: install(SignalKind::user_defined1(), "SIGUSR1")?,
        })
    }
}

impl Stop {
    /// Waits for SIGTERM or SIGINT.
    pub(super) async fn arrived(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => tracing::info!(signal = "SIGTERM", "exporter stops"),
            _ = self.interrupt.recv() => tracing::info!(signal = "SIGINT", "exporter stops"),
        }
    }
}

/// Reads the web-config file again on each SIGHUP, forever. The configuration itself is read once, at startup.
pub(super) async fn follow_reread(mut signal: Signal, guard: Arc<Guard>) {
    while signal.recv().await.is_some() {
        let asked = guard.clone();
        service::reloading();
        let status = match tokio::task::spawn_blocking(move || asked.reload()).await {
            Ok(Ok(_)) => {
                tracing::info!(signal = "SIGHUP", settings = %guard.summary(), "web-config file: read");
                format!("web-config file read: {}", guard.summary())
            }
            // The guard counts the fault and logs it once; SIGHUP logs it each time, because its sender is waiting
            // for the result.
            Ok(Err(error)) => {
                tracing::warn!(signal = "SIGHUP", error = %error, "web-config file: the last valid one stays in effect");
                format!("web-config file not accepted: {error}")
            }
            Err(died) => {
                tracing::error!(signal = "SIGHUP", error = %died, "web-config file: the reader panicked");
                format!("web-config file not read: {died}")
            }
        };
        service::reloaded(&status);
    }
}

/// Releases the driver on each SIGUSR1, forever. A signal that arrives while the driver is released reacquires it.
pub(super) async fn follow_release_signal(mut signal: Signal, lease: DriverLease, duration: Duration) {
    while signal.recv().await.is_some() {
        if lease.is_released() {
            tracing::info!(signal = "SIGUSR1", "driver: reacquired on request");
            lease.reacquire();
        } else {
            tracing::info!(signal = "SIGUSR1", ?duration, "driver: released on request");
            lease.release(duration);
        }
    }
}
