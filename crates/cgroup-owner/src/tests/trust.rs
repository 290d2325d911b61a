//! Names forged below a boundary by a process that may create cgroups there.

use super::{Row, at, expand, locate, whole};
use crate::{Boundary, CgroupLocation};

#[test]
fn nothing_deeper_replaces_a_boundary() {
    let all = rows_on_one_line();
    for outer in &all {
        for inner in &all {
            let text = whole(&format!("{}{}", outer.cgroup.trim_end(), &inner.cgroup.trim_end()["0::".len()..]));
            let found = locate(text.as_bytes(), b"");
            assert_eq!(found.boundary, outer.location.boundary, "{text}");
            assert_eq!(found.pod_uid, outer.location.pod_uid, "{text}");
            assert_eq!(found.slurm_job, outer.location.slurm_job, "{text}");
            if matches!(found.boundary, Some(Boundary::Pod | Boundary::Container)) {
                assert_eq!(found.container_id, outer.location.container_id, "{text}");
            }
            if found.boundary == Some(Boundary::Unit) {
                assert_eq!(found.unit, outer.location.unit, "{text}");
            }
        }
    }
}

/// The rows for cgroup version 2 that are seen from the host and have a closed boundary. Every boundary is closed,
/// except that of a pod without a container and that of a unit of one of the machine's own runtimes: those two are
/// trusted.
fn rows_on_one_line() -> Vec<Row> {
    let closed = |row: &Row| match row.location.boundary {
        None => false,
        Some(Boundary::Pod) => row.location.container_id.is_some(),
        Some(Boundary::Unit) => {
            let unit = row.location.unit.as_deref().unwrap_or_default();
            !crate::shape::is_runtime(unit.as_bytes())
        }
        Some(_) => true,
    };
    let all: Vec<Row> = super::rows()
        .into_iter()
        .filter(|row| row.own.is_empty() && row.cgroup.starts_with("0::/") && row.cgroup.lines().count() == 1)
        .filter(|row| !row.cgroup.contains("(deleted)") && closed(row))
        .collect();
    assert!(all.len() > 60, "{}", all.len());
    all
}

#[test]
fn bytes_that_are_no_text_are_no_name() {
    for name in [b"ol\xfflama.service".as_slice(), b"lxc.payload.\xff", b"lxc.payload.a\x1b[2J"] {
        let text = [b"0::/", name, b"\n"].concat();
        assert_eq!(locate(&text, b""), at("nowhere"));
    }
    let text = [b"0::/\xff\xfe/", expand("{A}").as_bytes(), b"\n"].concat();
    assert_eq!(locate(&text, b""), at("Container container={A}"));
}

/// Whatever is below a boundary belongs to it: a form that leaves a name open must not accept a boundary in its place.
#[test]
fn no_form_reaches_past_a_boundary_in_the_middle_of_it() {
    const BOUNDARIES: [&str; 6] =
        ["{A}", "docker-{A}.scope", "lxc.payload.dev", "kubepods/pod{P}/{A}", "pod{P}/{A}", "x.service"];
    let read = |path: &str| locate(whole(&format!("0::/{path}")).as_bytes(), b"");
    let owner = |l: &CgroupLocation| (l.boundary, l.pod_uid.clone(), l.job.clone(), l.slurm_job.clone());
    // The unit of a runtime, and a pod without a container, have boundaries below them.
    let is_closed = |l: &CgroupLocation| {
        let is_runtime = crate::shape::is_runtime(l.unit.as_deref().unwrap_or_default().as_bytes());
        l.boundary.is_some() && !is_runtime && (l.pod_uid.is_none() || l.container_id.is_some())
    };
    for row in rows_on_one_line() {
        let names: Vec<_> = row.cgroup.trim_end()["0::/".len()..].split('/').collect();
        for (at, boundary) in (0..names.len()).flat_map(|at| BOUNDARIES.map(|boundary| (at, boundary))) {
            let path = [&names[..at], &[boundary]].concat().join("/");
            let below = [&[path.as_str()], &names[at + 1..]].concat().join("/");
            let found = read(&path);
            if is_closed(&found) {
                assert_eq!(owner(&read(&below)), owner(&found), "{below}");
            }
        }
    }
}
