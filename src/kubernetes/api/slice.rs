//! The part of a ResourceSlice that is needed: its pool, and what its devices say about which GPU they are.
//!
//! Invariant: nothing else of a slice is kept, and everything that is kept is bounded in length. The name of a device has no
//! meaning of its own: drivers have changed the form of their names.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Deserializer};

use super::declared::first;
use super::list_watch::Object;

/// The longest name of a driver, a pool, a device or a slice, in bytes. Kubernetes allows 253.
const LONGEST_NAME: usize = 256;
/// The longest text of an attribute, in bytes. Kubernetes allows 64.
const LONGEST_TEXT: usize = 128;
/// The most devices that are kept of a slice. Kubernetes allows 128.
const MOST_DEVICES: usize = 1024;

/// The attributes that say which GPU a device is. A driver may write its own name and a slash before each of them.
const UUID: &str = "uuid";
const PARENT: &str = "parentUUID";
const PROFILE: &str = "profile";

/// A slice of the devices that a driver offers on a node, as decoded.
#[derive(Debug, Deserialize)]
pub(crate) struct ResourceSlice {
    metadata: Option<Metadata>,
    spec: Option<SliceSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    resource_version: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SliceSpec {
    driver: String,
    pool: PoolState,
    #[serde(deserialize_with = "first::<MOST_DEVICES, _, _>")]
    devices: Vec<SliceDevice>,
}

/// The pool to which a slice belongs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PoolState {
    /// Its name.
    pub(crate) name: String,
    /// Counts up with every change of the pool. A slice of an earlier generation no longer counts.
    pub(crate) generation: i64,
    /// How many slices the pool has in this generation.
    pub(crate) resource_slice_count: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SliceDevice {
    name: String,
    #[serde(deserialize_with = "attributes")]
    attributes: Vec<(String, String)>,
}

/// What a driver publishes about which GPU a device is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Published {
    /// The UUID of the GPU or MIG device.
    pub(crate) uuid: Option<String>,
    /// The UUID of the GPU to which a MIG device belongs.
    pub(crate) parent: Option<String>,
    /// The profile of a MIG device, such as `1g.10gb`.
    pub(crate) profile: Option<String>,
}

/// Decodes an object, or `null`, and keeps the texts that say which GPU a device is.
fn attributes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, String)>, D::Error> {
    #[derive(Deserialize)]
    struct Value<'t> {
        #[serde(borrow, default)]
        string: Option<Cow<'t, str>>,
    }
    let all: Option<HashMap<Cow<'de, str>, Value<'de>>> = Option::deserialize(from)?;
    let is_known = |key: &str| matches!(key.rsplit('/').next(), Some(UUID | PARENT | PROFILE));
    let known = all.into_iter().flatten().filter(|(key, _)| key.len() <= LONGEST_NAME && is_known(key));
    let texts = known.filter_map(|(key, value)| Some((key, value.string?)));
    let short = texts.filter(|(_, text)| (1..=LONGEST_TEXT).contains(&text.len()));
    Ok(short.map(|(key, text)| (key.into_owned(), text.into_owned())).collect())
}

impl ResourceSlice {
    /// The slice's name; `None` if it is missing, empty or too long.
    pub(crate) fn name(&self) -> Option<&str> {
        self.metadata.as_ref()?.name.as_deref().filter(|name| is_name(name))
    }

    /// The driver and the pool; `None` if a name is missing, empty or too long.
    pub(crate) fn pool(&self) -> Option<(&str, &PoolState)> {
        let spec = self.spec.as_ref()?;
        (is_name(&spec.driver) && is_name(&spec.pool.name)).then_some((&*spec.driver, &spec.pool))
    }

    /// The devices with their names, in the order of the slice.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (&str, Published)> {
        let spec = self.spec.iter();
        let all = spec.flat_map(|spec| spec.devices.iter().map(|device| (&*spec.driver, device)));
        all.filter(|(_, device)| is_name(&device.name))
            .map(|(driver, device)| (&*device.name, device.published(driver)))
    }
}

