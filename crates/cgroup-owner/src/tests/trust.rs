//! Names forged below a boundary by a process that may create cgroups there.

use super::{Row, container, expand, locate, nowhere, pod, pod_only, row, step, unit, user, whole, with_container};
use crate::{Boundary, CgroupLocation};

/// Another pod's container.
const VICTIM: &str = "/kubepods.slice/kubepods-pod{x}.slice/cri-containerd-{B}.scope";

pub(super) fn rows() -> Vec<Row> {
    let below = |path: &str| format!("0::{path}{VICTIM}");
    vec![
        row("systemd in a pod's container", &below("/kubepods/pod{P}/{A}"), pod("{P}", "{A}")),
        row(
            "the same, systemd's driver",
            &below("/kubepods.slice/kubepods-pod{p}.slice/cri-containerd-{A}.scope"),
            pod("{P}", "{A}"),
        ),
        row("docker with a writable cgroup", &below("/system.slice/docker-{A}.scope"), container("{A}")),
        row("LXC", &below("/lxc.payload.dev"), container("dev")),
        row(
            "a user's systemd",
            &below("/user.slice/user-1000.slice/user@1000.service"),
            with_container(user("user@1000.service"), "{B}"),
        ),
        row(
            "a login below which root created cgroups",
            &below("/user.slice/user-1000.slice/session-3.scope"),
            with_container(user("session-3.scope"), "{B}"),
        ),
        row(
            "a job",
            &below("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0"),
            with_container(step("42", "0"), "{B}"),
        ),
        row(
            "a service with Delegate= and User=",
            &below("/system.slice/notebook.service"),
            with_container(unit("notebook.service"), "{B}"),
        ),
        row(
            "a machine of systemd-nspawn",
            &below("/machine.slice/systemd-nspawn@dev.service/payload"),
            container("dev"),
        ),
        row(
            "a user's unit named like a service",
            "0::/user.slice/user-1000.slice/user@1000.service/system.slice/ollama.service",
            user("ollama.service"),
        ),
        row(
            "a job forged by a user",
            "0::/user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_1/step_0",
            user("slurmstepd.scope"),
        ),
        row(
            "version 1, below a login of pam_cgfs",
            &format!("9:memory:/user/ada/0{VICTIM}"),
            with_container(CgroupLocation { boundary: Some(Boundary::User), ..CgroupLocation::default() }, "{B}"),
        ),
        row(
            "another scheduler's job forged by a service with Delegate= and User=",
            "0::/system.slice/notebook.service/htcondor/condor_var_lib_condor_execute_slot1_1@node",
            unit("notebook.service"),
        ),
        row(
            "the same by a user",
            "0::/user.slice/user-1000.slice/user@1000.service/pbs_jobs.service/jobid/1.head",
            user("pbs_jobs.service"),
        ),
        row("the same in a container", "0::/docker/{A}/torque/1.head", container("{A}")),
        row(
            "a container of YARN forged by a service with Delegate= and User=",
            "0::/system.slice/notebook.service/container_e17_1410901177871_0001_01_000005",
            unit("notebook.service"),
        ),
        row(
            "a container of YARN forged below a login of pam_cgfs",
            "9:memory:/user/ada/0/container_e17_1410901177871_0001_01_000005",
            CgroupLocation { boundary: Some(Boundary::User), ..CgroupLocation::default() },
        ),
        row(
            "a job of OAR forged by a user",
            "0::/user.slice/user-1000.slice/user@1000.service/oar.slice/oar-u0.slice/oar-u0-j1.slice/a.scope",
            user("a.scope"),
        ),
        row("the same in a Slurm job", "9:memory:/slurm/uid_1000/job_42/step_0/torque/1.head", step("42", "0")),
        row(
            "a machine forged by a user",
            r"0::/user.slice/user-1000.slice/user@1000.service/app.slice/machine-lxc\x2d7\x2dvictim.scope",
            with_container(user("user@1000.service"), "victim"),
        ),
        row("a job forged in a container", "0::/docker/{A}/slurm/uid_0/job_1/step_0", container("{A}")),
        row("a user forged in a container", "0::/docker/{A}/user.slice/user-0.slice/session-1.scope", container("{A}")),
        row("a container's name below another child of a pod", "0::/kubepods/pod{P}/x/{B}", pod_only("{P}")),
        row("a podman pod's name forged in docker", "0::/docker/{A}/libpod_parent/{B}/libpod-{B}", container("{A}")),
        row("a cgroup named as if it had been removed", "0::/docker/{A}/x (deleted)", container("{A}")),
        row(
            "a victim's path in a hierarchy that does not count",
            &format!("9:memory:/docker/{{A}}\n8:misc:{VICTIM}\n7:name=mine:{VICTIM}"),
            container("{A}"),
        ),
        row("bytes that are not text", "0::/system.slice/ol\u{fffd}lama.service", nowhere()),
    ]
}

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
        assert_eq!(locate(&text, b""), nowhere());
    }
    let text = [b"0::/\xff\xfe/", expand("{A}").as_bytes(), b"\n"].concat();
    assert_eq!(locate(&text, b""), container("{A}"));
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
