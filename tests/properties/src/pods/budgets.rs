//! Budgets of pods: what is shown depends only on the pods that exist, and a problem is stated once, in one short line.

use std::collections::BTreeMap;

use gpu_readings::snapshot::{BudgetAmount, BudgetPlace, BudgetSource};
use vram_exporter::internals::{BudgetIndex, Pod, Problem};

/// The index under test, and the pods that exist.
#[derive(Default)]
pub(super) struct Budgets {
    index: BudgetIndex,
    /// Whether each pod has ended.
    pods: BTreeMap<(String, String), bool>,
}

impl Budgets {
    pub(super) fn replace(&mut self, pods: &[Pod]) {
        self.pods.clear();
        pods.iter().for_each(|pod| self.note(pod));
        assert_stated(&self.index.replace(pods));
        // A pod that is listed twice declares something else each time.
        if pods.iter().filter_map(Pod::key).count() == self.pods.len() {
            assert!(self.index.replace(pods).is_empty(), "a problem is stated again");
        }
        self.assert_sound();
    }

    pub(super) fn put(&mut self, pod: &Pod) {
        self.note(pod);
        assert_stated(&self.index.put(pod));
        assert!(self.index.put(pod).is_empty(), "a problem is stated again");
        self.assert_sound();
    }

    pub(super) fn remove(&mut self, pod: &Pod) {
        if let Some(key) = pod.key() {
            self.pods.remove(&key);
        }
        self.index.remove(pod);
        self.assert_sound();
    }

    /// Without pods there are no budgets.
    pub(super) fn end(&mut self) {
        self.replace(&[]);
        assert!(self.index.shown().is_empty());
    }

    fn note(&mut self, pod: &Pod) {
        if let Some(key) = pod.key() {
            self.pods.insert(key, pod.has_ended());
        }
    }

    fn assert_sound(&self) {
        for (holder, budgets) in self.index.shown() {
            let ended = self.pods.get(&(holder.namespace.clone(), holder.pod.clone()));
            assert_eq!(ended, Some(&false), "a budget of {holder:?}");
            assert!(!budgets.is_empty() && budgets.windows(2).all(|pair| pair[0] < pair[1]), "{budgets:?}");
            for budget in budgets {
                let declared = [BudgetSource::Annotation, BudgetSource::Hami, BudgetSource::Kai];
                assert!(declared.contains(&budget.source), "{budget:?}");
                match budget.amount {
                    BudgetAmount::Bytes(bytes) => assert!(bytes > 0, "{budget:?}"),
                    BudgetAmount::Millionths(part) => assert!((1..=1_000_000).contains(&part), "{budget:?}"),
                }
                if let BudgetPlace::Uuid(uuid) = &budget.place {
                    assert!(uuid.len() <= 64 && (uuid.starts_with("GPU-") || uuid.starts_with("MIG-")), "{uuid:?}");
                }
            }
        }
    }
}

/// A problem is one line of bounded length without control characters.
fn assert_stated(problems: &[Problem]) {
    for problem in problems {
        let text = problem.to_string();
        assert!(text.len() < 8000 && !text.chars().any(char::is_control), "{text:?}");
    }
}
