//! Cgroup files with any content: every id has the right form, occurs in the text, and cannot be changed by the name
//! of a cgroup nested further inside.

#[path = "../../../crates/cgroup-owner/src/tests/sound.rs"]
mod sound;

use cgroup_owner::{Boundary, CgroupLocation, boundary_path, locate};

use self::sound::{assert_sound, unescaped};
use crate::choices::{Choose, Unstructured, choices};

/// Separates the text of the process from that of the exporter itself.
const OWN: &[u8] = b"\n--\n";

/// Names as runtimes, systemd and Slurm choose them. `{A}` is a container's id, `{P}` a pod's uid with hyphens,
/// `{p}` one with underscores, `{S}` one without either.
const NAMES: &str = "
    {A} docker docker-{A}.scope cri-containerd-{A}.scope crio-{A} crio-conmon-{A}.scope libpod-payload-{A} libpod_parent
    kubepods kubepods.slice burstable kubepods-burstable.slice kubepods-burstable-pod{p}.slice kubepods-pod{S}.slice
    kubepods-besteffort-pod{p}.slice:cri-containerd:{A} kubelet-kubepods-pod{p}.slice pod{P} pod{S}
    system.slice system-a.slice user.slice user-1000.slice user@1000.service app.slice session-3.scope user
    ollama.service _cpu.service init.scope a\\x2db@c:d.service containerd.service kubelet.service k3s.service
    slurm slurm_node1 uid_1000 slurmstepd.scope node1_slurmstepd.scope job_42 sABCDEFGHJKMNP step_0 step_batch step_0+1
    lxc lxc.payload lxc.payload.build-1 ecs {S}-1234567 default my.namespace container.name
    incus.payload incus.payload.build-1 machine.slice machine-lxc\\x2d7\\x2dbuild\\x2d1.scope machine-build.scope
    payload systemd-nspawn@build-1.service build-1.libvirt-lxc garden.service garden 6f265890-5165-7fab-6b52-18d1
    pbs_jobs.service jobid 12345[7].head pbspro.slice pbspro-12345.head\\x2d1.slice torque
    htcondor condor_execute_slot1_2@node nomad.slice nomad {P}.train.scope
    oar ada_4242 ada_4242.scope oar.slice oar-u1000.slice oar-u1000-j4242.slice
    hadoop-yarn container_e17_1410901177871_0001_01_000005 container_1410901177871_0001_01_000005
    ..
";
const CONTROLLERS: [&str; 12] = [
    "",
    "memory",
    "name=systemd",
    "cpu,cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "pids",
    "blkio",
    "cpuacct,memory",
    "memory,",
    "name=x",
];
const ID: &str = "a07c5e21d9f84b36a07c5e21d9f84b36a07c5e21d9f84b36a07c5e21d9f84b36";
const UID: &str = "1d2e3f40-5a6b-4c7d-8e9f-0a1b2c3d4e5f";

/// The path of the boundary's cgroup exists only with a boundary, cannot lead out of the hierarchy, and is part of a line.
fn assert_boundary_path(text: &[u8], own: &[u8]) {
    let Some(path) = boundary_path(text, own) else { return };
    assert!(locate(text, own).boundary.is_some(), "{}", path.escape_ascii());
    assert!(path.starts_with(b"/") && path.len() <= text.len(), "{}", path.escape_ascii());
    let names: Vec<_> = path[1..].split(|byte| *byte == b'/').collect();
    assert!(names.len() <= 64, "{}", path.escape_ascii());
    for name in names {
        assert!(!name.is_empty() && name != b".." && !name.contains(&b'\n'), "{}", path.escape_ascii());
        assert!(text.windows(name.len()).any(|window| window == name), "{}", path.escape_ascii());
    }
}

/// Reads the cgroups of a process and of the exporter itself. True if a boundary was found.
pub fn cgroup(data: &[u8]) -> bool {
    let lines = choices(data).map(|mut u| arbitrary(&mut u));
    let data = lines.as_deref().unwrap_or(data);
    let parting = data.windows(OWN.len()).position(|window| window == OWN);
    let (text, own) = parting.map_or((data, &b""[..]), |at| (&data[..=at], &data[at + OWN.len()..]));

    let found = locate(text, own);
    assert_sound(&found);
    assert_whole(&found, text);
    assert_sound(&locate(own, text));
    assert_boundary_path(text, own);
    let lines = text.split(|byte| *byte == b'\n').count();
    if text.ends_with(b"\n") && lines < 30 {
        let again = [text, b"77:blkio:/docker/", ID.as_bytes(), b"\n", text].concat();
        assert_eq!(locate(&again, own), found, "a hierarchy's first line counts, and blkio does not");
    }
    for line in text.split(|byte| *byte == b'\n').take(16) {
        assert_trusted(line);
    }
    found.boundary.is_some()
}

