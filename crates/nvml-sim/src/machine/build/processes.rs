//! The processes in a scenario: their identity, their lifetime, and their GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Refusal, refuse};
use crate::clock::Nanos;
use crate::curve::Curve;
use crate::machine::pids::FreshPids;
use crate::machine::process::{CONTEXT, FRESH_PIDS, Identity, Lists, Pids, Process, ProcessList};
use crate::machine::{Gpu, Machine};
use crate::scenario::curves::{self, Quantity};
use crate::scenario::grammar;
use crate::scenario::units::{Size, Span};
use crate::stable_hash::mix;

/// Linux's limit on pids on 64-bit machines.
const PID_LIMIT: u32 = 4_194_304;
/// More processes than any test needs.
const MOST: u32 = 16_384;
/// How many bytes of a name the kernel keeps.
const COMM_LENGTH: usize = 15;

/// Users by name and number.
#[derive(Debug, Default)]
pub(super) struct Users {
    by_name: BTreeMap<String, u32>,
}

impl Users {
    /// The uid of a process's user; a name without a uid gets one of its own.
    fn uid(&mut self, name: Option<&str>, uid: Option<u32>) -> Result<u32, Refusal> {
        let Some(name) = name else { return Ok(uid.unwrap_or(0)) };
        if name.is_empty() || name.contains([':', '\n']) {
            return refuse(".user", format!("{name:?} cannot be a user's name"));
        }
        let known = self.by_name.get(name).copied();
        let free = || (1000..).find(|uid| !self.by_name.values().any(|taken| taken == uid)).unwrap_or(0);
        let default = || if name == "root" { 0 } else { free() };
        let uid = match (known, uid) {
            (Some(known), Some(uid)) if known != uid => {
                return refuse(".uid", format!("user {name} already has the uid {known}"));
            }
            (Some(known), _) => known,
            (None, uid) => uid.unwrap_or_else(default),
        };
        self.by_name.insert(name.to_owned(), uid);
        Ok(uid)
    }

    pub(super) fn named(self) -> BTreeMap<u32, String> {
        self.by_name.into_iter().map(|(name, uid)| (uid, name)).collect()
    }
}

/// The pids that an entry fixes.
pub(super) fn fixed_pids(entry: &grammar::Process) -> impl Iterator<Item = u32> + use<> {
    let first = entry.pid;
    let count = entry.count.unwrap_or(1).min(MOST);
    first.into_iter().flat_map(move |first| (0..count).map(move |n| first.saturating_add(n)))
}

/// Adds the processes of one entry; they start at `begin` unless the entry names a time.
pub(super) fn add(
    machine: &mut Machine,
    entry: &grammar::Process,
    begin: Nanos,
    seed: u64,
    pids: &mut FreshPids,
    users: &mut Users,
) -> Result<(), Refusal> {
    let count = entry.count.unwrap_or(1);
    if machine.processes.len() + count as usize > MOST as usize {
        return refuse(".count", format!("more than {MOST} processes"));
    }
    if entry.pid.is_some_and(|pid| pid == 0 || pid > PID_LIMIT - count) {
        return refuse(".pid", format!("a pid is a number from 1 to {}", PID_LIMIT - count));
    }
    let on = places(machine, entry)?;
    let (start, lasts, repeat) = life(entry, begin)?;
    let memory = match &entry.memory {
        None => Some(Curve::constant(0.0)),
        Some(curves::Curve::Unknown) => None,
        Some(curves::Curve::Phases(phases)) => Some(curve(phases, entry.memory_cycle, true, ".memory")?),
    };
    let utilization = match &entry.utilization {
        None => Curve::constant(0.0),
        Some(curves::Curve::Unknown) => return refuse(".utilization", "cannot be unknown; leave it out"),
        Some(curves::Curve::Phases(phases)) => curve(phases, entry.utilization_cycle, false, ".utilization")?,
    };
    if utilization.bound() > 1.0 {
        return refuse(".utilization", "rises above 1; give it a `limit`");
    }
    let lists = lists(entry);
    if lists.is_empty() && entry.utilization.is_some() {
        return refuse(".utilization", "memory that no process owns has no utilization");
    }
    let has_context = !lists.is_empty() && lists != Lists(ProcessList::Graphics as u8);
    let context = entry.context.map_or(if has_context { CONTEXT } else { 0 }, |Size(bytes)| bytes);
    let allocator = allocator(entry, context)?;
    let uid = users.uid(entry.user.as_deref(), entry.uid)?;
    for number in 0..count {
        let index = machine.processes.len() as u32;
        let process = Process {
            pids: entry.pid.map_or_else(|| Pids::Fresh(pids.range()), |pid| Pids::Fixed(pid + number)),
            lists,
            mig: entry.mig,
            start,
            lasts,
            repeat,
            memory: memory.clone(),
            context,
            utilization: utilization.clone(),
            key: mix(seed, 0x1_0000 + u64::from(index)),
            identity: Arc::new(Identity { allocator: allocator.clone(), ..identity(entry, number, uid) }),
        };
        for &gpu in &on {
            let gpu = &mut machine.gpus[gpu as usize];
            if process.most() > capacity(gpu, entry.mig) {
                let has = capacity(gpu, entry.mig) >> 20;
                return refuse(".memory", format!("up to {} MiB, but there are {has} MiB", process.most() >> 20));
            }
            gpu.members.push(index);
        }
        machine.processes.push(process);
    }
    Ok(())
}

