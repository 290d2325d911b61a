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
        // Version 1: the name of the user and the number of the job.
        [b"oar", name, ..] => (Scheduler::Oar, oar(name)?, 2),
        // Version 2: slices for the user and the job. OAR 3 on NixOS has a scope instead.
        [b"oar.slice", user, job, ..] if is_oar_user(user) => (Scheduler::Oar, oar_slice(user, job)?, 3),
        [b"oar.slice", scope, ..] => (Scheduler::Oar, oar(scope.strip_suffix(b".scope")?)?, 2),
        // The directory's name is a setting; the identifier below it is unambiguous.
        [directory, id, ..] if may_be_yarn(directory) => (Scheduler::Yarn, yarn(id)?, 2),
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

/// A job of OAR, `<user>_<job>`, by its number alone. A user's name may contain underscores.
fn oar(name: &[u8]) -> Option<String> {
    let at = name.iter().rposition(|byte| *byte == b'_').filter(|at| *at > 0)?;
    number(&name[at + 1..]).map(str::to_owned)
}

/// Whether the name is that of an OAR user's slice, `oar-u<uid>.slice`.
fn is_oar_user(name: &[u8]) -> bool {
    name.strip_prefix(b"oar-u").and_then(|rest| rest.strip_suffix(b".slice")).is_some_and(|uid| number(uid).is_some())
}

/// The number of a job from its slice below its user's, `oar-u<uid>.slice/oar-u<uid>-j<job>.slice`.
fn oar_slice(user: &[u8], job: &[u8]) -> Option<String> {
    let job = job.strip_prefix(user.strip_suffix(b".slice")?)?.strip_prefix(b"-j")?;
    number(job.strip_suffix(b".slice")?).map(str::to_owned)
}

/// Whether YARN may have its cgroups in this directory: not in a unit or below a user, who could use any name.
fn may_be_yarn(name: &[u8]) -> bool {
    shape::unit_name(name).is_none() && !shape::is_user(name)
}

/// A container of YARN, by the identifier that YARN's own commands accept: `container_`, the epoch of the
/// ResourceManager (`e17_`, absent at first), its start in milliseconds, and the numbers of the application, the attempt
/// and the container with at least 4, 2 and 6 digits.
fn yarn(name: &[u8]) -> Option<String> {
    let numbers = name.strip_prefix(b"container_")?;
    let epoch = numbers.strip_prefix(b"e").map(|rest| digits(rest).filter(|(epoch, _)| epoch.len() >= 2));
    let numbers = match epoch {
        Some(epoch) => epoch?.1.strip_prefix(b"_")?,
        None => numbers,
    };
    let mut parts = numbers.split(|byte| *byte == b'_');
    let are_numbers = [10, 4, 2, 6].into_iter().all(|least| {
        let part = parts.next().unwrap_or_default();
        (least..=13).contains(&part.len()) && part.iter().all(u8::is_ascii_digit)
    });
    (are_numbers && parts.next().is_none()).then(|| shape::graphic(name))?
}

/// The digits of a name that has nothing else, at most twelve.
fn number(name: &[u8]) -> Option<&str> {
    digits(name).filter(|(_, rest)| rest.is_empty()).map(|(digits, _)| digits)
}
