//! The lines of a cgroup file, and which hierarchy determines the owner.
//!
//! Invariant: the line for another hierarchy can add to what is known about a pod or a job, but never replaces it.

use crate::location::{Boundary, CgroupLocation};
use crate::path::Path;

/// How many lines are read. The kernel has fewer hierarchies, so it never writes more lines than this.
const LINES: usize = 64;

/// The hierarchies that are read, most reliable first. The unified line has no controllers.
const HIERARCHIES: [&[u8]; 8] = [b"memory", b"devices", b"freezer", b"pids", b"cpu", b"cpuset", b"name=systemd", b""];
/// The index of `name=systemd` in [`HIERARCHIES`].
const SYSTEMD: usize = 6;
/// The index of the unified line in [`HIERARCHIES`].
const UNIFIED: usize = 7;

/// Locates a process. `cgroup` holds its cgroup file; `own` holds that of the calling process, and may be empty.
///
/// A container that also encloses the calling process counts as the machine and not as an owner (as on a kind node),
/// as long as there is a boundary further inside. If the calling process has its own cgroup namespace, it sees all
/// paths relative to its own cgroup (`/../..`); what is above the visible part is not known and not returned.
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

/// The path of the cgroup that forms the process's boundary in the unified hierarchy (version 2), below the root of that
/// hierarchy: `/system.slice/docker-….scope`. `cgroup` and `own` are those of [`locate`].
///
/// `None` if there is no boundary, if the lines of version 1 determine the owner, if the calling process has a cgroup
/// namespace of its own and does not see the top of the path, or if the path may have been cut off.
pub fn boundary_path(cgroup: &[u8], own: &[u8]) -> Option<Vec<u8>> {
    let line = lines(cgroup).find(|line| line.controllers.is_empty())?;
    let path = Path::new(line.path, own_path(own, line.controllers), line.whole);
    // In the hybrid layout, the unified line may stay at the runtime's own unit.
    (path.location() == locate(cgroup, own)).then(|| path.of_boundary())?
}

/// One line: a hierarchy, and the path of the process's cgroup in it.
#[derive(Debug, Clone, Copy)]
struct Line<'a> {
    controllers: &'a [u8],
    path: &'a [u8],
    /// Whether the line ended with a newline.
    whole: bool,
}

/// The lines of the form `number:controllers:/path`. Only the first two colons separate fields: a path can contain
/// more.
fn lines(text: &[u8]) -> impl Iterator<Item = Line<'_>> {
    text.split_inclusive(|byte| *byte == b'\n').take(LINES).filter_map(|line| {
        let (line, whole) = line.strip_suffix(b"\n").map_or((line, false), |line| (line, true));
        let mut parts = line.splitn(3, |byte| *byte == b':');
        let number = parts.next()?;
        let controllers = parts.next()?;
        let path = parts.next().filter(|path| path.starts_with(b"/"))?;
        let numbered = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
        // The kernel appends this to the path of a cgroup that was removed while a dead process was still in it.
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        numbered.then_some(Line { controllers, path, whole })
    })
}

/// The lowest index in [`HIERARCHIES`] among the controllers of a line; `None` for a line that is not read.
fn rank(controllers: &[u8]) -> Option<usize> {
    controllers
        .split(|byte| *byte == b',')
        .filter_map(|name| HIERARCHIES.iter().position(|hierarchy| *hierarchy == name))
        .min()
}

/// The calling process's path in a hierarchy.
fn own_path<'a>(own: &'a [u8], controllers: &[u8]) -> &'a [u8] {
    lines(own).find(|line| line.controllers == controllers).map_or(b"", |line| line.path)
}

/// The priority of a hierarchy's units: those with the lowest number are preferred.
fn order_of_units(rank: usize) -> usize {
    match rank {
        SYSTEMD => 0,
        UNIFIED => 1,
        _ => rank + 2,
    }
}

/// Whether no other hierarchy could add anything.
fn is_complete(location: &CgroupLocation) -> bool {
    match location.boundary {
        Some(Boundary::Pod) => location.container_id.is_some(),
        Some(Boundary::SlurmJob) => location.slurm_step.is_some(),
        _ => true,
    }
}

/// Whether `location` identifies the same pod or job as `than` does, but in more detail.
fn tells_more(location: &CgroupLocation, than: &CgroupLocation) -> bool {
    location.boundary == than.boundary
        && location.pod_uid == than.pod_uid
        && location.slurm_job == than.slurm_job
        && location.job == than.job
        && is_complete(location)
        && !is_complete(than)
}
