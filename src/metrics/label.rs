//! Labels of one series, as they stand in the text.
//!
//! Invariants: a value is never empty, holds at most [`LONGEST`] characters and no NUL, whatever a process chose as its
//! name. Quotes, backslashes and line ends are escaped, so labels are the same if and only if their text is.

use crate::snapshot::PodContainer;

/// The most characters that a label value keeps.
pub(super) const LONGEST: usize = 128;

/// Bytes that a label takes, name and all, as a rule.
const USUAL: usize = 32;

/// The labels of a series in the order in which they are written, without the braces: `gpu="0",uuid="GPU-…"`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Labels {
    text: String,
}

/// What stands between the braces of a series.
pub(super) trait LabelText {
    /// The text in two pieces, of which the second may be empty.
    fn pieces(&self) -> [&str; 2];
}

impl LabelText for Labels {
    fn pieces(&self) -> [&str; 2] {
        [&self.text, ""]
    }
}

impl LabelText for &Labels {
    fn pieces(&self) -> [&str; 2] {
        [&self.text, ""]
    }
}

/// Labels that were written before.
impl LabelText for &str {
    fn pieces(&self) -> [&str; 2] {
        [self, ""]
    }
}

/// The same in two places.
impl LabelText for [&str; 2] {
    fn pieces(&self) -> [&str; 2] {
        *self
    }
}

impl Labels {
    /// This and one more label; none more where the value is empty.
    pub(super) fn and(mut self, name: &str, value: &str) -> Self {
        if !value.is_empty() {
            self.begin(name);
            escape(kept(value), &mut self.text);
            self.text.push('"');
        }
        self
    }

    /// This and one more label; none more where the value is unknown or empty.
    pub(super) fn and_known(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.and(name, value),
            None => self,
        }
    }

    /// This and the names of a pod's container, where there is one.
    pub(super) fn and_pod(self, pod: Option<&PodContainer>) -> Self {
        match pod {
            Some(pod) => self.and("namespace", &pod.namespace).and("pod", &pod.pod).and("container", &pod.container),
            None => self,
        }
    }

    /// This and a number as one more label.
    pub(super) fn and_number(mut self, name: &str, value: impl itoa::Integer) -> Self {
        self.begin(name);
        self.text.push_str(itoa::Buffer::new().format(value));
        self.text.push('"');
        self
    }

    /// A copy with room for `more` labels, so that adding them does not move the first ones again.
    pub(super) fn with_room(&self, more: usize) -> Self {
        let mut text = String::with_capacity(self.text.len() + more * USUAL);
        text.push_str(&self.text);
        Self { text }
    }

    /// All labels, as text.
    pub(super) fn as_str(&self) -> &str {
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

/// The value's first [`LONGEST`] characters.
fn kept(value: &str) -> &str {
    // No character is shorter than a byte.
    if value.len() <= LONGEST {
        return value;
    }
    value.char_indices().nth(LONGEST).map_or(value, |(end, _)| &value[..end])
}

/// Writes a value as the format asks for it. NUL becomes U+FFFD: Prometheus' scanner takes it for the end of the text and
/// would refuse the whole scrape.
fn escape(value: &str, text: &mut String) {
    let is_special = |byte: u8| matches!(byte, b'"' | b'\\' | b'\n' | 0);
    // Hardly any value holds one. Without a way out in the middle, the look takes many bytes at a time.
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

#[cfg(test)]
mod tests {
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
    fn a_value_is_cut_at_a_character_and_not_within() {
        let long = "é".repeat(5_000);
        assert_eq!(written(&long), "é".repeat(LONGEST));
        assert_eq!(written("short"), "short");
        assert_eq!(written(&"x".repeat(LONGEST)), "x".repeat(LONGEST));
        assert_eq!(written(&"x".repeat(LONGEST + 1)), "x".repeat(LONGEST));
    }

    #[test]
    fn what_would_end_the_value_is_escaped_and_nul_is_replaced_and_nothing_else() {
        assert_eq!(written("a\0b\"\\\n\r\u{1b}é"), "a\u{FFFD}b\\\"\\\\\\n\r\u{1b}é");
        assert_eq!(written("\""), "\\\"");
        // Escaping does not make a value shorter than it may be.
        assert_eq!(written(&"\n".repeat(LONGEST)), "\\n".repeat(LONGEST));
    }
}
