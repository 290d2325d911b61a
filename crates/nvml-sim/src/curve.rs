//! Curves: quantities as pure functions of time, and their exact bounds.

use crate::clock::{Nanos, SECOND};
use crate::scenario::curves::{self, Phase, Quantity};
use crate::stable_hash::fraction;

/// A process whose memory moves from one value to another allocates it in pieces of this size, as in CUDA.
const GRAIN: f64 = 2_097_152.0;

/// A quantity over the lifetime of a process.
#[derive(Debug, Clone)]
pub(crate) struct Curve {
    phases: Vec<(Nanos, Shape)>,
    /// Whether the phases start over after the last one; otherwise the last value stays.
    cycle: bool,
    span: Nanos,
    grain: f64,
}

/// The shape of a phase; times are nanoseconds from its start.
#[derive(Debug, Clone)]
enum Shape {
    Constant(f64),
    Ramp { from: f64, to: f64, over: f64 },
    Step { from: f64, by: f64, every: Nanos, limit: f64 },
    Spike { base: f64, peak: f64, hold: Nanos, every: Nanos, after: Nanos, jitter: f64 },
    Leak { base: f64, rate: f64, limit: f64 },
    Sawtooth { low: f64, high: f64, every: Nanos },
    Wave { low: f64, high: f64, every: Nanos },
    Noise { low: f64, high: f64, every: Nanos },
}

impl Curve {
    /// A value that never changes.
    pub(crate) fn constant(value: f64) -> Self {
        Self { phases: vec![(Nanos::MAX, Shape::Constant(value))], cycle: false, span: Nanos::MAX, grain: 0.0 }
    }

    /// Builds a curve from the phases of a scenario.
    ///
    /// # Errors
    /// The key of an impossible value, and why it is impossible.
    pub(crate) fn of<V: Quantity>(written: &[Phase<V>], cycle: bool, granular: bool) -> Result<Self, (String, String)> {
        if written.is_empty() {
            return Err((String::new(), "a list without a phase".to_owned()));
        }
        let mut phases = Vec::new();
        for (index, phase) in written.iter().enumerate() {
            let at = |(key, what): (&str, String)| (format!("[{index}].{key}"), what);
            let (lasts, shape) = compile(phase).map_err(at)?;
            if lasts == Nanos::MAX && (index + 1 < written.len() || cycle) {
                return Err(at((
                    "for",
                    "missing: only the last phase may leave it out, and in a cycle none may".into(),
                )));
            }
            phases.push((lasts, shape));
        }
        let span = phases.iter().fold(0, |sum: Nanos, (lasts, _)| sum.saturating_add(*lasts));
        Ok(Self { phases, cycle, span, grain: if granular { GRAIN } else { 0.0 } })
    }

    /// The value at `elapsed` after the process's start. `key` gives each process its own noise.
    pub(crate) fn at(&self, elapsed: Nanos, key: u64) -> f64 {
        let mut elapsed = elapsed.max(0);
        if self.cycle {
            elapsed %= self.span;
        }
        let last = self.phases.len() - 1;
        for (index, (lasts, shape)) in self.phases.iter().enumerate() {
            if elapsed < *lasts || index == last {
                return shape.at(elapsed.min(*lasts), key.wrapping_add(index as u64), self.grain);
            }
            elapsed -= lasts;
        }
        0.0
    }

    /// The value, if it is the same at all times.
    pub(crate) fn fixed(&self) -> Option<f64> {
        match self.phases[..] {
            [(_, Shape::Constant(value))] => Some(value),
            _ => None,
        }
    }

    /// A bound that no value exceeds.
    pub(crate) fn bound(&self) -> f64 {
        self.phases.iter().map(|(lasts, shape)| shape.bound(*lasts)).fold(0.0, f64::max)
    }

