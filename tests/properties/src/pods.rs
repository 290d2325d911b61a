//! Any responses from the API server: a container id is shown with a name only if exactly one name
//! belongs to it, and a budget belongs to a pod that exists and declares one.

mod arbitrary;
mod budgets;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vram_exporter::internals::{ContainerIndex, ContainerName, List, Pod, RETENTION, WatchEvent};

use gpu_readings::snapshot::PodContainer;

use self::budgets::Budgets;
use crate::choices::choices;

/// An event in the life of this node's pods.
enum Event {
    List(Vec<Pod>),
    Put(Pod),
    Remove(Pod),
    /// Time passes.
    Wait(Duration),
}

/// Follows pods and compares the names with a model. Plain input holds one event per line: a list, or a watch
/// event, as the API server writes them. True if a container got a name.
pub fn pods(data: &[u8]) -> bool {
    let lines = choices(data).map(|mut u| arbitrary::lines(&mut u));
    let data = lines.as_deref().unwrap_or(data);
    let (mut names, mut model, mut now) = (ContainerIndex::default(), Model::default(), Instant::now());
    let mut budgets = Budgets::default();
    let mut named = false;
    for line in data.split(|byte| *byte == b'\n') {
        match event(line) {
            None => {}
            Some(Event::Wait(time)) => now += time,
            Some(Event::List(pods)) => {
                pods.iter().for_each(assert_sound);
                budgets.replace(&pods);
                names.replace(&pods, now).expect("few pods are within the limits");
                model.replace(&pods, now);
            }
            Some(Event::Put(pod)) => {
                assert_sound(&pod);
                budgets.put(&pod);
                names.put(&pod, now).expect("few pods are within the limits");
                model.put(&pod, now);
            }
            Some(Event::Remove(pod)) => {
                assert_sound(&pod);
                budgets.remove(&pod);
                names.remove(&pod, now).expect("few pods are within the limits");
                model.put(&pod, now);
                model.withdraw(&pod, now);
            }
        }
        names.forget(now);
        model.forget(now);
        let shown = names.shown();
        assert_eq!(shown, model.shown(), "after {}", line.escape_ascii());
        named |= !shown.is_empty();
    }
    assert!(names.due().is_none_or(|due| due > now && due <= now + RETENTION));
    budgets.end();
    names.replace(&[], now).expect("an empty list is within the limits");
    names.forget(now + RETENTION);
    assert!(names.shown().is_empty() && names.due().is_none(), "a name is kept beyond the retention");
    named
}

/// Parses a line: a watch event, a list, or a time to wait (`wait SECONDS`).
fn event(line: &[u8]) -> Option<Event> {
    if let Some(seconds) = line.strip_prefix(b"wait ") {
        let seconds: u16 = std::str::from_utf8(seconds).ok()?.parse().ok()?;
        return Some(Event::Wait(Duration::from_secs(u64::from(seconds))));
    }
    if let Ok(list) = serde_json::from_slice::<List<Pod>>(line) {
        return Some(Event::List(list.items.kept));
    }
    match serde_json::from_slice::<WatchEvent<Pod>>(line) {
        Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => Some(Event::Put(pod)),
        Ok(WatchEvent::Deleted(pod)) => Some(Event::Remove(pod)),
        Ok(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) => None,
        Err(_) => serde_json::from_slice(line).ok().map(Event::Put),
    }
}

/// A pod reports only complete ids and names, each once, and nothing if the pod itself has no name.
fn assert_sound(pod: &Pod) {
    let named_ids = pod.containers();
    assert!(named_ids.windows(2).all(|pair| pair[0] != pair[1]), "{named_ids:?}");
    let Some((namespace, name)) = pod.key() else { return assert!(named_ids.is_empty(), "{named_ids:?}") };
    for (id, holder) in &named_ids {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        assert!((1..=256).contains(&id.len()) && id.bytes().all(plain), "{id:?}");
        let PodContainer { namespace: of, pod, container } = &**holder;
        assert_eq!((of, pod), (&namespace, &name));
        assert!([of, pod, container].iter().all(|name| (1..=253).contains(&name.len())), "{holder:?}");
    }
}

/// A brute-force model of the names: every claim ever made, and when it ended.
#[derive(Default)]
struct Model {
    present: HashMap<(String, String), Vec<ContainerName>>,
    claims: Vec<(ContainerName, Option<Instant>)>,
}

impl Model {
    fn replace(&mut self, pods: &[Pod], now: Instant) {
        let listed: Vec<_> = pods.iter().filter_map(Pod::key).collect();
        let gone: Vec<_> = self.present.keys().filter(|key| !listed.contains(key)).cloned().collect();
        for key in gone {
            self.set(key, Vec::new(), now);
        }
        pods.iter().for_each(|pod| self.put(pod, now));
    }

    fn put(&mut self, pod: &Pod, now: Instant) {
        if let Some(key) = pod.key() {
            self.set(key, pod.containers(), now);
        }
    }

    fn withdraw(&mut self, pod: &Pod, now: Instant) {
        if let Some(key) = pod.key() {
            self.set(key, Vec::new(), now);
        }
    }

    fn set(&mut self, key: (String, String), named_ids: Vec<ContainerName>, now: Instant) {
        let before = self.present.insert(key, named_ids.clone()).unwrap_or_default();
        for (named, gone) in &mut self.claims {
            if before.contains(named) && !named_ids.contains(named) {
                *gone = Some(now);
            }
        }
        for new in named_ids.into_iter().filter(|new| !before.contains(new)) {
            self.claims.retain(|(named, _)| *named != new);
            self.claims.push((new, None));
        }
    }

    fn forget(&mut self, now: Instant) {
        self.claims.retain(|(_, gone)| gone.is_none_or(|gone| gone + RETENTION > now));
    }

    fn shown(&self) -> HashMap<String, Arc<PodContainer>> {
        let sole =
            |((id, _), _): &&(ContainerName, _)| self.claims.iter().filter(|((other, _), _)| other == id).count() == 1;
        self.claims.iter().filter(sole).map(|((id, holder), _)| (id.to_string(), holder.clone())).collect()
    }
}
