//! The clocks of the events, of the readings and of the starts of processes.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use gpu_readings::snapshot::ProcessId;

/// One moment on the clock of the events and on that of the readings. Both tick alike.
#[derive(Debug)]
pub(super) struct Clocks {
    pub(super) monotonic: Duration,
    pub(super) instant: Instant,
}

impl Clocks {
    pub(super) fn now() -> Self {
        let monotonic = read(ClockId::CLOCK_MONOTONIC);
        Self { monotonic, instant: Instant::now() }
    }

    /// The moment on the clock of the events.
    pub(super) fn of(&self, instant: Instant) -> Duration {
        let before = self.instant.saturating_duration_since(instant);
        let after = instant.saturating_duration_since(self.instant);
        (self.monotonic + after).saturating_sub(before)
    }

    /// The moment on the clock of the readings.
    pub(super) fn instant(&self, moment: Duration) -> Instant {
        let ago = self.monotonic.saturating_sub(moment);
        self.instant.checked_sub(ago).unwrap_or(self.instant)
    }
}

fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

/// When processes started, on the clock of the events, which stands still while the machine is suspended.
#[derive(Debug)]
pub(super) struct Ticks {
    in_a_second: u64,
    suspended: Duration,
}

impl Ticks {
    pub(super) fn now() -> Self {
        let suspended = read(ClockId::CLOCK_BOOTTIME).saturating_sub(read(ClockId::CLOCK_MONOTONIC));
        Self { in_a_second: procfs::ticks_per_second().max(1), suspended }
    }

    /// Who made a call that began at this moment, if `now` has the pid: another process, of which nothing is known, if the
    /// call began before `now` started.
    pub(super) fn caller(&self, now: ProcessId, began: Duration) -> ProcessId {
        let started = now.start_ticks.map(|ticks| {
            // Whole ticks: rounded down.
            Duration::from_secs(ticks / self.in_a_second)
                + Duration::from_secs(1) * u32::try_from(ticks % self.in_a_second).unwrap_or_default()
                    / u32::try_from(self.in_a_second).unwrap_or(u32::MAX)
        });
        match started {
            // Not this process, whose start is not `started`.
            Some(started) if began < started.saturating_sub(self.suspended) => {
                ProcessId { start_ticks: Some(0), ..now }
            }
            _ => now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_began_before_a_process_started_is_of_another_with_its_pid() {
        let ticks = Ticks { in_a_second: 100, suspended: Duration::from_secs(1000) };
        let now = |start_ticks| ProcessId { pid: 7, start_ticks };
        let caller = |start, millis| ticks.caller(now(start), Duration::from_millis(millis));
        assert_eq!(caller(Some(100_250), 2500), now(Some(100_250)));
        assert!(!caller(Some(100_250), 2499).may_be(now(Some(100_250))));
        assert_eq!(caller(None, 0), now(None));
        // The process of this test called nothing before it started.
        let own = gpu_readings::attribution::process("/proc".as_ref(), std::process::id()).unwrap();
        let calls = read(ClockId::CLOCK_MONOTONIC);
        assert_eq!(Ticks::now().caller(own, calls), own);
        assert_ne!(Ticks::now().caller(own, Duration::ZERO), own);
    }
}
