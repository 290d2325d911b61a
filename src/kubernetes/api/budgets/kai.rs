//! KAI-Scheduler (once part of Run:ai): a pod that shares GPUs names the part of each GPU in its
//! annotations, and the binder gives it the labels of one group for each GPU. For each group there is a reservation pod,
//! whose annotation names the GPU.
//!
//! Sources: `pkg/common/constants` and `docs/gpu-sharing` of NVIDIA/KAI-Scheduler.

use super::keys::{KAI_CONTAINER, KAI_FRACTION, KAI_MEMORY, KAI_RESERVED, is_label};
use super::{Declared, DeclaredPlace, MOST_DEVICES, device, has_container, refused, text};
use crate::kubernetes::api::declared::{Spec, Texts};
use crate::quantity::quoted;
use crate::snapshot::{BudgetAmount, BudgetPlace, BudgetSource};

/// The budget of the container that uses the GPUs: one for each group, or one for each GPU that it runs on as long as
/// the pod has no group.
pub(super) fn read(annotations: &Texts, labels: &Texts, spec: &Spec) -> Result<Vec<Declared>, String> {
    let amount = match (text(annotations, KAI_MEMORY)?, text(annotations, KAI_FRACTION)?) {
        (None, None) => return Ok(Vec::new()),
        (Some(_), Some(_)) => return Err(format!("the pod has both annotations {KAI_MEMORY} and {KAI_FRACTION}")),
        (Some(memory), None) => mebibytes(memory)?,
        (None, Some(fraction)) => part(fraction)?,
    };
    let container = match text(annotations, KAI_CONTAINER)? {
        Some(name) if has_container(spec, name) => name,
        Some(name) => {
            return Err(format!("the annotation {KAI_CONTAINER} names {}, which is no container", quoted(name)));
        }
        None => {
            let first = spec.containers.first().and_then(|container| container.name.as_deref());
            first.ok_or("the pod has no container")?
        }
    };
    let budget = |place| Declared { container: container.to_owned(), source: BudgetSource::Kai, amount, place };
    let groups = groups(labels);
    Ok(if groups.is_empty() {
        vec![budget(DeclaredPlace::At(BudgetPlace::EachGpu))]
    } else {
        groups.into_iter().map(|group| budget(DeclaredPlace::Group(group))).collect()
    })
}

/// The group for which the pod reserves a GPU, and the GPU.
pub(super) fn reservation(annotations: &Texts, labels: &Texts) -> Result<Option<(String, BudgetPlace)>, String> {
    let Some(gpu) = text(annotations, KAI_RESERVED)? else { return Ok(None) };
    let Some(group) = groups(labels).pop() else { return Ok(None) };
    let index = || gpu.parse().ok().map(BudgetPlace::Index);
    let place = device(gpu).or_else(index);
    let place = place.ok_or_else(|| refused(&format!("the annotation {KAI_RESERVED}"), gpu, "a GPU's UUID"))?;
    Ok(Some((group, place)))
}

/// The groups of a pod, sorted, each once.
fn groups(labels: &Texts) -> Vec<String> {
    let known = labels.iter().filter(|(key, _)| is_label(key)).filter_map(|(_, group)| group);
    let fits = |group: &&str| !group.is_empty() && group.len() <= 63;
    let mut groups: Vec<_> = known.filter(fits).take(MOST_DEVICES).map(str::to_owned).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

fn mebibytes(text: &str) -> Result<BudgetAmount, String> {
    let bytes = text.parse::<u64>().ok().filter(|mebibytes| *mebibytes > 0).and_then(|n| n.checked_mul(1 << 20));
    let refused = || refused(&format!("the annotation {KAI_MEMORY}"), text, "a whole number of MiB above 0");
    bytes.map(BudgetAmount::Bytes).ok_or_else(refused)
}

fn part(text: &str) -> Result<BudgetAmount, String> {
    let fraction = text.parse::<f64>().ok().filter(|part| (1e-6..=1.0).contains(part));
    let refused = || refused(&format!("the annotation {KAI_FRACTION}"), text, "above 0 and at most 1");
    // At most a million.
    fraction.map(|part| BudgetAmount::Millionths((part * 1e6).round() as u32)).ok_or_else(refused)
}
