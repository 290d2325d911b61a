//! Wakes the supervisor: at once when a thread ends or a request arrives, and when a lane has begun a round of driver calls
//! and begins no other within a limit.
//!
//! While a lane keeps its rhythm, each round moves the lane's alarm, which costs a system call and wakes nobody. A supervisor
//! that looked 20 times a second cost 0.05 % of a core on an H100 (2026-11-27).

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::snapshot::Lane;

/// A bell with one listener.
#[derive(Debug)]
pub(super) struct Bell {
    rung: EventFd,
    /// Indexed by lane.
    alarms: [TimerFd; Lane::ALL.len()],
}

impl Bell {
    /// Creates a bell that has not rung.
    ///
    /// # Errors
    /// When the system has no file descriptor left.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let alarm = || TimerFd::new(ClockId::CLOCK_MONOTONIC, flags);
        let rung = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Self { rung, alarms: [alarm()?, alarm()?, alarm()?] })
    }

    /// Wakes the listener, or lets its next wait end at once.
    pub(super) fn ring(&self) {
        // It can fail only if the bell has rung already.
        let _ = self.rung.write(1);
    }

    /// Lets the lane's alarm wake the listener after this time, in place of the time that was set before.
    pub(super) fn ring_after(&self, lane: Lane, time: Duration) {
        // Zero would stop the alarm.
        let time = Expiration::OneShot(TimeSpec::from_duration(time.max(Duration::from_nanos(1))));
        let _ = self.alarms[lane as usize].set(time, TimerSetTimeFlags::empty());
    }

    /// Stops the lane's alarm.
    pub(super) fn stop_alarm(&self, lane: Lane) {
        let _ = self.alarms[lane as usize].unset();
    }

    /// Waits until the bell rings or an alarm goes off, at most for this time.
    pub(super) fn wait(&self, at_most: Duration) {
        let deadline = Instant::now() + at_most;
        let timers = self.alarms.iter().map(|alarm| PollFd::new(alarm.as_fd(), PollFlags::POLLIN));
        let rung = PollFd::new(self.rung.as_fd(), PollFlags::POLLIN);
        let mut sources: Vec<PollFd<'_>> = timers.chain([rung]).collect();
        // In whole milliseconds, rounded up: otherwise the last fraction would be waited for without sleeping.
        let left = || deadline.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
        while poll(&mut sources, PollTimeout::try_from(left()).unwrap_or(PollTimeout::MAX)) == Err(Errno::EINTR) {}
        // What has rung is cleared. Reading fails if nothing has.
        let _ = self.rung.read();
        self.alarms.iter().for_each(|alarm| {
            let _ = nix::unistd::read(alarm.as_fd(), &mut [0; 8]);
        });
    }
}

#[cfg(test)]
impl Bell {
    /// Whether the bell rings by itself within a tenth of a second.
    pub(super) fn rings(&self) -> bool {
        const WAIT: Duration = Duration::from_millis(100);
        let begin = Instant::now();
        self.wait(WAIT);
        begin.elapsed() < WAIT
    }
}

/// Rings when dropped, that is, when the thread that owns this guard ends or panics.
#[derive(Debug)]
pub(super) struct RingOnDrop(pub(super) Arc<Bell>);

impl Drop for RingOnDrop {
    fn drop(&mut self) {
        self.0.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any wait that ends by itself.
    const MINUTE: Duration = Duration::from_secs(60);

    /// Waits for the bell, which has rung or will.
    fn hear(bell: &Bell) {
        let begin = Instant::now();
        bell.wait(MINUTE);
        assert!(begin.elapsed() < MINUTE, "the bell does not ring");
    }

    #[test]
    fn a_bell_that_rang_ends_one_wait() {
        let bell = Arc::new(Bell::new().unwrap());
        (0..3).for_each(|_| bell.ring());
        hear(&bell);
        assert!(!bell.rings());
        let other = bell.clone();
        let ringer = std::thread::spawn(move || other.ring());
        hear(&bell);
        ringer.join().unwrap();
    }

    #[test]
    fn an_alarm_rings_once_unless_it_is_moved_or_stopped() {
        let bell = Bell::new().unwrap();
        bell.ring_after(Lane::Memory, Duration::ZERO);
        bell.ring_after(Lane::Process, MINUTE);
        hear(&bell);
        assert!(!bell.rings());
        bell.ring_after(Lane::Memory, MINUTE);
        bell.ring_after(Lane::Process, Duration::ZERO);
        bell.ring_after(Lane::Process, MINUTE);
        assert!(!bell.rings(), "moved before anybody listened");
        bell.ring_after(Lane::Process, Duration::ZERO);
        bell.stop_alarm(Lane::Process);
        assert!(!bell.rings());
    }
}
