//! HAMi: a container is limited to resources `nvidia.com/gpumem` (MiB) or `nvidia.com/gpumem-percentage` on each GPU, and
//! once the pod is bound, an annotation names the GPUs and the memory on each.
//!
//! Source: `pkg/device/devices.go` and `pkg/device/nvidia` of Project-HAMi/HAMi. The annotation holds
//! `UUID,type,MiB,cores:` for each device of a container, and `;` after each container.

use super::keys::{HAMI_DEVICES, HAMI_MEMORY, HAMI_PERCENTAGE};
use super::{Declared, DeclaredPlace, MOST_DEVICES, device, refused, text};
use crate::kubernetes::api::declared::{Spec, Texts};
use crate::quantity;
use crate::snapshot::{BudgetAmount, BudgetPlace, BudgetSource};

/// The budgets of the containers: as assigned, or as requested until devices are assigned.
pub(super) fn read(annotations: &Texts, spec: &Spec) -> Result<Vec<Declared>, String> {
    match text(annotations, HAMI_DEVICES)? {
        Some(devices) if !devices.is_empty() => assigned(devices, spec),
        _ => requested(spec),
    }
}

fn assigned(text: &str, spec: &Spec) -> Result<Vec<Declared>, String> {
    let refused = |part: &str, expected: &str| refused(&format!("the annotation {HAMI_DEVICES}"), part, expected);
    let parts: Vec<_> = text.strip_suffix(';').unwrap_or(text).split(';').collect();
    // Newer versions list the init containers first, older ones not at all.
    let (containers, init) = (&spec.containers, &spec.init_containers);
    let names: Vec<_> = match parts.len() {
        count if count == containers.len() => containers.iter().collect(),
        count if count == containers.len() + init.len() => init.iter().chain(containers).collect(),
        _ => return Err(refused(text, "one part for each container")),
    };
    let mut budgets: Vec<Declared> = Vec::new();
    for (container, part) in names.into_iter().zip(parts) {
        let Some(name) = container.name.as_deref().filter(|_| !part.is_empty()) else { continue };
        for assigned in part.strip_suffix(':').unwrap_or(part).split(':') {
            let (place, bytes) = one_device(assigned).ok_or_else(|| refused(assigned, "UUID,NVIDIA,MiB,cores"))?;
            let place = DeclaredPlace::At(place);
            let same = budgets.iter_mut().find(|budget| budget.container == name && budget.place == place);
            match same.map(|same| &mut same.amount) {
                // Two shares of one GPU.
                Some(BudgetAmount::Bytes(sum)) => *sum = sum.saturating_add(bytes),
                _ => budgets.push(budget(name, BudgetAmount::Bytes(bytes), place)),
            }
            if budgets.len() > MOST_DEVICES {
                return Err(refused(text, "at most 256 devices"));
            }
        }
    }
    Ok(budgets)
}

/// A device and the memory on it in bytes.
fn one_device(text: &str) -> Option<(BudgetPlace, u64)> {
    let mut fields = text.split(',');
    let (uuid, kind, memory, _cores) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    // With dynamic MIG, the part of the GPU follows in brackets.
    let uuid = uuid.split_once('[').map_or(uuid, |(uuid, _)| uuid);
    let bytes = memory.parse::<u64>().ok().filter(|mebibytes| *mebibytes > 0)?.checked_mul(1 << 20)?;
    (fields.next().is_none() && kind.starts_with("NVIDIA")).then_some((device(uuid)?, bytes))
}

fn requested(spec: &Spec) -> Result<Vec<Declared>, String> {
    let mut budgets = Vec::new();
    for container in spec.all() {
        let (Some(name), limits) = (container.name.as_deref(), container.limits()) else { continue };
        let count = |resource: &str, most: u64, expected: &str| {
            let Some(text) = text(limits, resource)? else { return Ok(None) };
            let count = quantity::number(text).ok().filter(|count| *count <= most);
            // 0 means that nothing is requested.
            let count = count.ok_or_else(|| refused(&format!("the resource {resource}"), text, expected))?;
            Ok::<_, String>((count > 0).then_some(count))
        };
        let memory = count(HAMI_MEMORY, u64::MAX >> 20, "a number of MiB")?;
        let percentage = count(HAMI_PERCENTAGE, 100, "at most 100")?;
        let amount = match (memory, percentage) {
            (Some(mebibytes), _) => BudgetAmount::Bytes(mebibytes << 20),
            // At most 100.
            (None, Some(percentage)) => BudgetAmount::Millionths(percentage as u32 * 10_000),
            (None, None) => continue,
        };
        budgets.push(budget(name, amount, DeclaredPlace::At(BudgetPlace::EachGpu)));
    }
    Ok(budgets)
}

fn budget(container: &str, amount: BudgetAmount, place: DeclaredPlace) -> Declared {
    Declared { container: container.to_owned(), source: BudgetSource::Hami, amount, place }
}
