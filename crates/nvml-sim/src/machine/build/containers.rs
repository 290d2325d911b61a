//! The containers in a scenario: their names, as a cluster would report them, and their devices.

use super::{Refusal, refuse};
use crate::machine::{Container, Machine};
use crate::scenario::grammar;

/// The digits of a container's id.
const DIGITS: usize = 64;

pub(super) fn all(machine: &Machine, entries: &[grammar::Container]) -> Result<Vec<Container>, Refusal> {
    let mut containers = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let key = |leaf: &str| format!("container[{index}].{leaf}");
        if entry.id.len() != DIGITS || !entry.id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return refuse(key("id"), format!("`{}` is not {DIGITS} hexadecimal digits", entry.id));
        }
        if entries[..index].iter().any(|other| other.id == entry.id) {
            return refuse(key("id"), "is given twice");
        }
        for (leaf, name) in [("namespace", &entry.namespace), ("pod", &entry.pod), ("name", &entry.name)] {
            if name.is_empty() || name.contains(char::is_control) {
                return refuse(key(leaf), "is empty, or holds a control character");
            }
        }
        if entry.claim.as_ref().is_some_and(|claim| claim.is_empty() || claim.contains(char::is_control)) {
            return refuse(key("claim"), "is empty, or holds a control character");
        }
        if entry.claim.is_none() && (entry.claim_memory.is_some() || entry.admin_access) {
            return refuse(key("claim"), "is absent, although something is said about it");
        }
        let device = |index: &u32| {
            let Some(gpu) = machine.gpus.get(*index as usize) else {
                return refuse(key("gpus"), format!("no GPU {index}"));
            };
            let (name, uuid) = match entry.mig {
                None => (format!("gpu-{index}"), &gpu.uuid),
                Some(mig) => {
                    let found = gpu.mig.iter().flatten().flatten().find(|instance| instance.index == mig);
                    let Some(found) = found else { return refuse(key("mig"), format!("no MIG device {mig}")) };
                    (format!("gpu-{index}-mig-{mig}"), &found.uuid)
                }
            };
            Ok(if entry.claim.is_some() { format!("{name}={uuid}") } else { uuid.clone() })
        };
        let devices = entry.gpus.iter().map(device).collect::<Result<_, _>>()?;
        containers.push(Container { written: entry.clone(), devices });
    }
    Ok(containers)
}
