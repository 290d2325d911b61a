//! Where a process lives, from the text of its `/proc/<pid>/cgroup`.
//!
//! Invariant: the outermost boundary on a path decides. A container, a user's session or a Slurm job may be able to
//! make cgroups of any name below its own, so nothing that is named deeper replaces what stands above it. What is not
//! surely known is left out. The text is hostile: any bytes, cut off anywhere.
//!
//! The kernel ends every line with a newline and lets no cgroup's name hold one, so a last line without it may have
//! been cut off: of its last name only a shape of fixed length or with a suffix is believed, never a job's number or
//! the name of an LXC container.
//!
//! Version 1 has a line for each hierarchy, and they differ: Slurm moves its processes only where it constrains them,
//! Docker once left `name=systemd` alone, and in the hybrid layout the unified line can stay at the runtime's own unit.
//! So pods, containers and jobs are looked for in this order, and the first found counts: `memory`, `devices`,
//! `freezer`, `pids`, `cpu`, `cpuset`, `name=systemd`, unified. Only if none has one, units and sessions are believed:
//! of `name=systemd` first, which is systemd's own, then of the unified line, then of the others.
//!
//! A container's id below a user, a unit or a job is that owner's word: it may name a container, but never a pod.

mod path;
mod scheduler;
mod shape;
#[cfg(test)]
mod tests;

use path::Path;

use crate::snapshot::{Boundary, CgroupLocation};

/// The lines that are looked at: the kernel knows fewer hierarchies, so more were not written by it.
const LINES: usize = 64;

/// The hierarchies that are read, the most telling first. A unified line has no controllers.
const HIERARCHIES: [&[u8]; 8] = [b"memory", b"devices", b"freezer", b"pids", b"cpu", b"cpuset", b"name=systemd", b""];
/// Where `name=systemd` stands among them.
const SYSTEMD: usize = 6;
/// Where the unified line stands among them.
const UNIFIED: usize = 7;

/// Where the process lives whose cgroups these are; `own` are those of this process, and may be empty.
///
/// A container that encloses this process too is the machine and no owner (a node of kind), as long as there is a
/// boundary further inside. With a cgroup namespace of its own this process sees all paths from its own cgroup
/// (`/../..`); what lies above the part that is seen is not known, and is not told.
pub fn locate(cgroup: &[u8], own: &[u8]) -> CgroupLocation {
    let mut hierarchies = [None; HIERARCHIES.len()];
    for line in lines(cgroup) {
        if let Some(rank) = rank(line.controllers) {
            hierarchies[rank].get_or_insert(line);
        }
    }
    let mut best: Option<CgroupLocation> = None;
    let mut unit: Option<(usize, CgroupLocation)> = None;
    for (rank, line) in hierarchies.into_iter().enumerate() {
        let Some(line) = line else { continue };
        let location = Path::new(line.path, own_path(own, line.controllers), line.whole).location();
        match (location.boundary, &best) {
            (None, _) => {}
            (Some(Boundary::Unit | Boundary::User), _) => {
                let order = order_of_units(rank);
                if unit.as_ref().is_none_or(|(other, _)| order < *other) {
                    unit = Some((order, location));
                }
            }
            (Some(_), Some(other)) if !tells_more(&location, other) => {}
            (Some(_), _) => best = Some(location),
        }
        if best.as_ref().is_some_and(is_complete) {
            break;
        }
    }
    best.or(unit.map(|(_, location)| location)).unwrap_or_default()
}

/// One line: a hierarchy, and the path of the process's cgroup in it.
#[derive(Debug, Clone, Copy)]
struct Line<'a> {
    controllers: &'a [u8],
    path: &'a [u8],
    /// It ended with a newline.
    whole: bool,
}

/// The lines of the form `number:controllers:/path`. Only the first two colons part a line: paths can hold more.
fn lines(text: &[u8]) -> impl Iterator<Item = Line<'_>> {
    text.split_inclusive(|byte| *byte == b'\n').take(LINES).filter_map(|line| {
        let (line, whole) = line.strip_suffix(b"\n").map_or((line, false), |line| (line, true));
        let mut parts = line.splitn(3, |byte| *byte == b':');
        let number = parts.next()?;
        let controllers = parts.next()?;
        let path = parts.next().filter(|path| path.starts_with(b"/"))?;
        let numbered = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
        // The kernel says so of a cgroup that was removed while a dead process was still in it.
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        numbered.then_some(Line { controllers, path, whole })
    })
}

/// The hierarchy's place in the order, by the first of its controllers that has one; `None` where it tells nothing.
fn rank(controllers: &[u8]) -> Option<usize> {
    controllers
        .split(|byte| *byte == b',')
        .filter_map(|name| HIERARCHIES.iter().position(|hierarchy| *hierarchy == name))
        .min()
}

/// This process's own path in a hierarchy.
fn own_path<'a>(own: &'a [u8], controllers: &[u8]) -> &'a [u8] {
    lines(own).find(|line| line.controllers == controllers).map_or(b"", |line| line.path)
}

/// The order in which units are believed.
fn order_of_units(rank: usize) -> usize {
    match rank {
        SYSTEMD => 0,
        UNIFIED => 1,
        _ => rank + 2,
    }
}

/// Nothing that another hierarchy could add.
fn is_complete(location: &CgroupLocation) -> bool {
    match location.boundary {
        Some(Boundary::Pod) => location.container_id.is_some(),
        Some(Boundary::SlurmJob) => location.slurm_step.is_some(),
        _ => true,
    }
}

/// The same pod or job, and more of it.
fn tells_more(location: &CgroupLocation, than: &CgroupLocation) -> bool {
    location.boundary == than.boundary
        && location.pod_uid == than.pod_uid
        && location.slurm_job == than.slurm_job
        && location.job == than.job
        && is_complete(location)
        && !is_complete(than)
}
