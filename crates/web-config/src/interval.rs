//! A duration as Go writes it: `1m30s`, `100ms`, or a whole number of nanoseconds.
//!
//! Invariant: an interval is never negative.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

/// A duration in a web-config file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DurationVisitor;
        impl Visitor<'_> for DurationVisitor {
            type Value = Interval;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"1s\" or \"100ms\", or a whole number of nanoseconds")
            }

            fn visit_u64<E: de::Error>(self, nanoseconds: u64) -> Result<Interval, E> {
                Ok(Interval(Duration::from_nanos(nanoseconds)))
            }

            fn visit_i64<E: de::Error>(self, nanoseconds: i64) -> Result<Interval, E> {
                let why = || E::custom("an interval cannot be negative");
                u64::try_from(nanoseconds).map_err(|_| why()).map(|n| Interval(Duration::from_nanos(n)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Interval, E> {
                parse(text).map(Interval).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(DurationVisitor)
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
