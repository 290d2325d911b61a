//! Jobs of batch schedulers other than Slurm, recognised by the names that the schedulers give to cgroups.
//!
//! Invariant: two jobs never have the same identifier; a name that is not certainly that of a job yields no identifier.

use crate::location::{Job, Scheduler};
use crate::shape;

/// The job that these names begin with, and how many of the names belong to it.
pub(crate) fn job(names: &[&[u8]]) -> Option<(Job, usize)> {
    let (scheduler, id, length) = match *names {
        // OpenPBS from 2020 on, on cgroup version 1; PBS Professional on cgroup version 2.
        [b"pbs_jobs.service", b"jobid" | b"jobs", id, ..] => (Scheduler::Pbs, pbs(id)?, 3),
        // PBS Professional 18 and 19: slices, with the job's identifier as systemd escapes it.
        [b"pbspro.slice", slice, ..] => {
            let id = slice.strip_prefix(b"pbspro-")?.strip_suffix(b".slice")?;
            (Scheduler::Pbs, pbs(shape::unescape(id)?.as_bytes())?, 2)
        }
        [b"torque", id, ..] => (Scheduler::Torque, pbs(id)?, 2),
        [b"htcondor", name, ..] => (Scheduler::HtCondor, condor(name)?, 2),
        // Version 1: the cpuset hierarchy has one more level than the others.
        [b"nomad", b"share" | b"reserve", task, ..] => (Scheduler::Nomad, nomad(task)?, 3),
        [b"nomad", task, ..] => (Scheduler::Nomad, nomad(task)?, 2),
        // Version 2: Nomad 1.7 and later, then earlier versions.
        [b"nomad.slice", b"share.slice" | b"reserve.slice", scope, ..] => {
            (Scheduler::Nomad, nomad(scope.strip_suffix(b".scope")?)?, 3)
        }
        [b"nomad.slice", scope, ..] => (Scheduler::Nomad, nomad(scope.strip_suffix(b".scope")?)?, 2),
        _ => return None,
    };
    Some((Job { scheduler, id }, length))
}

/// A job of PBS or Torque without the name of its server: `12345`, `12345[7]` for a part of a job array. A number
/// after a dot is kept: on version 2 it distinguishes the parts of an array.
fn pbs(name: &[u8]) -> Option<String> {
    let (sequence, rest) = digits(name)?;
    let (index, rest) = match rest.strip_prefix(b"[") {
        None => (None, rest),
        Some(rest) => {
            let (index, rest) = digits(rest)?;
            (Some(index), rest.strip_prefix(b"]")?)
        }
    };
    let mut id = sequence.to_owned();
    if let Some(index) = index {
        id += &format!("[{index}]");
    }
    match rest.strip_prefix(b".") {
        None => rest.is_empty().then_some(id),
        Some(part) => {
            if let Some((part, b"")) = digits(part) {
                id += &format!(".{part}");
                return Some(id);
            }
            let is_host = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            (!part.is_empty() && part.iter().all(is_host)).then_some(id)
        }
    }
}

/// The leading digits and the rest; `None` if there are no digits or more than twelve.
fn digits(text: &[u8]) -> Option<(&str, &[u8])> {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    (1..=12).contains(&end).then(|| Some((std::str::from_utf8(digits).ok()?, rest)))?
}

/// The slot of an HTCondor job: HTCondor names the cgroup after the execute directory and the slot. Returns the
/// whole name if it contains no slot.
fn condor(name: &[u8]) -> Option<String> {
    name.strip_prefix(b"condor_")?;
    let is_slot = |at: &usize| name[*at..].starts_with(b"_slot") && name.get(at + 5).is_some_and(u8::is_ascii_digit);
    let slot = (0..name.len()).rev().find(is_slot).map_or(name, |at| &name[at + 1..]);
    shape::graphic(slot)
}

/// A Nomad task, `<allocation>.<task>`; on version 1 before Nomad 1.7, only a UUID that the executor generated.
fn nomad(name: &[u8]) -> Option<String> {
    let (uuid, task) = name.split_at_checked(36)?;
    let is_task = task.is_empty() || task.len() > 1 && task[0] == b'.';
    (shape::is_uuid(uuid) && is_task).then(|| shape::graphic(name))?
}
