//! Whether the memory of a run is a reservation: what a framework took in advance, not what the program needs.

use super::devices::Memory;
use super::history::Run;

/// Words in the names of processes, in the order in which they are reported.
const WORDS: [&str; 5] = ["vllm", "sglang", "tensorflow", "trtllm", "jax"];
/// JAX takes three quarters of the memory by default: with its context, from 74 to 77 % of what can be allocated.
const SHARE_75: &str = "share_75";
/// TensorFlow takes nearly all memory by default.
const SHARE_93: &str = "share_93";
/// All reasons, in the order in which they are reported.
const ORDER: [&str; 7] = [WORDS[0], WORDS[1], WORDS[2], WORDS[3], WORDS[4], SHARE_75, SHARE_93];
/// From this percentage of its own highest memory on, a run counts as being at its peak.
const NEAR: u64 = 95;
/// A reservation never falls below this percentage of its highest memory: only its context and libraries grow.
const FLAT: u64 = 98;

/// Why the run's memory is taken for a reservation; `None` if it is not. `memory` is that of its device.
pub(super) fn reason(run: &Run, memory: Option<Memory>) -> Option<&'static str> {
    if let Some(clients) = &run.clients {
        return clients.hides_reservation.then_some(WORDS[2]);
    }
    if let Some(word) = WORDS.into_iter().find(|word| run.names.iter().any(|name| name.contains(word))) {
        return Some(word);
    }
    let allocatable = u128::from(memory?.allocatable());
    let peak = u128::from(run.driver_peak);
    if !is_flat(run) {
        return None;
    }
    let at_least = |percent: u128| peak * 100 >= allocatable * percent;
    match () {
        () if allocatable == 0 => None,
        () if at_least(93) => Some(SHARE_93),
        () if at_least(74) && peak * 100 <= allocatable * 77 => Some(SHARE_75),
        () => None,
    }
}

/// Whether the run held a reservation in all intervals, apart from the first and the last one of each stretch without a gap: in
/// these, a process can have started or ended. If there is no other interval, these count.
fn is_flat(run: &Run) -> bool {
    let has = |index: Option<u32>| index.is_some_and(|index| run.intervals.contains_key(&index));
    let is_inner = |index: u32| has(index.checked_sub(1)) && has(index.checked_add(1));
    let inner = run.intervals.iter().filter(|(index, _)| is_inner(**index)).map(|(_, interval)| interval);
    let counted: Vec<_> = inner.collect();
    let counted = if counted.is_empty() { run.intervals.values().collect() } else { counted };
    !counted.is_empty() && counted.iter().all(|interval| is_at(FLAT, interval.peak, run.driver_peak))
}

/// Whether the value is at least 95 % of another.
pub(super) fn is_near(value: u64, of: u64) -> bool {
    is_at(NEAR, value, of)
}

/// Whether the value is at least this percentage of another.
pub(super) fn is_at(percent: u64, value: u64, of: u64) -> bool {
    u128::from(value) * 100 >= u128::from(of) * u128::from(percent)
}

/// The first of the reasons, in their order.
pub(super) fn first(reasons: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    reasons.min_by_key(|reason| ORDER.iter().position(|known| known == reason))
}

#[cfg(test)]
mod tests {
    use super::super::clients::Reported;
    use super::super::history::Interval;
    use super::*;

    fn run(peak: u64, intervals: &[u64]) -> Run {
        let intervals = (0..).zip(intervals.iter().map(|&peak| Interval { peak, samples: 1 })).collect();
        Run { driver_peak: peak, intervals, ..Run::default() }
    }

    fn named(name: &str) -> Run {
        Run { names: [name.to_owned()].into(), ..run(10, &[10, 1]) }
    }

    #[test]
    fn a_level_that_never_falls_and_has_a_typical_size_is_a_reservation() {
        let memory = Some(Memory::with(1000));
        for (peak, expected) in [
            (739, None),
            (740, Some("share_75")),
            (770, Some("share_75")),
            (771, None),
            (929, None),
            (930, Some("share_93")),
            (1000, Some("share_93")),
        ] {
            assert_eq!(reason(&run(peak, &[peak, peak * 99 / 100]), memory), expected, "{peak}");
            assert_eq!(reason(&run(peak, &[peak, peak * 97 / 100]), memory), None, "{peak}");
        }
        // A process starts and ends in the first and the last interval.
        assert_eq!(reason(&run(750, &[1, 750, 740, 2]), memory), Some("share_75"));
        assert_eq!(reason(&run(750, &[750, 700, 750, 750]), memory), None);
        let mut gap = run(750, &[1, 750, 3, 9, 9, 9, 3, 750, 1]);
        gap.intervals.retain(|index, _| ![3, 4, 5].contains(index));
        assert_eq!(reason(&gap, memory), Some("share_75"));
        assert_eq!(reason(&run(750, &[]), memory), None);
        assert_eq!(reason(&run(750, &[750]), None), None);
    }

    #[test]
    fn engines_are_known_by_name_unless_a_client_reports() {
        assert_eq!(reason(&named("vllm::enginecore"), None), Some("vllm"));
        assert_eq!(reason(&named("tensorflow_model_server"), None), Some("tensorflow"));
        assert_eq!(reason(&named("python3"), None), None);
        let reporting = Run { clients: Some(Reported::default()), ..named("vllm") };
        assert_eq!(reason(&reporting, None), None);
        let hidden = Reported { hides_reservation: true, ..Reported::default() };
        assert_eq!(reason(&Run { clients: Some(hidden), ..named("python3") }, None), Some("tensorflow"));
        assert_eq!(first(["share_75", "jax", "vllm"].into_iter()), Some("vllm"));
    }
}
