//! A strict reader of Prometheus' text format: it rejects anything that a scraper might read differently than
//! intended, and anything that the exporter's contract forbids.
//!
//! Every family has HELP, then TYPE, then at least one series, and occurs once. A series belongs to the family above
//! it and occurs once. A label has a value, occurs once in a series, and uses no unknown escape. A value is a finite
//! number.

pub mod open_metrics;

use std::collections::{BTreeMap, BTreeSet};

/// The labels of a series, with escapes resolved.
pub type Labels = BTreeMap<String, String>;

/// A family: its HELP and TYPE, and its series in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Family {
    /// The name in HELP and TYPE.
    pub name: String,
    /// The type in TYPE.
    pub kind: String,
    /// The text of HELP, with escapes resolved.
    pub help: String,
    /// The series; at least one.
    pub series: Vec<Series>,
}

/// A series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// The family's name; in a histogram, followed by `_bucket`, `_sum` or `_count`.
    pub name: String,
    /// The labels; none has an empty value.
    pub labels: Labels,
    /// The value as written in the exposition.
    pub value: String,
}

impl Series {
    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }

    /// Whether it has these labels, and perhaps others.
    pub fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.label(name) == Some(value))
    }

    /// The value as a number.
    pub fn number(&self) -> f64 {
        number(&self.value)
    }
}

/// Reads an exposition. An empty text is one without families: a listener may have nothing to tell yet.
///
/// # Panics
/// If the text is not well-formed. The message shows the offending line.
pub fn read(text: &str) -> Vec<Family> {
    if text.is_empty() {
        return Vec::new();
    }
    assert!(
        text.ends_with('\n') && !text.contains('\0'),
        "cut off, or with a NUL that ends it early for a scanner in C"
    );
    let (mut families, mut names) = (Vec::new(), BTreeSet::new());
    let mut lines = text[..text.len() - 1].split('\n').peekable();
    while let Some(line) = lines.next() {
        let (name, help) = header(line, "# HELP ");
        let (typed, kind) = header(lines.next().unwrap_or_default(), "# TYPE ");
        assert_eq!(name, typed, "HELP and TYPE are of different families");
        assert!(names.insert(name), "the family {name} is repeated");
        let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let series = series(line);
            let part = series.name.strip_prefix(name).unwrap_or_else(|| panic!("not a series of {name}: {line}"));
            let is_part = kind == "histogram" && ["_bucket", "_sum", "_count"].contains(&part);
            assert!(part.is_empty() || is_part, "not a series of {name}: {line}");
            assert!(seen.insert((series.name.clone(), series.labels.clone())), "the series is repeated: {line}");
            all.push(series);
        }
        assert!(!all.is_empty(), "{name} has no series");
        families.push(Family { name: name.to_owned(), kind: kind.to_owned(), help: unescaped(help, ""), series: all });
    }
    families
}

/// The name and the rest of a HELP or TYPE line.
fn header<'a>(line: &'a str, start: &str) -> (&'a str, &'a str) {
    let rest = line.strip_prefix(start).unwrap_or_else(|| panic!("{start}is missing: {line:?}"));
    rest.split_once(' ').unwrap_or_else(|| panic!("nothing follows the name: {line:?}"))
}

fn series(line: &str) -> Series {
    let (series, rest) = sample(line);
    assert_eq!(rest, None, "more than a value: {line:?}");
    series
}

/// A series, and the exemplar that follows its value.
fn sample(line: &str) -> (Series, Option<&str>) {
    let (name, mut rest) = identifier(line);
    let mut all = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        (all, rest) = labels(inside, line);
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("no value: {line:?}"));
    let (value, exemplar) = value.split_once(" # ").map_or((value, None), |(value, exemplar)| (value, Some(exemplar)));
    assert!(number(value).is_finite() && value.bytes().all(|byte| byte.is_ascii_graphic()), "{value:?} in {line:?}");
    (Series { name: name.to_owned(), labels: all, value: value.to_owned() }, exemplar)
}

