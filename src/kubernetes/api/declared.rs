//! Decodes the parts of a pod that concern budgets: a few annotations and labels, and the containers with two of their
//! resources. And the labels that are to be shown.
//!
//! Invariant: nothing else is kept while a response is being decoded, and everything that is kept is bounded in number
//! and length. A text that is too long is kept as such, so that it can be reported.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::budgets::keys::{is_annotation, is_label, is_resource};

/// The longest text that is kept: that of the devices which HAMi assigned to a pod.
pub(super) const LONGEST_TEXT: usize = 4096;
/// The most containers of a kind that are kept of a pod. No pod with so many fits into the server's store.
pub(super) const MOST_CONTAINERS: usize = 4096;
/// The longest value of a label that is shown. Kubernetes allows no longer one.
const LONGEST_LABEL: usize = 63;
/// The capacity of a device that is its memory.
pub(super) const MEMORY: &str = "memory";
/// The maximum number of annotations, of labels or of capacities that are kept.
const MOST_TEXTS: usize = 64;

/// What was kept of an object whose values are texts.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Texts {
    /// The keys with their texts; `None` for a text that is too long.
    kept: Vec<(String, Option<String>)>,
    /// Whether texts were left out, because there are too many.
    pub(super) too_many: bool,
}

impl Texts {
    /// The text with this key; `None` if there is none. The inner value is `None` if the text is too long.
    pub(super) fn get(&self, key: &str) -> Option<Option<&str>> {
        self.iter().find_map(|(known, text)| (known == key).then_some(text))
    }

    /// The keys with their texts.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.kept.iter().map(|(key, text)| (key.as_str(), text.as_deref()))
    }
}

/// The labels to be shown: their keys, each with the name under which it is shown.
pub(super) type Wanted = Arc<[(String, String)]>;

thread_local! {
    /// The labels that are kept while a text is decoded: `Deserialize` has no argument for it.
    static WANTED: RefCell<Wanted> = RefCell::default();
}

/// Decodes with `decode`, and keeps these labels of pods.
pub(super) fn with_wanted<T>(wanted: &Wanted, decode: impl FnOnce() -> T) -> T {
    WANTED.set(wanted.clone());
    let decoded = decode();
    WANTED.take();
    decoded
}

/// The labels of a pod.
#[derive(Debug, Default)]
pub(super) struct Labels {
    /// Those that [`is_label`] accepts.
    pub(super) of_budgets: Texts,
    /// Those to be shown: their places in [`Wanted`], in order, with their values.
    pub(super) shown: Vec<(usize, String)>,
}

/// Decodes the annotations that [`is_annotation`] accepts.
pub(super) fn annotations<'de, D: Deserializer<'de>>(from: D) -> Result<Texts, D::Error> {
    from.deserialize_any(TextsOf(is_annotation, None))
}

/// Decodes the labels that [`is_label`] accepts, and those to be shown.
pub(super) fn labels<'de, D: Deserializer<'de>>(from: D) -> Result<Labels, D::Error> {
    let mut shown = Vec::new();
    let of_budgets = from.deserialize_any(TextsOf(is_label, Some(&mut shown)))?;
    shown.sort_unstable();
    Ok(Labels { of_budgets, shown })
}

/// Decodes what a claim consumes of a device, as far as it concerns memory. A driver may write its own name before a capacity's.
pub(super) fn consumed<'de, D: Deserializer<'de>>(from: D) -> Result<Texts, D::Error> {
    from.deserialize_any(TextsOf(|capacity| capacity.rsplit('/').next() == Some(MEMORY), None))
}

/// The containers of a pod in the order in which it lists them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    #[serde(deserialize_with = "first::<MOST_CONTAINERS, _, _>")]
    pub(super) containers: Vec<Container>,
    #[serde(deserialize_with = "first::<MOST_CONTAINERS, _, _>")]
    pub(super) init_containers: Vec<Container>,
}

/// A container as the pod describes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Container {
    pub(super) name: Option<String>,
    /// Whether it is a sidecar, if it is an init container: it then runs as long as the other containers.
    #[serde(default, rename = "restartPolicy", deserialize_with = "is_always")]
    stays: bool,
    resources: Option<Resources>,
}

/// Decodes a list, or `null`, and keeps the first `MOST` elements.
pub(super) fn first<'de, const MOST: usize, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let mut kept = Vec::new();
    each(from, |element| {
        kept.push(element);
        kept.len() < MOST
    })?;
    Ok(kept)
}

/// Decodes a list, or `null`, which a server writes for an empty one. Passes its elements to `take` until that returns
/// `false`, and returns the number of elements after that, which are passed over.
pub(super) fn each<'de, T, D>(from: D, take: impl FnMut(T) -> bool) -> Result<usize, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct Elements<T, F>(F, PhantomData<T>);

    impl<'de, T: Deserialize<'de>, F: FnMut(T) -> bool> Visitor<'de> for Elements<T, F> {
        type Value = usize;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            to.write_str("a list")
        }

        fn visit_unit<E>(self) -> Result<usize, E> {
            Ok(0)
        }

        fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<usize, A::Error> {
            while let Some(element) = list.next_element()? {
                if !(self.0)(element) {
                    let rest = std::iter::from_fn(|| list.next_element::<IgnoredAny>().transpose());
                    return rest.map(|element| element.map(|_| 1)).sum();
                }
            }
            Ok(0)
        }
    }
    from.deserialize_any(Elements(take, PhantomData))
}

fn is_always<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    let policy: Option<Cow<'_, str>> = Option::deserialize(from)?;
    Ok(policy.as_deref() == Some("Always"))
}

