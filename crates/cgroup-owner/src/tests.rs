//! Tables of real cgroup paths, one file for each kind, with the source of each shape. The rules in `trust` and
//! `hostile` hold for any text. All ids are made up.

mod boundary_path;
mod hostile;
mod invariants;
mod sound;
mod trust;

use crate::{Boundary, CgroupLocation, Job, Scheduler, locate};

/// The tables. A row is a line `LOCATION: SOURCE`, and indented below it the lines of a cgroup file, and behind `from` those
/// of the calling process.
const TABLES: [&str; 7] = [
    include_str!("tests/pods.txt"),
    include_str!("tests/containers.txt"),
    include_str!("tests/jobs.txt"),
    include_str!("tests/schedulers.txt"),
    include_str!("tests/units.txt"),
    include_str!("tests/enclosed.txt"),
    include_str!("tests/trust.txt"),
];

/// What the marks in the tables stand for: another pod's container, then ids of containers, then uids of pods and of a static
/// pod, and an ECS task's id. `{P}` is a pod's uid as the API writes it, `{p}` as systemd's slices write it.
const MARKS: [(&str, &str); 10] = [
    ("{V}", "/kubepods.slice/kubepods-pod{x}.slice/cri-containerd-{B}.scope"),
    ("{A}", "a07c5e21d9f84b36a07c5e21d9f84b36a07c5e21d9f84b36a07c5e21d9f84b36"),
    ("{B}", "b18d6f32e0a95c47b18d6f32e0a95c47b18d6f32e0a95c47b18d6f32e0a95c47"),
    ("{E}", "e41f9c65b3d28f7ae41f9c65b3d28f7ae41f9c65b3d28f7ae41f9c65b3d28f7a"),
    ("{K}", "c29e7a43f1b06d58c29e7a43f1b06d58c29e7a43f1b06d58c29e7a43f1b06d58"),
    ("{P}", "1d2e3f40-5a6b-4c7d-8e9f-0a1b2c3d4e5f"),
    ("{Q}", "2e3f4051-6b7c-4d8e-9fa0-1b2c3d4e5f60"),
    ("{X}", "3f405162-7c8d-4e9f-a0b1-2c3d4e5f6071"),
    ("{S}", "4051627384950a1b2c3d4e5f60718293"),
    ("{T}", "5162738495a60b1c2d3e4f5061728394"),
];

/// One shape with its source.
#[derive(Default)]
struct Row {
    source: &'static str,
    cgroup: String,
    own: String,
    location: CgroupLocation,
}

fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let lines = TABLES.iter().flat_map(|table| table.lines());
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match (line.strip_prefix("  from "), line.strip_prefix("  ")) {
            (Some(own), _) => rows.last_mut().unwrap().own += &whole(own),
            (None, Some(cgroup)) => rows.last_mut().unwrap().cgroup += &whole(cgroup),
            (None, None) => {
                let (location, source) = line.split_once(": ").unwrap();
                rows.push(Row { source, location: at(location), ..Row::default() });
            }
        }
    }
    rows
}

fn whole(text: &str) -> String {
    let text = expand(text);
    if text.is_empty() { text } else { text + "\n" }
}

fn expand(text: &str) -> String {
    MARKS.iter().fold(text.to_owned(), |text, (mark, meaning)| {
        text.replace(mark, meaning).replace(&mark.to_lowercase(), &meaning.replace('-', "_"))
    })
}

/// A location as the tables write it: its boundary, and what is known about it. `nowhere` is none.
fn at(text: &str) -> CgroupLocation {
    let text = expand(text);
    let mut words = text.split(' ');
    let boundary = match words.next().unwrap() {
        "nowhere" => return CgroupLocation::default(),
        "Pod" => Boundary::Pod,
        "Container" => Boundary::Container,
        "SlurmJob" => Boundary::SlurmJob,
        "Job" => Boundary::Job,
        "Unit" => Boundary::Unit,
        "User" => Boundary::User,
        other => panic!("{other}"),
    };
    let mut location = CgroupLocation { boundary: Some(boundary), ..CgroupLocation::default() };
    for (name, value) in words.map(|word| word.split_once('=').unwrap()) {
        let text = Some(value.to_owned());
        match name {
            "container" => location.container_id = text,
            "pod" => location.pod_uid = text,
            "user" => location.user = Some(value.parse().unwrap()),
            "unit" => location.unit = text,
            "job" => location.slurm_job = text,
            "step" => location.slurm_step = text,
            _ => {
                let scheduler = *Scheduler::ALL.iter().find(|scheduler| scheduler.label() == name).expect(name);
                location.job = Some(Job { scheduler, id: value.to_owned() });
            }
        }
    }
    location
}

#[test]
fn every_shape_is_read() {
    let rows = rows();
    assert!(rows.len() > 300, "{}", rows.len());
    for row in rows {
        assert_eq!(locate(row.cgroup.as_bytes(), row.own.as_bytes()), row.location, "{}\n{}", row.source, row.cgroup);
    }
}
