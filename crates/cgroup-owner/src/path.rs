//! One cgroup path, read from the root inwards.
//!
//! Invariant: reading stops at the first boundary. Below a user, a job or a unit only a container is searched for, and
//! it does not change the owner.

use crate::location::{Boundary, CgroupLocation};
use crate::{scheduler, shape};

/// How many names in a path are read. Deeper names are irrelevant: real boundaries are at most a dozen levels deep.
const DEPTH: usize = 64;

/// A path, split into names.
#[derive(Debug)]
pub(crate) struct Path<'a> {
    names: [&'a [u8]; DEPTH],
    length: usize,
    /// How many leading names are the same in the calling process's own path.
    shared: usize,
    /// Whether the last name may have been cut off.
    cut: bool,
}

/// A boundary, the index after its names, and the index after the container, which forms the boundary or is inside it.
struct Found {
    location: CgroupLocation,
    end: usize,
    container_end: Option<usize>,
}

/// A container, and the index after its names.
type Container = (String, usize);

impl<'a> Path<'a> {
    /// `own` is the calling process's path in the same hierarchy; `whole` means that the line is not cut off.
    pub(crate) fn new(path: &'a [u8], own: &[u8], whole: bool) -> Self {
        let mut names: [&[u8]; DEPTH] = [b""; DEPTH];
        let mut parts = names_of(path);
        let length = names.iter_mut().zip(parts.by_ref()).map(|(name, part)| *name = part).count();
        let cut = !whole && parts.next().is_none();
        let shared = names[..length].iter().zip(names_of(own)).take_while(|(name, own)| *name == own).count();
        Self { names, length, shared, cut }
    }

    /// Where the process runs.
    pub(crate) fn location(&self) -> CgroupLocation {
        self.found().map(|found| found.location).unwrap_or_default()
    }

    /// The path of the cgroup that forms the boundary. `None` without a boundary, if the top of the path is not visible,
    /// or if the last name of the boundary may have been cut off.
    pub(crate) fn of_boundary(&self) -> Option<Vec<u8>> {
        let end = self.found()?.end;
        let names = &self.names[..end];
        let is_whole = self.ends(end - 1) && !names.contains(&b"..".as_slice());
        is_whole.then(|| names.iter().flat_map(|name| [b"/", *name]).flatten().copied().collect())
    }

    fn found(&self) -> Option<Found> {
        let mut from = 0;
        let mut enclosing = None;
        while let Some(found) = self.boundary(from) {
            match found.container_end {
                // The calling process is in this container too: the container counts as the machine if there is a
                // boundary further inside.
                Some(end) if end <= self.shared => {
                    from = end;
                    enclosing = Some(found);
                }
                _ => return Some(found),
            }
        }
        enclosing
    }

    /// The first boundary at or after `from`.
    fn boundary(&self, from: usize) -> Option<Found> {
        // In a cgroup namespace, `kubepods` can be above the visible part of the path.
        let mut in_kubepods = from == 0 && self.name(0) == b"..";
        let mut slices_only = true;
        let mut runtime = None;
        for at in from..self.length {
            let name = self.name(at);
            if name == b".." {
                continue;
            }
            let found = self.pod(at, in_kubepods).or_else(|| {
                let (id, end) = self.container(at).or_else(|| self.named_container(at, from))?;
                let location = CgroupLocation { container_id: Some(id), ..at_boundary(Boundary::Container) };
                Some(Found { location, end, container_end: Some(end) })
            });
            if found.is_some() {
                return found;
            }
            // systemd creates the cgroups of units and users, and puts only slices above them. Jobs can be in a
            // scheduler's own unit.
            if (slices_only || runtime.is_some())
                && let Some(job) = self.job(at)
            {
                return Some(job);
            }
            if slices_only {
                let found = self.user(at).or_else(|| self.unit(at));
                match found {
                    Some(found) if shape::is_runtime(name) => runtime = Some(found),
                    Some(found) => return Some(found),
                    None => {}
                }
            }
            in_kubepods |= shape::is_kubepods(name);
            slices_only &= shape::is_slice(name);
        }
        runtime
    }

    fn pod(&self, at: usize, in_kubepods: bool) -> Option<Found> {
        let name = self.name(at);
        let uid = shape::pod_slice(name).or_else(|| shape::pod_directory(name).filter(|_| in_kubepods))?;
        // A pod's containers are its children. Other children (a monitor, a virtual machine's helpers) belong to the
        // pod alone.
        let container = match shape::container(name) {
            Some(id) => Some((id, at + 1)),
            None => shape::container(self.name(at + 1)).map(|id| (id, at + 2)),
        };
        let (container_id, container_end) = container.unzip();
        let end = container_end.unwrap_or(at + 1);
        let location = CgroupLocation { pod_uid: Some(uid), container_id, ..at_boundary(Boundary::Pod) };
        Some(Found { location, end, container_end })
    }

