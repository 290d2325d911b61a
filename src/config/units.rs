//! Durations as text, read and written without loss and always with a unit.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Reads `10ms`, `1m30s` or `2h`. `None` if the text is not a duration, has no unit, or is too long.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    // humantime accepts a bare 0; here a duration must have a unit.
    if !text.contains(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    humantime::parse_duration(text).ok()
}

/// What a whole number without a unit most likely means: seconds if they are allowed, else milliseconds.
pub(super) fn with_unit(text: &str, allowed: &RangeInclusive<Duration>) -> Option<String> {
    let number: u64 = text.parse().ok()?;
    let fits = |text: &String| parse_duration(text).is_some_and(|duration| allowed.contains(&duration));
    ["s", "ms"].into_iter().map(|unit| format!("{number}{unit}")).find(fits)
}

/// Writes a duration so that [`parse_duration`] reads back the same one: `1m30s`, `500ms`, `0s`.
pub(super) fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let nanoseconds = duration.subsec_nanos();
    let parts = [
        (seconds / 3600, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
        (u64::from(nanoseconds / 1_000_000), "ms"),
        (u64::from(nanoseconds / 1000 % 1000), "us"),
        (u64::from(nanoseconds % 1000), "ns"),
    ];
    let text: String =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_their_unit() {
        let cases = [
            ("10ms", Duration::from_millis(10)),
            ("1m30s", Duration::from_secs(90)),
            ("1m 30s", Duration::from_secs(90)),
            ("5m", Duration::from_secs(300)),
            ("24h", Duration::from_secs(86_400)),
            ("0s", Duration::ZERO),
        ];
        for (text, duration) in cases {
            assert_eq!(parse_duration(text), Some(duration), "{text}");
        }
        for text in ["", "5", "0", "-1s", "s", "1.2.3s", "1x", "99999999999999999999s", "9999999999999999y", "\u{0}"] {
            assert_eq!(parse_duration(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_number_without_a_unit_was_meant_in_one_that_fits() {
        let allowed = Duration::from_millis(100)..=Duration::from_secs(600);
        for (text, meant) in
            [("60", Some("60s")), ("2000", Some("2000ms")), ("0", None), ("9999999", None), ("1.5", None), ("x", None)]
        {
            assert_eq!(with_unit(text, &allowed).as_deref(), meant, "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..20_000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Every magnitude, from nanoseconds to years, and zero in the first round.
            let duration = Duration::from_nanos((state >> (round % 64)).saturating_mul(u64::from(round.min(1))));
            let text = format_duration(duration);
            assert_eq!(parse_duration(&text), Some(duration), "{text}");
        }
    }

    #[test]
    fn durations_are_written_short() {
        assert_eq!(format_duration(Duration::from_secs(90)), "1m30s");
        assert_eq!(format_duration(Duration::from_millis(1500)), "1s500ms");
        assert_eq!(format_duration(Duration::from_secs(86_400)), "24h");
        assert_eq!(format_duration(Duration::ZERO), "0s");
    }
}