impl SliceDevice {
    fn published(&self, driver: &str) -> Published {
        let of = |name: &str| {
            let is_own = |key: &str| key.strip_prefix(driver).and_then(|key| key.strip_prefix('/')) == Some(name);
            let mut texts = self.attributes.iter().filter(|(key, _)| key == name || is_own(key));
            texts.next().map(|(_, text)| text.clone())
        };
        Published { uuid: of(UUID), parent: of(PARENT), profile: of(PROFILE) }
    }
}

fn is_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
}

impl Object for ResourceSlice {
    const PATH: &'static str = "/apis/resource.k8s.io/v1/resourceslices";

    fn version(&self) -> Option<&str> {
        self.metadata.as_ref()?.resource_version.as_deref()
    }

    /// The devices.
    fn parts(&self) -> usize {
        self.spec.as_ref().map_or(0, |spec| spec.devices.len())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(devices: &Value) -> ResourceSlice {
        serde_json::from_value(json!({
            "metadata": {"name": "s", "resourceVersion": "7", "managedFields": [{}]},
            "spec": {
                "devices": devices, "driver": "gpu.nvidia.com", "nodeName": "node-1",
                "pool": {"generation": 2, "name": "node-1", "resourceSliceCount": 1},
            },
        }))
        .unwrap()
    }

    fn published(attributes: &Value) -> Published {
        let slice = slice(&json!([{"name": "gpu-0", "attributes": attributes}]));
        slice.devices().next().unwrap().1
    }

    #[test]
    fn a_device_is_known_by_its_attributes_under_either_name() {
        let text = |text: &str| Some(text.to_owned());
        let gpu = published(&json!({
            "uuid": {"string": "GPU-1"}, "type": {"string": "gpu"}, "driverVersion": {"version": "580.0.0"},
            "minor": {"int": 3}, "addressingMode": {"bool": true},
        }));
        assert_eq!(gpu, Published { uuid: text("GPU-1"), ..Published::default() });
        let mig = published(&json!({
            "gpu.nvidia.com/uuid": {"string": "MIG-1"}, "gpu.nvidia.com/parentUUID": {"string": "GPU-1"},
            "gpu.nvidia.com/profile": {"string": "1g.10gb"}, "other.example/uuid": {"string": "GPU-2"},
        }));
        assert_eq!(mig, Published { uuid: text("MIG-1"), parent: text("GPU-1"), profile: text("1g.10gb") });
    }

    #[test]
    fn what_says_nothing_about_a_gpu_is_passed_over() {
        let long = "x".repeat(LONGEST_TEXT + 1);
        for attributes in [
            json!(null),
            json!({}),
            json!({"other.example/uuid": {"string": "GPU-2"}, "uuid": {"int": 7}}),
            json!({"uuid": {"string": null}, "profile": {"string": ""}, "parentUUID": {"string": long}}),
        ] {
            assert_eq!(published(&attributes), Published::default(), "{attributes}");
        }
        let slice = slice(&json!([{"attributes": {"uuid": {"string": "GPU-1"}}}, {"name": long.repeat(3)}]));
        assert_eq!((slice.devices().count(), slice.parts(), slice.version()), (0, 2, Some("7")));
    }

    #[test]
    fn a_slice_without_devices_has_a_pool_and_one_without_names_has_none() {
        let counters = json!({"metadata": {"name": "s"}, "spec": {
            "driver": "gpu.nvidia.com", "pool": {"name": "p", "generation": 3, "resourceSliceCount": 2}, "devices": null,
        }});
        let counters: ResourceSlice = serde_json::from_value(counters).unwrap();
        let pool = PoolState { name: "p".to_owned(), generation: 3, resource_slice_count: 2 };
        assert_eq!((counters.pool(), counters.devices().count()), (Some(("gpu.nvidia.com", &pool)), 0));
        for text in ["{}", r#"{"metadata":null,"spec":null}"#, r#"{"spec":{"driver":"","pool":{"name":"p"}}}"#] {
            let slice: ResourceSlice = serde_json::from_str(text).unwrap();
            assert_eq!((slice.pool(), slice.name()), (None, None), "{text}");
        }
        assert!(serde_json::from_str::<ResourceSlice>(r#"{"spec":{"devices":7}}"#).is_err());
    }
}