    /// The highest value from the start until `elapsed`.
    pub(crate) fn peak(&self, elapsed: Nanos, key: u64) -> f64 {
        let mut rest = elapsed.max(0);
        let rounds_over = self.cycle && rest >= self.span;
        if rounds_over {
            rest = self.span;
        }
        let mut peak = self.at(elapsed, key);
        for (index, (lasts, shape)) in self.phases.iter().enumerate() {
            // The end of a phase is the start of the next one.
            let followed = self.cycle || index + 1 < self.phases.len();
            let seen = if followed { rest.min(*lasts - 1) } else { rest.min(*lasts) };
            peak = peak.max(shape.peak(seen, key.wrapping_add(index as u64), self.grain));
            if rest < *lasts {
                break;
            }
            rest -= lasts;
        }
        peak
    }
}

/// The phase's length and shape.
fn compile<V: Quantity>(phase: &Phase<V>) -> Result<(Nanos, Shape), (&'static str, String)> {
    use curves::Phase as P;
    let lasts = match phase {
        P::Ramp { lasts, .. } => Some(lasts),
        P::Constant { lasts, .. } | P::Step { lasts, .. } | P::Spike { lasts, .. } => lasts.as_ref(),
        P::Leak { lasts, .. } | P::Sawtooth { lasts, .. } | P::Wave { lasts, .. } | P::Noise { lasts, .. } => {
            lasts.as_ref()
        }
    };
    let lasts = lasts.map(|lasts| positive("for", lasts.0)).transpose()?.unwrap_or(Nanos::MAX);
    let limit = |limit: &Option<V>| match limit {
        Some(limit) => Ok(limit.number()),
        None if lasts < Nanos::MAX => Ok(f64::INFINITY),
        None => Err(("limit", "missing: without `limit` or `for` the growth never ends".to_owned())),
    };
    let ordered = |low: &V, high: &V| {
        if low.number() <= high.number() {
            Ok((low.number(), high.number()))
        } else {
            Err(("high", "is below `low`".to_owned()))
        }
    };
    let shape = match phase {
        P::Constant { value, .. } => Shape::Constant(value.number()),
        P::Ramp { from, to, .. } => Shape::Ramp { from: from.number(), to: to.number(), over: lasts as f64 },
        P::Step { from, by, every, limit: top, .. } => {
            Shape::Step { from: from.number(), by: by.number(), every: positive("every", every.0)?, limit: limit(top)? }
        }
        P::Spike { base, peak, hold, every, after, jitter, .. } => {
            let hold = positive("hold", hold.0)?;
            let every = every.map_or(Ok(Nanos::MAX), |every| positive("every", every.0))?;
            let jitter = jitter.map_or(0, |jitter| jitter.0);
            let after = after.map_or(if every == Nanos::MAX { 0 } else { (every - hold) / 2 }, |after| after.0);
            if after < 0 || jitter < 0 || hold.saturating_add(jitter) > every {
                return Err(("every", "is too short for the peak and its jitter".to_owned()));
            }
            Shape::Spike { base: base.number(), peak: peak.number(), hold, every, after, jitter: jitter as f64 }
        }
        P::Leak { base, rate, limit: top, .. } => {
            Shape::Leak { base: base.number(), rate: rate.number(), limit: limit(top)? }
        }
        P::Sawtooth { low, high, every, .. } => {
            let (low, high) = ordered(low, high)?;
            Shape::Sawtooth { low, high, every: positive("every", every.0)? }
        }
        P::Wave { low, high, every, .. } => {
            let (low, high) = ordered(low, high)?;
            Shape::Wave { low, high, every: positive("every", every.0)? }
        }
        P::Noise { low, high, every, .. } => {
            let (low, high) = ordered(low, high)?;
            Shape::Noise { low, high, every: positive("every", every.0)? }
        }
    };
    Ok((lasts, shape))
}

fn positive(key: &'static str, nanos: Nanos) -> Result<Nanos, (&'static str, String)> {
    if nanos > 0 { Ok(nanos) } else { Err((key, "must be above zero".to_owned())) }
}

fn coarse(value: f64, low: f64, grain: f64) -> f64 {
    // A value between two endpoints is rounded down to whole pieces, never below the low end.
    if grain > 0.0 { ((value / grain).floor() * grain).max(low) } else { value }
}

