//! What one sample covers: a whole GPU, or one GPU instance under MIG.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::super::moment::Moment;
use super::totals::Totals;
use crate::lanes::guarded::GuardedDevice;
use crate::lanes::watch::Superseded;
use crate::nvml::{Error, ProfilingComparison, ProfilingSamples};
use crate::snapshot::{Gpu, MigDevice, ProfilingFigures, ProfilingMetric, ProfilingValues};

/// After this many intervals in which no metric was filled, no further sample is taken until
/// [`Scope::reconsider`]. Consumer Blackwell GPUs report that they support the counters and never fill them.
const EMPTY_INTERVALS: u32 = 5;
/// The longest time between two samples that counts as measured, in configured intervals.
const LONGEST_INTERVALS: u32 = 5;

/// A whole GPU or one GPU instance.
#[derive(Debug)]
pub(super) struct Scope<'s> {
    /// The first MIG device of the GPU instance; `None` for the whole GPU.
    pub(super) device: Option<Arc<MigDevice>>,
    pub(super) figures: ProfilingFigures,
    /// The end of the last interval in which the driver filled a metric.
    pub(super) at: Option<Instant>,
    pub(super) key: String,
    samples: Option<ProfilingSamples<'s>>,
    /// When the earlier sample was taken; `None` if there is none.
    earlier: Option<Moment>,
    /// The number of intervals without any filled metric since a metric was last filled.
    empty: u32,
    pub(super) given_up: bool,
    /// Samples attempted in this session.
    attempts: u32,
}

impl<'s> Scope<'s> {
    /// The scope with the totals that were kept from earlier sessions.
    pub(super) fn new(gpu: &Gpu, device: Option<Arc<MigDevice>>, totals: &Totals) -> Self {
        let key = device.as_ref().map_or_else(|| gpu.key(), |device| device.uuid.clone());
        let figures = totals.of(&key).unwrap_or_else(|| ProfilingFigures {
            counted_since: Some(SystemTime::now()),
            ..ProfilingFigures::default()
        });
        Self { device, figures, at: None, key, samples: None, earlier: None, empty: 0, given_up: false, attempts: 0 }
    }

    /// Continues with these totals, in a new interval.
    pub(super) fn continue_from(&mut self, totals: &Totals) {
        self.earlier = None;
        if let Some(figures) = totals.of(&self.key) {
            self.figures = figures;
        }
    }

    /// Takes a sample and adds the interval since the earlier one, if there is one. Returns whether the totals changed.
    /// If no sample could be taken, the next one begins a new interval.
    pub(super) fn sample(
        &mut self,
        device: &GuardedDevice<'s>,
        interval: Duration,
        comparison: &mut ProfilingComparison,
    ) -> Result<Result<bool, Error>, Superseded> {
        let began = Moment::now();
        if self.earlier.is_some_and(|earlier| began.is_too_early_after(earlier)) {
            return Ok(Ok(false));
        }
        self.attempts = self.attempts.saturating_add(1);
        // If the new sample cannot be taken, the next one has no earlier sample.
        let earlier = self.earlier.take();
        self.figures.latest = ProfilingValues::default();
        let samples = match &mut self.samples {
            Some(samples) => samples,
            None => {
                let gpu_instance = self.device.as_ref().map(|device| device.gpu_instance);
                match device.call(|gpu| gpu.profiling_samples(gpu_instance))? {
                    Ok(samples) => self.samples.insert(samples),
                    Err(error) => return Ok(Err(error)),
                }
            }
        };
        if let Err(error) = device.call(|_| samples.take())? {
            return Ok(Err(error));
        }
        let now = began.until(Moment::now());
        let seconds =
            earlier.and_then(|earlier| now.seconds_since(earlier, interval.saturating_mul(LONGEST_INTERVALS)));
        let totals = &self.figures.totals;
        let filled = |metric| totals.get(metric).is_some();
        let compared = match seconds {
            Some(seconds) => Some((seconds, device.call(|_| samples.compare(comparison, filled))?)),
            None => None,
        };
        // The later sample is valid even if the comparison failed, so it begins the next interval.
        samples.advance();
        self.earlier = Some(now);
        Ok(match compared {
            Some((seconds, values)) => values.map(|values| self.add(seconds, values, now)),
            None => Ok(false),
        })
    }

    /// Adds the means over an interval. Returns whether any metric was filled.
    fn add(&mut self, seconds: f64, values: ProfilingValues, now: Moment) -> bool {
        if values.is_empty() {
            self.empty += 1;
            if self.empty >= EMPTY_INTERVALS && self.figures.totals.is_empty() {
                self.give_up();
            }
            return false;
        }
        self.empty = 0;
        self.at = Some(now.monotonic);
        self.figures.latest = values;
        for metric in ProfilingMetric::ALL {
            if let Some(value) = values.get(metric) {
                let before = self.figures.totals.get(metric).unwrap_or(0.0);
                self.figures.totals.set(metric, Some(before + value * seconds));
            }
        }
        true
    }

    /// Records that no sample could be taken: the next one begins a new interval.
    pub(super) fn interrupt(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
        self.earlier = None;
        self.figures.latest = ProfilingValues::default();
    }

    /// Takes no further samples until [`Scope::reconsider`].
    pub(super) fn give_up(&mut self) {
        self.interrupt();
        self.given_up = true;
    }

    /// Whether at least two samples were attempted in this session, so that an interval could have been measured.
    pub(super) fn is_settled(&self) -> bool {
        self.given_up || self.attempts >= 2
    }

    /// Allows samples again, even if the counters were found not to be provided.
    pub(super) fn reconsider(&mut self) {
        (self.given_up, self.empty) = (false, 0);
        self.samples.iter_mut().for_each(ProfilingSamples::reconsider);
    }
}
