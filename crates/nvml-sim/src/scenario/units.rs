//! Sizes and times as people write them: `4GiB`, `20ms`, `1h30m`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::clock::Nanos;

/// Bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Size(pub(crate) u64);

/// A span of time; negative if the key allows a time before scenario time zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Nanos);

const SIZES: &[(&str, f64)] =
    &[("B", 1.0), ("KiB", 1024.0), ("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0), ("TiB", 1_099_511_627_776.0)];
const SPANS: &[(&str, f64)] = &[("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3_600e9), ("d", 86_400e9)];

/// Reads a number and its unit from the front of a string.
fn quantity<'t>(text: &'t str, units: &[(&str, f64)]) -> Option<(f64, &'t str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let number: f64 = text[..end].parse().ok()?;
    let rest = text[end..].trim_start();
    let stop = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
    let (_, factor) = units.iter().find(|(unit, _)| *unit == &rest[..stop])?;
    Some((number * factor, rest[stop..].trim_start()))
}

impl Size {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (bytes, rest) = quantity(text, SIZES)?;
        // An f64 holds every whole number of bytes up to 8 PiB.
        (rest.is_empty() && bytes.fract() == 0.0 && bytes <= 9e15).then_some(Self(bytes as u64))
    }
}

impl Span {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (sign, mut rest) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
        let mut sum = 0.0;
        while !rest.is_empty() {
            let (nanos, after) = quantity(rest, SPANS)?;
            sum += nanos;
            rest = after;
        }
        // The limit is about 100 years; an empty string is not a span.
        (!text.trim_start_matches('-').is_empty() && sum <= 3.2e18).then_some(Self((sign * sum) as Nanos))
    }
}

struct Text<T>(&'static str, fn(&str) -> Option<T>);

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).ok_or_else(|| E::custom(format_args!("`{text}` is not {}", self.0)))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text("a size like \"512MiB\" or \"4GiB\"", Self::parse))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text("a time like \"20ms\", \"10s\" or \"1h30m\"", Self::parse))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(Size::parse("4GiB"), Some(Size(4 << 30)));
        assert_eq!(Size::parse("1.5 KiB"), Some(Size(1536)));
        assert_eq!(Size::parse("0B"), Some(Size(0)));
        for wrong in ["", "4", "4GB", "GiB", "-4GiB", "4GiB x", "1.5B", "1.2.3KiB", "99999TiB"] {
            assert_eq!(Size::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn spans() {
        assert_eq!(Span::parse("20ms"), Some(Span(20_000_000)));
        assert_eq!(Span::parse("1h30m"), Some(Span(5_400_000_000_000)));
        assert_eq!(Span::parse("-2h"), Some(Span(-7_200_000_000_000)));
        for wrong in ["", "-", "20", "20 minutes", "ms", "1s-2s", "9999999d"] {
            assert_eq!(Span::parse(wrong), None, "{wrong}");
        }
    }
}
