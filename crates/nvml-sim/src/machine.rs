//! The simulated machine: a checked scenario that can be queried for any time.
//!
//! A machine never changes. Every answer follows from the machine and the time.

pub(crate) mod activity;
mod build;
pub(crate) mod host;
pub(crate) mod memory;
mod pids;
pub(crate) mod process;
pub(crate) mod profiling;
pub(crate) mod sums;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;

use crate::catalog::Model;
use crate::catalog::mig::Profile;
use crate::clock::Nanos;
use crate::fault::Fault;
use crate::scenario::grammar;
use host::Host;
use memory::Load;
use process::{Process, ProcessList};

/// The id that NVML reports if there is no instance.
pub(crate) const NO_INSTANCE: u32 = u32::MAX;

/// The machine.
#[derive(Debug, Default)]
pub struct Machine {
    pub(crate) driver: String,
    pub(crate) nvml: String,
    pub(crate) cuda: u32,
    /// Calls that this driver does not have.
    pub(crate) missing: Vec<&'static str>,
    /// The memory that GPUs share with the CPU, if there are such GPUs.
    pub(crate) host: Option<Host>,
    pub gpus: Vec<Gpu>,
    pub processes: Vec<Process>,
    pub(crate) containers: Vec<Container>,
    pub(crate) memory_limits: Vec<grammar::MemoryLimit>,
    pub(crate) vgpus: Vec<grammar::Vgpu>,
    pub xids: Vec<Xid>,
    pub(crate) faults: Vec<Fault>,
    /// The simulated users by uid.
    pub(crate) users: BTreeMap<u32, String>,
}

/// A container in a pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Container {
    pub(crate) written: grammar::Container,
    /// UUIDs of the GPUs or MIG devices that were allocated to it, through a claim with `NAME=` before it.
    pub(crate) devices: Vec<String>,
}

/// A GPU.
#[derive(Debug)]
pub struct Gpu {
    pub(crate) index: u32,
    pub(crate) model: &'static Model,
    pub(crate) uuid: String,
    pub(crate) serial: String,
    /// The PCI bus number; domain and device are 0.
    pub(crate) bus: u32,
    pub(crate) key: u64,
    /// Never on a GPU with MIG devices.
    pub(crate) accounting: bool,
    pub(crate) unsupported: Vec<&'static str>,
    /// The position on the baseboard; 0 if it is not on one.
    pub(crate) module_id: u32,
    /// What the scenario says about it.
    pub(crate) written: grammar::Gpu,
    pub(crate) profiler: profiling::Profiler,
    /// `None`: MIG is off. A hole among the MIG devices is a `None` in the list.
    pub mig: Option<Vec<Option<Instance>>>,
    /// All processes on the GPU, as indexes into [`Machine::processes`].
    pub(crate) members: Vec<u32>,
    /// The memory that they hold. Under MIG this load covers no process, because each instance has a load of its own.
    pub load: Load,
    /// For a list that the "grow" fault lengthens: how many calls have failed since the last successful one.
    pub(crate) growth: AtomicU32,
}

impl Gpu {
    /// What is loaded, with the ids of its GPU instance and compute instance: the GPU, each of its MIG devices if it has
    /// any, or only this one.
    fn loads<'g>(&'g self, only: Option<&Instance>) -> impl Iterator<Item = (&'g Load, (u32, u32))> {
        let only = only.map(|only| only.index);
        let whole = self.mig.is_none().then_some((&self.load, (NO_INSTANCE, NO_INSTANCE)));
        let instances = self.mig.iter().flatten().flatten().filter(move |i| only.is_none_or(|only| i.index == only));
        whole.into_iter().chain(instances.map(|i| (&i.load, (i.gpu_instance, i.compute_instance))))
    }
}

/// A MIG device: a GPU instance with one compute instance.
#[derive(Debug)]
pub struct Instance {
    pub(crate) index: u32,
    pub(crate) profile: &'static Profile,
    pub(crate) uuid: String,
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
    pub load: Load,
}

/// A critical error that occurs once or repeatedly.
#[derive(Debug)]
pub struct Xid {
    pub(crate) gpu: u32,
    pub(crate) code: u32,
    pub(crate) at: Nanos,
    pub(crate) every: Option<Nanos>,
}

impl Xid {
    /// The time of the first occurrence at or after `since`.
    pub fn next(&self, since: Nanos) -> Option<Nanos> {
        match self.every {
            _ if since <= self.at => Some(self.at),
            None => None,
            Some(every) => {
                let rounds = (since - self.at + every - 1) / every;
                rounds.checked_mul(every)?.checked_add(self.at)
            }
        }
    }
}

impl Machine {
    /// The driver's major version; a version without a number is newer than all others.
    pub(crate) fn driver_major(&self) -> u32 {
        self.driver.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(u32::MAX)
    }