impl Container {
    /// The resources of HAMi that the container is limited to.
    pub(super) fn limits(&self) -> &Texts {
        static NONE: Texts = Texts { kept: Vec::new(), too_many: false };
        self.resources.as_ref().map_or(&NONE, |resources| &resources.limits)
    }
}

impl Spec {
    /// Whether a container ends before the others start: an init container that is not a sidecar.
    pub(super) fn ends_early(&self, container: &str) -> bool {
        self.init_containers.iter().any(|init| init.name.as_deref() == Some(container) && !init.stays)
    }

    /// The containers, followed by the init containers.
    pub(super) fn all(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().chain(&self.init_containers)
    }
}

#[derive(Debug, Deserialize)]
struct Resources {
    #[serde(default, deserialize_with = "limits")]
    limits: Texts,
}

fn limits<'de, D: Deserializer<'de>>(from: D) -> Result<Texts, D::Error> {
    from.deserialize_any(TextsOf(is_resource, None))
}

/// Decodes an object, or `null`, and keeps the texts whose keys are accepted, and apart from them the labels to be shown.
struct TextsOf<'s>(fn(&str) -> bool, Option<&'s mut Vec<(usize, String)>>);

impl TextsOf<'_> {
    /// Keeps a label to be shown. One that no pod can have, because it is there already or too long, is left out.
    fn show(&mut self, place: Option<usize>, text: &str) {
        let (Some(shown), Some(place)) = (&mut self.1, place) else { return };
        if text.len() <= LONGEST_LABEL && shown.iter().all(|(known, _)| *known != place) {
            shown.push((place, text.to_owned()));
        }
    }
}

impl<'de> Visitor<'de> for TextsOf<'_> {
    type Value = Texts;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object with texts")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Texts::default())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut texts = Texts::default();
        let wanted = self.1.as_ref().map(|_| WANTED.with_borrow(Wanted::clone)).unwrap_or_default();
        while let Some(key) = object.next_key::<Cow<'_, str>>()? {
            let place = wanted.iter().position(|(wanted, _)| *wanted == key);
            let (accepted, has_room) = ((self.0)(&key), texts.kept.len() < MOST_TEXTS);
            texts.too_many |= accepted && !has_room;
            let keeps = accepted && has_room;
            if !keeps && place.is_none() {
                object.next_value::<IgnoredAny>()?;
                continue;
            }
            let Text(Some(text)) = object.next_value()? else { continue };
            self.show(place, &text);
            if keeps {
                texts.kept.push((key.into_owned(), (text.len() <= LONGEST_TEXT).then_some(text)));
            }
        }
        Ok(texts)
    }
}

/// A text or a number. The API server writes every quantity as a text, but accepts a number. Anything else is `None`.
struct Text(Option<String>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(from)?;
        Ok(Self(match value {
            serde_json::Value::String(text) => Some(text),
            serde_json::Value::Number(number) => Some(number.to_string()),
            _ => None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Annotated {
        #[serde(default, deserialize_with = "annotations")]
        annotations: Texts,
    }

    fn decoded(text: &str) -> Texts {
        serde_json::from_str::<Annotated>(text).unwrap().annotations
    }

    #[test]
    fn only_annotations_about_budgets_are_kept() {
        let texts = decoded(r#"{"annotations":{"a":"b","gpu-memory":"7","c":{"d":[1]},"gpu-fraction":null}}"#);
        assert_eq!(texts.iter().collect::<Vec<_>>(), [("gpu-memory", Some("7"))]);
        assert!(decoded(r#"{"annotations":null}"#) == Texts::default() && decoded("{}") == Texts::default());
        assert!(serde_json::from_str::<Annotated>(r#"{"annotations":7}"#).is_err());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let long = "9".repeat(LONGEST_TEXT + 1);
        assert_eq!(decoded(&format!(r#"{{"annotations":{{"gpu-memory":"{long}"}}}}"#)).get("gpu-memory"), Some(None));
        let many: Vec<_> = (0..1000).map(|n| format!(r#""vram-exporter/gpu-memory-limit.c{n}":"1""#)).collect();
        let texts = decoded(&format!(r#"{{"annotations":{{{}}}}}"#, many.join(",")));
        assert!(texts.too_many && texts.kept.len() == MOST_TEXTS);
    }

    #[test]
    fn a_container_keeps_its_name_and_two_resources() {
        let spec: Spec = serde_json::from_value(serde_json::json!({
            "containers": [
                {"name": "a", "env": [1], "resources": {"limits": {"cpu": "1", "nvidia.com/gpumem": 3000}}},
                {"name": "b", "resources": {"limits": null, "requests": {"nvidia.com/gpumem": "1"}}},
                {"name": "c", "resources": {}},
            ],
            "initContainers": null,
        }))
        .unwrap();
        let limits: Vec<_> = spec.all().map(|container| container.limits().get("nvidia.com/gpumem")).collect();
        assert_eq!(limits, [Some(Some("3000")), None, None]);
    }

    #[test]
    fn an_init_container_ends_early_unless_it_is_a_sidecar() {
        let spec: Spec = serde_json::from_value(serde_json::json!({
            "containers": [{"name": "main", "restartPolicy": null}],
            "initContainers": [
                {"name": "prepare"}, {"name": "proxy", "restartPolicy": "Always"}, {"name": "odd", "restartPolicy": "x"},
            ],
        }))
        .unwrap();
        let ending = ["main", "prepare", "proxy", "odd", "absent"].map(|container| spec.ends_early(container));
        assert_eq!(ending, [false, true, false, true, false]);
    }
}
