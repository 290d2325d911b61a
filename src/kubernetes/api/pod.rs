//! The part of a pod that is needed: its name, its version, whether it has ended, its container ids with their names,
//! what it declares about budgets, and the labels that are to be shown.
//!
//! Invariant: nothing else in a pod is kept, not even while a response is being decoded, because labels, annotations
//! and managed fields are often larger than all the rest. What the API server would never send (a pod without a name, a
//! malformed id) is left out and does not affect the rest.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};

use super::budgets::Declarations;
use super::declared::{self, Labels, Spec, Texts};
use super::list_watch::Object;
use crate::snapshot::PodContainer;

/// The maximum length of a name. No Kubernetes object has a longer name.
const LONGEST_NAME: usize = 253;
/// The longest container id that is accepted; the runtimes use 64 hexadecimal digits.
const LONGEST_ID: usize = 256;

/// A container's id, without the runtime's prefix, and its names.
pub type ContainerName = (Arc<str>, Arc<PodContainer>);

/// The namespace and the name of a pod.
pub(crate) type PodKey = (String, String);

/// A pod, as decoded.
#[derive(Debug, Deserialize)]
pub struct Pod {
    // Boxed, so that a pod without content takes little memory.
    metadata: Option<Box<Metadata>>,
    spec: Option<Box<Spec>>,
    status: Option<Box<PodStatus>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    namespace: Option<String>,
    name: Option<String>,
    resource_version: Option<String>,
    #[serde(default, deserialize_with = "declared::annotations")]
    annotations: Texts,
    #[serde(default, deserialize_with = "declared::labels")]
    labels: Labels,
}

#[derive(Debug, Default, Deserialize)]
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

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStatus {
    name: Option<String>,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    state: Option<ContainerState>,
    last_state: Option<ContainerState>,
}

#[derive(Debug, Deserialize)]
struct ContainerState {
    terminated: Option<Terminated>,
}

#[derive(Debug, Deserialize)]
struct Terminated {
    #[serde(rename = "containerID")]
    container_id: Option<String>,
}

/// Decodes a phase. A pod never leaves a terminal phase.
fn is_terminal<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    let phase: Option<Cow<'_, str>> = Option::deserialize(from)?;
    Ok(matches!(phase.as_deref(), Some("Succeeded" | "Failed")))
}

/// Decodes a list, or `null`, and keeps the containers that have an id.
fn with_ids<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ContainerStatus>, D::Error> {
    let mut kept = Vec::new();
    declared::each(from, |container: ContainerStatus| {
        kept.extend(Some(container).filter(|container| container.ids().next().is_some()));
        kept.len() < declared::MOST_CONTAINERS
    })?;
    Ok(kept)
}

impl Pod {
    /// The pod's namespace and name; `None` if either is missing, empty or too long.
    pub fn key(&self) -> Option<PodKey> {
        let fits = |name: &String| !name.is_empty() && name.len() <= LONGEST_NAME;
        let metadata = self.metadata.as_ref()?;
        Some((metadata.namespace.clone().filter(fits)?, metadata.name.clone().filter(fits)?))
    }

    /// Whether all of its containers have ended for good.
    pub fn has_ended(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.ended)
    }

    /// What the pod declares about the GPU memory of its containers.
    pub(super) fn declarations(&self) -> Declarations {
        let (none, no_spec) = (Texts::default(), Spec::default());
        let metadata = self.metadata.as_deref();
        let annotations = metadata.map_or(&none, |metadata| &metadata.annotations);
        let labels = metadata.map_or(&none, |metadata| &metadata.labels.of_budgets);
        Declarations::read(annotations, labels, self.spec.as_deref().unwrap_or(&no_spec))
    }

    /// Its labels that are to be shown: their places in the configuration, in order, with their values.
    pub(super) fn labels(&self) -> &[(usize, String)] {
        self.metadata.as_ref().map_or(&[], |metadata| &metadata.labels.shown)
    }

    /// Every container id in the pod's status, including those of containers that have ended or were replaced.
    pub fn containers(&self) -> Vec<ContainerName> {
        let (Some((namespace, pod)), Some(status)) = (self.key(), &self.status) else { return Vec::new() };
        let mut named: Vec<ContainerName> = Vec::new();
        for container in status.all() {
            let name = container.name.as_deref().unwrap_or_default();
            if name.is_empty() || name.len() > LONGEST_NAME {
                continue;
            }
            let (namespace, pod, name) = (namespace.clone(), pod.clone(), name.to_owned());
            let holder = Arc::new(PodContainer { namespace, pod, container: name });
            named.extend(container.ids().filter_map(bare_id).map(|id| (Arc::from(id), holder.clone())));
        }
        named.sort_unstable_by(|a, b| (&a.0, &a.1.container).cmp(&(&b.0, &b.1.container)));
        named.dedup();
        named
    }
}

impl Object for Pod {
    const PATH: &'static str = "/api/v1/pods";

    fn version(&self) -> Option<&str> {
        self.metadata.as_ref()?.resource_version.as_deref()
    }

    /// The containers of its status, and those that its specification names.
    fn parts(&self) -> usize {
        let stated = self.status.as_ref().map_or(0, |status| status.all().count());
        stated + self.spec.as_ref().map_or(0, |spec| spec.all().count())
    }
}

impl PodStatus {
    fn all(&self) -> impl Iterator<Item = &ContainerStatus> {
        let kinds = [&self.container_statuses, &self.init_container_statuses, &self.ephemeral_container_statuses];
        kinds.into_iter().flatten()
    }
}

impl ContainerStatus {
    /// The container's id, the id of its last run if it has ended, and the id of the run before that.
    fn ids(&self) -> impl Iterator<Item = &str> {
        let ended = [&self.state, &self.last_state].into_iter().flatten();
        let ended = ended.filter_map(|state| state.terminated.as_ref()?.container_id.as_deref());
        self.container_id.as_deref().into_iter().chain(ended)
    }
}

/// The id after `containerd://`, `docker://`, `cri-o://` or another runtime's name; `None` for anything else.
fn bare_id(text: &str) -> Option<&str> {
    let (runtime, id) = text.split_once("://")?;
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    let fits = !runtime.is_empty() && !id.is_empty() && id.len() <= LONGEST_ID;
    (fits && id.bytes().all(plain)).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_behind_any_runtimes_name() {
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
        assert_eq!(
            (pod.key(), pod.version(), pod.has_ended()),
            (Some(("n".to_owned(), "p".to_owned())), Some("7"), false)
        );
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
