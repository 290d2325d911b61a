//! What OpenMetrics 1.0 writes differently from the text format: the metadata of a family, exemplars, and the end.
//!
//! Invariant: the samples of a family have the same names, labels and values in both formats. Only creation times are
//! additional samples.

use std::time::SystemTime;

use super::family::{Kind, Unit};

/// The format of an exposition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format, version 0.0.4.
    #[default]
    Text,
    /// OpenMetrics' text format, version 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The content type of an exposition in this format.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The last line of an exposition.
    pub fn end(self) -> &'static [u8] {
        match self {
            Self::Text => b"",
            Self::OpenMetrics => b"# EOF\n",
        }
    }
}

/// The value of a series.
pub(crate) trait Sample {
    /// The value.
    fn value(&self) -> f64;

    /// When the counter was 0; `None` if that is not known.
    fn since(&self) -> Option<SystemTime> {
        None
    }

    /// An event that the counter counts.
    fn exemplar(&self) -> Option<Exemplar<'_>> {
        None
    }
}

impl Sample for f64 {
    fn value(&self) -> f64 {
        *self
    }
}

impl Sample for u64 {
    fn value(&self) -> f64 {
        *self as f64
    }
}

/// The value of a counter that began at 0 at a known time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted<'a> {
    pub(super) value: f64,
    pub(super) since: Option<SystemTime>,
    pub(super) exemplar: Option<Exemplar<'a>>,
}

impl Counted<'_> {
    pub(super) fn since(since: Option<SystemTime>, value: f64) -> Self {
        Self { value, since, exemplar: None }
    }
}

impl Sample for Counted<'_> {
    fn value(&self) -> f64 {
        self.value
    }

    fn since(&self) -> Option<SystemTime> {
        self.since
    }

    fn exemplar(&self) -> Option<Exemplar<'_>> {
        self.exemplar
    }
}

/// One event among those that a counter counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exemplar<'a> {
    /// The name of its only label.
    pub(super) name: &'static str,
    /// The value of the label. A name and a value of more than 128 characters together are not written.
    pub(super) id: &'a str,
    /// Unix time of the event, in seconds.
    pub(super) at: f64,
}

impl Exemplar<'_> {
    /// The specification's limit on the length of all names and values of an exemplar's labels, in characters.
    const LONGEST: usize = 128;

    /// Whether it can be written as it is.
    pub(super) fn is_writable(&self) -> bool {
        let plain = |c: char| !matches!(c, '"' | '\\' | '\n' | '\0');
        self.at.is_finite() && self.name.len() + self.id.chars().count() <= Self::LONGEST && self.id.chars().all(plain)
    }
}

/// The name of a family without the suffix that its samples have.
pub(super) fn stem(name: &str, kind: Kind) -> &str {
    match kind {
        Kind::Counter => name.strip_suffix("_total").unwrap_or(name),
        _ => name,
    }
}

/// Writes the lines that describe a family: TYPE, UNIT if the name ends with a unit, and HELP.
pub(super) fn head<'h>(
    text: &mut Vec<u8>,
    (name, kind, unit): (&str, Kind, Unit),
    help: impl IntoIterator<Item = &'h str>,
) {
    let stem = stem(name, kind);
    let word = match kind {
        // The samples of a counter end in `_total`. A counter of another name would have to be renamed.
        Kind::Counter if stem == name => "unknown",
        // A family of the type info has no `_info` in its name, only its samples have. The OpenTelemetry Collector names the
        // samples after the family, so `gpu_info` would become `gpu` there. As a gauge it keeps its name everywhere.
        _ => kind.word(),
    };
    let mut write = |parts: &[&str]| parts.iter().for_each(|part| text.extend_from_slice(part.as_bytes()));
    write(&["# TYPE ", stem, " ", word, "\n"]);
    if !matches!(unit, Unit::Info | Unit::Number) {
        write(&["# UNIT ", stem, " ", &unit.suffix()[1..], "\n"]);
    }
    write(&["# HELP ", stem, " "]);
    help.into_iter().for_each(|part| escape_help(text, part, true));
    text.push(b'\n');
}

