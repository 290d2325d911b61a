//! Labels of one series.
//!
//! Invariant: a value is never empty, holds at most [`LONGEST`] characters and no NUL, whatever a process chose as its
//! name. Quotes, backslashes and line ends are escaped by the encoder.

use std::cmp::Ordering;

use prometheus::proto::LabelPair;

use crate::snapshot::PodContainer;

/// The most characters that a label value keeps.
pub(super) const LONGEST: usize = 128;

/// The label pairs of a series, in the order in which they are written.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Labels(Vec<LabelPair>);

impl Labels {
    /// This and one more label; none more where the value is empty.
    pub(super) fn and(mut self, name: &str, value: &str) -> Self {
        if !value.is_empty() {
            self.push(name, clean(value));
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
    pub(super) fn and_number(mut self, name: &str, value: u32) -> Self {
        self.push(name, value.to_string());
        self
    }

    /// A copy with room for `more` labels, so that adding them does not move the first ones again.
    pub(super) fn with_room(&self, more: usize) -> Self {
        let mut pairs = Vec::with_capacity(self.0.len() + more);
        pairs.extend_from_slice(&self.0);
        Self(pairs)
    }

    /// The first `count` labels are the same.
    pub(super) fn share(&self, other: &Self, count: usize) -> bool {
        self.0.get(..count).is_some_and(|mine| other.0.get(..count) == Some(mine))
    }

    /// How many labels there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The order in which the registry sorts series (number of labels, then values), made total by the names.
    /// Series that are handed over in this order cost it one comparison each.
    pub(super) fn registry_order(&self, other: &Self) -> Ordering {
        let by_values = || self.0.iter().map(LabelPair::value).cmp(other.0.iter().map(LabelPair::value));
        let by_names = || self.0.iter().map(LabelPair::name).cmp(other.0.iter().map(LabelPair::name));
        self.len().cmp(&other.len()).then_with(by_values).then_with(by_names)
    }

    pub(super) fn into_pairs(self) -> Vec<LabelPair> {
        self.0
    }

    fn push(&mut self, name: &str, value: String) {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value);
        self.0.push(pair);
    }
}

/// The value cut to [`LONGEST`] characters. NUL becomes U+FFFD: Prometheus' scanner takes it for the end of the text
/// and would refuse the whole scrape.
fn clean(value: &str) -> String {
    let end = value.char_indices().nth(LONGEST).map_or(value.len(), |(end, _)| end);
    let kept = &value[..end];
    if kept.contains('\0') { kept.replace('\0', "\u{FFFD}") } else { kept.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_or_unknown_value_is_left_out() {
        let labels = Labels::default().and("a", "").and_known("b", None).and_known("c", Some("")).and_number("d", 0);
        assert_eq!(labels, Labels::default().and("d", "0"));
        assert_eq!(labels.len(), 1);
    }

    #[test]
    fn a_value_is_cut_at_a_character_and_not_within() {
        let long = "é".repeat(5_000);
        assert_eq!(clean(&long), "é".repeat(LONGEST));
        assert_eq!(clean("short"), "short");
        assert_eq!(clean(&"x".repeat(LONGEST)), "x".repeat(LONGEST));
    }

    #[test]
    fn nul_is_replaced_and_nothing_else() {
        assert_eq!(clean("a\0b\"\\\n\r\u{1b}"), "a\u{FFFD}b\"\\\n\r\u{1b}");
    }

    #[test]
    fn the_order_counts_labels_first() {
        let few = Labels::default().and("pid", "9");
        let many = Labels::default().and("mig_uuid", "1").and("pid", "9");
        assert_eq!(few.registry_order(&many), Ordering::Less);
        assert_eq!(many.registry_order(&many.clone()), Ordering::Equal);
        assert_ne!(few.registry_order(&Labels::default().and("gpu", "9")), Ordering::Equal);
    }
}