/// Compiles the phases at a key.
pub(super) fn curve<V: Quantity>(
    phases: &[curves::Phase<V>],
    cycle: bool,
    granular: bool,
    key: &str,
) -> Result<Curve, Refusal> {
    Curve::of(phases, cycle, granular).map_err(|(inner, what)| (format!("{key}{inner}"), what))
}

fn capacity(gpu: &Gpu, mig: Option<u32>) -> u64 {
    let instance = mig.and_then(|slot| gpu.mig.as_ref()?.get(slot as usize)?.as_ref());
    instance.map_or(gpu.model.allocatable(), |instance| instance.profile.memory)
}

/// The GPUs on which the entry's processes run.
fn places(machine: &Machine, entry: &grammar::Process) -> Result<Vec<u32>, Refusal> {
    let gpus = match (&entry.gpu, &entry.gpus) {
        (Some(_), Some(_)) => return refuse(".gpus", "`gpu` is given too; one of the two is enough"),
        (None, Some(gpus)) => gpus.clone(),
        (gpu, None) => vec![gpu.unwrap_or(0)],
    };
    if gpus.is_empty() {
        return refuse(".gpus", "an empty list");
    }
    for (at, &index) in gpus.iter().enumerate() {
        let gpu = machine.gpu_at(index).map_err(|what| (".gpu".to_owned(), what))?;
        if gpus[..at].contains(&index) {
            return refuse(".gpus", format!("GPU {index} is named twice"));
        }
        match (&gpu.mig, entry.mig) {
            (Some(_), None) => return refuse(".mig", format!("missing: MIG is enabled on GPU {index}")),
            (None, Some(_)) => return refuse(".mig", format!("MIG is disabled on GPU {index}")),
            (Some(mig), Some(slot)) if !matches!(mig.get(slot as usize), Some(Some(_))) => {
                return refuse(".mig", format!("GPU {index} has no MIG device {slot}"));
            }
            _ => {}
        }
    }
    Ok(gpus)
}

/// Start of the first run, length of a run, and time between two starts.
fn life(entry: &grammar::Process, begin: Nanos) -> Result<(Nanos, Option<Nanos>, Option<Nanos>), Refusal> {
    let start = entry.start.map_or(begin, |Span(start)| start);
    let lasts = entry.end.map(|Span(end)| end - start);
    let repeat = entry.repeat.map(|Span(repeat)| repeat);
    match (lasts, repeat) {
        (Some(lasts), _) if lasts <= 0 => refuse(".end", "is not after `start`"),
        (None, Some(_)) => refuse(".repeat", "a process without `end` cannot be repeated"),
        (Some(lasts), Some(repeat)) if repeat < lasts => refuse(".repeat", "is shorter than one run"),
        _ => Ok((start, lasts, repeat)),
    }
}

