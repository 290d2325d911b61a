//! The GPUs in a scenario, with their MIG devices.

use std::sync::atomic::AtomicU32;

use super::{Refusal, a_call, among, refuse};
use crate::catalog::{MODELS, Model};
use crate::machine::memory::Load;
use crate::machine::profiling::Profiler;
use crate::machine::{Gpu, Instance};
use crate::scenario::grammar::{self, Link};
use crate::stable_hash::{mix, uuid};

/// The maximum number of GPUs: as many as a handle can distinguish, and more than any machine has.
const MOST_GPUS: usize = 64;
/// The highest temperature and power that a scenario can set. NVML reports both as unsigned integers, and power in
/// milliwatts.
const MOST_READ: f64 = 1e6;
/// The maximum number of NVLinks: `NVML_NVLINK_MAX_LINKS`.
const MOST_LINKS: u32 = 36;
/// The maximum number of MIG devices: what NVML reports for every GPU that supports MIG.
pub(crate) const MOST_INSTANCES: usize = 7;

pub(super) fn all(scenario: &grammar::Scenario) -> Result<Vec<Gpu>, Refusal> {
    let mut gpus = Vec::new();
    for (index, written) in scenario.gpu.iter().enumerate() {
        let count = written.count.unwrap_or(1);
        if written.uuid.is_some() && count != 1 {
            return refuse(format!("gpu[{index}].uuid"), "several GPUs cannot have one uuid");
        }
        for _ in 0..count {
            if gpus.len() == MOST_GPUS {
                return refuse(format!("gpu[{index}]"), format!("more than {MOST_GPUS} GPUs"));
            }
            let number = gpus.len() as u32;
            gpus.push(
                one(written, number, u64::from(scenario.seed))
                    .map_err(|(key, what)| (format!("gpu[{index}].{key}"), what))?,
            );
        }
    }
    if gpus.is_empty() {
        return refuse("gpu", "missing: a machine needs a GPU");
    }
    Ok(gpus)
}

fn one(written: &grammar::Gpu, index: u32, seed: u64) -> Result<Gpu, Refusal> {
    let Some(model) = Model::named(&written.model) else {
        let keys: Vec<&str> = MODELS.iter().map(|model| model.key).collect();
        return refuse("model", format!("no model `{}`; there are {}", written.model, keys.join(", ")));
    };
    for (key, value) in [("temperature", written.temperature), ("power", written.power)] {
        if value.is_some_and(|value| !(0.0..=MOST_READ).contains(&value)) {
            return refuse(key, format!("must be a number from 0 to {MOST_READ}"));
        }
    }
    let Link { generation, width, max_generation, max_width } = written.link;
    if model.pcie.is_none() && [generation, width, max_generation, max_width].iter().any(Option::is_some) {
        return refuse("link", format!("an {} has no PCIe link", model.name));
    }
    if let Some(nvlink) = &written.nvlink {
        let numbers = nvlink.down.iter().map(|&link| u64::from(link)).chain(nvlink.errors.iter().map(|of| of[0]));
        let is_wrong = nvlink.links > MOST_LINKS || numbers.into_iter().any(|link| link >= u64::from(nvlink.links));
        if is_wrong {
            return refuse("nvlink", format!("at most {MOST_LINKS} links, of which the first has the number 0"));
        }
    }
    let key = mix(seed, u64::from(index));
    let unsupported = written.unsupported.iter().enumerate();
    let unsupported =
        unsupported.map(|(i, name)| a_call(format!("unsupported[{i}]"), name)).collect::<Result<_, _>>()?;
    Ok(Gpu {
        index,
        model,
        uuid: written.uuid.clone().unwrap_or_else(|| format!("GPU-{}", uuid(key))),
        serial: format!("16{:011}", mix(key, 3) % 100_000_000_000),
        // As on a server board: every GPU behind a bridge of its own.
        bus: 0x0A + index * 3,
        key,
        accounting: written.accounting && written.mig.is_none(),
        unsupported,
        module_id: written.module_id.unwrap_or(if model.on_baseboard { index + 1 } else { 0 }),
        written: written.clone(),
        profiler: Profiler::of(model, &written.profiling),
        mig: written.mig.as_deref().map(|profiles| instances(profiles, model, key)).transpose()?,
        members: Vec::new(),
        load: Load::default(),
        growth: AtomicU32::new(0),
    })
}

fn instances(profiles: &[String], model: &'static Model, key: u64) -> Result<Vec<Option<Instance>>, Refusal> {
    if model.mig.is_empty() {
        return refuse("mig", format!("an {} has no MIG", model.name));
    }
    if profiles.len() > MOST_INSTANCES {
        return refuse("mig", format!("more than {MOST_INSTANCES} MIG devices"));
    }
    let known: Vec<&'static str> = model.mig.iter().map(|profile| profile.name).collect();
    let (mut compute, mut memory) = (0, 0);
    let mut instances: Vec<Option<Instance>> = Vec::new();
    for (index, name) in profiles.iter().enumerate() {
        if name.is_empty() {
            instances.push(None);
            continue;
        }
        let name = among(format!("mig[{index}]"), "MIG profile", name, &known)?;
        let profile = model.mig.iter().find(|profile| profile.name == name).expect("taken from the same table");
        compute += profile.compute;
        memory += profile.memory_slices;
        let taken = |id: u32| instances.iter().flatten().any(|instance| instance.gpu_instance == id);
        let gpu_instance = (profile.first_instance_id()..).find(|&id| !taken(id)).unwrap_or_default();
        instances.push(Some(Instance {
            index: index as u32,
            profile,
            uuid: format!("MIG-{}", uuid(mix(key, 100 + index as u64))),
            gpu_instance,
            compute_instance: 0,
            load: Load::default(),
        }));
    }
    if compute > 7 || memory > 8 {
        return refuse(
            "mig",
            format!("takes {compute} of the 7 compute slices and {memory} of the 8 memory slices of the GPU"),
        );
    }
    Ok(instances)
}
