//! The labels of one series as text.
//!
//! Invariants: regardless of the name that a process chooses, a value is never empty and has at most [`LONGEST`]
//! characters and no NUL. A longer value ends in a digest of the whole value, so that two different values stay
//! different. Quotes, backslashes and line breaks are escaped, so two sets of labels are equal if and only if their
//! texts are.

use std::fmt::Write as _;

use ring::digest::{SHA256, digest};

use gpu_readings::snapshot::PodContainer;

/// The maximum length of a label value in characters.
pub const LONGEST: usize = 128;

/// Bytes of the digest at the end of a shortened value. Each is written as two digits.
const DIGEST: usize = 8;

/// The number of characters kept when a value is shortened; a tilde and the digest follow.
const KEPT: usize = LONGEST - 1 - 2 * DIGEST;

/// Bytes that are enough for most labels, including the name.
const USUAL: usize = 32;

/// The labels of a series in the order in which they are written, without the braces: `gpu="0",uuid="GPU-…"`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels {
    text: String,
}

/// The text between the braces of a series.
pub trait LabelText {
    /// The text in two parts, of which the second may be empty.
    fn parts(&self) -> [&str; 2];
}

impl LabelText for Labels {
    fn parts(&self) -> [&str; 2] {
        [&self.text, ""]
    }
}

impl LabelText for &Labels {
    fn parts(&self) -> [&str; 2] {
        [&self.text, ""]
    }
}

/// Labels that are already text.
impl LabelText for &str {
    fn parts(&self) -> [&str; 2] {
        [self, ""]
    }
}

/// Labels whose text is in two parts.
impl LabelText for [&str; 2] {
    fn parts(&self) -> [&str; 2] {
        *self
    }
}

impl Labels {
    /// The labels of a GPU: NVML's index and the UUID.
    pub(crate) fn of_gpu(index: u32, uuid: &str) -> Self {
        Self::default().and_gpu(index, uuid)
    }

    /// Adds the labels of a GPU.
    pub(crate) fn and_gpu(self, index: u32, uuid: &str) -> Self {
        self.and_number("gpu", index).and("uuid", uuid)
    }

    /// Adds a label, unless the value is empty.
    pub fn and(mut self, name: &str, value: &str) -> Self {
        if !value.is_empty() {
            self.begin(name);
            let kept = kept(value);
            escape(kept, &mut self.text);
            if kept.len() < value.len() {
                self.text.push('~');
                for byte in &digest(&SHA256, value.as_bytes()).as_ref()[..DIGEST] {
                    let _ = write!(self.text, "{byte:02x}");
                }
            }
            self.text.push('"');
        }
        self
    }

    /// Adds a label, unless the value is unknown or empty.
    pub fn and_known(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.and(name, value),
            None => self,
        }
    }

    /// Adds the namespace, pod and container of a pod's container, if there is one.
    pub(crate) fn and_pod(self, pod: Option<&PodContainer>) -> Self {
        match pod {
            Some(pod) => self.and("namespace", &pod.namespace).and("pod", &pod.pod).and("container", &pod.container),
            None => self,
        }
    }

    /// Adds a label whose value is a number.
    pub fn and_number(mut self, name: &str, value: impl itoa::Integer) -> Self {
        self.begin(name);
        self.text.push_str(itoa::Buffer::new().format(value));
        self.text.push('"');
        self
    }

    /// Adds a label whose value is a number, unless the value is unknown.
    pub(crate) fn and_known_number(self, name: &str, value: Option<impl itoa::Integer>) -> Self {
        match value {
            Some(value) => self.and_number(name, value),
            None => self,
        }
    }

    /// Returns a copy with room for `more` labels, so that adding them does not reallocate the text.
    pub fn with_room(&self, more: usize) -> Self {
        let mut text = String::with_capacity(self.text.len() + more * USUAL);
        text.push_str(&self.text);
        Self { text }
    }

    /// All labels, as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn begin(&mut self, name: &str) {
        if self.text.is_empty() {
            self.text.reserve(2 * USUAL);
        } else {
            self.text.push(',');
        }
        self.text.push_str(name);
        self.text.push_str("=\"");
    }
}

