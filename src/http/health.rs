//! Whether the exporter is alive and whether it has something to report.
//!
//! Invariant: health is about the exporter and its lanes, readiness about the driver and the first sample; neither
//! calls the driver.

use std::time::Duration;

use crate::snapshot::{Driver, GpuState, Lane, MAX_STUCK_THREADS, Vitals};
use gpu_metrics::GpuView;

/// The path that reports whether the process and its lanes are alive.
pub(super) const HEALTH: &str = "/healthz";
/// The path that reports whether there is something to scrape.
pub(super) const READINESS: &str = "/readyz";

/// Whether a path is one of the two that report health and readiness. Such a request needs neither a password nor a
/// permit.
pub(super) fn is_probe(path: &str) -> bool {
    path == HEALTH || path == READINESS
}

/// Why the exporter is not alive; `None` while it is. `uptime` is how long the exporter has been running: the lanes
/// must send their first heartbeat within `limit`.
pub(super) fn unhealthy(vitals: &Vitals, uptime: Duration, limit: Duration) -> Option<String> {
    let beats = Lane::ALL.map(|lane| (lane, vitals.since_beat(lane)));
    if beats.iter().all(|(_, beat)| beat.is_none()) && uptime > limit {
        return Some(format!("sampling has not started within {limit:?} of the exporter's start"));
    }
    let stuck = vitals.stuck();
    if stuck >= MAX_STUCK_THREADS {
        return Some(format!(
            "{stuck} driver calls do not return, and no more are allowed: a thread that hangs is no longer replaced"
        ));
    }
    beats.into_iter().find_map(|(lane, beat)| {
        let silent = beat.filter(|beat| *beat > limit)?;
        let lane = lane.label();
        Some(format!("{lane} sampling has made no progress for {:.0} s (limit {limit:?})", silent.as_secs_f64()))
    })
}

/// What `/healthz` reports about an exporter that is alive.
pub(super) fn healthy(vitals: &Vitals) -> String {
    match vitals.stuck() {
        0 => "ok".to_owned(),
        stuck => format!("ok; driver calls that do not return: {stuck} (limit {MAX_STUCK_THREADS})"),
    }
}

/// Why there is nothing to scrape yet; `None` once each GPU of an open driver has been sampled or found
/// unreadable.
pub(super) fn unready(driver: &Driver, gpus: &[GpuView<'_>]) -> Option<String> {
    if !driver.up {
        return Some(driver.problem.clone().unwrap_or_else(|| "the driver has not been opened yet".to_owned()));
    }
    let waiting = gpus.iter().find(|gpu| gpu.state == GpuState::Unsampled)?;
    Some(format!("GPU {} has not been sampled yet", waiting.gpu.index))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn before_the_first_beat_only_time_decides() {
        let vitals = Vitals::default();
        assert_eq!(unhealthy(&vitals, LIMIT, LIMIT), None);
        let reason = unhealthy(&vitals, LIMIT + Duration::from_millis(1), LIMIT);
        assert!(reason.is_some_and(|r| r.contains("sampling has not started")));
    }

    #[test]
    fn a_lane_that_stopped_is_named_and_one_that_never_started_is_not() {
        let vitals = Vitals::default();
        vitals.beat(Lane::Process, std::time::Instant::now());
        assert_eq!(unhealthy(&vitals, 9 * LIMIT, LIMIT), None);
        std::thread::sleep(Duration::from_millis(5));
        let reason = unhealthy(&vitals, 9 * LIMIT, Duration::from_millis(2));
        assert!(reason.is_some_and(|r| r.contains("process sampling")));
    }

    #[test]
    fn calls_that_hang_are_reported_and_at_the_limit_unhealthy() {
        let vitals = Vitals::default();
        vitals.beat(Lane::Memory, std::time::Instant::now());
        assert_eq!((unhealthy(&vitals, LIMIT, LIMIT), healthy(&vitals).as_str()), (None, "ok"));
        vitals.set_stuck(MAX_STUCK_THREADS - 1);
        assert_eq!(unhealthy(&vitals, LIMIT, LIMIT), None);
        assert!(healthy(&vitals).contains("return: 31 (limit 32)"));
        vitals.set_stuck(MAX_STUCK_THREADS);
        assert!(unhealthy(&vitals, LIMIT, LIMIT).is_some_and(|r| r.contains("32 driver calls")));
    }

    #[test]
    fn a_driver_that_is_down_says_why() {
        let mut driver = Driver::default();
        assert!(unready(&driver, &[]).is_some_and(|r| r.contains("not been opened")));
        driver.problem = Some("libnvidia-ml.so.1 was not found".to_owned());
        assert_eq!(unready(&driver, &[]).as_deref(), Some("libnvidia-ml.so.1 was not found"));
        driver.up = true;
        assert_eq!(unready(&driver, &[]), None);
    }
}
