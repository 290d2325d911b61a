//! When the lanes run: their rates, their idle rate, their rests, and their retries.
//!
//! - The memory lane ticks at `memory.rate`, and at `memory.idle-rate` while [`IdlePolicy`] considers it idle.
//! - The process lane makes a pass when memory changes, and every `process.interval`. After a pass it rests (see
//!   [`rest_after`]).
//! - Telemetry readings are due every `telemetry.interval` and every `telemetry.slow-interval`. The process lane's
//!   thread takes them between two passes (see [`time_for_readings`], [`IDLE_STRIDE`] and [`RECONSIDER`]).
//! - The watch for Xid events polls every `telemetry.interval`, but at least once per [`HEARTBEAT`].

mod idle;
mod ticker;

use std::time::Duration;

pub(super) use idle::IdlePolicy;
pub(super) use ticker::Ticker;

/// The longest time between two heartbeats of a lane that has nothing to do.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);

/// How often a GPU or a MIG device that does not respond is queried again.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// How often unchanged memory values are published, only to show that the samples are fresh. Ten times a second is
/// enough for that. A tick that publishes nothing costs a third less, because on an H200 most of a tick's time is spent
/// on cache misses.
pub(super) const REFRESH: Duration = Duration::from_millis(100);

/// After a pass, the process lane rests for this many times the duration of the pass. Even if memory changes on every
/// tick, the lane therefore holds the driver's lock for no more than a third of the time. It takes telemetry readings
/// while it rests.
const REST: u32 = 2;

/// The longest rest. If a pass took a long time because it had to wait for the driver, the next pass need not take as
/// long.
const LONGEST_REST: Duration = Duration::from_millis(50);

/// While a GPU does nothing, the work of its processes is read only in every tenth fast round, because the call holds
/// the driver's lock for 1 to 2 ms, and the driver keeps the samples until the next call.
pub(super) const IDLE_STRIDE: u32 = 10;

/// A reading that a GPU does not provide is tried again after this many slow rounds, because a permission may have been
/// granted, or the refusal may have been temporary.
pub(super) const RECONSIDER: u32 = 20;

/// How long the process lane rests after a pass of this length.
pub(super) fn rest_after(pass: Duration) -> Duration {
    (pass * REST).min(LONGEST_REST)
}

/// How long telemetry readings may be taken after a pass of this length. One reading is always taken, and normally only
/// one, so that the next process list waits for at most one driver call. After a long pass, the readings get about as
/// much time as the pass took; otherwise slow lists on one GPU would leave no time for readings.
pub(super) fn time_for_readings(pass: Duration) -> Duration {
    pass.saturating_sub(LONGEST_REST)
}