/// The labels up to the closing brace, and what follows it.
fn labels<'l>(mut inside: &'l str, line: &str) -> (Labels, &'l str) {
    let mut labels = Labels::new();
    loop {
        let (label, after) = identifier(inside);
        let quoted = after.strip_prefix("=\"").unwrap_or_else(|| panic!("no value of {label}: {line:?}"));
        let (value, after) = until_quote(quoted);
        assert!(!value.is_empty(), "{label} is empty: {line:?}");
        assert!(labels.insert(label.to_owned(), unescaped(value, "\"")).is_none(), "{label} is repeated: {line:?}");
        match after.strip_prefix(',') {
            Some(next) => inside = next,
            None => return (labels, after.strip_prefix('}').unwrap_or_else(|| panic!("no closing brace: {line:?}"))),
        }
    }
}

fn number(value: &str) -> f64 {
    value.parse().unwrap_or_else(|_| panic!("not a number: {value:?}"))
}

/// The name of a metric or a label at the beginning of the text, and what follows it.
fn identifier(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    assert!(end > 0 && !text.starts_with(|c: char| c.is_ascii_digit()), "no name at {text:?}");
    text.split_at(end)
}

/// The text up to the quote that closes it, and what follows the quote.
fn until_quote(text: &str) -> (&str, &str) {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return (&text[..at], &text[at + 1..]),
            _ => escaped = c == '\\' && !escaped,
        }
    }
    panic!("no closing quote: {text:?}")
}

/// Replaces the escapes in the text: those for a backslash, a line feed and the characters in `others`.
fn unescaped(text: &str, others: &str) -> String {
    let (mut out, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        out.push(match c {
            '\\' => match chars.next() {
                Some('\\') => '\\',
                Some('n') => '\n',
                Some(c) if others.contains(c) => c,
                other => panic!("unknown escape {other:?}: {text:?}"),
            },
            c => c,
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP a A \\\\ and\\n.\n# TYPE a gauge\na{x=\"1\",y=\"\\\"\\n\\\\\"} 1.5\na{x=\"2\"} 2\n\
                        # HELP h H.\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 0.1\nh_count 1\n";

    #[test]
    fn what_is_well_formed_is_read_without_escapes() {
        let families = read(GOOD);
        let [a, h] = families.as_slice() else { panic!("{families:?}") };
        assert_eq!((a.name.as_str(), a.kind.as_str(), a.help.as_str()), ("a", "gauge", "A \\ and\n."));
        assert_eq!((a.series[0].label("y"), a.series[0].number()), (Some("\"\n\\"), 1.5));
        assert!(a.series[1].has(&[("x", "2")]) && !a.series[1].has(&[("x", "2"), ("y", "")]));
        assert_eq!(h.series.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["h_bucket", "h_sum", "h_count"]);
    }

    #[test]
    fn what_is_not_well_formed_is_refused() {
        for (from, to) in [
            ("# HELP h H.\n", ""),
            ("# TYPE h histogram\n", ""),
            ("# HELP h", "# HELP a"),
            ("TYPE h histogram", "TYPE g histogram"),
            ("h histogram", "h counter"),
            ("h_count", "h_total"),
            ("h_sum 0.1", "a 0.1"),
            ("{x=\"2\"} 2", "{x=\"1\",y=\"\\\"\\n\\\\\"} 2"),
            ("{x=\"2\"}", "{x=\"\"}"),
            ("{x=\"2\"}", "{x=\"2\",x=\"3\"}"),
            ("{x=\"2\"}", "{}"),
            ("{x=\"2\"}", "{x=\"2\",}"),
            ("{x=\"2\"}", "{2=\"2\"}"),
            ("{x=\"2\"}", "{x=\"\\t\"}"),
            ("{x=\"2\"} 2", "{x=\"2\"}2"),
            ("{x=\"2\"} 2", "{x=\"2\"} NaN"),
            ("{x=\"2\"} 2", "{x=\"2\"} +Inf"),
            ("{x=\"2\"} 2", "{x=\"2\"} 2 "),
            ("{x=\"2\"} 2", "{x=\"2\"} two"),
            ("h_count 1\n", "h_count 1"),
            ("h_count 1\n", "h_count 1\n\n"),
            ("h_count 1\n", "h_count 1\n# HELP i I.\n# TYPE i gauge\n"),
            ("A ", "\0"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from} is not in the text");
            assert!(std::panic::catch_unwind(|| read(&text)).is_err(), "{to:?} in place of {from:?} is accepted");
        }
    }
}
