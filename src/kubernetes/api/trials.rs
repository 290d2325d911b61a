//! What holds of the API server's answers whatever they say: a pod names what it names, and an id is shown under one name
//! or under none.

#![allow(clippy::panic, reason = "a trial panics where what must hold does not")]

mod made;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::core::{ObjectList, WatchEvent};

use super::names::{Names, RETENTION};
use super::pod::{Named, Pod};
use crate::snapshot::PodContainer;
use crate::trials::Pieces;

/// What becomes known of this node's pods, one after the other.
enum Event {
    List(Vec<Pod>),
    Put(Pod),
    Remove(Pod),
    /// Time goes by.
    Wait(Duration),
}

/// Follows pods. Bytes as they are hold one event a line: a list, or an event of a watch as the API server writes it. True
/// where a container got a name.
pub fn pods(data: &[u8]) -> bool {
    let made = Pieces::of(data).map(|mut pieces| made::lines(&mut pieces));
    let data = made.as_deref().unwrap_or(data);
    let (mut names, mut model, mut now) = (Names::default(), Model::default(), Instant::now());
    let mut named = false;
    for line in data.split(|byte| *byte == b'\n') {
        match event(line) {
            None => {}
            Some(Event::Wait(time)) => now += time,
            Some(Event::List(pods)) => {
                pods.iter().for_each(assert_sound);
                names.replace(&pods, now).expect("so few pods are not too many");
                model.replace(&pods, now);
            }
            Some(Event::Put(pod)) => {
                assert_sound(&pod);
                names.put(&pod, now).expect("so few pods are not too many");
                model.put(&pod, now);
            }
            Some(Event::Remove(pod)) => {
                assert_sound(&pod);
                names.remove(&pod, now).expect("so few pods are not too many");
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
    names.replace(&[], now).expect("nothing is not too much");
    names.forget(now + RETENTION);
    assert!(names.shown().is_empty() && names.due().is_none(), "what went is kept");
    named
}

/// A line of a watch, a list, or a time to wait: `wait SECONDS`.
fn event(line: &[u8]) -> Option<Event> {
    if let Some(seconds) = line.strip_prefix(b"wait ") {
        let seconds: u16 = std::str::from_utf8(seconds).ok()?.parse().ok()?;
        return Some(Event::Wait(Duration::from_secs(u64::from(seconds))));
    }
    if let Ok(list) = serde_json::from_slice::<ObjectList<Pod>>(line) {
        return Some(Event::List(list.items));
    }
    match serde_json::from_slice::<WatchEvent<Pod>>(line) {
        Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => Some(Event::Put(pod)),
        Ok(WatchEvent::Deleted(pod)) => Some(Event::Remove(pod)),
        Ok(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) => None,
        Err(_) => serde_json::from_slice(line).ok().map(Event::Put),
    }
}

/// A pod tells of whole ids and names only, each once, and of nothing without a name of its own.
fn assert_sound(pod: &Pod) {
    let told = pod.containers();
    assert!(told.windows(2).all(|pair| pair[0] != pair[1]), "{told:?}");
    let Some((namespace, name)) = pod.key() else { return assert!(told.is_empty(), "{told:?}") };
    for (id, holder) in &told {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        assert!((1..=256).contains(&id.len()) && id.bytes().all(plain), "{id:?}");
        let PodContainer { namespace: of, pod, container } = &**holder;
        assert_eq!((of.as_str(), pod.as_str()), (namespace, name));
        assert!([of, pod, container].iter().all(|name| (1..=253).contains(&name.len())), "{holder:?}");
    }
}

/// The same by brute force: everything that was ever claimed, and since when it is not any more.
#[derive(Default)]
struct Model {
    present: HashMap<(String, String), Vec<Named>>,
    claims: Vec<(Named, Option<Instant>)>,
}

impl Model {
    fn replace(&mut self, pods: &[Pod], now: Instant) {
        let listed: Vec<_> = pods.iter().filter_map(Pod::key).map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
        let gone: Vec<_> = self.present.keys().filter(|key| !listed.contains(key)).cloned().collect();
        for key in gone {
            self.set(key, Vec::new(), now);
        }
        pods.iter().for_each(|pod| self.put(pod, now));
    }

    fn put(&mut self, pod: &Pod, now: Instant) {
        if let Some((namespace, name)) = pod.key() {
            self.set((namespace.to_owned(), name.to_owned()), pod.containers(), now);
        }
    }

    fn withdraw(&mut self, pod: &Pod, now: Instant) {
        if let Some((namespace, name)) = pod.key() {
            self.set((namespace.to_owned(), name.to_owned()), Vec::new(), now);
        }
    }

    fn set(&mut self, key: (String, String), told: Vec<Named>, now: Instant) {
        let before = self.present.insert(key, told.clone()).unwrap_or_default();
        for (named, gone) in &mut self.claims {
            if before.contains(named) && !told.contains(named) {
                *gone = Some(now);
            }
        }
        for new in told.into_iter().filter(|new| !before.contains(new)) {
            self.claims.retain(|(named, _)| *named != new);
            self.claims.push((new, None));
        }
    }

    fn forget(&mut self, now: Instant) {
        self.claims.retain(|(_, gone)| gone.is_none_or(|gone| gone + RETENTION > now));
    }

    fn shown(&self) -> HashMap<String, Arc<PodContainer>> {
        let sole = |((id, _), _): &&(Named, _)| self.claims.iter().filter(|((other, _), _)| other == id).count() == 1;
        self.claims.iter().filter(sole).map(|((id, holder), _)| (id.to_string(), holder.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::trials::drive;

    #[test]
    fn an_id_is_shown_under_the_one_name_that_it_has() {
        let named = drive(env!("CARGO_MANIFEST_DIR"), "pods", 2_000, super::pods);
        assert!(named > 500, "{named} named a container");
    }
}