fn lists(entry: &grammar::Process) -> Lists {
    let lists = entry.kind.as_ref().map_or(&[ProcessList::Compute][..], |kind| kind.all());
    Lists(lists.iter().fold(0, |bits, list| bits | *list as u8))
}

fn identity(entry: &grammar::Process, number: u32, uid: u32) -> Identity {
    let command: Vec<Vec<u8>> = match &entry.command {
        Some(command) => command.iter().map(|part| part.numbered(number)).collect(),
        None => vec![b"process".to_vec()],
    };
    let program = command.first().map_or(&[][..], |program| program);
    let file = program.rsplit(|&b| b == b'/').next().unwrap_or(program);
    let comm = entry.comm.as_ref().map_or_else(|| file.to_vec(), |comm| comm.numbered(number));
    let cgroup = entry.cgroup.as_ref().map_or_else(|| b"0::/init.scope".to_vec(), |cgroup| cgroup.numbered(number));
    let environment = entry.environment.iter().flatten().map(|variable| variable.numbered(number)).collect();
    let (comm, allocator) = (comm[..comm.len().min(COMM_LENGTH)].to_vec(), Vec::new());
    Identity { comm, command, environment, uid, namespace_pid: entry.namespace_pid, cgroup, allocator }
}

/// The file that describes what a process reports about its allocator; empty without a client.
fn allocator(entry: &grammar::Process, context: u64) -> Result<Vec<u8>, Refusal> {
    let Some(grammar::Allocator { framework, allocated }) = &entry.allocator else { return Ok(Vec::new()) };
    let is_word = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
    if !(1..=32).contains(&framework.len()) || !framework.bytes().all(is_word) {
        return refuse(".allocator.framework", "is a name of 1 to 32 characters from a-z, 0-9 and _");
    }
    Ok(format!("{framework}\t{}\t{context}\n", allocated.number()).into_bytes())
}

/// Two processes with the same fixed pid must not be alive at the same time.
pub(super) fn no_pid_twice(machine: &Machine) -> Result<(), Refusal> {
    let mut by_pid: BTreeMap<u32, Vec<&Process>> = BTreeMap::new();
    let ranges = machine.processes.iter().filter_map(|process| match process.pids {
        Pids::Fresh(base) => Some(base),
        Pids::Fixed(_) => None,
    });
    let ranges: BTreeSet<u32> = ranges.collect();
    for process in &machine.processes {
        let Pids::Fixed(pid) = process.pids else { continue };
        if ranges.range(pid.saturating_sub(FRESH_PIDS - 1)..=pid).next().is_some() {
            return refuse("process.pid", format!("the pid {pid} belongs to a process without a fixed one"));
        }
        let others = by_pid.entry(pid).or_default();
        if !others.iter().all(|other| never_together(process, other)) {
            return refuse("process.pid", format!("two processes with the pid {pid} are alive at the same time"));
        }
        others.push(process);
    }
    Ok(())
}

/// Whether one ends before the other starts, or both repeat at the same interval and take turns within it.
fn never_together(a: &Process, b: &Process) -> bool {
    let ends_before =
        |a: &Process, b: &Process| a.repeat.is_none() && a.lasts.is_some_and(|lasts| a.start + lasts <= b.start);
    // Whether each run of `a` is over by the next start of `b`.
    let follows = |a: &Process, b: &Process, every: Nanos| {
        a.lasts.is_some_and(|lasts| lasts <= (b.start - a.start).rem_euclid(every))
    };
    let take_turns = match (a.repeat, b.repeat) {
        (Some(every), Some(same)) if every == same => follows(a, b, every) && follows(b, a, every),
        _ => false,
    };
    ends_before(a, b) || ends_before(b, a) || take_turns
}
