//! The identities of GPUs that do not return one when the driver is opened.
//!
//! Invariant: a GPU inherits an earlier identity only if no other GPU can have it.

use std::sync::Arc;

use crate::snapshot::Gpu;

/// What the driver returns for an index. Both are `None` for a GPU that cannot be opened.
#[derive(Debug, Default, Clone)]
pub(super) struct ReportedIdentity {
    pub(super) uuid: Option<String>,
    pub(super) pci_bus_id: Option<String>,
}

/// The earlier GPU at each index; `None` for a GPU that is new or cannot be identified.
///
/// GPUs are matched by UUID or, without a UUID, by PCI bus id. Consecutive indices with neither identifier are matched with
/// the earlier GPUs that no other index claims and that are `present` in the machine. The PCI bus ids of these earlier
/// GPUs must be between those of the GPUs directly before and after the consecutive indices, since NVML enumerates GPUs
/// in the order of their PCI bus ids. If the number of such earlier GPUs differs from the number of consecutive
/// indices, none of these indices inherits an identity.
pub(super) fn inherit(
    reported: &[ReportedIdentity],
    known: &[Arc<Gpu>],
    present: impl Fn(&str) -> bool,
) -> Vec<Option<Arc<Gpu>>> {
    let mut found: Vec<_> = reported.iter().map(|identity| by_report(identity, reported, known)).collect();
    let bus_id = |(identity, found): (&ReportedIdentity, &Option<Arc<Gpu>>)| {
        identity.pci_bus_id.clone().or_else(|| found.as_ref()?.pci_bus_id.clone())
    };
    let bus_ids: Vec<Option<String>> = reported.iter().zip(&found).map(bus_id).collect();
    let is_free = |gpu: &Gpu| {
        let is_claimed = |(identity, bus_id): (&ReportedIdentity, &Option<String>)| {
            identity.uuid.as_ref() == Some(&gpu.uuid) || (bus_id.is_some() && *bus_id == gpu.pci_bus_id)
        };
        !reported.iter().zip(&bus_ids).any(is_claimed)
    };
    let is_unknown = |at: usize| reported[at].uuid.is_none() && bus_ids[at].is_none();
    let mut begin = 0;
    while begin < reported.len() {
        let end = (begin..reported.len()).find(|&at| !is_unknown(at)).unwrap_or(reported.len());
        let (before, after) = (begin.checked_sub(1).and_then(|at| bus_ids[at].as_ref()), bus_ids.get(end));
        let fits = |bus_id: &String| {
            before.is_none_or(|before| bus_id > before)
                && after.is_none_or(|after| after.as_ref().is_none_or(|after| bus_id < after))
        };
        let mut candidates: Vec<&Arc<Gpu>> = known
            .iter()
            .filter(|_| end > begin)
            .filter(|gpu| gpu.pci_bus_id.as_ref().is_some_and(|bus_id| fits(bus_id) && is_free(gpu) && present(bus_id)))
            .collect();
        if candidates.len() == end - begin {
            candidates.sort_unstable_by(|a, b| a.pci_bus_id.cmp(&b.pci_bus_id));
            found[begin..end].iter_mut().zip(candidates).for_each(|(found, gpu)| *found = Some(gpu.clone()));
        }
        begin = end + 1;
    }
    found
}

/// The earlier GPU with this identity.
fn by_report(identity: &ReportedIdentity, all: &[ReportedIdentity], known: &[Arc<Gpu>]) -> Option<Arc<Gpu>> {
    let is_reported = |uuid: &String| all.iter().any(|other| other.uuid.as_ref() == Some(uuid));
    let found = known.iter().find(|gpu| match (&identity.uuid, &identity.pci_bus_id) {
        (Some(uuid), _) => gpu.uuid == *uuid,
        (None, Some(bus_id)) => gpu.pci_bus_id.as_ref() == Some(bus_id) && !is_reported(&gpu.uuid),
        (None, None) => false,
    });
    found.cloned()
}

