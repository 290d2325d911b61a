//! A duration as Go writes it: `1m30s`, `100ms`, or a whole number of nanoseconds.
//!
//! Invariant: an interval is never negative.

use std::time::Duration;

use serde::Deserialize;

/// A duration in a web-config file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub(super) struct Interval(pub(super) Duration);

/// Go's units, in nanoseconds. Go accepts both Unicode characters for "micro", U+00B5 and U+03BC.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

#[derive(Deserialize)]
#[serde(untagged, expecting = "a duration such as \"1s\" or \"100ms\", or a whole number of nanoseconds")]
enum Written {
    Nanoseconds(i64),
    Text(String),
}

impl TryFrom<Written> for Interval {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let duration = match &written {
            Written::Nanoseconds(number) => u64::try_from(*number).ok().map(Duration::from_nanos),
            Written::Text(text) => parse(text),
        };
        duration
            .map(Self)
            .ok_or_else(|| "an interval is a duration such as \"1s\" or \"100ms\", and never negative".to_owned())
    }
}

/// `None` for text that Go would not parse, for a negative duration and for more than 292 years, Go's maximum.
fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let number_ends = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|&end| end > 0)?;
        let (number, after) = rest.split_at(number_ends);
        let unit_ends = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_ends);
        let (_, nanoseconds) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(scaled(number, nanoseconds)?)?;
        rest = after;
    }
    i64::try_from(total).ok().map(|_| Duration::from_nanos(total))
}

/// A decimal number times a unit, in whole nanoseconds.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut total = whole.checked_mul(unit)?;
    let mut place = unit;
    for digit in fraction.bytes() {
        place /= 10;
        total = total.checked_add(u64::from(digit - b'0') * place)?;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_as_go_parses_them() {
        let read = [
            ("0", 0),
            ("0s", 0),
            ("1s", 1_000_000_000),
            ("+100ms", 100_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("1m30s", 90_000_000_000),
            ("2h45m0.5s", 9_900_500_000_000),
            ("7ns", 7),
            ("3us", 3_000),
            ("3\u{b5}s", 3_000),
            ("3\u{3bc}s", 3_000),
        ];
        for (text, nanoseconds) in read {
            assert_eq!(parse(text), Some(Duration::from_nanos(nanoseconds)), "{text}");
        }
        for text in ["", "1", "s", ".s", "-1s", "1 s", "1d", "1.2.3s", "1s2", "99999999h", "1e3s", "1S", "٣s", "+"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