/// The cosine of a fraction of a turn, 0 to 1. A program with this crate built in would load libm just for `f64::cos`,
/// and libm takes a third of a MiB of memory.
fn cosine(turn: f64) -> f64 {
    let half = turn.min(1.0 - turn);
    let quarter = half.min(0.5 - half);
    let squared = (std::f64::consts::TAU * quarter).powi(2);
    // The Taylor series, with enough terms for the precision of an f64 up to a quarter turn.
    let series = (1..=11).rev().fold(1.0, |sum, n| 1.0 - sum * squared / f64::from((2 * n - 1) * (2 * n)));
    if half > quarter { -series } else { series }
}

impl Shape {
    fn at(&self, elapsed: Nanos, key: u64, grain: f64) -> f64 {
        let part = |every: Nanos| (elapsed % every) as f64 / every as f64;
        match *self {
            Self::Constant(value) => value,
            Self::Ramp { from, to, over } => {
                let done = elapsed as f64 / over;
                if done >= 1.0 { to } else { coarse(from + (to - from) * done, from.min(to), grain) }
            }
            Self::Step { from, by, every, limit } => (from + by * (elapsed / every) as f64).min(limit.max(from)),
            Self::Spike { base, peak, hold, every, after, jitter } => {
                let since = elapsed - after;
                if since < 0 {
                    return base;
                }
                let late = (fraction(key, (since / every) as u64) * jitter) as Nanos;
                let within = since % every - late;
                if (0..hold).contains(&within) { peak } else { base }
            }
            Self::Leak { base, rate, limit } => {
                let grown = base + rate * (elapsed as f64 / SECOND as f64);
                if grown >= limit { limit.max(base) } else { coarse(grown, base, grain) }
            }
            Self::Sawtooth { low, high, every } => coarse(low + (high - low) * part(every), low, grain),
            Self::Wave { low, high, every } => {
                let up = 0.5 - 0.5 * cosine(part(every));
                coarse(low + (high - low) * up, low, grain)
            }
            Self::Noise { low, high, every } => {
                coarse(low + (high - low) * fraction(key, (elapsed / every) as u64), low, grain)
            }
        }
    }

    fn bound(&self, lasts: Nanos) -> f64 {
        let seconds = lasts as f64 / SECOND as f64;
        match *self {
            Self::Constant(value) => value,
            Self::Ramp { from, to, .. } => from.max(to),
            Self::Step { from, by, every, limit } => (from + by * (lasts / every) as f64).min(limit.max(from)),
            Self::Spike { base, peak, .. } => base.max(peak),
            Self::Leak { base, rate, limit } => (base + rate * seconds).min(limit.max(base)),
            Self::Sawtooth { high, .. } | Self::Wave { high, .. } | Self::Noise { high, .. } => high,
        }
    }

    /// The highest value in the first `elapsed` of the phase.
    fn peak(&self, elapsed: Nanos, key: u64, grain: f64) -> f64 {
        let now = self.at(elapsed, key, grain);
        match *self {
            Self::Constant(_) | Self::Step { .. } | Self::Leak { .. } => now,
            Self::Ramp { from, .. } => now.max(from),
            Self::Spike { base, peak, every, after, jitter, .. } => {
                let first = (fraction(key, 0) * jitter) as Nanos;
                let begun = elapsed - after >= first.min(every);
                if begun { base.max(peak) } else { base }
            }
            Self::Sawtooth { high, every, .. } if elapsed >= every => self.at(every - 1, key, grain).min(high),
            Self::Wave { every, .. } if elapsed >= every / 2 => self.at(every / 2, key, grain),
            Self::Sawtooth { .. } | Self::Wave { .. } => now,
            Self::Noise { low, every, .. } => {
                // A limit on the work: very fast noise has this many intervals in a day, and more would hardly raise
                // the maximum.
                let intervals = (elapsed / every).min(1_000_000);
                (0..=intervals).map(|k| self.at(k.saturating_mul(every), key, grain)).fold(low, f64::max)
            }
        }
    }
}

#[cfg(test)]
mod tests;