/// Each id is in the text, with no letter or digit next to it.
fn assert_whole(found: &CgroupLocation, text: &[u8]) {
    let open = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let is_whole = |id: &str| {
        text.windows(id.len()).enumerate().any(|(at, window)| {
            let (before, behind) = (&text[..at], &text[at + id.len()..]);
            // A pod's uid follows `pod`, and the number of an OAR job follows `-j`.
            let is_marked = before.ends_with(b"pod") || before.ends_with(b"-j");
            window == id.as_bytes() && (is_marked || !open(before.last())) && !open(behind.first())
        })
    };
    let job = found.job.as_ref().map(|job| job.id.clone());
    let others = [&found.container_id, &found.unit, &found.slurm_job, &found.slurm_step, &job];
    for id in others.into_iter().flatten() {
        assert!(
            is_whole(id) || unescaped(text).windows(id.len()).any(|window| window == id.as_bytes()),
            "{id} is not in the text: {}",
            text.escape_ascii()
        );
    }
    if let Some(uid) = &found.pod_uid {
        assert!(is_whole(uid) || is_whole(&uid.replace('-', "_")), "{uid} is not in the text: {}", text.escape_ascii());
    }
}

/// No name below the boundary changes the result.
fn assert_trusted(line: &[u8]) {
    let Some(path) = line.iter().position(|byte| *byte == b'/').map(|at| &line[at..]) else { return };
    if path.ends_with(b" (deleted)") {
        return;
    }
    let read = |path: &[u8]| locate(&[b"0::", path, b"\n"].concat(), b"");
    let outer = read(path);
    // These units create cgroups for others. What is below them belongs to them only if it has no other owner.
    let makes_room =
        |unit: &String| unit.ends_with("slurmstepd.scope") || unit == "pbs_jobs.service" || is_runtime(unit);
    if outer.boundary.is_none() || outer.unit.as_ref().is_some_and(makes_room) {
        return;
    }
    let own_id = ID.replace('a', "b");
    for name in NAMES.split_ascii_whitespace() {
        let inner = read(&[path, b"/", name_of(name, &own_id).as_bytes()].concat());
        let all = |location: &CgroupLocation| {
            (location.boundary, location.pod_uid.clone(), location.slurm_job.clone(), location.job.clone())
        };
        assert_eq!(all(&inner), all(&outer), "{name} below {}", path.escape_ascii());
        let keeps = |outer: &Option<String>, inner: &Option<String>| outer.is_none() || outer == inner;
        assert!(keeps(&outer.container_id, &inner.container_id), "{name} below {}", path.escape_ascii());
        assert!(keeps(&outer.slurm_step, &inner.slurm_step), "{name} below {}", path.escape_ascii());
        // A user's systemd has further units nested inside it; the system's units contain no others.
        let named = outer.boundary == Some(Boundary::User) || outer.unit == inner.unit;
        assert!(named, "{name} below {}", path.escape_ascii());
    }
}

fn is_runtime(unit: &str) -> bool {
    let path = format!("/system.slice/{unit}/docker/{ID}");
    locate(format!("0::{path}\n").as_bytes(), b"").boundary == Some(Boundary::Container)
}

fn name_of(form: &str, id: &str) -> String {
    let form = form.replace("{A}", id).replace("{P}", UID).replace("{p}", &UID.replace('-', "_"));
    form.replace("{S}", &UID.replace('-', ""))
}

fn arbitrary(u: &mut Unstructured<'_>) -> Vec<u8> {
    let mut text = Vec::new();
    let mut last = Vec::new();
    for _ in 0..1 + u.below(6) {
        text.extend(line(u, &mut last));
    }
    if u.once_in(8) {
        text.pop();
    }
    if u.once_in(2) {
        text.extend_from_slice(&OWN[1..]);
        for _ in 0..1 + u.below(3) {
            text.extend(line(u, &mut last));
        }
    }
    text
}

/// A line. `last` holds the path of the previous line, so that paths can share a prefix.
fn line(u: &mut Unstructured<'_>, last: &mut Vec<Vec<u8>>) -> Vec<u8> {
    let mut line = format!("{}:{}:", u.below(13), u.pick(&CONTROLLERS)).into_bytes();
    last.truncate(u.below(last.len().min(64) + 1));
    for _ in 0..u.below(7) {
        last.push(name(u));
    }
    for name in last.iter() {
        line.push(b'/');
        line.extend_from_slice(name);
    }
    if u.once_in(16) {
        line.extend_from_slice(b" (deleted)");
    }
    line.push(b'\n');
    line
}

fn name(u: &mut Unstructured<'_>) -> Vec<u8> {
    if u.once_in(8) {
        return u.up_to(80).to_vec();
    }
    let form = u.word(NAMES);
    let id = if u.once_in(4) { ID.replace('a', "c") } else { ID.to_owned() };
    let mut name = name_of(form, &id).into_bytes();
    // Sometimes a byte is removed, added or replaced.
    match u.below(12) {
        1 => drop(name.pop()),
        2 => name.push(u.byte()),
        3 => {
            let at = u.below(name.len());
            name[at] = u.byte();
        }
        _ => {}
    }
    name
}
