//! Any slices, claims and answers of the kubelet: a container has a GPU only if all three say so.

mod arbitrary;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use gpu_readings::snapshot::{Claim, ClaimAllocation, DeviceName, Driver, Gpu, MigDevice};
use pod_resources::internals::{
    CdiDevice, ClaimResource, ContainerResources, DynamicResource, ListPodResourcesResponse, PodResources, allocated,
};
use serde_json::Value;
use tokio::runtime::Runtime;
use vram_exporter::internals::Heard;

use crate::choices::choices;

/// A device of a claim as the kubelet lists it: pod, container, claim, pool, device, share and name for the container runtime.
type Listed = (String, String, String, String, String, Option<String>, String);

/// The driver and the namespace of everything.
const DRIVER: &str = "gpu.nvidia.com";
const NAMESPACE: &str = "team";

/// Joins what the lines say, and compares with everything that was ever said. A line is `kubelet` and a list, `claim`, its name and
/// an answer, or a list of slices or a watch event. True if a container got a GPU.
pub fn claims(data: &[u8]) -> bool {
    static RUNTIME: LazyLock<Runtime> =
        LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"));
    let _entered = RUNTIME.enter();
    let lines = choices(data).map(|mut u| arbitrary::lines(&mut u));
    let data = lines.as_deref().unwrap_or(data);
    let (mut heard, driver, mut said) = (Heard::new(Arc::default()), driver(), Said::default());
    let (mut listed, mut has_gpu) = (Vec::new(), false);
    for line in data.split(|byte| *byte == b'\n') {
        if let Some(text) = line.strip_prefix(b"kubelet ") {
            let Ok(devices) = serde_json::from_slice::<Vec<Listed>>(text) else { continue };
            listed = allocated(&answer(devices)).claimed;
        } else if let Some((name, text)) = line.strip_prefix(b"claim ").and_then(named) {
            let claim = Claim { namespace: NAMESPACE.to_owned(), name };
            // What the model cannot read, such as bytes that are not UTF-8 in a part that is passed over, is another's.
            match serde_json::from_slice(text) {
                Ok(value) if heard.claim(&claim, text) => said.claim(claim.name, &value),
                Ok(_) => {}
                Err(_) => {
                    let _ = Heard::new(Arc::default()).claim(&claim, text);
                }
            }
        } else {
            match serde_json::from_slice(line) {
                Ok(value) if heard.slices(line) => said.slices(&value),
                Ok(_) => {}
                Err(_) => {
                    let _ = Heard::new(Arc::default()).slices(line);
                }
            }
        }
        let (assigned, unassigned) = heard.join(&listed, &driver);
        let is_listed = |one: &ClaimAllocation| {
            listed.iter().any(|l| (&l.holder, &l.claim, &l.device) == (&one.holder, &one.claim, &one.name))
        };
        for one in &assigned {
            assert!(is_listed(one), "no answer of the kubelet names {one:?}");
            assert!(driver.find(&one.device).is_some(), "the driver does not list {one:?}");
            said.assert_said(one);
        }
        has_gpu |= !assigned.is_empty();
        let keys: HashSet<_> = assigned.iter().map(|one| (&one.holder, &one.claim, &one.name)).collect();
        assert_eq!(keys.len(), assigned.len(), "a device twice");
        assert!(unassigned.iter().all(|holder| listed.iter().any(|one| one.holder == *holder)), "{unassigned:?}");
        assert_eq!(heard.join(&listed, &driver), (assigned, unassigned), "nothing has changed");
    }
    let (assigned, unassigned) = heard.join(&[], &driver);
    assert!(assigned.is_empty() && unassigned.is_empty(), "the kubelet lists nothing");
    has_gpu
}

/// The name of a claim and the rest of the line.
fn named(line: &[u8]) -> Option<(String, &[u8])> {
    let end = line.iter().position(|byte| *byte == b' ')?;
    Some((std::str::from_utf8(&line[..end]).ok()?.to_owned(), &line[end + 1..]))
}

