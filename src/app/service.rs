//! Notifies the service manager (`sd_notify`) that the exporter is ready, alive, reading its files again or stopping.
//!
//! Invariant: a keep-alive is sent only while `/healthz` succeeds. Without `NOTIFY_SOCKET` nothing is sent.

use std::time::Duration;

use sd_notify::NotifyState;

/// Keep-alives per watchdog interval of the manager.
const PER_INTERVAL: u32 = 3;

/// The exporter is listening; its first samples may follow later.
pub(super) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// The exporter is stopping.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// The exporter begins to read its files again. The time tells the manager to which of its requests this belongs.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(error = %error, "service manager: the clock cannot be read"),
    }
}

/// The exporter has read its files; the manager shows `status`.
pub(super) fn reloaded(status: &str) {
    // A line feed would begin another notification.
    let status = status.replace('\n', " ");
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Sends keep-alives forever if the service manager requests them, except while `unhealthy` returns a reason.
pub(super) async fn keep_alive(unhealthy: impl Fn() -> Option<String>) {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| *limit > Duration::ZERO) else { return };
    send_while_healthy(limit / PER_INTERVAL, unhealthy, || notify(&[NotifyState::Watchdog])).await;
}

async fn send_while_healthy(every: Duration, unhealthy: impl Fn() -> Option<String>, send: impl Fn()) {
    let mut ticks = tokio::time::interval(every);
    loop {
        ticks.tick().await;
        match unhealthy() {
            None => send(),
            Some(reason) => {
                tracing::warn!(reason, "service manager: no keep-alive is sent, because the exporter is unhealthy")
            }
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(error = %error, "service manager: the notification failed");
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[tokio::test]
    async fn a_keep_alive_is_sent_at_each_healthy_tick_only() {
        const EVERY: Duration = Duration::from_millis(1);
        let (beat, given) = (Cell::new(0), RefCell::new(Vec::new()));
        let unhealthy = || {
            beat.set(beat.get() + 1);
            (3..=5).contains(&beat.get()).then(|| "on purpose".to_owned())
        };
        let eight = async {
            while beat.get() < 8 {
                tokio::time::sleep(EVERY).await;
            }
        };
        tokio::select! {
            () = send_while_healthy(EVERY, unhealthy, || given.borrow_mut().push(beat.get())) => {}
            () = eight => {}
        }
        assert_eq!(given.borrow()[..5], [1, 2, 6, 7, 8]);
    }
}
