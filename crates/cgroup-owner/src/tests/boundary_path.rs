//! The path of the cgroup that forms the boundary.

use super::{expand, rows};
use crate::{boundary_path, locate};

fn path(cgroup: &str, own: &str) -> Option<String> {
    boundary_path(expand(cgroup).as_bytes(), expand(own).as_bytes()).map(|path| String::from_utf8(path).unwrap())
}

#[test]
fn the_path_ends_at_the_boundary() {
    let pod = "/kubepods.slice/kubepods-pod{p}.slice";
    for (boundary, further) in [
        (&*format!("{pod}/cri-containerd-{{A}}.scope"), "/init/docker-{B}.scope"),
        (&*format!("{pod}/crio-{{A}}.scope"), ""),
        ("/kubepods/burstable/pod{P}/{A}", "/app"),
        ("/system.slice/docker-{A}.scope", "/system.slice/ssh.service"),
        ("/docker/{A}", "/x"),
        ("/system.slice/slurmstepd.scope/job_42", "/step_0/user/task_0"),
        ("/system.slice/train.service", "/worker"),
        ("/user.slice/user-1000.slice", "/user@1000.service/app.slice/notebook.service"),
        ("/user.slice/user-1000.slice", "/session-3.scope"),
    ] {
        let expected = Some(expand(boundary));
        assert_eq!(path(&format!("0::{boundary}{further}\n"), ""), expected, "{boundary}{further}");
        assert_eq!(path(&format!("0::{boundary}{further} (deleted)\n"), ""), expected, "{boundary}{further}");
    }
    assert_eq!(path(&format!("0::{pod}/other\n"), ""), Some(expand(pod)), "a pod's helper is in no container");
}

#[test]
fn a_path_that_is_not_known_as_a_whole_is_none() {
    for (text, why) in [
        ("0::/\n", "the root is no boundary"),
        ("", "no text"),
        ("0::/../../system.slice/docker-{A}.scope\n", "the top of the path is not visible"),
        ("0::/system.slice/train.service", "the line may have been cut off"),
        ("12:memory:/docker/{A}\n", "version 1"),
        ("12:memory:/docker/{A}\n0::/system.slice/containerd.service\n", "the runtime's unit is not the container"),
    ] {
        assert_eq!(path(text, ""), None, "{why}");
    }
    assert_eq!(path("0::/system.slice/train.service/x", ""), Some("/system.slice/train.service".to_owned()));
    let both = "12:memory:/system.slice/train.service\n0::/system.slice/train.service\n";
    assert_eq!(path(both, ""), Some("/system.slice/train.service".to_owned()), "both agree");
}

#[test]
fn a_container_around_the_caller_is_part_of_the_path() {
    let node = "/system.slice/docker-{K}.scope";
    let inner = format!("{node}/kubelet.slice/kubelet-kubepods-pod{{p}}.slice/cri-containerd-{{A}}.scope");
    assert_eq!(path(&format!("0::{inner}\n"), &format!("0::{node}/system.slice/x.service\n")), Some(expand(&inner)));
    assert_eq!(path(&format!("0::{inner}\n"), ""), Some(expand(node)));
}

#[test]
fn the_path_leads_to_the_same_owner_and_is_the_beginning_of_a_line() {
    let mut known = 0;
    for row in rows() {
        let Some(path) = boundary_path(row.cgroup.as_bytes(), row.own.as_bytes()) else { continue };
        known += 1;
        let path = String::from_utf8(path).unwrap();
        let line = row.cgroup.lines().find_map(|line| line.strip_prefix("0::")).unwrap();
        let rest = line.strip_prefix(&*path).unwrap_or_else(|| panic!("{}: {path}", row.source));
        assert!(rest.is_empty() || rest.starts_with('/') || rest == " (deleted)", "{}: {path}", row.source);
        let again = locate(format!("0::{path}\n").as_bytes(), row.own.as_bytes());
        assert_eq!(again.boundary, row.location.boundary, "{}: {path}", row.source);
        assert_eq!(again.pod_uid, row.location.pod_uid, "{}: {path}", row.source);
        assert_eq!(again.slurm_job, row.location.slurm_job, "{}: {path}", row.source);
        assert_eq!(again.job, row.location.job, "{}: {path}", row.source);
    }
    assert!(known > 30, "{known}");
}