/// The value, or its first [`KEPT`] characters if it has more than [`LONGEST`].
fn kept(value: &str) -> &str {
    // A character has at least one byte.
    if value.len() <= LONGEST {
        return value;
    }
    let mut ends = value.char_indices().map(|(end, _)| end);
    let kept = ends.nth(KEPT);
    match (kept, ends.nth(LONGEST - KEPT - 1)) {
        (Some(kept), Some(_)) => &value[..kept],
        _ => value,
    }
}

/// Escapes a value for the text format. NUL becomes U+FFFD, because Prometheus' scanner would take NUL for the end of
/// the text and refuse the whole scrape.
fn escape(value: &str, text: &mut String) {
    let is_special = |byte: u8| matches!(byte, b'"' | b'\\' | b'\n' | 0);
    // Few values contain a special byte. A loop without an early exit checks many bytes at a time.
    if !value.bytes().fold(false, |found, byte| found | is_special(byte)) {
        return text.push_str(value);
    }
    let mut rest = value;
    while let Some(at) = rest.bytes().position(is_special) {
        text.push_str(&rest[..at]);
        text.push_str(match rest.as_bytes()[at] {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            _ => "\u{FFFD}",
        });
        rest = &rest[at + 1..];
    }
    text.push_str(rest);
}

/// Sorted by the labels, and each set of labels once: `join` adds the value of a later one to that of the first.
pub(super) fn distinct<V>(mut series: Vec<(Labels, V)>, join: impl Fn(&mut V, &V)) -> Vec<(Labels, V)> {
    series.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    series.dedup_by(|(later, more), (first, value)| {
        let same = later == first;
        if same {
            join(value, more);
        }
        same
    });
    series
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn written(value: &str) -> String {
        let labels = Labels::default().and("a", value);
        labels.as_str().strip_prefix("a=\"").unwrap().strip_suffix('"').unwrap().to_owned()
    }

    #[test]
    fn an_empty_or_unknown_value_is_left_out() {
        let labels = Labels::default().and("a", "").and_known("b", None).and_known("c", Some("")).and_number("d", 0);
        assert_eq!(labels.as_str(), "d=\"0\"");
        assert_eq!(Labels::default().and("a", "").as_str(), "");
    }

    #[test]
    fn a_value_is_cut_between_characters() {
        // The digests are those that sha256sum computes.
        assert_eq!(written(&"é".repeat(5_000)), "é".repeat(111) + "~349e5086ea495fe7");
        assert_eq!(written("short"), "short");
        for character in ["x", "é"] {
            assert_eq!(written(&character.repeat(LONGEST)), character.repeat(LONGEST));
        }
        assert_eq!(written(&"x".repeat(LONGEST + 1)), "x".repeat(111) + "~0ec9eb33e74510bc");
    }

    #[test]
    fn long_values_that_differ_stay_different() {
        let long = "x".repeat(5_000);
        let values = [format!("{long}a"), format!("{long}b"), long.clone(), long[..LONGEST + 1].to_owned()];
        let written: HashSet<_> = values.iter().map(|value| written(value)).collect();
        assert_eq!(written.len(), values.len());
        assert!(written.iter().all(|value| value.chars().count() == LONGEST));
    }

    #[test]
    fn only_quotes_backslashes_line_ends_and_nul_are_changed() {
        assert_eq!(written("a\0b\"\\\n\r\u{1b}é"), "a\u{FFFD}b\\\"\\\\\\n\r\u{1b}é");
        assert_eq!(written("\""), "\\\"");
        // The length is that of the value before escaping.
        assert_eq!(written(&"\n".repeat(LONGEST)), "\\n".repeat(LONGEST));
    }
}
