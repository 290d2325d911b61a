//! The series that were pushed: since when each counter counts, and which series the receiver still considers current.
//!
//! Invariants: a start time is never later than the value's time or the moment from which the value has been counted,
//! and is 0 where that moment is unknown. A series that was delivered, or was in the last push that may have been, and is
//! gone is reported as gone until the receiver has accepted that report. What is kept is bounded by the series of the
//! last push, of the last push that was delivered and of the last push that may have been.

use std::collections::HashMap;

use super::origin::Origin;

/// All series, by metric and label text.
#[derive(Default)]
pub(super) struct Ledger {
    metrics: HashMap<&'static str, Series>,
    round: u64,
    /// When the current round and the one before it began, in nanoseconds since the Unix epoch.
    times: [u64; 2],
    /// When the exporter began to count.
    started: u64,
}

struct Series {
    origin: Origin,
    round: u64,
    entries: HashMap<Box<str>, Entry>,
    /// The bounds of the buckets, if it is a histogram.
    bounds: Vec<f64>,
}

struct Entry {
    start: u64,
    last: f64,
    round: u64,
    delivered: bool,
    /// It was in the last push of which it is unknown whether it was delivered.
    uncertain: bool,
}

impl Entry {
    /// Whether the receiver may consider the series current.
    fn may_be_shown(&self) -> bool {
        self.delivered || self.uncertain
    }
}

impl Ledger {
    pub(super) fn new(started: u64) -> Self {
        Self { started, ..Self::default() }
    }

    /// Begins the collection of a push.
    pub(super) fn begin(&mut self, time: u64) {
        self.round += 1;
        self.times = [time, self.times[0]];
    }

    /// Records the value of a series, and returns the start time of its counter. For a histogram, the value is the
    /// number of observations. `since` is when it was 0, if that is known.
    pub(super) fn see(&mut self, origin: Origin, labels: &str, value: f64, since: Option<u64>) -> u64 {
        let [time, previous] = self.times;
        let otherwise = if origin.is_counted_here() { self.started } else { 0 };
        let first = since.unwrap_or(otherwise).min(time);
        let series = self.metrics.entry(origin.name()).or_insert_with(|| Series {
            origin,
            round: 0,
            entries: HashMap::new(),
            bounds: Vec::new(),
        });
        series.round = self.round;
        if let Some(entry) = series.entries.get_mut(labels) {
            // A counter that has decreased began again after the previous collection.
            if value < entry.last && origin.is_monotonic() {
                // If it is known when, that moment is later than the old start.
                entry.start = since.filter(|since| *since > entry.start).unwrap_or(previous).min(time);
            }
            // The clock may have been set back.
            entry.start = entry.start.min(time);
            (entry.last, entry.round) = (value, self.round);
            return entry.start;
        }
        let entry = Entry { start: first, last: value, round: self.round, delivered: false, uncertain: false };
        series.entries.insert(labels.into(), entry);
        first
    }

    /// Records the bounds of the buckets of a histogram that has been seen.
    pub(super) fn set_bounds(&mut self, metric: &'static str, bounds: &[f64]) {
        if let Some(series) = self.metrics.get_mut(metric) {
            series.bounds.clear();
            series.bounds.extend_from_slice(bounds);
        }
    }

    /// The bounds of the buckets of a histogram.
    pub(super) fn bounds(&self, metric: &'static str) -> Vec<f64> {
        self.metrics.get(metric).map(|series| series.bounds.clone()).unwrap_or_default()
    }

    /// The series of a metric that the receiver may show and that are gone. Forgets the others that are gone.
    pub(super) fn gone(&mut self, metric: &'static str) -> Vec<Box<str>> {
        let Some(series) = self.metrics.get_mut(metric) else { return Vec::new() };
        let round = self.round;
        series.entries.retain(|_, entry| entry.round == round || entry.may_be_shown());
        let gone = series.entries.iter().filter(|(_, entry)| entry.round != round);
        let mut gone: Vec<_> = gone.map(|(labels, _)| labels.clone()).collect();
        gone.sort_unstable();
        gone
    }