/// Adds newly found GPUs to the known ones. A GPU replaces an earlier one with the same UUID or PCI bus id, so
/// that there are never more known GPUs than slots in the machine.
pub fn remember(known: &mut Vec<Arc<Gpu>>, gpus: &[Arc<Gpu>]) {
    for gpu in gpus.iter().filter(|gpu| !gpu.uuid.is_empty()) {
        let is_replaced =
            |other: &Gpu| other.uuid == gpu.uuid || other.pci_bus_id.is_none() || other.pci_bus_id == gpu.pci_bus_id;
        known.retain(|other| !is_replaced(other));
    }
    known.extend(gpus.iter().filter(|gpu| !gpu.uuid.is_empty()).cloned());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str, index: u32) -> Arc<Gpu> {
        let pci_bus_id = Some(format!("00000000:{name}:00.0"));
        Arc::new(Gpu { index, uuid: format!("GPU-{name}"), pci_bus_id, ..Gpu::default() })
    }

    fn opened(name: &str) -> ReportedIdentity {
        let gpu = gpu(name, 0);
        ReportedIdentity { uuid: Some(gpu.uuid.clone()), pci_bus_id: gpu.pci_bus_id.clone() }
    }

    /// The names of the GPUs whose identity is inherited.
    fn inherited(reported: &[ReportedIdentity], known: &[&str], missing: &str) -> Vec<String> {
        let known: Vec<_> = known.iter().map(|name| gpu(name, 7)).collect();
        let found = inherit(reported, &known, |bus_id| !bus_id.contains(&format!(":{missing}:")));
        let name = |gpu: &Option<Arc<Gpu>>| gpu.as_ref().map_or("-", |gpu| &gpu.uuid[4..]).to_owned();
        found.iter().map(name).collect()
    }

    #[test]
    fn an_unopened_gpu_takes_no_identity_that_another_claims() {
        let none = ReportedIdentity::default();
        let (b, c) = (opened("0B"), opened("0C"));
        assert_eq!(inherited(&[none.clone(), b.clone(), c.clone()], &["0B", "0C"], "-"), ["-", "0B", "0C"]);
        assert_eq!(inherited(&[none.clone(), b.clone(), c.clone()], &["0B", "0C", "0A"], "-"), ["0A", "0B", "0C"]);
        // 0A is no longer in the machine, so the first GPU is a different one.
        assert_eq!(inherited(&[none.clone(), b.clone(), c.clone()], &["0B", "0C", "0A"], "0A"), ["-", "0B", "0C"]);
        // The first GPU cannot be 0C, which would come last in the order of PCI bus ids.
        assert_eq!(inherited(&[none.clone(), b.clone()], &["0B", "0C"], "-"), ["-", "0B"]);
        assert_eq!(inherited(&[b, none.clone(), none.clone()], &["0B", "0D", "0C"], "-"), ["0B", "0C", "0D"]);
        assert_eq!(inherited(&[none.clone(), c], &["0A", "0B", "0C"], "-"), ["-", "0C"], "both are possible");
        assert_eq!(inherited(&[none.clone(), none], &["0A", "0B"], "-"), ["0A", "0B"]);
    }

    #[test]
    fn a_gpu_without_a_uuid_is_identified_by_its_pci_bus_id() {
        let bus_id_only = |name: &str| ReportedIdentity { uuid: None, ..opened(name) };
        let uuid_only = |name: &str| ReportedIdentity { pci_bus_id: None, ..opened(name) };
        assert_eq!(inherited(&[bus_id_only("0A"), opened("0B")], &["0A", "0B"], "-"), ["0A", "0B"]);
        assert_eq!(inherited(&[bus_id_only("0D"), opened("0B")], &["0A", "0B"], "-"), ["-", "0B"], "a new slot");
        // A card was moved, and its UUID identifies it in the new slot.
        let moved = ReportedIdentity { pci_bus_id: opened("0C").pci_bus_id, ..opened("0B") };
        assert_eq!(inherited(&[bus_id_only("0B"), moved], &["0A", "0B"], "-"), ["-", "0B"]);
        assert_eq!(inherited(&[uuid_only("0A"), ReportedIdentity::default()], &["0A", "0B"], "-"), ["0A", "0B"]);
    }

    #[test]
    fn a_card_that_replaces_another_takes_its_entry() {
        let mut known = vec![gpu("0A", 0), gpu("0B", 1)];
        let new = Arc::new(Gpu { uuid: "GPU-new".to_owned(), ..(*gpu("0A", 0)).clone() });
        remember(&mut known, &[new.clone(), Arc::new(Gpu { index: 1, ..Gpu::default() })]);
        assert_eq!(known, [gpu("0B", 1), new]);
    }
}
