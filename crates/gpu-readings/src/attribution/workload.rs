//! The workload of a process: one readable name in every environment.
//!
//! A pure function. Invariant: two processes have the same workload only if they are behind the same boundary, and a
//! pod's name is given only to a process in one of that pod's containers.

use std::sync::Arc;

use crate::snapshot::{Boundary, CgroupLocation, PodContainer, Workload, WorkloadKind};

/// The number of digits of a container's id that a workload's name shows. Container tools show the same number.
const SHORT_ID: usize = 12;
/// The number of hexadecimal digits in an id that a container runtime generated; any other id is a chosen name.
const ID_DIGITS: usize = 64;

/// The container to look up in the cluster: only one that is the outermost boundary, because any other id on the path
/// may have been made up by a process inside that container.
pub(super) fn cluster_container(location: &CgroupLocation) -> Option<&str> {
    match location.boundary? {
        Boundary::Pod | Boundary::Container => location.container_id.as_deref(),
        Boundary::SlurmJob | Boundary::Job | Boundary::Unit | Boundary::User => None,
    }
}

/// The uid of the user that a process's workload is of: that of the session or systemd that it runs in, and otherwise the
/// process's own, `uid`. A rootless container's processes have other uids, and those of `sudo` have 0.
pub(super) fn user_id(location: &CgroupLocation, uid: Option<u32>) -> Option<u32> {
    location.user.filter(|_| location.boundary == Some(Boundary::User)).or(uid)
}

/// The workload of a process; `None` if neither its location nor its user is known. `uid` and `user` are those of the user that
/// it is of ([`user_id`]).
pub(super) fn workload(
    location: &CgroupLocation,
    uid: Option<u32>,
    user: Option<&str>,
    pod: Option<&Arc<PodContainer>>,
) -> Option<Workload> {
    if let Some(pod) = pod {
        let name = format!("{}/{}/{}", pod.namespace, pod.pod, pod.container);
        return Some(Workload { name, kind: WorkloadKind::Kubernetes, pod: Some(pod.clone()) });
    }
    let named = |kind, prefix: &str, name: &str| Workload { name: format!("{prefix}:{name}"), kind, pod: None };
    let bounded = match location.boundary {
        Some(Boundary::Pod | Boundary::Container) => match (&location.container_id, &location.pod_uid) {
            (Some(id), _) => Some(named(WorkloadKind::Container, "container", short(id))),
            (None, Some(uid)) => Some(named(WorkloadKind::Container, "pod", uid)),
            (None, None) => None,
        },
        Some(Boundary::SlurmJob) => location.slurm_job.as_deref().map(Workload::of_slurm_job),
        Some(Boundary::Job) => {
            location.job.as_ref().map(|job| named(WorkloadKind::Job, job.scheduler.label(), &job.id))
        }
        Some(Boundary::Unit) => location.unit.as_deref().map(|unit| named(WorkloadKind::Systemd, "unit", unit)),
        Some(Boundary::User) | None => None,
    };
    bounded.or_else(|| match (user, uid) {
        (Some(user), _) => Some(named(WorkloadKind::User, "user", user)),
        (None, Some(uid)) => Some(named(WorkloadKind::User, "user", &uid.to_string())),
        (None, None) => None,
    })
}

fn short(id: &str) -> &str {
    let digits = id.len() == ID_DIGITS && id.bytes().all(|b| b.is_ascii_hexdigit());
    if digits { &id[..SHORT_ID] } else { id }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Job, Scheduler};

    const ID: &str = "3b1f0c9d8e7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a8b7c6d5e4f3a2b1c";

    fn location(boundary: Boundary) -> CgroupLocation {
        CgroupLocation {
            boundary: Some(boundary),
            container_id: Some(ID.into()),
            pod_uid: Some("1d5c7a0e-52f1-4b55-9f0e-6a2b8c3d4e5f".into()),
            user: Some(1000),
            unit: Some("ollama.service".into()),
            slurm_job: Some("42".into()),
            slurm_step: Some("0".into()),
            job: Some(Job { scheduler: Scheduler::Pbs, id: "12345[7]".into() }),
        }
    }

    fn name(location: &CgroupLocation, uid: Option<u32>, user: Option<&str>) -> Option<(String, &'static str)> {
        workload(location, uid, user, None).map(|workload| (workload.name, workload.kind.label()))
    }

    #[test]
    fn each_boundary_has_its_own_form() {
        let of = |boundary| name(&location(boundary), Some(1000), Some("ada")).unwrap();
        assert_eq!(of(Boundary::Pod), ("container:3b1f0c9d8e7a".into(), "container"));
        assert_eq!(of(Boundary::Container), ("container:3b1f0c9d8e7a".into(), "container"));
        assert_eq!(of(Boundary::SlurmJob), ("slurm:42".into(), "slurm"));
        assert_eq!(of(Boundary::Job), ("pbs:12345[7]".into(), "job"));
        assert_eq!(of(Boundary::Unit), ("unit:ollama.service".into(), "systemd"));
        assert_eq!(of(Boundary::User), ("user:ada".into(), "user"));
    }

    #[test]
    fn a_process_belongs_to_the_user_in_whose_session_it_runs() {
        let session = location(Boundary::User);
        assert_eq!([100_999, 0].map(|uid| user_id(&session, Some(uid))), [Some(1000); 2]);
        let unknown = CgroupLocation { user: None, ..session };
        assert_eq!(user_id(&unknown, Some(0)), Some(0));
        assert_eq!(user_id(&location(Boundary::SlurmJob), Some(7)), Some(7), "a job has its own user");
    }

    #[test]
    fn a_named_pod_wins() {
        let pod =
            Arc::new(PodContainer { namespace: "team-b".into(), pod: "notebook-7".into(), container: "main".into() });
        let named = workload(&location(Boundary::Pod), Some(0), None, Some(&pod)).unwrap();
        assert_eq!((named.name.as_str(), named.kind), ("team-b/notebook-7/main", WorkloadKind::Kubernetes));
        assert_eq!(named.pod, Some(pod));
    }

    #[test]
    fn an_unknown_location_falls_back_to_the_user() {
        let nowhere = CgroupLocation::default();
        assert_eq!(name(&nowhere, Some(1000), Some("ada")), Some(("user:ada".into(), "user")));
        assert_eq!(name(&nowhere, Some(1000), None), Some(("user:1000".into(), "user")));
        assert_eq!(name(&nowhere, None, None), None);
        let lxc = CgroupLocation { container_id: Some("web-1".into()), pod_uid: None, ..location(Boundary::Container) };
        assert_eq!(name(&lxc, None, None), Some(("container:web-1".into(), "container")));
        let sandbox = CgroupLocation { container_id: None, ..location(Boundary::Pod) };
        let name = name(&sandbox, None, None).unwrap().0;
        assert_eq!(name, "pod:1d5c7a0e-52f1-4b55-9f0e-6a2b8c3d4e5f");
    }

    #[test]
    fn only_the_outermost_container_is_looked_up() {
        assert_eq!(cluster_container(&location(Boundary::Pod)), Some(ID));
        assert_eq!(cluster_container(&location(Boundary::Container)), Some(ID));
        for boundary in [Boundary::User, Boundary::SlurmJob, Boundary::Job, Boundary::Unit] {
            assert_eq!(cluster_container(&location(boundary)), None);
        }
        assert_eq!(cluster_container(&CgroupLocation::default()), None);
    }
}
