//! The families and series of a scrape as values, for a receiver that does not read text.
//!
//! Invariant: a sink gets exactly the families, labels and values that the text of a scrape would have.

use std::borrow::Cow;
use std::time::SystemTime;

use super::family::Family;

/// Takes the families and series of one pass, in the order of the text.
pub trait PointSink {
    /// Begins a family. It has at least one series.
    fn family(&mut self, family: &'static Family);

    /// Takes one series of a gauge or counter. `labels` is its text in two parts; [`pairs`] reads it. The value is finite.
    /// `since` is when a counter was 0; `None` if that is not known.
    fn number(&mut self, labels: [&str; 2], value: f64, since: Option<SystemTime>);

    /// Takes one series of a histogram. `bounds` are the bounds of the buckets as text, and `counts` is the count of each
    /// bucket (not cumulative, the last one unbounded). It was empty at `since`, if that is known.
    fn histogram(&mut self, labels: [&str; 2], bounds: &[String], counts: &[u64], sum: f64, since: Option<SystemTime>);
}

/// The names and values of labels that were written by [`Labels`](super::Labels): `gpu="0",uuid="GPU-…"`.
pub fn pairs(labels: &str) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
    let mut rest = labels;
    std::iter::from_fn(move || {
        let (name, value) = rest.split_once("=\"")?;
        let end = closing_quote(value)?;
        rest = value[end + 1..].strip_prefix(',').unwrap_or("");
        Some((name, unescaped(&value[..end])))
    })
}

/// Where the first quotation mark is that is not escaped.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let is_end = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        is_end
    })
}

fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('n') => plain.push('\n'),
                Some(other) => plain.push(other),
                None => {}
            },
            other => plain.push(other),
        }
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::super::label::Labels;
    use super::*;

    #[test]
    fn labels_are_read_back_as_they_were_given() {
        let values = ["train.py", "a\"b", "\\", "\\\\\"", "x,y=\"z\"", "line\nbreak", "\\n", "é", "=\"", "\""];
        let mut labels = Labels::default();
        let names: Vec<_> = (0..values.len()).map(|n| format!("l{n}")).collect();
        for (name, value) in names.iter().zip(values) {
            labels = labels.and(name, value);
        }
        let read: Vec<_> = pairs(labels.as_str()).collect();
        let given: Vec<_> = names.iter().map(String::as_str).zip(values.map(Cow::Borrowed)).collect();
        assert_eq!(read, given);
        assert_eq!(pairs("").count(), 0);
    }
}
