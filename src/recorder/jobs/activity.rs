//! How long a workload was idle on a device, from the times at which its processes last worked there.

use crate::recorder::history::Micros;

/// The sums of one workload on one device.
#[derive(Debug, Default, Clone)]
pub(super) struct Activity {
    /// Until when the time is added up; `None` while it is unknown whether the workload works.
    at: Option<Micros>,
    /// Until when idle time has been counted.
    idle_until: Micros,
    /// The time without work.
    idle: Micros,
    /// The time for which it is known whether the workload worked.
    known: Micros,
}

/// What a list shows about the processes of a workload.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Seen {
    /// When one of them last worked.
    pub(super) last: Option<Micros>,
    /// Whether that is unknown for one of them.
    pub(super) incomplete: bool,
}

impl Seen {
    /// Adds a process.
    pub(super) fn add(&mut self, last: Option<Micros>) {
        self.incomplete |= last.is_none();
        self.last = self.last.max(last);
    }
}

impl Activity {
    /// Adds up the time until `at`. A pause of the work counts as idle, from its beginning, once it is longer than
    /// `pause`. Times between two lists that are longer than `gap` are left out.
    pub(super) fn see(&mut self, seen: Seen, at: Micros, pause: Micros, gap: Micros) {
        let works = seen.last.is_some_and(|last| at.saturating_sub(last) <= pause);
        // Work by one process is enough to know that the workload is not idle.
        let Some(last) = seen.last.filter(|_| works || !seen.incomplete) else {
            self.at = None;
            return;
        };
        let Some(before) = self.at.filter(|before| at.saturating_sub(*before) <= gap) else {
            self.idle_until = at;
            self.at = Some(at);
            return;
        };
        self.known += at.saturating_sub(before);
        if !works {
            self.idle += at.saturating_sub(last.max(self.idle_until));
            self.idle_until = at;
        }
        self.at = Some(at);
    }

    /// Stops counting, because the workload has left the device.
    pub(super) fn leave(&mut self) {
        self.at = None;
    }

    /// The share of idle time, 0 to 1; `None` if it was never known.
    pub(super) fn idle_ratio(&self) -> Option<f64> {
        (self.known > 0).then(|| (self.idle as f64 / self.known as f64).min(1.0))
    }

    /// Adds the sums of a part of the workload that had another name.
    pub(super) fn absorb(&mut self, other: &Self) {
        self.idle += other.idle;
        self.known += other.known;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Micros = 3;
    const GAP: Micros = 10;

    fn run(lists: impl IntoIterator<Item = (Micros, Option<Micros>)>) -> Option<f64> {
        let mut activity = Activity::default();
        for (at, last) in lists {
            let mut seen = Seen::default();
            seen.add(last);
            activity.see(seen, at, PAUSE, GAP);
        }
        activity.idle_ratio()
    }

    #[test]
    fn a_long_pause_counts_from_its_beginning_and_a_short_one_not_at_all() {
        assert_eq!(run((0..=100).map(|at| (at, Some(at)))), Some(0.0));
        assert_eq!(run((0..=100).map(|at| (at, Some(at / 3 * 3)))), Some(0.0));
        assert_eq!(run((0..=100).map(|at| (at, Some(at.min(40))))), Some(0.6));
        assert_eq!(run((0..=100).map(|at| (at, Some(0)))), Some(1.0));
    }

    #[test]
    fn unknown_activity_is_neither_work_nor_a_pause() {
        assert_eq!(run((0..100).map(|at| (at, None))), None);
        assert_eq!(run([(0, Some(0))]), None, "one list has no duration");
        let unknown_then_idle = (0..=50).map(|at| (at, None)).chain((51..=100).map(|at| (at, Some(0))));
        assert_eq!(run(unknown_then_idle), Some(1.0));
        assert_eq!(run([(0, Some(0)), (5, Some(0)), (500, Some(0)), (505, Some(505))]), Some(0.5));
    }

    #[test]
    fn one_process_that_works_is_enough() {
        let mut activity = Activity::default();
        for at in 0..=10 {
            let mut seen = Seen::default();
            seen.add(Some(at));
            seen.add(None);
            activity.see(seen, at, PAUSE, GAP);
        }
        assert_eq!(activity.idle_ratio(), Some(0.0));
    }
}
