//! The identity of GPUs that do not return it at an opening of the driver.
//!
//! Invariant: a GPU inherits an identity of an earlier opening only if no other GPU can have it.

use std::sync::Arc;

use crate::snapshot::Gpu;

/// What the driver returns for an index. Both are `None` for a GPU that cannot be opened.
#[derive(Debug, Default, Clone)]
pub(super) struct Answers {
    pub(super) uuid: Option<String>,
    pub(super) pci_bus_id: Option<String>,
}

/// The GPU of an earlier opening at each index; `None` for a GPU that is new or that cannot be determined.
///
/// The UUID decides, otherwise the PCI bus id. A GPU that returns neither must be one that no other index claims, that is
/// `present` in the machine, and whose PCI bus id is between those of its neighbours, since NVML enumerates GPUs in the order
/// of their PCI bus ids. If the number of such GPUs differs from the number of indices between the neighbours, nothing is
/// inherited there.
pub(super) fn inherit(
    answers: &[Answers],
    known: &[Arc<Gpu>],
    present: impl Fn(&str) -> bool,
) -> Vec<Option<Arc<Gpu>>> {
    let mut found: Vec<_> = answers.iter().map(|answer| by_answer(answer, answers, known)).collect();
    let place = |(answer, found): (&Answers, &Option<Arc<Gpu>>)| {
        answer.pci_bus_id.clone().or_else(|| found.as_ref()?.pci_bus_id.clone())
    };
    let places: Vec<Option<String>> = answers.iter().zip(&found).map(place).collect();
    let is_free = |gpu: &Gpu| {
        let is_claimed = |(answer, place): (&Answers, &Option<String>)| {
            answer.uuid.as_ref() == Some(&gpu.uuid) || (place.is_some() && *place == gpu.pci_bus_id)
        };
        !answers.iter().zip(&places).any(is_claimed)
    };
    let is_silent = |at: usize| answers[at].uuid.is_none() && places[at].is_none();
    let mut begin = 0;
    while begin < answers.len() {
        let end = (begin..answers.len()).find(|&at| !is_silent(at)).unwrap_or(answers.len());
        let (before, after) = (begin.checked_sub(1).and_then(|at| places[at].as_ref()), places.get(end));
        let fits = |place: &String| {
            before.is_none_or(|before| place > before)
                && after.is_none_or(|after| after.as_ref().is_none_or(|after| place < after))
        };
        let mut candidates: Vec<&Arc<Gpu>> = known
            .iter()
            .filter(|_| end > begin)
            .filter(|gpu| gpu.pci_bus_id.as_ref().is_some_and(|place| fits(place) && is_free(gpu) && present(place)))
            .collect();
        if candidates.len() == end - begin {
            candidates.sort_by(|a, b| a.pci_bus_id.cmp(&b.pci_bus_id));
            found[begin..end].iter_mut().zip(candidates).for_each(|(found, gpu)| *found = Some(gpu.clone()));
        }
        begin = end + 1;
    }
    found
}

/// The earlier GPU that an answer identifies.
fn by_answer(answer: &Answers, all: &[Answers], known: &[Arc<Gpu>]) -> Option<Arc<Gpu>> {
    let is_answered = |uuid: &String| all.iter().any(|other| other.uuid.as_ref() == Some(uuid));
    let found = known.iter().find(|gpu| match (&answer.uuid, &answer.pci_bus_id) {
        (Some(uuid), _) => gpu.uuid == *uuid,
        (None, Some(place)) => gpu.pci_bus_id.as_ref() == Some(place) && !is_answered(&gpu.uuid),
        (None, None) => false,
    });
    found.cloned()
}

/// Adds the GPUs of an opening to the known ones. A GPU replaces an earlier one with the same UUID or PCI bus id, so that there
/// are never more than the machine has slots.
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

    fn opened(name: &str) -> Answers {
        let gpu = gpu(name, 0);
        Answers { uuid: Some(gpu.uuid.clone()), pci_bus_id: gpu.pci_bus_id.clone() }
    }

    /// The names of the GPUs whose identity is inherited.
    fn inherited(answers: &[Answers], known: &[&str], missing: &str) -> Vec<String> {
        let known: Vec<_> = known.iter().map(|name| gpu(name, 7)).collect();
        let found = inherit(answers, &known, |place| !place.contains(&format!(":{missing}:")));
        let name = |gpu: &Option<Arc<Gpu>>| gpu.as_ref().map_or("-", |gpu| &gpu.uuid[4..]).to_owned();
        found.iter().map(name).collect()
    }

    #[test]
    fn an_unopened_gpu_takes_no_identity_that_another_claims() {
        let none = Answers::default();
        let (b, c) = (opened("0B"), opened("0C"));
        assert_eq!(inherited(&[none.clone(), b.clone(), c.clone()], &["0B", "0C"], "-"), ["-", "0B", "0C"]);
        assert_eq!(inherited(&[none.clone(), b.clone(), c.clone()], &["0B", "0C", "0A"], "-"), ["0A", "0B", "0C"]);
        // It is no longer in the machine: another GPU comes first.
        assert_eq!(inherited(&[none.clone(), b.clone(), c.clone()], &["0B", "0C", "0A"], "0A"), ["-", "0B", "0C"]);
        // By its PCI bus id it would come last.
        assert_eq!(inherited(&[none.clone(), b.clone()], &["0B", "0C"], "-"), ["-", "0B"]);
        assert_eq!(inherited(&[b, none.clone(), none.clone()], &["0B", "0D", "0C"], "-"), ["0B", "0C", "0D"]);
        assert_eq!(inherited(&[none.clone(), c], &["0A", "0B", "0C"], "-"), ["-", "0C"], "both are possible");
        assert_eq!(inherited(&[none.clone(), none], &["0A", "0B"], "-"), ["0A", "0B"]);
    }

    #[test]
    fn a_gpu_without_a_uuid_is_identified_by_its_pci_bus_id() {
        let place_only = |name: &str| Answers { uuid: None, ..opened(name) };
        let uuid_only = |name: &str| Answers { pci_bus_id: None, ..opened(name) };
        assert_eq!(inherited(&[place_only("0A"), opened("0B")], &["0A", "0B"], "-"), ["0A", "0B"]);
        assert_eq!(inherited(&[place_only("0D"), opened("0B")], &["0A", "0B"], "-"), ["-", "0B"], "a new slot");
        // A card was moved: its UUID identifies it in the new slot.
        let moved = Answers { pci_bus_id: opened("0C").pci_bus_id, ..opened("0B") };
        assert_eq!(inherited(&[place_only("0B"), moved], &["0A", "0B"], "-"), ["-", "0B"]);
        assert_eq!(inherited(&[uuid_only("0A"), Answers::default()], &["0A", "0B"], "-"), ["0A", "0B"]);
    }

    #[test]
    fn a_card_that_replaces_another_takes_its_entry() {
        let mut known = vec![gpu("0A", 0), gpu("0B", 1)];
        let new = Arc::new(Gpu { uuid: "GPU-new".to_owned(), ..(*gpu("0A", 0)).clone() });
        remember(&mut known, &[new.clone(), Arc::new(Gpu { index: 1, ..Gpu::default() })]);
        assert_eq!(known, [gpu("0B", 1), new]);
    }
}
