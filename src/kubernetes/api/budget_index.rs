//! The budgets that this node's pods declare.
//!
//! Invariants: a pod that has ended or was deleted declares nothing. A group for which two pods reserve different GPUs
//! has no known GPU. A problem is passed on once, until the pod declares something else. What is kept is bounded,
//! whatever the server sends.

use std::collections::{HashMap, HashSet};

use super::budgets::{Declarations, DeclaredPlace};
use super::pod::{Pod, PodKey};
use crate::faults::Reason;
use crate::snapshot::{Budget, BudgetPlace, Budgets, PodContainer};
use crate::text::printable;

/// The maximum number of budgets and problems of all pods together. A node runs a few hundred containers.
const LIMIT: usize = 16_384;

/// A pod's budgets cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("no budget for pod {}/{}: {what}", printable(&pod.0), printable(&pod.1))]
pub struct Problem {
    pod: PodKey,
    what: String,
    /// The reason under which the problem is counted.
    pub reason: Reason,
}

/// The budgets, by pod.
#[derive(Debug, Default)]
pub struct BudgetIndex {
    /// The pods that declare anything.
    pods: HashMap<PodKey, Declarations>,
    /// The number of budgets, reservations and problems in `pods`.
    kept: usize,
    /// The pod that was last left out because of the limit, so that it is reported once.
    left_out: Option<PodKey>,
    /// Whether [`BudgetIndex::shown`] has changed since the last [`BudgetIndex::take_change`].
    changed: bool,
}

impl BudgetIndex {
    /// Applies a complete list: a pod that is not in it is gone. Returns what could not be read and was not returned
    /// before.
    pub fn replace(&mut self, pods: &[Pod]) -> Vec<Problem> {
        if !self.pods.is_empty() {
            let listed: HashSet<_> = pods.iter().filter_map(Pod::key).collect();
            let gone: Vec<_> = self.pods.keys().filter(|key| !listed.contains(*key)).cloned().collect();
            gone.into_iter().for_each(|key| self.set(key, Declarations::default()));
        }
        pods.iter().flat_map(|pod| self.put(pod)).collect()
    }

    /// Records the present state of a pod. Returns what could not be read and was not returned before.
    pub fn put(&mut self, pod: &Pod) -> Vec<Problem> {
        let Some(key) = pod.key() else { return Vec::new() };
        let declared = if pod.has_ended() { Declarations::default() } else { pod.declarations() };
        if declared.is_empty() && self.pods.is_empty() {
            return Vec::new();
        }
        let before = self.pods.get(&key);
        if before == Some(&declared) {
            return Vec::new();
        }
        if self.kept - before.map_or(0, weight) + weight(&declared) > LIMIT {
            self.set(key.clone(), Declarations::default());
            let is_new = self.left_out.replace(key.clone()).as_ref() != Some(&key);
            let what = format!("the pods of this node declare more than {LIMIT} budgets");
            return Vec::from_iter(is_new.then_some(Problem { pod: key, what, reason: Reason::TooManyKeys }));
        }
        let known = before.map_or(&[][..], |before| &before.problems);
        let new = declared.problems.iter().filter(|what| !known.contains(what));
        let problem = |what: &String| Problem { pod: key.clone(), what: what.clone(), reason: Reason::Malformed };
        let new = new.map(problem).collect();
        self.set(key, declared);
        new
    }

    /// Records the deletion of a pod.
    pub fn remove(&mut self, pod: &Pod) {
        if let Some(key) = pod.key().filter(|_| !self.pods.is_empty()) {
            self.set(key, Declarations::default());
        }
    }

    /// Whether the budgets to be shown have changed since the last call.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// The budgets by container. A budget whose GPU another pod names applies to each GPU of its container while that
    /// GPU is unknown.
    pub fn shown(&self) -> Budgets {
        let groups = self.groups();
        let mut shown = Budgets::new();
        for ((namespace, pod), declared) in &self.pods {
            for budget in &declared.budgets {
                let container = budget.container.clone();
                let holder = PodContainer { namespace: namespace.clone(), pod: pod.clone(), container };
                let place = match &budget.place {
                    DeclaredPlace::At(place) => place.clone(),
                    DeclaredPlace::Group(group) => {
                        groups.get(group.as_str()).copied().flatten().unwrap_or(&BudgetPlace::EachGpu).clone()
                    }
                };
                let (source, amount) = (budget.source, budget.amount);
                shown.entry(holder).or_default().push(Budget { source, amount, place });
            }
        }
        for budgets in shown.values_mut() {
            budgets.sort_unstable();
            budgets.dedup();
        }
        shown
    }

    /// The GPU of each group; `None` if two pods name different GPUs.
    fn groups(&self) -> HashMap<&str, Option<&BudgetPlace>> {
        let mut groups = HashMap::new();
        for (group, place) in self.pods.values().filter_map(|declared| declared.reservation.as_ref()) {
            let known = groups.entry(group.as_str()).or_insert(Some(place));
            *known = known.filter(|known| *known == place);
        }
        groups
    }

    fn set(&mut self, key: PodKey, declared: Declarations) {
        let (empty, more) = (declared.is_empty(), weight(&declared));
        let before = if empty { self.pods.remove(&key) } else { self.pods.insert(key, declared) };
        self.kept = self.kept + more - before.as_ref().map_or(0, weight);
        self.changed |= before.is_some() || !empty;
    }
}

/// How much of the limit a pod takes up.
fn weight(declared: &Declarations) -> usize {
    declared.budgets.len() + declared.problems.len() + usize::from(declared.reservation.is_some())
}

#[cfg(test)]
mod tests;
