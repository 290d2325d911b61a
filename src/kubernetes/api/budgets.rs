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

use super::declared::{Spec, Texts};
use crate::quantity::quoted;
use crate::snapshot::{BudgetAmount, BudgetPlace, BudgetSource};

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

/// The maximum number of devices that are read from one pod.
const MOST_DEVICES: usize = 256;

/// A budget of one container, as its pod declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Declared {
    pub(super) container: String,
    pub(super) source: BudgetSource,
    pub(super) amount: BudgetAmount,
    pub(super) place: DeclaredPlace,
}

/// Where a declared budget applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DeclaredPlace {
    /// A place that the pod itself names, or each GPU.
    At(BudgetPlace),
    /// The GPU that another pod reserves for this group.
    Group(String),
}

/// The text of an annotation; `None` if the pod does not have it.
fn text<'t>(annotations: &'t Texts, key: &str) -> Result<Option<&'t str>, String> {
    match annotations.get(key) {
        None => Ok(None),
        Some(Some(text)) => Ok(Some(text)),
        Some(None) => Err(format!("the annotation {key} is too long")),
    }
}

/// The device with a UUID. `None` if the text is not a UUID as NVML writes it.
fn device(uuid: &str) -> Option<BudgetPlace> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let has_prefix = uuid.starts_with("GPU-") || uuid.starts_with("MIG-");
    let fits = has_prefix && uuid.len() <= 64 && uuid.bytes().all(plain);
    fits.then(|| BudgetPlace::Uuid(uuid.to_owned()))
}

/// Whether the pod has a container with this name.
fn has_container(spec: &Spec, name: &str) -> bool {
    spec.all().any(|container| container.name.as_deref() == Some(name))
}

fn refused(what: &str, text: &str, expected: &str) -> String {
    format!("{what} is {}, but must be {expected}", quoted(text))
}
