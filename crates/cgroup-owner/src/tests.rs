//! A table of real cgroup paths, one file for each kind, with the source of each shape. The rules in `trust` and
//! `hostile` hold for any text. All ids are made up.

mod boundary_path;
mod containers;
mod enclosed;
mod hostile;
mod invariants;
mod jobs;
mod pods;
mod schedulers;
mod sound;
mod trust;
mod units;

use crate::{Boundary, CgroupLocation, Job, Scheduler, locate};

/// Ids of containers.
const IDS: [(&str, &str); 4] = [
    ("{A}", "a07c5e21d9f84b36a07c5e21d9f84b36a07c5e21d9f84b36a07c5e21d9f84b36"),
    ("{B}", "b18d6f32e0a95c47b18d6f32e0a95c47b18d6f32e0a95c47b18d6f32e0a95c47"),
    ("{E}", "e41f9c65b3d28f7ae41f9c65b3d28f7ae41f9c65b3d28f7ae41f9c65b3d28f7a"),
    ("{K}", "c29e7a43f1b06d58c29e7a43f1b06d58c29e7a43f1b06d58c29e7a43f1b06d58"),
];
/// Uids of pods and of a static pod, and an ECS task's id.
const UIDS: [(&str, &str); 5] = [
    ("{P}", "1d2e3f40-5a6b-4c7d-8e9f-0a1b2c3d4e5f"),
    ("{Q}", "2e3f4051-6b7c-4d8e-9fa0-1b2c3d4e5f60"),
    ("{X}", "3f405162-7c8d-4e9f-a0b1-2c3d4e5f6071"),
    ("{S}", "4051627384950a1b2c3d4e5f60718293"),
    ("{T}", "5162738495a60b1c2d3e4f5061728394"),
];

/// One shape with its source.
struct Row {
    source: &'static str,
    cgroup: String,
    own: String,
    location: CgroupLocation,
}

/// A shape as a process on the machine itself sees it.
fn row(source: &'static str, cgroup: &str, location: CgroupLocation) -> Row {
    Row { source, cgroup: whole(cgroup), own: String::new(), location }
}

impl Row {
    /// The shape as a process with these cgroups sees it.
    fn seen_from(self, own: &str) -> Self {
        Self { own: whole(own), ..self }
    }
}

fn whole(text: &str) -> String {
    let text = expand(text);
    if text.is_empty() { text } else { text + "\n" }
}

/// Inserts the ids: `{P}` is a pod's uid as the API writes it, `{p}` as systemd's slices write it.
fn expand(text: &str) -> String {
    let mut text = text.to_owned();
    for (mark, id) in IDS.iter().chain(&UIDS) {
        text = text.replace(mark, id).replace(&mark.to_lowercase(), &id.replace('-', "_"));
    }
    text
}

fn nowhere() -> CgroupLocation {
    CgroupLocation::default()
}

fn pod(uid: &str, container: &str) -> CgroupLocation {
    CgroupLocation { container_id: Some(expand(container)), ..pod_only(uid) }
}

fn pod_only(uid: &str) -> CgroupLocation {
    CgroupLocation { boundary: Some(Boundary::Pod), pod_uid: Some(expand(uid)), ..CgroupLocation::default() }
}

fn container(id: &str) -> CgroupLocation {
    CgroupLocation { boundary: Some(Boundary::Container), container_id: Some(expand(id)), ..CgroupLocation::default() }
}

fn job(job: &str) -> CgroupLocation {
    CgroupLocation { boundary: Some(Boundary::SlurmJob), slurm_job: Some(job.into()), ..CgroupLocation::default() }
}

fn step(number: &str, step: &str) -> CgroupLocation {
    CgroupLocation { slurm_step: Some(step.into()), ..job(number) }
}

fn job_of(scheduler: Scheduler, id: &str) -> CgroupLocation {
    CgroupLocation {
        boundary: Some(Boundary::Job),
        job: Some(Job { scheduler, id: id.into() }),
        ..CgroupLocation::default()
    }
}

fn unit(name: &str) -> CgroupLocation {
    CgroupLocation { boundary: Some(Boundary::Unit), unit: Some(expand(name)), ..CgroupLocation::default() }
}

/// A unit of the user with the uid 1000.
fn user(unit: &str) -> CgroupLocation {
    user_with(Some(1000), unit)
}

/// A unit of a user whose uid the path shows, or does not show.
fn user_with(uid: Option<u32>, unit: &str) -> CgroupLocation {
    let boundary = Some(Boundary::User);
    CgroupLocation { boundary, user: uid, unit: Some(unit.into()), ..CgroupLocation::default() }
}

fn with_container(location: CgroupLocation, id: &str) -> CgroupLocation {
    CgroupLocation { container_id: Some(expand(id)), ..location }
}

fn rows() -> Vec<Row> {
    let tables = [pods::rows(), containers::rows(), jobs::rows(), schedulers::rows(), units::rows()];
    tables.into_iter().chain([enclosed::rows(), trust::rows()]).flatten().collect()
}

#[test]
fn every_shape_is_read() {
    for row in rows() {
        assert_eq!(locate(row.cgroup.as_bytes(), row.own.as_bytes()), row.location, "{}\n{}", row.source, row.cgroup);
    }
}
