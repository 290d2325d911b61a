//! A pod as far as it is needed: its name, whether it has ended, and which container ids it tells of under which names.
//!
//! Invariant: nothing else of a pod is kept, not even while an answer is decoded. What the API server would never say
//! (a pod without a name, an id that is none) is left out and does no harm to the rest.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, LazyLock};

use kube::core::{NamespaceResourceScope, ObjectMeta};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::snapshot::PodContainer;

/// The longest name that is taken: no object of Kubernetes has a longer one.
const LONGEST_NAME: usize = 253;
/// The longest container id that is taken; the runtimes give 64 hexadecimal digits.
const LONGEST_ID: usize = 256;

/// A container's id, without the runtime's prefix, and the names that it has.
pub type ContainerName = (Arc<str>, Arc<PodContainer>);

/// A pod, as it is decoded.
#[derive(Debug, Clone, Deserialize)]
pub struct Pod {
    // Boxed, so that what tells nothing weighs nothing.
    #[serde(default, deserialize_with = "names_only")]
    metadata: Option<Box<ObjectMeta>>,
    #[serde(default)]
    status: Option<Box<PodStatus>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    #[serde(rename = "phase", deserialize_with = "is_terminal")]
    ended: bool,
    #[serde(deserialize_with = "with_ids")]
    container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "with_ids")]
    init_container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "with_ids")]
    ephemeral_container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStatus {
    name: Option<String>,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    state: Option<ContainerState>,
    last_state: Option<ContainerState>,
}

#[derive(Debug, Clone, Deserialize)]
struct ContainerState {
    terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Deserialize)]
struct Terminated {
    #[serde(rename = "containerID")]
    container_id: Option<String>,
}

/// Decodes of the metadata what the watch and the names need, and nothing where one of them is missing. Labels,
/// annotations and the fields' managers are often larger than all the rest.
fn names_only<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<ObjectMeta>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Names {
        name: Option<String>,
        namespace: Option<String>,
        resource_version: Option<String>,
    }
    let names: Option<Names> = Option::deserialize(from)?;
    let whole = |names: &Names| names.name.is_some() && names.namespace.is_some() && names.resource_version.is_some();
    Ok(names.filter(whole).map(|Names { name, namespace, resource_version }| {
        Box::new(ObjectMeta { name, namespace, resource_version, ..ObjectMeta::default() })
    }))
}

/// Decodes a phase. From the terminal ones nothing leads back.
fn is_terminal<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    let phase: Option<Cow<'_, str>> = Option::deserialize(from)?;
    Ok(matches!(phase.as_deref(), Some("Succeeded" | "Failed")))
}

/// Decodes a list, or `null`, and keeps of it the containers that have an id.
fn with_ids<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ContainerStatus>, D::Error> {
    struct Containers;
    impl<'de> Visitor<'de> for Containers {
        type Value = Vec<ContainerStatus>;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            to.write_str("a list of containers")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut kept = Vec::new();
            while let Some(container) = list.next_element::<ContainerStatus>()? {
                if container.ids().next().is_some() {
                    kept.push(container);
                }
            }
            Ok(kept)
        }
    }
    from.deserialize_any(Containers)
}

impl Pod {
    /// The pod's namespace and name; `None` where it has none that can be.
    pub fn key(&self) -> Option<(&str, &str)> {
        let fits = |name: &&str| !name.is_empty() && name.len() <= LONGEST_NAME;
        let metadata = self.metadata.as_ref()?;
        let namespace = metadata.namespace.as_deref().filter(fits)?;
        Some((namespace, metadata.name.as_deref().filter(fits)?))
    }

    /// Whether all of its containers have ended for good.
    pub(super) fn has_ended(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.ended)
    }

    /// Every container id that the pod tells of, those of ended and replaced containers too.
    pub(super) fn containers(&self) -> Vec<ContainerName> {
        let (Some((namespace, pod)), Some(status)) = (self.key(), &self.status) else { return Vec::new() };
        let mut named: Vec<ContainerName> = Vec::new();
        for container in status.all() {
            let name = container.name.as_deref().unwrap_or_default();
            if name.is_empty() || name.len() > LONGEST_NAME {
                continue;
            }
            let holder = Arc::new(PodContainer {
                namespace: namespace.to_owned(),
                pod: pod.to_owned(),
                container: name.to_owned(),
            });
            named.extend(container.ids().filter_map(bare_id).map(|id| (Arc::from(id), holder.clone())));
        }
        named.sort_by(|a, b| (&a.0, &a.1.container).cmp(&(&b.0, &b.1.container)));
        named.dedup();
        named
    }
}

impl PodStatus {
    fn all(&self) -> impl Iterator<Item = &ContainerStatus> {
        let kinds = [&self.container_statuses, &self.init_container_statuses, &self.ephemeral_container_statuses];
        kinds.into_iter().flatten()
    }
}