/// Writes a help text, with backslashes, line feeds and, if `quotes`, quotes escaped. NUL becomes U+FFFD, because
/// Prometheus' scanner takes NUL for the end of the text.
pub(super) fn escape_help(text: &mut Vec<u8>, help: &str, quotes: bool) {
    let is_special = |byte: u8| matches!(byte, b'\\' | b'\n' | 0) | (quotes & (byte == b'"'));
    // Few help texts contain a special byte. A loop without an early exit checks many bytes at a time.
    if !help.bytes().fold(false, |found, byte| found | is_special(byte)) {
        return text.extend_from_slice(help.as_bytes());
    }
    for byte in help.bytes() {
        match byte {
            b'\n' => text.extend_from_slice(b"\\n"),
            0 => text.extend_from_slice("\u{FFFD}".as_bytes()),
            byte if is_special(byte) => text.extend_from_slice(&[b'\\', byte]),
            byte => text.push(byte),
        }
    }
}

/// A bound of a bucket, written as OpenMetrics recommends it: as Go writes the number, and never as an integer.
pub(super) fn canonical(bound: f64) -> String {
    let text = format!("{bound:?}");
    match text.split_once("e-") {
        Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(family: (&str, Kind, Unit), help: &str) -> String {
        let mut text = Vec::new();
        head(&mut text, family, [help]);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn the_suffix_of_the_samples_is_not_in_the_name_of_the_family() {
        let counter = written(("a_bytes_total", Kind::Counter, Unit::Bytes), "A.");
        assert_eq!(counter, "# TYPE a_bytes counter\n# UNIT a_bytes bytes\n# HELP a_bytes A.\n");
        let info = written(("a_info", Kind::Gauge, Unit::Info), "A.");
        assert_eq!(info, "# TYPE a_info gauge\n# HELP a_info A.\n", "a family that is never renamed");
        let gauge = written(("a_total_bytes", Kind::Gauge, Unit::Bytes), "A.");
        assert_eq!(gauge, "# TYPE a_total_bytes gauge\n# UNIT a_total_bytes bytes\n# HELP a_total_bytes A.\n");
    }

    #[test]
    fn a_counter_with_another_name_keeps_the_name_and_loses_the_type() {
        let written = written(("A_REPLAY_TOTAL", Kind::Counter, Unit::Number), "A.");
        assert_eq!(written, "# TYPE A_REPLAY_TOTAL unknown\n# HELP A_REPLAY_TOTAL A.\n");
    }

    #[test]
    fn help_is_escaped() {
        let written = written(("a", Kind::Gauge, Unit::Number), "a\\b\nc\0\"é");
        assert_eq!(written, "# TYPE a gauge\n# HELP a a\\\\b\\nc\u{FFFD}\\\"é\n");
    }

    #[test]
    fn bounds_are_written_as_in_the_specification() {
        let bounds = [5e-6, 1e-5, 2e-5, 1e-4, 0.001, 0.02, 0.5, 1.0, 10.0].map(canonical);
        assert_eq!(bounds, ["5e-06", "1e-05", "2e-05", "0.0001", "0.001", "0.02", "0.5", "1.0", "10.0"]);
    }

    #[test]
    fn an_exemplar_is_writable_up_to_128_characters() {
        let of = |id: &str, at: f64| Exemplar { name: "incident_id", id, at }.is_writable();
        assert!(of(&"é".repeat(117), 1.5) && !of(&"é".repeat(118), 1.5));
        assert!(!of("a\"b", 1.5) && !of("a\\b", 1.5) && !of("a\nb", 1.5) && !of("a\0b", 1.5));
        assert!(!of("a", f64::NAN) && !of("a", f64::INFINITY));
    }
}
