//! A strict reader of OpenMetrics 1.0, and a comparison with the text format.
//!
//! In addition to the rules of the text format: TYPE comes first, then UNIT if the family's name ends with a unit, then
//! HELP; the samples have the suffixes of their type; a creation time follows the sample that it belongs to; only a
//! counter has exemplars, with at most 128 characters of labels; and `# EOF` is the last line.

use std::collections::BTreeSet;

use crate::{Family, Labels, Series, header, labels, number, sample, unescaped};

/// A family in OpenMetrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFamily {
    /// The name in TYPE, UNIT and HELP.
    pub name: String,
    /// The type in TYPE.
    pub kind: String,
    /// The unit in UNIT; empty if there is none.
    pub unit: String,
    /// The text of HELP, with escapes resolved.
    pub help: String,
    /// The samples, except for creation times; at least one.
    pub series: Vec<Series>,
    /// The creation times.
    pub created: Vec<Series>,
    /// The exemplars.
    pub exemplars: Vec<Exemplar>,
}

/// An exemplar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exemplar {
    /// The labels of the counter.
    pub of: Labels,
    /// Its own labels.
    pub labels: Labels,
    /// Its value as written.
    pub value: String,
    /// Its timestamp as written.
    pub at: String,
}

const UNITS: [&str; 7] = ["bytes", "seconds", "ratio", "celsius", "watts", "joules", "hertz"];

/// Reads an exposition.
///
/// # Panics
/// If the text is not well-formed. The message shows the offending line.
pub fn read(text: &str) -> Vec<OpenFamily> {
    let text = text.strip_suffix("\n# EOF\n").expect("the last line is # EOF");
    assert!(!text.contains('\0'), "a NUL that ends it early for a scanner in C");
    let (mut families, mut names) = (Vec::new(), BTreeSet::new());
    let mut lines = text.split('\n').peekable();
    while let Some(line) = lines.next() {
        let (name, kind) = header(line, "# TYPE ");
        assert!(names.insert(name), "the family {name} is repeated");
        let unit = lines.next_if(|line| line.starts_with("# UNIT ")).map_or("", |line| {
            let (of, unit) = header(line, "# UNIT ");
            assert_eq!(of, name, "UNIT of another family");
            unit
        });
        let suffix = name.rsplit('_').next().unwrap_or_default();
        assert_eq!(unit, if UNITS.contains(&suffix) { suffix } else { "" }, "the unit of {name}");
        let (of, help) = header(lines.next().unwrap_or_default(), "# HELP ");
        assert_eq!(of, name, "HELP of another family");
        let help = unescaped(help, "\"");
        let (name, kind, unit) = (name.to_owned(), kind.to_owned(), unit.to_owned());
        let (series, created, exemplars) = (Vec::new(), Vec::new(), Vec::new());
        let mut family = OpenFamily { name, kind, unit, help, series, created, exemplars };
        let mut seen = BTreeSet::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let name = family.add(line);
            assert!(seen.insert(name), "the series is repeated: {line}");
        }
        assert!(!family.series.is_empty(), "{} has no series", family.name);
        families.push(family);
    }
    families
}

impl OpenFamily {
    /// Adds the sample on the line and returns its identity.
    fn add(&mut self, line: &str) -> (String, Labels) {
        let (series, rest) = sample(line);
        let part = series.name.strip_prefix(&self.name).unwrap_or_else(|| panic!("not of {}: {line}", self.name));
        let suffixes: &[&str] = match self.kind.as_str() {
            "counter" => &["_total", "_created"],
            "histogram" => &["_bucket", "_sum", "_count", "_created"],
            "gauge" | "unknown" => &[""],
            kind => panic!("unknown type {kind}"),
        };
        assert!(suffixes.contains(&part), "not a sample of a {}: {line}", self.kind);
        assert!(!series.name.ends_with("_info") || series.value == "1", "the value of an info: {line}");
        if let Some(exemplar) = rest {
            assert_eq!(part, "_total", "an exemplar of another sample: {line}");
            self.exemplars.push(read_exemplar(exemplar, &series.labels));
        }
        let identity = (series.name.clone(), series.labels.clone());
        if part == "_created" {
            let last = self.series.last().unwrap_or_else(|| panic!("a creation time before its sample: {line}"));
            assert_eq!(last.labels, series.labels, "not the creation time of the sample before it: {line}");
            assert!(series.number() > 0.0, "not a time: {line}");
            self.created.push(series);
        } else {
            self.series.push(series);
        }
        identity
    }
}

/// Reads an exemplar without its leading ` # `.
fn read_exemplar(text: &str, of: &Labels) -> Exemplar {
    let (labels, rest) = labels(text.strip_prefix('{').unwrap_or_else(|| panic!("no labels: {text:?}")), text);
    let length: usize = labels.iter().map(|(name, value)| name.chars().count() + value.chars().count()).sum();
    assert!(length <= 128, "{length} characters: {text:?}");
    let values: Vec<_> = rest.strip_prefix(' ').unwrap_or_default().split(' ').collect();
    let [value, at] = values[..] else { panic!("not a value and a time: {text:?}") };
    assert!(number(value) == 1.0 && number(at) > 0.0, "{text:?}");
    Exemplar { of: of.clone(), labels, value: value.to_owned(), at: at.to_owned() }
}

