//! Reads a claim once, by its name: which devices it was allocated, and with which rights.
//!
//! Invariant: claims are neither listed nor watched. They cannot be selected by node, so each exporter would receive those of the
//! whole cluster. An allocation is never modified, so one answer is enough.

use std::sync::Arc;

use serde::Deserialize;

use super::Settings;
use super::body;
use super::client::Client;
use super::declared::{MEMORY, Texts, consumed, first};
use super::error::Error;
use super::list_watch::decode;
use crate::quantity::{self, quoted};
use pod_resources::Claim;

/// The longest claim that is read, in bytes. A Kubernetes object is at most about 2 MiB long.
const CLAIM_LIMIT: usize = 4 << 20;
/// The longest name of a claim or a namespace, in bytes.
const LONGEST_NAME: usize = 253;
/// The most results that are kept of a claim. Kubernetes allows 32.
const MOST_RESULTS: usize = 256;

/// A claim, as decoded.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ResourceClaim {
    status: Option<ClaimStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClaimStatus {
    allocation: Option<Allocation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Allocation {
    devices: Option<AllocatedDevices>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AllocatedDevices {
    #[serde(deserialize_with = "first::<MOST_RESULTS, _, _>")]
    results: Vec<ClaimResult>,
}

/// A device that was allocated to a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimResult {
    /// The driver.
    pub(crate) driver: String,
    /// The pool.
    pub(crate) pool: String,
    /// The device in the pool.
    pub(crate) device: String,
    /// The share of the device; `None` for a whole device.
    #[serde(rename = "shareID")]
    pub(crate) share: Option<String>,
    /// Whether the claim may use the device for monitoring only, beside those that hold it; `None` means that it may not.
    pub(crate) admin_access: Option<bool>,
    /// What it consumes of the device's memory, if several claims can have the device.
    #[serde(deserialize_with = "consumed")]
    consumed_capacity: Texts,
}

impl ClaimResult {
    /// Bytes of the device's memory that the claim consumes; `None` if the device is not shared, or without a limit, which
    /// NVIDIA's driver writes as 0. Fails if it cannot be read.
    pub(crate) fn memory(&self) -> Result<Option<u64>, String> {
        let is_own = |key: &str| key.strip_prefix(&*self.driver).and_then(|key| key.strip_prefix('/')) == Some(MEMORY);
        let mut own = self.consumed_capacity.iter().filter(|(key, _)| *key == MEMORY || is_own(key));
        let Some((_, text)) = own.next() else { return Ok(None) };
        let text = text.ok_or("the consumed memory is too long a text")?;
        let bytes = quantity::number(text);
        let bytes = bytes.map_err(|why| format!("the consumed memory {} {why}", quoted(text)))?;
        Ok((bytes > 0).then_some(bytes))
    }
}

impl ResourceClaim {
    /// The devices that were allocated; none before the allocation.
    pub(crate) fn into_results(self) -> Vec<ClaimResult> {
        let devices = self.status.and_then(|status| status.allocation).and_then(|allocation| allocation.devices);
        devices.unwrap_or_default().results
    }
}

/// Reads claims.
#[derive(Debug, Clone)]
pub(crate) struct ClaimReader(Arc<Client>);

impl ClaimReader {
    /// A reader of the API server that the settings name.
    pub(crate) fn new(settings: &Settings) -> Self {
        Self(Arc::new(Client::new(settings)))
    }

    /// Requests the claim. Sends nothing if a name cannot be that of a Kubernetes object.
    pub(crate) async fn read(&self, claim: &Claim) -> Result<ResourceClaim, Error> {
        let Claim { namespace, name } = claim;
        if !is_name(namespace) || !is_name(name) {
            return Err(Error::Malformed(
                "the kubelet names a claim in a form that no Kubernetes object has".to_owned(),
            ));
        }
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        let whole = async {
            let answer = self.0.get(&path).await?;
            body::whole(answer.into_body(), CLAIM_LIMIT).await
        };
        decode(self.0.in_time(whole).await?, &self.0.labels).await
    }
}

/// Whether the name needs no escapes in a path, as every name of a Kubernetes object.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let is_path = name.bytes().all(|byte| byte == b'.');
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(plain) && !is_path
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_results_are_those_of_the_allocation() {
        let claim = json!({"metadata": {"name": "c"}, "spec": {"devices": {}}, "status": {
            "allocation": {"devices": {"results": [
                {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0", "adminAccess": null,
                 "consumedCapacity": {"memory": "20Gi"}, "shareID": "s-1"},
                {"request": "all", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-1", "adminAccess": true},
            ]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        }});
        let results = serde_json::from_value::<ResourceClaim>(claim).unwrap().into_results();
        let short: Vec<_> = results.iter().map(|r| (&*r.device, r.share.as_deref(), r.admin_access)).collect();
        assert_eq!(short, [("gpu-0", Some("s-1"), None), ("gpu-1", None, Some(true))]);
        for text in ["{}", r#"{"status":null}"#, r#"{"status":{"allocation":{"devices":{"results":null}}}}"#] {
            assert_eq!(serde_json::from_str::<ResourceClaim>(text).unwrap().into_results(), [], "{text}");
        }
        assert!(serde_json::from_str::<ResourceClaim>(r#"{"status":7}"#).is_err());
    }

    #[test]
    fn the_consumed_memory_is_a_quantity_under_either_name_and_0_is_no_limit() {
        let memory = |consumed: &serde_json::Value| {
            let result = json!({"driver": "gpu.nvidia.com", "consumedCapacity": consumed});
            serde_json::from_value::<ClaimResult>(result).unwrap().memory()
        };
        for (consumed, expected) in [
            (json!({"memory": "20Gi", "shares": "1"}), Some(20 << 30)),
            (json!({"gpu.nvidia.com/memory": "143771Mi"}), Some(143_771 << 20)),
            (json!({"memory": 1024}), Some(1024)),
            (json!({"memory": "0"}), None),
            (json!({"shares": "1", "other.example/memory": "1Gi", "memory/x": "1Gi"}), None),
            (json!({}), None),
            (json!(null), None),
        ] {
            assert_eq!(memory(&consumed), Ok(expected), "{consumed}");
        }
        for text in ["20GB", "-1", "", &"9".repeat(5000)] {
            let problem = memory(&json!({"memory": text})).unwrap_err();
            assert!(problem.starts_with("the consumed memory ") && problem.len() < 200, "{problem}");
        }
    }

    #[test]
    fn a_name_that_would_change_the_path_is_refused() {
        for name in ["a", "train-0-gpu-x2k4f", "a.b", "0"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a?b", "a%2fb", "A", "a b", "\u{e4}", &"a".repeat(254)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
