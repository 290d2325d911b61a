//! SIGUSR1: the driver is let go for a while, or taken up again where it is let go already.
//!
//! Invariant: the signal is listened to before the driver is opened, since by default it ends the process.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::lanes::Grip;

/// Begins to listen. To be called within a runtime.
///
/// # Errors
/// When the system refuses.
pub(super) fn let_go_signal() -> Result<Signal> {
    signal(SignalKind::user_defined1()).context("SIGUSR1 cannot be listened to")
}

/// Follows the signal for ever.
pub(super) async fn follow(mut signal: Signal, grip: Grip, span: Duration) {
    while signal.recv().await.is_some() {
        if grip.is_let_go() {
            tracing::info!(signal = "SIGUSR1", "the driver may be taken up again");
            grip.take_up();
        } else {
            tracing::info!(signal = "SIGUSR1", ?span, "letting the driver go");
            grip.let_go(span);
        }
    }
}