impl ContainerStatus {
    /// The container's id, that of the state it ended in, and that of the one before it.
    fn ids(&self) -> impl Iterator<Item = &str> {
        let ended = [&self.state, &self.last_state].into_iter().flatten();
        let ended = ended.filter_map(|state| state.terminated.as_ref()?.container_id.as_deref());
        self.container_id.as_deref().into_iter().chain(ended)
    }
}

/// The id behind `containerd://`, `docker://`, `cri-o://` or another runtime's name; `None` for what is no id.
fn bare_id(text: &str) -> Option<&str> {
    let (runtime, id) = text.split_once("://")?;
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    let fits = !runtime.is_empty() && !id.is_empty() && id.len() <= LONGEST_ID;
    (fits && id.bytes().all(plain)).then_some(id)
}

impl kube::Resource for Pod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group(_: &()) -> Cow<'_, str> {
        "".into()
    }

    fn version(_: &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural(_: &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        static NOTHING: LazyLock<ObjectMeta> = LazyLock::new(ObjectMeta::default);
        self.metadata.as_deref().unwrap_or(&NOTHING)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.metadata.get_or_insert_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stands_behind_any_runtimes_name() {
        let id = "0123456789abcdef";
        for runtime in ["containerd", "docker", "cri-o", "rkt"] {
            assert_eq!(bare_id(&format!("{runtime}://{id}")), Some(id));
        }
        for odd in ["", "://", "containerd://", "://abc", "abc", "containerd:/abc", "docker://a/b", "docker://a\"b\n"] {
            assert_eq!(bare_id(odd), None, "{odd:?}");
        }
        assert_eq!(bare_id(&format!("docker://{}", "a".repeat(LONGEST_ID + 1))), None);
    }

    #[test]
    fn every_id_of_a_pod_is_found_and_the_rest_is_passed_over() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main", "env": [1, 2]}]},
            "metadata": {"name": "p", "namespace": "n", "resourceVersion": "7", "labels": {"a": "b"}, "managedFields": [{}]},
            "status": {
                "phase": "Running",
                "containerStatuses": [
                    {"name": "main", "containerID": "containerd://c3", "state": {"running": {}},
                     "lastState": {"terminated": {"containerID": "containerd://c2", "exitCode": 137}}},
                    {"name": "waiting", "state": {"waiting": {"reason": "x"}}, "lastState": {}},
                ],
                "initContainerStatuses": [
                    {"name": "init", "containerID": "containerd://c1",
                     "state": {"terminated": {"containerID": "containerd://c1"}}},
                ],
                "ephemeralContainerStatuses": [{"name": "debugger", "containerID": "containerd://c4"}],
            },
        }))
        .unwrap();
        let found: Vec<_> = pod.containers().iter().map(|(id, of)| format!("{id} {}", of.container)).collect();
        assert_eq!(found, ["c1 init", "c2 main", "c3 main", "c4 debugger"]);
        assert_eq!((pod.key(), pod.has_ended()), (Some(("n", "p")), false));
        assert!(pod.metadata.unwrap().labels.is_none());
    }

    #[test]
    fn a_list_of_containers_may_be_null_and_those_without_an_id_weigh_nothing() {
        let text = r#"{"containerStatuses":null,"initContainerStatuses":[{},{"name":"a"},{"name":"b","containerID":"x://y"}]}"#;
        let status: PodStatus = serde_json::from_str(text).unwrap();
        assert_eq!(status.all().count(), 1);
        assert!(serde_json::from_str::<PodStatus>(r#"{"containerStatuses":7}"#).is_err());
    }

    #[test]
    fn the_terminal_phases_alone_are_an_end() {
        let cases = [
            ("\"Succeeded\"", true),
            ("\"Failed\"", true),
            ("\"Running\"", false),
            ("\"Unknown\"", false),
            ("null", false),
        ];
        for (phase, ended) in cases {
            let pod: Pod = serde_json::from_str(&format!("{{\"status\":{{\"phase\":{phase}}}}}")).unwrap();
            assert_eq!(pod.has_ended(), ended, "{phase}");
        }
        assert!(serde_json::from_str::<Pod>(r#"{"status":{"phase":7}}"#).is_err());
    }

    #[test]
    fn a_pod_without_a_name_or_a_state_names_nothing() {
        for text in [
            "{}",
            r#"{"metadata":null,"status":null}"#,
            r#"{"metadata":{"name":"p","namespace":"","resourceVersion":"1"}}"#,
        ] {
            let pod: Pod = serde_json::from_str(text).unwrap();
            assert_eq!((pod.key(), pod.containers().len()), (None, 0), "{text}");
        }
    }
}
