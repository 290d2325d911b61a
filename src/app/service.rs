//! What a service manager is told: that the exporter serves, that it still lives, that it ends (`sd_notify`).
//!
//! Invariant: a life sign is given only while `/healthz` would be good. Without `NOTIFY_SOCKET` nothing is said to anybody.

use std::time::Duration;

use sd_notify::NotifyState;

/// So many life signs fit into the time after which the manager would act.
const SIGNS: u32 = 3;

/// The exporter listens; its first samples may still come.
pub(super) fn ready() {
    tell(NotifyState::Ready);
}

/// The exporter ends.
pub(super) fn stopping() {
    tell(NotifyState::Stopping);
}

/// Gives life signs for ever where the manager asks for them, and withholds them while `unhealthy` has a reason.
pub(super) async fn life_signs(unhealthy: impl Fn() -> Option<String>) {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| *limit > Duration::ZERO) else { return };
    let mut rhythm = tokio::time::interval(limit / SIGNS);
    loop {
        rhythm.tick().await;
        match unhealthy() {
            None => tell(NotifyState::Watchdog),
            Some(reason) => tracing::warn!(reason, "no life sign is given to the service manager"),
        }
    }
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(error = %error, "the service manager could not be told");
    }
}
