//! A declared budget, and what the parsers have in common.

use crate::kubernetes::api::declared::{Spec, Texts};
use crate::quantity::quoted;
use crate::snapshot::{BudgetAmount, BudgetPlace, BudgetSource};

/// The maximum number of devices that are read from one pod.
pub(super) const MOST_DEVICES: usize = 256;

/// A budget of one container, as its pod declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Declared {
    pub(in super::super) container: String,
    pub(in super::super) source: BudgetSource,
    pub(in super::super) amount: BudgetAmount,
    pub(in super::super) place: DeclaredPlace,
}

/// Where a declared budget applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum DeclaredPlace {
    /// A place that the pod itself names, or each GPU.
    At(BudgetPlace),
    /// The GPU that another pod reserves for this group.
    Group(String),
}

/// The text of an annotation; `None` if the pod does not have it.
pub(super) fn text<'t>(annotations: &'t Texts, key: &str) -> Result<Option<&'t str>, String> {
    match annotations.get(key) {
        None => Ok(None),
        Some(Some(text)) => Ok(Some(text)),
        Some(None) => Err(format!("the annotation {key} is too long")),
    }
}

/// The device with a UUID. `None` if the text is not a UUID as NVML writes it.
pub(super) fn device(uuid: &str) -> Option<BudgetPlace> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let has_prefix = uuid.starts_with("GPU-") || uuid.starts_with("MIG-");
    let fits = has_prefix && uuid.len() <= 64 && uuid.bytes().all(plain);
    fits.then(|| BudgetPlace::Uuid(uuid.to_owned()))
}

/// Whether the pod has a container with this name.
pub(super) fn has_container(spec: &Spec, name: &str) -> bool {
    spec.all().any(|container| container.name.as_deref() == Some(name))
}

pub(super) fn refused(what: &str, text: &str, expected: &str) -> String {
    format!("{what} is {}, but must be {expected}", quoted(text))
}