/// Asserts that both formats have the same families and samples in the same order: the same names, labels, help and
/// values. The values of the families that `varies` names may differ.
///
/// # Panics
/// If they differ.
pub fn assert_same(text: &[Family], open: &[OpenFamily], varies: impl Fn(&str) -> bool) {
    let names = |families: Vec<&str>| families.join("\n");
    let expected = text.iter().map(|family| stem(&family.name, &family.kind).0).collect();
    assert_eq!(names(expected), names(open.iter().map(|family| family.name.as_str()).collect()));
    for (text, open) in text.iter().zip(open) {
        let (name, kind) = stem(&text.name, &text.kind);
        assert_eq!((name, kind, &text.help), (open.name.as_str(), open.kind.as_str(), &open.help));
        assert_eq!(text.series.len(), open.series.len(), "{name}");
        for (text, open) in text.series.iter().zip(&open.series) {
            assert_eq!((&text.name, &text.labels), (&open.name, &open.labels));
            assert!(text.value == open.value || varies(&text.name), "{text:?} {open:?}");
        }
    }
}

/// The name and the type that a family of the text format has in OpenMetrics.
fn stem<'f>(name: &'f str, kind: &'f str) -> (&'f str, &'f str) {
    match (kind, name.strip_suffix("_total")) {
        ("counter", Some(stem)) => (stem, kind),
        ("counter", None) => (name, "unknown"),
        _ => (name, kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# TYPE a_bytes counter\n# UNIT a_bytes bytes\n# HELP a_bytes A \\\"b\\\".\n\
                        a_bytes_total{x=\" # {\"} 2 # {id=\"7\"} 1 12.5\na_bytes_created{x=\" # {\"} 3.5\n\
                        # TYPE b_info gauge\n# HELP b_info B.\nb_info{x=\"1\"} 1\n\
                        # TYPE h histogram\n# HELP h H.\nh_bucket{le=\"+Inf\"} 1\nh_sum 0.1\nh_count 1\nh_created 3\n\
                        # TYPE C unknown\n# HELP C C.\nC 5\n# EOF\n";
    const TEXT: &str = "# HELP a_bytes_total A \"b\".\n# TYPE a_bytes_total counter\na_bytes_total{x=\" # {\"} 2\n\
                        # HELP b_info B.\n# TYPE b_info gauge\nb_info{x=\"1\"} 1\n\
                        # HELP h H.\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 0.1\nh_count 1\n\
                        # HELP C C.\n# TYPE C counter\nC 5\n";

    #[test]
    fn what_is_well_formed_is_read_and_equals_the_text_format() {
        let families = read(GOOD);
        let [a, b, h, c] = families.as_slice() else { panic!("{families:?}") };
        assert_eq!((a.unit.as_str(), a.help.as_str(), a.created[0].value.as_str()), ("bytes", "A \"b\".", "3.5"));
        let exemplar = &a.exemplars[0];
        assert_eq!((exemplar.labels["id"].as_str(), exemplar.at.as_str()), ("7", "12.5"));
        assert_eq!((b.kind.as_str(), h.created.len(), c.kind.as_str()), ("gauge", 1, "unknown"));
        assert_same(&crate::read(TEXT), &families, |_| false);
    }

    #[test]
    fn what_is_not_well_formed_is_refused() {
        for (from, to) in [
            ("# EOF\n", ""),
            ("# EOF\n", "# EOF"),
            ("# EOF\n", "# EOF\n# EOF\n"),
            ("# UNIT a_bytes bytes\n", ""),
            ("# UNIT a_bytes bytes\n", "# UNIT a_bytes seconds\n"),
            ("# HELP h", "# UNIT h seconds\n# HELP h"),
            ("# HELP b_info B.\n", ""),
            ("# TYPE b_info gauge\n", ""),
            ("# TYPE b_info gauge\n# HELP b_info B.\n", "# TYPE b info\n# HELP b B.\n"),
            ("TYPE h histogram", "TYPE b_info histogram"),
            ("\\\"b\\\"", "\\tb"),
            ("a_bytes_total{", "a_bytes{"),
            ("b_info{x=\"1\"} 1", "b_info{x=\"1\"} 2"),
            ("a_bytes_created{x=\" # {\"} 3.5", "a_bytes_created{x=\"2\"} 3.5"),
            ("a_bytes_created{x=\" # {\"} 3.5", "a_bytes_created{x=\" # {\"} 0"),
            ("h_sum 0.1", "h_sum 0.1 # {id=\"7\"} 1 12.5"),
            ("h_sum 0.1", "h_sum 0.1 12.5"),
            ("h_sum 0.1", "h_sum 0.1\nh_sum 0.1"),
            ("} 1 12.5", "} 2 12.5"),
            ("} 1 12.5", "} 1"),
            ("{id=\"7\"}", ""),
            ("C unknown", "C counter"),
            ("C unknown", "C untyped"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from} is not in the text");
            assert!(std::panic::catch_unwind(|| read(&text)).is_err(), "{to:?} in place of {from:?} is accepted");
        }
        let long = GOOD.replace("id=\"7\"", &format!("id=\"{}\"", "x".repeat(127)));
        assert!(std::panic::catch_unwind(|| read(&long)).is_err(), "an exemplar of 129 characters is accepted");
    }

    #[test]
    fn a_difference_between_the_formats_is_found() {
        for (from, to) in [
            ("C 5", "C 6"),
            ("C 5", "C{x=\"1\"} 5"),
            ("# HELP C C.", "# HELP C D."),
            ("C counter", "C gauge"),
            ("C", "D"),
            ("b_info", "b_infos"),
        ] {
            let text = TEXT.replace(from, to);
            let same = || assert_same(&crate::read(&text), &read(GOOD), |_| false);
            assert!(std::panic::catch_unwind(same).is_err(), "{to:?} in place of {from:?} is not found");
        }
        assert_same(&crate::read(&TEXT.replace("C 5", "C 6")), &read(GOOD), |name| name == "C");
    }
}
