//! Whether the memory of a run has been rising: then its peak says nothing about what it will need.
//!
//! Invariant: growth that a restart undid, and growth that came to an end, are none.

use std::collections::BTreeMap;

use super::history::Interval;

/// The range from the first to the last interval is divided into this many parts.
const PARTS: u64 = 8;
/// The lowest interval of each part is higher than that of the part before by at least one of this many parts of the peak.
const STEP: u64 = 200;

/// Bytes per hour by which the lowest use has risen, from the first part to the last; `None` if it has not risen in each part,
/// or if the highest use was before the last part. `used` has what was used at most in each interval, of which each is `length`
/// seconds long.
pub(super) fn rate(used: &BTreeMap<u32, Interval>, length: u64) -> Option<u64> {
    let (first, last) = (*used.keys().next()?, *used.keys().next_back()?);
    let intervals = u64::from(last - first) + 1;
    let mut floors = [None::<u64>; PARTS as usize];
    let mut tops = [0; PARTS as usize];
    for (index, Interval { peak, .. }) in used {
        let part = usize::try_from(u64::from(index - first) * PARTS / intervals).ok()?;
        floors[part] = Some(floors[part].map_or(*peak, |floor| floor.min(*peak)));
        tops[part] = tops[part].max(*peak);
    }
    let floors: Vec<u64> = floors.into_iter().collect::<Option<_>>()?;
    let (lowest, highest) = (floors.first()?, floors.last()?);
    let peak = *tops.iter().max()?;
    let rises = floors.windows(2).all(|pair| pair[0].saturating_add(peak.div_ceil(STEP)) <= pair[1]);
    let is_last = tops.iter().position(|top| *top == peak) == Some(tops.len() - 1);
    let seconds = u128::from(intervals) * u128::from(length) * u128::from(PARTS - 1) / u128::from(PARTS);
    let rate = (u128::from(highest.saturating_sub(*lowest)) * 3600).checked_div(seconds)?;
    (rises && is_last).then(|| u64::try_from(rate).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Option<u64> {
        let interval = |peak| Interval { peak, samples: 1 };
        rate(&(7..).zip(values.into_iter().map(interval)).collect(), 900)
    }

    #[test]
    fn a_floor_that_rises_in_each_part_has_a_rate() {
        // 100 in a quarter of an hour, with a batch now and then: the floor counts.
        let leak = (0..80).map(|n| 10_000 + 100 * n + if n % 3 == 0 { 0 } else { 40 });
        assert_eq!(of(leak), Some(402));
    }

    #[test]
    fn a_load_a_restart_and_a_level_are_no_rise() {
        assert_eq!(of((0..80).map(|n| 100 * (n + 1).min(40))), None, "it came to an end");
        assert_eq!(of((0..80).map(|n| 10_000 + 100 * (n % 40))), None, "a restart undid it");
        assert_eq!(of([500; 80]), None);
        assert_eq!(of((0..80).rev().map(|n| 10_000 + 100 * n)), None);
        assert_eq!(of((0..80).map(|n| 10_000 + n)), None, "too little");
        assert_eq!(of((0..80).map(|n| if n == 20 { 90_000 } else { 10_000 + 100 * n })), None, "the peak was before");
        assert_eq!(of(0..7), None, "fewer intervals than parts");
    }
}
