//! The labels of this node's pods that the configuration names.
//!
//! Invariants: only labels whose keys are configured are kept. The labels of a pod that was deleted are kept for
//! [`RETENTION`], as its containers are, because its peaks are still shown. What is kept is bounded, whatever the server
//! sends.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::container_index::RETENTION;
use super::declared::Wanted;
use super::pod::{Pod, PodKey};
use crate::snapshot::PodLabels;

/// The maximum number of pods whose labels are kept, deleted ones included. A node runs a few hundred pods. Beyond the
/// limit the pods that were deleted first give way, and then new pods have no labels.
const PODS_LIMIT: usize = 16_384;

/// The labels of pods, by namespace and name.
#[derive(Debug, Default)]
pub(super) struct LabelIndex {
    pods: HashMap<PodKey, Labelled>,
    /// The pods that were deleted, the oldest first. An entry has no effect if a pod of that name came back.
    gone: VecDeque<(Instant, PodKey)>,
    /// Whether [`LabelIndex::shown`] has changed since the last [`LabelIndex::take_change`].
    changed: bool,
}

#[derive(Debug)]
struct Labelled {
    /// The places of the labels in the configuration, with their values.
    labels: Vec<(usize, String)>,
    /// When the pod was deleted; `None` while it exists.
    gone: Option<Instant>,
}

impl LabelIndex {
    /// Applies a complete list: a pod that is not in it is gone.
    pub(super) fn replace(&mut self, pods: &[Pod], now: Instant) {
        let listed: HashSet<_> = pods.iter().filter_map(Pod::key).collect();
        let unlisted: Vec<_> = self.pods.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        unlisted.iter().for_each(|key| self.withdraw(key, now));
        pods.iter().for_each(|pod| self.put(pod));
    }

    /// Records the present state of a pod.
    pub(super) fn put(&mut self, pod: &Pod) {
        let Some(key) = pod.key() else { return };
        let labels = pod.labels();
        if labels.is_empty() {
            self.changed |= self.pods.remove(&key).is_some();
            return;
        }
        if let Some(known) = self.pods.get_mut(&key) {
            known.gone = None;
            if known.labels != labels {
                known.labels = labels.to_vec();
                self.changed = true;
            }
            return;
        }
        if self.pods.len() >= PODS_LIMIT {
            self.forget_oldest();
        }
        if self.pods.len() < PODS_LIMIT {
            self.pods.insert(key, Labelled { labels: labels.to_vec(), gone: None });
            self.changed = true;
        }
    }

    /// Records the deletion of a pod. `last` is its final state.
    pub(super) fn remove(&mut self, last: &Pod, now: Instant) {
        self.put(last);
        if let Some(key) = last.key() {
            self.withdraw(&key, now);
        }
    }

    /// Drops the labels of pods that have been gone for [`RETENTION`].
    pub(super) fn forget(&mut self, now: Instant) {
        while self.due().is_some_and(|due| due <= now) {
            self.forget_oldest();
        }
    }

    /// When [`LabelIndex::forget`] is due next; `None` while nothing is gone.
    pub(super) fn due(&self) -> Option<Instant> {
        self.gone.front().map(|(since, _)| *since + RETENTION)
    }

    /// Whether anything to be shown has changed since the last call.
    pub(super) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// The labels of each pod that has any, sorted by namespace and name.
    pub(super) fn shown(&self, wanted: &Wanted) -> Vec<PodLabels> {
        let name = |place: usize| wanted.get(place).map(|(_, name)| Arc::from(&**name));
        let mut shown: Vec<_> = self
            .pods
            .iter()
            .map(|((namespace, pod), Labelled { labels, .. })| PodLabels {
                namespace: namespace.clone(),
                pod: pod.clone(),
                labels: labels.iter().filter_map(|(place, value)| Some((name(*place)?, value.clone()))).collect(),
            })
            .collect();
        shown.sort_unstable_by(|a, b| (&a.namespace, &a.pod).cmp(&(&b.namespace, &b.pod)));
        shown
    }

    fn withdraw(&mut self, key: &PodKey, now: Instant) {
        if let Some(pod) = self.pods.get_mut(key).filter(|pod| pod.gone.is_none()) {
            pod.gone = Some(now);
            self.gone.push_back((now, key.clone()));
            // Pods that come back and go again leave entries without effect.
            if self.gone.len() > PODS_LIMIT {
                self.forget_oldest();
            }
        }
    }