    /// The metrics that have no series in this round.
    pub(super) fn empty(&self) -> Vec<Origin> {
        let mut empty: Vec<_> =
            self.metrics.values().filter(|series| series.round != self.round).map(|series| series.origin).collect();
        empty.sort_unstable_by_key(Origin::name);
        empty
    }

    /// Records that the receiver has accepted the push of this round.
    pub(super) fn delivered(&mut self) {
        let round = self.round;
        for series in self.metrics.values_mut() {
            series.entries.retain(|_, entry| entry.round == round);
            series.entries.values_mut().for_each(|entry| (entry.delivered, entry.uncertain) = (true, false));
        }
        self.metrics.retain(|_, series| !series.entries.is_empty());
    }

    /// Records that the receiver may have accepted the push of this round. This push also reported as gone what only an
    /// earlier push of this kind contained, so that is forgotten.
    pub(super) fn may_be_delivered(&mut self) {
        let round = self.round;
        for series in self.metrics.values_mut() {
            series.entries.values_mut().for_each(|entry| entry.uncertain = entry.round == round);
            series.entries.retain(|_, entry| entry.may_be_shown());
        }
        self.metrics.retain(|_, series| !series.entries.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_metrics::families;

    fn origin(name: &str) -> Origin {
        Origin::Family(families().find(|family| family.name == name).unwrap())
    }

    const COUNTED: &str = "gpu_memory_increase_bytes_total";
    const OF_THE_DRIVER: &str = "gpu_ecc_errors_total";

    fn round(ledger: &mut Ledger, time: u64, name: &str, values: &[(&str, f64)]) -> Vec<u64> {
        ledger.begin(time);
        values.iter().map(|(labels, value)| ledger.see(origin(name), labels, *value, None)).collect()
    }

    #[test]
    fn a_counter_starts_with_the_exporter_and_again_after_each_decrease() {
        let mut ledger = Ledger::new(100);
        assert_eq!(round(&mut ledger, 200, COUNTED, &[("a", 5.0)]), [100]);
        assert_eq!(round(&mut ledger, 300, COUNTED, &[("a", 5.0), ("b", 0.0)]), [100, 100]);
        assert_eq!(round(&mut ledger, 400, COUNTED, &[("a", 4.0)]), [300]);
        assert_eq!(round(&mut ledger, 500, COUNTED, &[("a", 9.0)]), [300]);
    }

    #[test]
    fn a_start_that_is_known_is_used_when_the_series_begins_and_begins_again() {
        let mut ledger = Ledger::new(100);
        let mut start = |time, name, value, since| {
            ledger.begin(time);
            ledger.see(origin(name), "a", value, since)
        };
        for name in [COUNTED, OF_THE_DRIVER] {
            assert_eq!(start(200, name, 5.0, Some(150)), 150);
            assert_eq!(start(300, name, 6.0, Some(150)), 150);
            assert_eq!(start(400, name, 1.0, Some(350)), 350, "it began again at a known time");
            assert_eq!(start(500, name, 0.0, Some(350)), 400, "and again at an unknown one");
        }
        assert_eq!(start(600, "gpu_up", 1.0, Some(700)), 600);
    }

    #[test]
    fn a_start_is_never_later_than_the_value_although_the_clock_is_set_back() {
        let mut ledger = Ledger::new(100);
        assert_eq!(round(&mut ledger, 200, COUNTED, &[("a", 5.0)]), [100]);
        assert_eq!(round(&mut ledger, 50, COUNTED, &[("a", 6.0)]), [50]);
        assert_eq!(round(&mut ledger, 60, COUNTED, &[("a", 7.0)]), [50]);
        assert_eq!(round(&mut ledger, 40, OF_THE_DRIVER, &[("a", 7.0)]), [0]);
    }

    #[test]
    fn the_start_of_a_counter_of_the_driver_is_unknown_until_it_decreases() {
        let mut ledger = Ledger::new(100);
        assert_eq!(round(&mut ledger, 200, OF_THE_DRIVER, &[("a", 5.0)]), [0]);
        assert_eq!(round(&mut ledger, 300, OF_THE_DRIVER, &[("a", 0.0)]), [200]);
    }

    #[test]
    fn a_series_that_was_delivered_is_reported_as_gone_until_that_is_delivered() {
        let mut ledger = Ledger::new(0);
        round(&mut ledger, 1, COUNTED, &[("a", 0.0), ("b", 0.0)]);
        ledger.delivered();
        for time in [2, 3] {
            round(&mut ledger, time, COUNTED, &[("b", 0.0), ("c", 0.0)]);
            assert_eq!(ledger.gone(COUNTED), [Box::from("a")]);
        }
        round(&mut ledger, 4, COUNTED, &[("b", 0.0)]);
        assert_eq!(ledger.gone(COUNTED), [Box::from("a")], "c was never delivered");
        ledger.delivered();
        round(&mut ledger, 5, COUNTED, &[("b", 0.0)]);
        assert!(ledger.gone(COUNTED).is_empty());
    }

    #[test]
    fn a_series_of_a_push_that_may_have_been_delivered_is_reported_as_gone() {
        let mut ledger = Ledger::new(0);
        round(&mut ledger, 1, COUNTED, &[("a", 0.0), ("b", 0.0)]);
        ledger.may_be_delivered();
        // This push fails without any doubt.
        round(&mut ledger, 2, COUNTED, &[("b", 0.0), ("c", 0.0)]);
        assert_eq!(ledger.gone(COUNTED), [Box::from("a")]);
        round(&mut ledger, 3, COUNTED, &[("b", 0.0)]);
        assert_eq!(ledger.gone(COUNTED), [Box::from("a")], "c never arrived");
        ledger.delivered();
        round(&mut ledger, 4, COUNTED, &[]);
        assert_eq!(ledger.gone(COUNTED), [Box::from("b")]);
        ledger.may_be_delivered();
        round(&mut ledger, 5, COUNTED, &[]);
        assert_eq!(ledger.gone(COUNTED), [Box::from("b")], "it was delivered, and its end perhaps not");
    }

    #[test]
    fn a_metric_without_series_is_found() {
        let mut ledger = Ledger::new(0);
        round(&mut ledger, 1, COUNTED, &[("a", 0.0)]);
        ledger.delivered();
        round(&mut ledger, 2, OF_THE_DRIVER, &[("a", 0.0)]);
        assert_eq!(ledger.empty().iter().map(Origin::name).collect::<Vec<_>>(), [COUNTED]);
        assert_eq!(ledger.gone(COUNTED), [Box::from("a")]);
        ledger.delivered();
        assert_eq!(ledger.metrics.len(), 1);
    }

    #[test]
    fn what_comes_and_goes_while_the_receiver_is_away_is_forgotten() {
        let mut ledger = Ledger::new(0);
        for time in 1..100 {
            let name = time.to_string();
            round(&mut ledger, time, COUNTED, &[(&name, 0.0)]);
            assert!(ledger.gone(COUNTED).is_empty());
            assert_eq!(ledger.metrics[COUNTED].entries.len(), 1);
        }
    }

    #[test]
    fn what_comes_and_goes_while_deliveries_are_uncertain_is_kept_for_one_push() {
        let mut ledger = Ledger::new(0);
        for time in 1..100 {
            let name = time.to_string();
            round(&mut ledger, time, COUNTED, &[(&name, 0.0)]);
            let before = (time - 1).to_string().into_boxed_str();
            assert_eq!(ledger.gone(COUNTED), if time == 1 { vec![] } else { vec![before] });
            ledger.may_be_delivered();
            assert_eq!(ledger.metrics[COUNTED].entries.len(), 1);
        }
    }
}
