//! A strict reader of the text format: it rejects anything that Prometheus may read in a way that was not intended.

use std::collections::{BTreeMap, BTreeSet};

/// A family: its metadata, and the labels of its series.
#[derive(Debug)]
pub(super) struct Family<'a> {
    pub(super) name: &'a str,
    pub(super) kind: &'a str,
    pub(super) help: String,
    pub(super) series: Vec<Labels>,
}

/// The labels of one series.
pub(super) type Labels = BTreeMap<String, String>;

/// Reads an exposition. Panics on anything malformed and on duplicate series or families.
pub(super) fn read(text: &[u8]) -> Vec<Family<'_>> {
    let text = std::str::from_utf8(text).expect("the text is UTF-8");
    assert!(
        text.ends_with('\n') && !text.contains('\0'),
        "truncated, or with a NUL that ends it early for a C scanner"
    );
    let (mut all, mut names) = (Vec::new(), BTreeSet::new());
    let mut lines = text[..text.len() - 1].split('\n').peekable();
    while let Some(line) = lines.next() {
        let (name, help) = headed(line, "# HELP ");
        let (typed, kind) = headed(lines.next().unwrap_or_default(), "# TYPE ");
        assert!(name == typed && names.insert(name), "{name} appears twice, or its HELP and TYPE differ");
        let mut seen = BTreeSet::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (series, labels) = series(line);
            let part = series.strip_prefix(name).unwrap_or_else(|| panic!("{series} among {name}"));
            assert!(
                part.is_empty() || kind == "histogram" && ["_bucket", "_sum", "_count"].contains(&part),
                "{series}"
            );
            assert!(seen.insert((part, labels)), "{line} twice");
        }
        assert!(!seen.is_empty(), "{name} has no series");
        let series = seen.into_iter().map(|(_, labels)| labels).collect();
        all.push(Family { name, kind, help: unescaped(help, ""), series });
    }
    all
}

fn headed<'a>(line: &'a str, head: &str) -> (&'a str, &'a str) {
    let rest = line.strip_prefix(head).unwrap_or_else(|| panic!("no {head}in {line:?}"));
    rest.split_once(' ').unwrap_or_else(|| panic!("nothing after the name in {line:?}"))
}

fn series(line: &str) -> (&str, Labels) {
    let (name, mut rest) = word(line);
    let mut labels = Labels::new();
    if let Some(mut within) = rest.strip_prefix('{') {
        loop {
            let (label, after) = word(within);
            let quoted = after.strip_prefix("=\"").unwrap_or_else(|| panic!("no value of {label} in {line:?}"));
            let (value, after) = quoted_to_its_end(quoted);
            assert!(labels.insert(label.to_owned(), unescaped(value, "\"")).is_none(), "{label} twice in {line:?}");
            match after.strip_prefix(',') {
                Some(next) => within = next,
                None => break rest = after.strip_prefix('}').unwrap_or_else(|| panic!("no end in {line:?}")),
            }
        }
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("no value in {line:?}"));
    let number = value == "+Inf" || value.parse::<f64>().is_ok_and(f64::is_finite);
    assert!(number && value.bytes().all(|byte| byte.is_ascii_graphic()), "{value:?} in {line:?}");
    (name, labels)
}

/// The name of a metric or a label, never empty.
fn word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    assert!(end > 0 && !text.starts_with(|c: char| c.is_ascii_digit()), "no name at {text:?}");
    text.split_at(end)
}

fn quoted_to_its_end(text: &str) -> (&str, &str) {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return (&text[..at], &text[at + 1..]),
            _ => escaped = c == '\\' && !escaped,
        }
    }
    panic!("no closing quote in {text:?}")
}

/// Resolves the escapes `\\`, `\n` and those in `others`.
fn unescaped(text: &str, others: &str) -> String {
    let (mut out, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        out.push(match (c, c == '\\') {
            (_, false) => c,
            _ => match chars.next() {
                Some('\\') => '\\',
                Some('n') => '\n',
                Some(c) if others.contains(c) => c,
                other => panic!("the escape {other:?} in {text:?}"),
            },
        });
    }
    out
}