    /// What `/proc/meminfo` says now, if a GPU shares the machine's memory.
    pub(crate) fn meminfo(&self, now: Nanos) -> Option<String> {
        let sharing = self.gpus.iter().filter(|gpu| gpu.model.unified);
        let on_gpu = sharing.map(|gpu| self.used(gpu, None, now)).sum();
        Some(self.host.as_ref()?.meminfo(on_gpu, now))
    }

    /// What the processes of one GPU or MIG device hold now.
    pub fn used(&self, gpu: &Gpu, instance: Option<&Instance>, now: Nanos) -> u64 {
        gpu.loads(instance).map(|(load, _)| load.used(&self.processes, now)).sum()
    }

    /// The live processes in a list of one GPU or MIG device, in order, with what NVML reports about them.
    pub fn listed(
        &self,
        gpu: &Gpu,
        instance: Option<&Instance>,
        list: ProcessList,
        now: Nanos,
        mut visit: impl FnMut(&Listed),
    ) {
        for (load, ids) in gpu.loads(instance) {
            load.each(&self.processes, now, |process, life, held| {
                if process.lists.contains(list) {
                    let memory = process.memory.is_some().then_some(held);
                    visit(&Listed { pid: process.pid(life.number), memory, ids });
                }
            });
        }
    }
}

/// A process as a list reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    pub(crate) pid: u32,
    /// Bytes; `None` if NVML does not report it.
    pub memory: Option<u64>,
    /// GPU instance and compute instance.
    pub(crate) ids: (u32, u32),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;

    fn machine(scenario: &str) -> Machine {
        let source = crate::scenario::load(scenario).unwrap_or_else(|problem| panic!("{problem}"));
        Machine::build(&source, None).unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn seen(machine: &Machine, now: Nanos) -> Vec<(u64, Vec<Listed>, u64, [u32; 3])> {
        let of = |gpu: &Gpu| {
            let mut listed = Vec::new();
            machine.listed(gpu, None, ProcessList::Compute, now, |process| listed.push(*process));
            let power = (machine.power(gpu, now) * 1e3) as u64;
            (machine.used(gpu, None, now), listed, power, machine.clocks(gpu, now))
        };
        machine.gpus.iter().map(of).collect()
    }

    #[test]
    fn two_machines_of_one_scenario_are_the_same_at_every_time() {
        let (one, other) = (machine("demo"), machine("demo"));
        assert!(one.gpus.iter().zip(&other.gpus).all(|(a, b)| a.uuid == b.uuid && a.serial == b.serial));
        let mut different = 0;
        // The two machines are the same at each time, in whichever order the times are queried.
        for step in 0..600 {
            let (now, back) = (step * SECOND, (599 - step) * SECOND);
            assert_eq!(seen(&one, now), seen(&other, now), "{step}");
            assert_eq!(seen(&one, back), seen(&other, back), "{step}");
            different += i32::from(seen(&one, now) != seen(&one, now + SECOND));
        }
        assert!(different > 500, "the demo does not change: {different}");
    }

    #[test]
    fn memory_that_is_not_there_is_not_given() {
        let gpu = "[[gpu]]\nmodel = \"L4\"\n";
        let process = "[[process]]\ncommand = [\"x\"]\nmemory = \"20GiB\"\n";
        let scenario = toml::from_str(&format!("{gpu}{process}{process}")).unwrap();
        let machine = Machine::build(&crate::scenario::Source { file: "test".into(), scenario }, None).unwrap();
        let gpu = &machine.gpus[0];
        assert_eq!(machine.used(gpu, None, 0), gpu.model.allocatable());
        let mut held = Vec::new();
        machine.listed(gpu, None, ProcessList::Compute, 0, |process| held.extend(process.memory));
        let overhead = 2 * process::CONTEXT_OVERHEAD;
        assert_eq!(held, [(20 << 30) + process::CONTEXT, gpu.model.allocatable() - held[0] - overhead]);
    }

    #[test]
    fn the_demo_s_containers_have_ids_of_the_right_length() {
        let machine = machine("demo");
        let groups = machine.processes.iter().map(|process| String::from_utf8_lossy(&process.identity.cgroup));
        let ids: Vec<String> = groups
            .filter_map(|group| {
                let last = group.rsplit('/').next()?.strip_suffix(".scope")?.to_owned();
                last.strip_prefix("cri-containerd-").or(last.strip_prefix("docker-")).map(str::to_owned)
            })
            .collect();
        assert!(ids.len() >= 3);
        assert!(ids.iter().all(|id| id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit())), "{ids:?}");
    }

    #[test]
    fn an_xid_comes_again_at_its_period() {
        let xid = Xid { gpu: 0, code: 31, at: 30, every: Some(10) };
        assert_eq!([0, 30, 31, 40, 41].map(|since| xid.next(since)), [30, 30, 40, 40, 50].map(Some));
        let once = Xid { every: None, ..xid };
        assert_eq!([0, 30, 31].map(|since| once.next(since)), [Some(30), Some(30), None]);
    }
}
