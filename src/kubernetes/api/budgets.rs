//! What a pod declares about the GPU memory of its containers: in annotations of our own, and in what KAI-Scheduler and
//! HAMi write.
//!
//! Invariant: a declaration that cannot be read completely yields no budget and one problem. A pod's texts come from
//! users who may be hostile, so a problem quotes at most 40 characters of one. An init container that ends before the
//! others start has no budget: the others take over its memory, so its budget must not be added to theirs.

mod hami;
mod kai;
pub(super) mod keys;
mod own;
mod shape;

pub(super) use shape::{Declared, DeclaredPlace};

use super::declared::{Spec, Texts};
use crate::snapshot::BudgetPlace;

/// What a pod declares.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Declarations {
    pub(super) budgets: Vec<Declared>,
    /// The GPU that the pod reserves for a group of KAI-Scheduler's pods.
    pub(super) reservation: Option<(String, BudgetPlace)>,
    /// What could not be read, one sentence for each source at most.
    pub(super) problems: Vec<String>,
}

impl Declarations {
    /// Reads the annotations, labels and containers of a pod.
    pub(super) fn read(annotations: &Texts, labels: &Texts, spec: &Spec) -> Self {
        let mut all = Self::default();
        let results =
            [own::read(annotations, spec), kai::read(annotations, labels, spec), hami::read(annotations, spec)];
        for result in results {
            match result {
                Ok(budgets) => all.budgets.extend(budgets),
                Err(problem) => all.problems.push(problem),
            }
        }
        all.budgets.retain(|budget| !spec.ends_early(&budget.container));
        match kai::reservation(annotations, labels) {
            Ok(reservation) => all.reservation = reservation,
            Err(problem) => all.problems.push(problem),
        }
        all
    }

    pub(super) fn is_empty(&self) -> bool {
        self.budgets.is_empty() && self.reservation.is_none() && self.problems.is_empty()
    }
}