/// Two GPUs, the second with three MIG devices, of which two have one profile.
fn driver() -> Driver {
    let mig = |(index, profile): (u32, &str)| {
        let (uuid, profile) = (format!("MIG-{index}"), Some(profile.to_owned()));
        Arc::new(MigDevice { index, uuid, profile, ..MigDevice::default() })
    };
    let parts = [(0, "1g.18gb"), (1, "1g.18gb"), (2, "3g.71gb")].map(mig).to_vec();
    let whole = Gpu { uuid: "GPU-0".to_owned(), ..Gpu::default() };
    let divided = Gpu { index: 1, uuid: "GPU-1".to_owned(), mig: parts, ..Gpu::default() };
    Driver { up: true, gpus: vec![Arc::new(whole), Arc::new(divided)], ..Driver::default() }
}

/// The kubelet's answer: a pod for each device, with a container that uses a claim.
fn answer(devices: Vec<Listed>) -> ListPodResourcesResponse {
    let pod = |(name, container, claim_name, pool_name, device_name, share_id, cdi): Listed| {
        let cdi_devices = vec![CdiDevice { name: cdi }];
        let resource = ClaimResource { cdi_devices, driver_name: DRIVER.to_owned(), pool_name, device_name, share_id };
        let claim_namespace = NAMESPACE.to_owned();
        let claim = DynamicResource { claim_name, claim_namespace, claim_resources: vec![resource] };
        let container = ContainerResources { name: container, dynamic_resources: vec![claim], ..Default::default() };
        PodResources { name, namespace: NAMESPACE.to_owned(), containers: vec![container] }
    };
    ListPodResourcesResponse { pod_resources: devices.into_iter().map(pod).collect() }
}

/// Everything that slices and claims ever said.
#[derive(Default)]
struct Said {
    /// The texts of the attributes of each device: (pool, device).
    devices: HashMap<(String, String), HashSet<String>>,
    /// The results of each claim that hold their device: (pool, device).
    claims: HashMap<String, HashSet<(String, String)>>,
}

impl Said {
    fn slices(&mut self, value: &Value) {
        let items = value["items"].as_array().cloned().unwrap_or_default();
        for slice in items.iter().chain([&value["object"]]) {
            let spec = &slice["spec"];
            for device in spec["devices"].as_array().into_iter().flatten() {
                let texts = device["attributes"].as_object().into_iter().flatten();
                let texts = texts.filter_map(|(_, value)| value["string"].as_str().map(str::to_owned));
                let key = (text_of(&spec["pool"]["name"]), text_of(&device["name"]));
                self.devices.entry(key).or_default().extend(texts);
            }
        }
    }

    fn claim(&mut self, name: String, value: &Value) {
        let results = value.pointer("/status/allocation/devices/results").and_then(Value::as_array);
        let held = results.into_iter().flatten().filter(|result| result["adminAccess"] != Value::Bool(true));
        let held = held.map(|result| (text_of(&result["pool"]), text_of(&result["device"])));
        self.claims.entry(name).or_default().extend(held);
    }

    /// A slice gave the device this UUID, or the UUID of its GPU, and the claim may hold it.
    fn assert_said(&self, one: &ClaimAllocation) {
        let key = (one.name.pool.clone(), one.name.device.clone());
        let texts = self.devices.get(&key);
        let (DeviceName::Gpu(uuid) | DeviceName::Mig(uuid)) = &one.device else { panic!("{one:?}") };
        let is_published = texts.is_some_and(|texts| {
            texts.contains(uuid) || uuid.starts_with("MIG-") && texts.contains("GPU-1") && texts.contains("3g.71gb")
        });
        assert!(is_published, "no slice names {one:?}");
        let holds = self.claims.get(&one.claim.name).is_some_and(|held| held.contains(&key));
        assert!(holds, "no claim allocates {one:?}");
        assert_ne!(one.memory, Some(0), "{one:?}");
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