    fn forget_oldest(&mut self) {
        let Some((since, key)) = self.gone.pop_front() else { return };
        if self.pods.get(&key).is_some_and(|pod| pod.gone == Some(since)) {
            self.pods.remove(&key);
            self.changed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::kubernetes::api::declared::with_wanted;

    fn wanted() -> Wanted {
        [("team", "label_team"), ("example.com/queue", "label_example_com_queue")]
            .map(|(key, name)| (key.to_owned(), name.to_owned()))
            .into()
    }

    fn pod(name: &str, labels: serde_json::Value) -> Pod {
        let metadata = json!({"namespace": "n", "name": name, "labels": labels});
        with_wanted(&wanted(), || serde_json::from_value(json!({ "metadata": metadata }))).unwrap()
    }

    fn shown(index: &LabelIndex) -> Vec<String> {
        let pair = |(name, value): &(Arc<str>, String)| format!(" {name}={value}");
        let all = index.shown(&wanted()).into_iter();
        all.map(|of| of.pod + &of.labels.iter().map(pair).collect::<String>()).collect()
    }

    #[test]
    fn only_the_labels_that_are_asked_for_are_kept() {
        let (mut index, now) = (LabelIndex::default(), Instant::now());
        index.put(&pod("a", json!({"team": "x", "secret": "s", "example.com/queue": "q", "Team": "y"})));
        index.put(&pod("b", json!({"other": "x"})));
        index.put(&pod("c", json!(null)));
        assert_eq!(shown(&index), ["a label_team=x label_example_com_queue=q"]);
        assert!(index.take_change());
        index.put(&pod("a", json!({"team": "x", "secret": "t", "example.com/queue": "q"})));
        assert!(!index.take_change(), "another label changes nothing");
        index.put(&pod("a", json!({"team": "z"})));
        assert_eq!((shown(&index), index.take_change()), (vec!["a label_team=z".to_owned()], true));
        index.put(&pod("a", json!({})));
        assert_eq!((shown(&index).len(), index.take_change()), (0, true));
        index.replace(&[pod("d", json!({"team": "w"}))], now);
        assert_eq!(shown(&index), ["d label_team=w"]);
    }

    #[test]
    fn what_no_label_can_be_is_left_out() {
        let mut index = LabelIndex::default();
        index.put(&pod("a", json!({"team": "x".repeat(64), "example.com/queue": {"deep": [1]}})));
        assert_eq!(shown(&index), [""; 0]);
        let text = r#"{"metadata":{"namespace":"n","name":"a","labels":{"team":"x","team":"y"}}}"#;
        let twice: Pod = with_wanted(&wanted(), || serde_json::from_str(text)).unwrap();
        index.put(&twice);
        assert_eq!(shown(&index), ["a label_team=x"], "a key that is there twice counts once");
    }

    #[test]
    fn the_labels_of_a_deleted_pod_stay_for_the_retention() {
        let (mut index, begin) = (LabelIndex::default(), Instant::now());
        index.remove(&pod("a", json!({"team": "x"})), begin);
        index.put(&pod("b", json!({"team": "y"})));
        index.replace(&[pod("c", json!({"team": "z"}))], begin + Duration::from_secs(1));
        assert_eq!(shown(&index).len(), 3);
        assert_eq!(index.due(), Some(begin + RETENTION));
        index.put(&pod("b", json!({"team": "w"})));
        index.forget(begin + RETENTION * 2);
        assert_eq!(shown(&index), ["b label_team=w", "c label_team=z"], "b came back");
        assert_eq!(index.due(), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (mut index, now) = (LabelIndex::default(), Instant::now());
        for n in 0..PODS_LIMIT + 9 {
            index.put(&pod(&format!("p{n}"), json!({"team": "x"})));
        }
        assert_eq!(index.pods.len(), PODS_LIMIT);
        index.remove(&pod("p0", json!({"team": "x"})), now);
        index.put(&pod("new", json!({"team": "x"})));
        assert!(index.pods.len() == PODS_LIMIT && index.pods.contains_key(&("n".to_owned(), "new".to_owned())));
        for _ in 0..PODS_LIMIT + 9 {
            index.remove(&pod("p1", json!({"team": "x"})), now);
        }
        assert!(index.gone.len() <= PODS_LIMIT);
    }
}
