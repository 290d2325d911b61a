//! The energy of every GPU, integrated from the readings of its power. The sums outlive sessions and threads.
//!
//! Invariant: only the time between two readings of power that follow each other adds energy; all other time is counted as
//! unmeasured.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use super::moment::Moment;
use crate::snapshot::Energy;

/// The sums, keyed by [`crate::snapshot::Gpu::key`].
#[derive(Debug, Default)]
pub(crate) struct Energies(HashMap<String, Sum>);

#[derive(Debug)]
struct Sum {
    energy: Energy,
    /// The end of the last round of readings, and the power that was read in it.
    last: (Moment, Option<f64>),
}

impl Energies {
    /// Adds the power in watts that was read in a round, or `None`. Rounds are due once per `interval`. Returns the energy
    /// of the GPU, if the power is known. Allocates only for the first reading of a GPU.
    pub(super) fn add(&mut self, key: &str, at: Moment, power: Option<f64>, interval: Duration) -> Option<Energy> {
        let Some(sum) = self.0.get_mut(key) else {
            power?;
            let energy = Energy { counted_since: SystemTime::now(), joules: 0.0, unmeasured: 0.0 };
            self.0.insert(key.to_owned(), Sum { energy, last: (at, power) });
            return Some(energy);
        };
        let (earlier, before) = std::mem::replace(&mut sum.last, (at, power));
        // After a missed round two intervals have passed.
        match (before.zip(power), at.seconds_since(earlier, interval * 3 / 2)) {
            (Some((before, now)), Some(seconds)) => sum.energy.joules += (before + now) / 2.0 * seconds,
            _ => sum.energy.unmeasured += at.all_seconds_since(earlier),
        }
        power.map(|_| sum.energy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(1);

    /// The joules and the unmeasured seconds after each reading, which is a time since the first one on both clocks, and
    /// the power.
    fn sums(readings: &[(f64, f64, Option<f64>)]) -> Vec<Option<(f64, f64)>> {
        let (start, mut energies) = (Moment::now(), Energies::default());
        let add = |&(monotonic, boot, power): &(f64, f64, Option<f64>)| {
            let at = start.after(Duration::from_secs_f64(monotonic), Duration::from_secs_f64(boot));
            energies.add("GPU-a", at, power, INTERVAL).map(|energy| (energy.joules, energy.unmeasured))
        };
        readings.iter().map(add).collect()
    }

    #[test]
    fn power_is_integrated_between_readings_that_follow_each_other() {
        let read = |at: f64, power: f64| (at, at, Some(power));
        assert_eq!(
            sums(&[read(0.0, 100.0), read(1.0, 300.0), read(2.25, 300.0)]),
            [Some((0.0, 0.0)), Some((200.0, 0.0)), Some((575.0, 0.0))]
        );
    }

    #[test]
    fn a_missing_reading_a_missed_round_and_a_suspension_add_no_energy() {
        let read = |at: f64, power: f64| (at, at, Some(power));
        // Nothing is known before the first reading of power, and nothing is shown without a reading.
        let refused = sums(&[(0.0, 0.0, None), read(1.0, 50.0), (2.0, 2.0, None), read(3.0, 50.0), read(4.0, 50.0)]);
        assert_eq!(refused, [None, Some((0.0, 0.0)), None, Some((0.0, 2.0)), Some((50.0, 2.0))]);
        assert_eq!(sums(&[read(0.0, 50.0), read(2.0, 50.0)])[1], Some((0.0, 2.0)));
        assert_eq!(sums(&[read(0.0, 50.0), (1.0, 61.0, Some(50.0))])[1], Some((0.0, 61.0)));
    }

    #[test]
    fn each_gpu_has_a_sum_that_goes_on() {
        let (start, mut energies) = (Moment::now(), Energies::default());
        let later = start.after(INTERVAL, INTERVAL);
        assert!(energies.add("GPU-a", start, Some(10.0), INTERVAL).is_some());
        let other = energies.add("GPU-b", later, Some(10.0), INTERVAL).unwrap();
        let first = energies.add("GPU-a", later, Some(10.0), INTERVAL).unwrap();
        assert_eq!((first.joules, other.joules), (10.0, 0.0));
    }
}
