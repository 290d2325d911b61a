//! Builds a machine from a scenario and a control file. Impossible values are refused with an error that names the key.

mod containers;
mod faults;
mod gpus;
mod host;
mod limits;
mod processes;
mod vgpus;

use super::memory::Load;
use super::pids::FreshPids;
use super::{Gpu, Machine};
use crate::clock::Nanos;
use crate::control::Overlay;
use crate::scenario::{Problem, Source, grammar};

/// The call that reads the driver's own memory limits, and the first version of CUDA, as NVML reports it, whose driver
/// has the call.
const LIMITS_CALL: &str = "nvmlDeviceGetMemoryLimits_v1";
const SINCE_CUDA: u32 = 13_050;

/// A key, and what is wrong with it.
type Refusal = (String, String);

fn refuse<T>(key: impl Into<String>, what: impl Into<String>) -> Result<T, Refusal> {
    Err((key.into(), what.into()))
}

/// Looks a name up among the known names; the error suggests the most similar one.
fn among(key: String, word: &str, name: &str, known: &[&'static str]) -> Result<&'static str, Refusal> {
    if let Some(found) = known.iter().find(|known| **known == name) {
        return Ok(found);
    }
    let common = |known: &str| known.bytes().zip(name.bytes()).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
    let distance = |known: &str| known.len() + name.len() - 2 * common(known);
    let nearest = known.iter().min_by_key(|known| distance(known)).copied().unwrap_or_default();
    refuse(key, format!("no {word} `{name}`; the nearest is `{nearest}`"))
}

fn a_call(key: String, name: &str) -> Result<&'static str, Refusal> {
    among(key, "simulated call", name, &crate::abi::names())
}

impl Machine {
    /// Builds a scenario's machine, with the additions from a control file.
    pub(crate) fn build(source: &Source, overlay: Option<&Overlay>) -> Result<Self, Problem> {
        let of = |file: &str, (key, what): Refusal| Problem::Impossible { file: file.to_owned(), key, what };
        let (scenario, own) = (&source.scenario, |refusal| of(&source.file, refusal));
        let mut machine = Self::bare(scenario).map_err(own)?;

        let mut pids = FreshPids::around(scenario.process.iter().flat_map(processes::fixed_pids).collect());
        let mut users = processes::Users::default();
        let mut add = |file: &str, index: usize, entry: &grammar::Process, start: Nanos, pids: &mut FreshPids| {
            processes::add(&mut machine, entry, start, u64::from(scenario.seed), pids, &mut users)
                .map_err(|(key, what)| of(file, (format!("process[{index}]{key}"), what)))
        };
        for (index, entry) in scenario.process.iter().enumerate() {
            add(&source.file, index, entry, 0, &mut pids)?;
        }
        if let Some(overlay) = overlay {
            let entries = &overlay.control.process;
            // The scenario's processes keep their pids, whatever the control file adds.
            pids.avoid(entries.iter().flat_map(processes::fixed_pids));
            for (index, (entry, &start)) in entries.iter().zip(&overlay.process_since).enumerate() {
                add(&overlay.file, index, entry, start, &mut pids)?;
            }
        }
        machine.users = users.named();
        machine.containers = containers::all(&machine, &scenario.container).map_err(own)?;
        processes::no_pid_twice(&machine).map_err(own)?;

        limits::add(&mut machine, &scenario.memory_limit).map_err(own)?;
        vgpus::add(&mut machine, &scenario.vgpu).map_err(own)?;
        faults::add(&mut machine, &scenario.xid, &scenario.fault, |_| 0, |_| 0).map_err(own)?;
        if let Some(overlay) = overlay {
            let (control, added) = (&overlay.control, |refusal| of(&overlay.file, refusal));
            limits::add(&mut machine, &control.memory_limit).map_err(added)?;
            vgpus::add(&mut machine, &control.vgpu).map_err(added)?;
            let (xids, faults) = (|i: usize| overlay.xid_since[i], |i: usize| overlay.fault_since[i]);
            faults::add(&mut machine, &control.xid, &control.fault, xids, faults).map_err(added)?;
        }
        machine.weigh();
        Ok(machine)
    }

    /// The machine without any processes.
    fn bare(scenario: &grammar::Scenario) -> Result<Self, Refusal> {
        let driver = &scenario.driver;
        let major = driver.cuda / 1000;
        let missing = scenario.calls_missing.iter().enumerate();
        let mut missing: Vec<_> =
            missing.map(|(i, name)| a_call(format!("calls_missing[{i}]"), name)).collect::<Result<_, _>>()?;
        if driver.cuda < SINCE_CUDA {
            missing.push(LIMITS_CALL);
        }
        if driver.version.len() > 79 {
            return refuse("driver.version", "is longer than the 80 bytes that NVML allows");
        }
        let gpus = gpus::all(scenario)?;
        Ok(Self {
            driver: driver.version.clone(),
            nvml: driver.nvml.clone().unwrap_or_else(|| format!("{major}.{}", driver.version)),
            cuda: driver.cuda,
            missing,
            host: host::of(scenario.host.as_ref(), &gpus)?,
            gpus,
            ..Self::default()
        })
    }

    /// Assigns the processes to the memory of each GPU and MIG device.
    fn weigh(&mut self) {
        let processes = &self.processes;
        for gpu in &mut self.gpus {
            let members = gpu.members.clone();
            let in_slot = |slot: u32| {
                members.iter().copied().filter(move |&m| processes[m as usize].mig == Some(slot)).collect::<Vec<_>>()
            };
            for instance in gpu.mig.iter_mut().flatten().flatten() {
                instance.load = Load::new(instance.profile.memory, in_slot(instance.index), processes);
            }
            let own = if gpu.mig.is_some() { Vec::new() } else { members };
            gpu.load = Load::new(gpu.model.allocatable(), own, processes);
        }
    }

    pub(super) fn gpu_at(&self, index: u32) -> Result<&Gpu, String> {
        let count = self.gpus.len();
        self.gpus.get(index as usize).ok_or_else(|| format!("no GPU {index}; the machine has {count}"))
    }
}
