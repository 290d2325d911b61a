//! Follows the pods of this node, and publishes the names of their containers, the budgets that they declare, and the labels
//! that are asked for.

use std::sync::Arc;
use std::time::Instant;

use super::Settings;
use super::budget_index::{BudgetIndex, Problem};
use super::container_index::ContainerIndex;
use super::declared::Wanted;
use super::error::Error;
use super::follower::{Store, follow_objects};
use super::label_index::LabelIndex;
use super::pod::Pod;
use crate::faults::{Faults, Source};
use crate::snapshot::{self, Snapshot};

/// Follows the pods of this node for ever. A failure is counted as a fault, and followed by another attempt.
pub async fn follow(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) {
    let pods = Pods::new(settings.labels.clone(), snapshot, faults.clone());
    follow_objects(settings, pods, Source::KubernetesApi, faults).await;
}

/// What is kept of the pods.
pub(super) struct Pods {
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    index: ContainerIndex,
    budgets: BudgetIndex,
    wanted: Wanted,
    labels: LabelIndex,
    /// Whether pods that have ended are left out of the request, because the node has too many pods in total. Never
    /// reset, because on such a node the pods that have ended would pile up again.
    without_ended: bool,
}

impl Pods {
    pub(super) fn new(wanted: Wanted, snapshot: Arc<Snapshot>, faults: Arc<Faults>) -> Self {
        let (index, budgets, labels) = (ContainerIndex::default(), BudgetIndex::default(), LabelIndex::default());
        Self { snapshot, faults, index, budgets, wanted, labels, without_ended: false }
    }

    fn report_budgets(&self, problems: &[Problem]) {
        for problem in problems {
            self.faults.raise(Source::Budget, problem.reason, None, problem);
        }
    }
}

impl Store for Pods {
    type Object = Pod;

    fn selector(&self, node: &str) -> String {
        let ended = if self.without_ended { ",status.phase!=Succeeded,status.phase!=Failed" } else { "" };
        format!("spec.nodeName={node}{ended}")
    }

    fn shorten(&mut self) {
        self.without_ended = true;
    }

    fn replace(&mut self, all: Vec<Pod>, now: Instant) -> Result<(), Error> {
        self.index.replace(&all, now)?;
        self.labels.replace(&all, now);
        let problems = self.budgets.replace(&all);
        self.report_budgets(&problems);
        Ok(())
    }

    fn put(&mut self, pod: &Pod, now: Instant) -> Result<(), Error> {
        let problems = self.budgets.put(pod);
        self.report_budgets(&problems);
        self.labels.put(pod);
        self.index.put(pod, now)
    }

    fn remove(&mut self, last: &Pod, now: Instant) -> Result<(), Error> {
        self.budgets.remove(last);
        self.labels.remove(last, now);
        self.index.remove(last, now)
    }

    fn forget(&mut self, now: Instant) {
        self.index.forget(now);
        self.labels.forget(now);
    }

    fn due(&self) -> Option<Instant> {
        [self.index.due(), self.labels.due()].into_iter().flatten().min()
    }

    fn take_change(&mut self) -> bool {
        self.index.take_change() | self.budgets.take_change() | self.labels.take_change()
    }

    fn publish(&mut self, followed: bool, changed: bool) {
        let up = Some(followed);
        let pods = if changed {
            snapshot::Pods {
                up,
                containers: Arc::new(self.index.shown()),
                ended: Arc::new(self.index.ended()),
                budgets: Arc::new(self.budgets.shown()),
                labels: Arc::new(self.labels.shown(&self.wanted)),
            }
        } else {
            snapshot::Pods { up, ..(**self.snapshot.pods.load()).clone() }
        };
        self.snapshot.pods.store(Arc::new(pods));
    }
}