    /// A container whose shape is unambiguous anywhere in a path.
    fn container(&self, at: usize) -> Option<Container> {
        let name = self.name(at);
        if let Some(id) = shape::container(name) {
            // Below `libpod_parent`, podman's pods are named like containers, and their containers are named
            // `libpod-<id>`.
            let is_pod = at > 0 && self.name(at - 1) == b"libpod_parent" && id.len() == name.len();
            return (!is_pod).then_some((id, at + 1));
        }
        let lxc = match name {
            b"lxc" | b"lxc.payload" | b"incus.payload" => at + 1,
            _ => at,
        };
        if lxc > at || shape::lxc_payload(name).is_some() {
            let text = shape::lxc_payload(self.name(lxc)).unwrap_or(self.name(lxc));
            return shape::lxc_name(text).filter(|_| self.ends(lxc)).map(|name| (name, lxc + 1));
        }
        if let Some(machine) = shape::libvirt_container(name).or_else(|| shape::machine(name)) {
            return Some((machine, at + 1));
        }
        if shape::is_garden(name) {
            // With a CPU limit there is one more level.
            let at = at + 1 + usize::from(matches!(self.name(at + 1), b"good" | b"bad"));
            return shape::garden_container(self.name(at)).filter(|_| self.ends(at)).map(|handle| (handle, at + 1));
        }
        let in_ecs = self.names[at.saturating_sub(3)..at].contains(&b"ecs".as_slice());
        shape::ecs_container(name).filter(|_| in_ecs && self.ends(at)).map(|id| (id, at + 1))
    }

    /// A container with a user-chosen name, in a containerd namespace at the top of the path.
    fn named_container(&self, at: usize, from: usize) -> Option<Container> {
        let at_top = at == from || self.name(at - 1) == b"..";
        let named = at_top && shape::is_containerd_namespace(self.name(at), at == 0) && self.ends(at + 1);
        named.then(|| shape::containerd_name(self.name(at + 1)))?.map(|id| (id, at + 2))
    }

    fn job(&self, at: usize) -> Option<Found> {
        self.slurm_job(at).or_else(|| {
            let (job, length) = scheduler::job(&self.names[at..self.length])?;
            let location = CgroupLocation { job: Some(job), ..at_boundary(Boundary::Job) };
            self.ends(at + length - 1).then(|| self.filled(location, at + length, at + length))
        })
    }

    fn slurm_job(&self, at: usize) -> Option<Found> {
        let at_job = match self.name(at) {
            name if shape::is_slurm_scope(name) => at + 1,
            name if shape::is_slurm(name) && shape::is_slurm_uid(self.name(at + 1)) => at + 2,
            _ => return None,
        };
        let job = shape::slurm_job(self.name(at_job)).filter(|_| self.ends(at_job))?;
        let step = shape::slurm_step(self.name(at_job + 1)).filter(|_| self.ends(at_job + 1));
        let location = CgroupLocation { slurm_job: Some(job), slurm_step: step, ..at_boundary(Boundary::SlurmJob) };
        Some(self.filled(location, at_job + 1, at_job + 1))
    }

    /// A user, with the first unit that is not a slice; a unit below the user's own systemd replaces it.
    fn user(&self, at: usize) -> Option<Found> {
        if !shape::is_user(self.name(at)) {
            return None;
        }
        let mut unit = None;
        for at in at..self.length {
            let name = self.name(at);
            if shape::is_slice(name) {
                continue;
            }
            // A container's scope is a unit too, but is reported as a container.
            let Some(next) = shape::unit_name(name).filter(|_| self.container(at).is_none()) else { break };
            let goes_on = unit.is_none() && shape::is_user_manager(name);
            unit = Some(next);
            if !goes_on {
                break;
            }
        }
        let user = shape::user_id(self.name(at)).filter(|_| self.ends(at));
        Some(self.filled(CgroupLocation { user, unit, ..at_boundary(Boundary::User) }, at + 1, at))
    }

    fn unit(&self, at: usize) -> Option<Found> {
        let unit = shape::unit_name(self.name(at))?;
        Some(self.filled(CgroupLocation { unit: Some(unit), ..at_boundary(Boundary::Unit) }, at + 1, at + 1))
    }

    /// A boundary whose names end before `end`, with the first container at or after `from`, which belongs to the owner
    /// in `location`.
    fn filled(&self, location: CgroupLocation, end: usize, from: usize) -> Found {
        let (container_id, container_end) = (from..self.length).find_map(|at| self.container(at)).unzip();
        Found { location: CgroupLocation { container_id, ..location }, end, container_end }
    }

    /// The name at an index; empty beyond the end.
    fn name(&self, at: usize) -> &'a [u8] {
        self.names.get(at).copied().unwrap_or_default()
    }

    /// Whether the name at an index is known not to be cut off.
    fn ends(&self, at: usize) -> bool {
        at + 1 < self.length || !self.cut
    }
}

fn at_boundary(boundary: Boundary) -> CgroupLocation {
    CgroupLocation { boundary: Some(boundary), ..CgroupLocation::default() }
}

fn names_of(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}
