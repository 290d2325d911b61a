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
    give_signs(limit / SIGNS, unhealthy, || tell(NotifyState::Watchdog)).await;
}

async fn give_signs(every: Duration, unhealthy: impl Fn() -> Option<String>, give: impl Fn()) {
    let mut rhythm = tokio::time::interval(every);
    loop {
        rhythm.tick().await;
        match unhealthy() {
            None => give(),
            Some(reason) => tracing::warn!(reason, "no life sign is given to the service manager"),
        }
    }
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(error = %error, "the service manager could not be told");
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[tokio::test]
    async fn a_life_sign_is_given_at_each_beat_that_is_healthy_and_at_no_other() {
        const EVERY: Duration = Duration::from_millis(1);
        let (beat, given) = (Cell::new(0), RefCell::new(Vec::new()));
        let unhealthy = || {
            beat.set(beat.get() + 1);
            (3..=5).contains(&beat.get()).then(|| "as a test wants it".to_owned())
        };
        let eight = async {
            while beat.get() < 8 {
                tokio::time::sleep(EVERY).await;
            }
        };
        tokio::select! {
            () = give_signs(EVERY, unhealthy, || given.borrow_mut().push(beat.get())) => {}
            () = eight => {}
        }
        assert_eq!(given.borrow()[..5], [1, 2, 6, 7, 8]);
    }
}
