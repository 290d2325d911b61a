//! The files of one process, in the kernel's own format.

use std::collections::BTreeMap;

use crate::machine::Container;
use crate::machine::process::Identity;

/// Resident pages and virtual bytes of a simulated process: the same for every process, because host memory is not
/// simulated.
const PAGES: u64 = 131_072;
const VIRTUAL: u64 = 12_884_901_888;

/// File names and contents.
pub(super) fn files(pid: u32, ticks: u64, identity: &Identity) -> Vec<(&'static str, Vec<u8>)> {
    let comm = &identity.comm;
    let mut files = vec![
        ("stat", stat(pid, ticks, comm)),
        ("status", status(pid, identity, comm)),
        ("comm", [comm, &b"\n"[..]].concat()),
        ("cmdline", terminated(&identity.command)),
        ("environ", terminated(&identity.environment)),
        ("cgroup", [&identity.cgroup, &b"\n"[..]].concat()),
    ];
    if !identity.allocator.is_empty() {
        // The kernel has no such file; this one replaces the reports of a client in the process.
        files.push(("allocator", identity.allocator.clone()));
    }
    files
}

/// The texts, each terminated by a zero byte.
fn terminated(texts: &[Vec<u8>]) -> Vec<u8> {
    texts.iter().flat_map(|text| [text, &b"\0"[..]].concat()).collect()
}

/// `/proc/<pid>/stat` (proc_pid_stat(5)): 52 fields.
fn stat(pid: u32, ticks: u64, comm: &[u8]) -> Vec<u8> {
    let mut line = format!("{pid} (").into_bytes();
    line.extend_from_slice(comm);
    let limit = u64::MAX;
    // state ppid pgrp session tty tpgid flags, faults, times, priority nice threads itrealvalue, start, sizes, the
    // rest.
    line.extend_from_slice(
        format!(
            ") S 1 {pid} {pid} 0 -1 4194560 51200 0 12 0 2500 300 0 0 20 0 8 0 {ticks} {VIRTUAL} {PAGES} {limit} \
             0 0 0 0 0 0 0 4096 17642 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
        )
        .as_bytes(),
    );
    line
}

/// `/proc/<pid>/status`; the kernel escapes newlines and backslashes in the name.
fn status(pid: u32, identity: &Identity, comm: &[u8]) -> Vec<u8> {
    let uid = identity.uid;
    let pids = identity.namespace_pid.map_or_else(|| pid.to_string(), |inner| format!("{pid}\t{inner}"));
    let mut text = b"Name:\t".to_vec();
    for &byte in comm {
        match byte {
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\\' => text.extend_from_slice(b"\\\\"),
            byte => text.push(byte),
        }
    }
    let (resident, size) = (PAGES * 4, VIRTUAL / 1024);
    text.extend_from_slice(
        format!(
            "\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t{pid}\nNgid:\t0\nPid:\t{pid}\nPPid:\t1\nTracerPid:\t0\n\
             Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\nFDSize:\t256\nGroups:\t{uid} \n\
             NStgid:\t{pids}\nNSpid:\t{pids}\nNSpgid:\t{pids}\nNSsid:\t{pids}\n\
             VmPeak:\t{size} kB\nVmSize:\t{size} kB\nVmLck:\t0 kB\nVmPin:\t0 kB\nVmHWM:\t{resident} kB\n\
             VmRSS:\t{resident} kB\nThreads:\t8\nSigQ:\t0/127000\nSigPnd:\t0000000000000000\n\
             ShdPnd:\t0000000000000000\nSigBlk:\t0000000000000000\nSigIgn:\t0000000001001000\n\
             SigCgt:\t0000000100000002\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n\
             CapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\nNoNewPrivs:\t0\n\
             Seccomp:\t0\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t1\n"
        )
        .as_bytes(),
    );
    text
}

/// Users in the format of `/etc/passwd`.
pub(super) fn passwd(users: &BTreeMap<u32, String>) -> Vec<u8> {
    users.iter().flat_map(|(uid, name)| format!("{name}:x:{uid}:{uid}::/:\n").into_bytes()).collect()
}
/// The containers, one per line: id, namespace, pod, name and the allocated UUIDs, separated by tabs. With a claim, what is known about
/// it is before the UUIDs.
pub(super) fn containers(containers: &[Container]) -> Vec<u8> {
    let line = |c: &Container| {
        let fields = [&c.written.id, &c.written.namespace, &c.written.pod, &c.written.name].map(String::as_str);
        let claim = c.written.claim.iter().map(|name| format!("claim={name}"));
        let memory = c.written.claim_memory.iter().map(|size| format!("memory={}", size.0));
        let admin = c.written.admin_access.then(|| "admin=".to_owned());
        let claim: Vec<_> = claim.chain(memory).chain(admin).collect();
        let more = claim.iter().chain(&c.devices).map(String::as_str);
        fields.into_iter().chain(more).collect::<Vec<_>>().join("\t") + "\n"
    };
    containers.iter().map(line).collect::<String>().into_bytes()
}
