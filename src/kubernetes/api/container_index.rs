//! The names of present and recent container ids, and the pods that have ended.
//!
//! Invariants: an id that two containers claim is shown under neither name. An id that is gone (its pod was deleted,
//! its container was replaced, or a list no longer contains it) is kept for [`RETENTION`], because its process may
//! still hold memory and be looked up late. A pod that has ended is kept as long after its deletion, because the kubelet's
//! last list may still contain it. What is kept is bounded, whatever the server sends.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::snapshot::{EndedPods, PodContainer};

use super::error::Error;
use super::pod::{ContainerName, Pod, PodKey};

/// How long an id is kept after its pod has stopped reporting it, and a pod that has ended after its deletion.
pub const RETENTION: Duration = Duration::from_secs(600);
/// The maximum number of ids of existing pods. A node runs a few hundred pods.
const PRESENT_LIMIT: usize = 16_384;
/// The maximum number of pods that have ended. A cluster keeps thousands of them. Beyond the limit, only the kubelet
/// determines what a pod still holds.
const ENDED_LIMIT: usize = 16_384;
/// The maximum number of ids that are kept although no pod reports them any more, and of deleted pods; the oldest are dropped
/// first.
const GONE_LIMIT: usize = 4_096;

/// The names of this node's containers, by id.
#[derive(Debug, Default)]
pub struct ContainerIndex {
    /// The containers that each pod reports now, by namespace and name.
    present: HashMap<PodKey, Vec<ContainerName>>,
    /// The number of ids in `present`.
    present_ids: usize,
    /// The containers that claim an id: one, unless something is wrong.
    claims: HashMap<Arc<str>, Vec<Claim>>,
    /// The containers that are gone, the oldest first. An entry has no effect if its claim was renewed.
    gone: VecDeque<(Instant, ContainerName)>,
    /// The pods that have ended, and when they were deleted; `None` if they have not been deleted yet.
    ended: HashMap<PodKey, Option<Instant>>,
    /// The pods that have ended and were deleted, the oldest first. An entry has no effect if another pod has the name.
    deleted: VecDeque<(Instant, PodKey)>,
    /// Whether [`ContainerIndex::shown`] or [`ContainerIndex::ended`] has changed since the last
    /// [`ContainerIndex::take_change`].
    changed: bool,
}

#[derive(Debug)]
struct Claim {
    holder: Arc<PodContainer>,
    /// When the pod stopped reporting the id; `None` while the pod still reports it.
    gone: Option<Instant>,
}

impl ContainerIndex {
    /// Applies a complete list: a pod that is not in it is gone. If the list exceeds the limit, returns an error and changes
    /// nothing.
    pub fn replace(&mut self, pods: &[Pod], now: Instant) -> Result<(), Error> {
        if pods.iter().map(|pod| pod.containers().len()).sum::<usize>() > PRESENT_LIMIT {
            return Err(Error::TooMany(PRESENT_LIMIT));
        }
        let listed: HashSet<_> = pods.iter().filter_map(Pod::key).collect();
        let gone: Vec<_> = self.present.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        gone.iter().for_each(|key| self.withdraw(key, now));
        let deleted: Vec<_> = self.ended.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        deleted.into_iter().for_each(|key| self.delete_ended(key, now));
        pods.iter().try_for_each(|pod| self.put(pod, now))
    }

    /// Records the present state of a pod. If that would exceed the limit, returns an error and changes nothing.
    pub fn put(&mut self, pod: &Pod, now: Instant) -> Result<(), Error> {
        let Some(key) = pod.key() else { return Ok(()) };
        let reported = pod.containers();
        let before = self.present.get(&key).map_or(0, Vec::len);
        if self.present_ids - before + reported.len() > PRESENT_LIMIT {
            return Err(Error::TooMany(PRESENT_LIMIT));
        }
        let before = self.present.remove(&key).unwrap_or_default();
        self.present_ids = self.present_ids - before.len() + reported.len();
        for old in before.iter().filter(|old| !reported.contains(old)) {
            self.release(old, now);
        }
        for new in reported.iter().filter(|new| !before.contains(new)) {
            self.claim(new);
        }
        if !pod.has_ended() {
            self.changed |= self.ended.remove(&key).is_some();
        } else if let Some(deleted) = self.ended.get_mut(&key) {
            *deleted = None;
        } else if self.ended.len() < ENDED_LIMIT {
            self.ended.insert(key.clone(), None);
            self.changed = true;
        }
        if !reported.is_empty() {
            self.present.insert(key, reported);
        }
        Ok(())
    }

    /// Records the deletion of a pod. `last` is its final state.
    pub fn remove(&mut self, last: &Pod, now: Instant) -> Result<(), Error> {
        let taken = self.put(last, now);
        if let Some(key) = last.key() {
            self.withdraw(&key, now);
            self.delete_ended(key, now);
        }
        taken
    }

    /// Drops the ids that have been gone and the pods that have been deleted for [`RETENTION`].
    pub fn forget(&mut self, now: Instant) {
        let is_due = |since: Option<Instant>| since.is_some_and(|since| since + RETENTION <= now);
        while is_due(self.oldest_gone()) {
            self.forget_oldest();
        }
        while is_due(self.oldest_deleted()) {
            self.forget_deleted();
        }
    }

    /// When [`ContainerIndex::forget`] is due next; `None` while nothing is gone.
    pub fn due(&self) -> Option<Instant> {
        let oldest = self.oldest_gone().into_iter().chain(self.oldest_deleted()).min();
        oldest.map(|since| since + RETENTION)
    }

    fn oldest_gone(&self) -> Option<Instant> {
        self.gone.front().map(|(since, _)| *since)
    }

    fn oldest_deleted(&self) -> Option<Instant> {
        self.deleted.front().map(|(since, _)| *since)
    }

    /// Whether anything to be shown has changed since the last call.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Every id that exactly one container claims.
    pub fn shown(&self) -> HashMap<String, Arc<PodContainer>> {
        let sole = |(id, claims): (&Arc<str>, &Vec<Claim>)| match claims.as_slice() {
            [claim] => Some((id.to_string(), claim.holder.clone())),
            _ => None,
        };
        self.claims.iter().filter_map(sole).collect()
    }

    /// The pods that have ended.
    pub fn ended(&self) -> EndedPods {
        let mut ended = EndedPods::new();
        for (namespace, name) in self.ended.keys() {
            ended.entry(namespace.clone()).or_default().insert(name.clone());
        }
        ended
    }

    fn withdraw(&mut self, key: &PodKey, now: Instant) {
        let reported = self.present.remove(key).unwrap_or_default();
        self.present_ids -= reported.len();
        for old in &reported {
            self.release(old, now);
        }
    }

    fn claim(&mut self, (id, holder): &ContainerName) {
        let claims = self.claims.entry(id.clone()).or_default();
        if let Some(claim) = claims.iter_mut().find(|claim| claim.holder == *holder) {
            claim.gone = None;
        } else {
            claims.push(Claim { holder: holder.clone(), gone: None });
            self.changed = true;
        }
    }

    fn release(&mut self, named: &ContainerName, now: Instant) {
        let claims = self.claims.get_mut(&named.0).into_iter().flatten();
        for claim in claims.filter(|claim| claim.holder == named.1) {
            claim.gone = Some(now);
        }
        self.gone.push_back((now, named.clone()));
        if self.gone.len() > GONE_LIMIT {
            self.forget_oldest();
        }
    }

    /// Records the deletion of a pod, if it has ended.
    fn delete_ended(&mut self, key: PodKey, now: Instant) {
        // The time of the first of several reports counts.
        let Some(deleted @ None) = self.ended.get_mut(&key) else { return };
        *deleted = Some(now);
        self.deleted.push_back((now, key));
        if self.deleted.len() > GONE_LIMIT {
            self.forget_deleted();
        }
    }

    fn forget_deleted(&mut self) {
        let Some((since, key)) = self.deleted.pop_front() else { return };
        if self.ended.get(&key) == Some(&Some(since)) {
            self.ended.remove(&key);
            self.changed = true;
        }
    }

    fn forget_oldest(&mut self) {
        let Some((since, (id, holder))) = self.gone.pop_front() else { return };
        let Some(claims) = self.claims.get_mut(&id) else { return };
        let before = claims.len();
        claims.retain(|claim| claim.holder != holder || claim.gone != Some(since));
        self.changed |= claims.len() < before;
        if claims.is_empty() {
            self.claims.remove(&id);
        }
        // Memory that was once needed for many pods is released.
        if self.claims.capacity() > 1024 && self.claims.len() < self.claims.capacity() / 4 {
            self.claims.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, containers: &[(&str, &str)]) -> Pod {
        let status =
            |(container, id): &(&str, &str)| json!({"name": container, "containerID": format!("containerd://{id}")});
        let statuses: Vec<Value> = containers.iter().map(status).collect();
        let metadata = json!({"namespace": "team", "name": name, "resourceVersion": "1"});
        serde_json::from_value(json!({"metadata": metadata, "status": {"containerStatuses": statuses}})).unwrap()
    }

    fn shown(index: &ContainerIndex) -> Vec<String> {
        let mut shown: Vec<_> =
            index.shown().iter().map(|(id, of)| format!("{id} {}/{}", of.pod, of.container)).collect();
        shown.sort();
        shown
    }

    #[test]
    fn a_replaced_container_stays_for_the_retention_and_no_longer() {
        let (mut index, begin) = (ContainerIndex::default(), Instant::now());
        index.put(&pod("a", &[("main", "1")]), begin).unwrap();
        let later = begin + Duration::from_secs(60);
        index.put(&pod("a", &[("main", "2")]), later).unwrap();
        assert_eq!(shown(&index), ["1 a/main", "2 a/main"]);
        assert_eq!(index.due(), Some(later + RETENTION));
        index.forget(later + RETENTION - Duration::from_millis(1));
        assert_eq!(shown(&index), ["1 a/main", "2 a/main"]);
        index.forget(later + RETENTION);
        assert_eq!(shown(&index), ["2 a/main"]);
        index.remove(&pod("a", &[("main", "2")]), later + RETENTION).unwrap();
        index.forget(later + RETENTION * 2);
        assert_eq!((shown(&index).len(), index.present_ids, index.due()), (0, 0, None));
    }

    #[test]
    fn an_id_that_comes_back_is_not_forgotten() {
        let (mut index, begin) = (ContainerIndex::default(), Instant::now());
        let the = pod("a", &[("main", "1")]);
        index.put(&the, begin).unwrap();
        index.replace(&[], begin).unwrap();
        index.replace(std::slice::from_ref(&the), begin + Duration::from_secs(1)).unwrap();
        index.forget(begin + RETENTION * 2);
        assert_eq!(shown(&index), ["1 a/main"]);
    }

    #[test]
    fn an_id_under_two_names_is_shown_under_neither() {
        let (mut index, begin) = (ContainerIndex::default(), Instant::now());
        index.put(&pod("a", &[("main", "1"), ("side", "2")]), begin).unwrap();
        index.put(&pod("b", &[("main", "1")]), begin).unwrap();
        assert_eq!(shown(&index), ["2 a/side"]);
        index.put(&pod("c", &[("x", "3"), ("y", "3")]), begin).unwrap();
        assert_eq!(shown(&index), ["2 a/side"], "two names within one pod");
        index.remove(&pod("b", &[("main", "1")]), begin).unwrap();
        assert_eq!(shown(&index), ["2 a/side"], "while the claim of the removed pod is kept");
        index.forget(begin + RETENTION);
        assert_eq!(shown(&index), ["1 a/main", "2 a/side"]);
    }

    #[test]
    fn a_pod_has_ended_from_its_terminal_phase_until_long_after_its_deletion_or_until_another_has_its_name() {
        let (mut index, now) = (ContainerIndex::default(), Instant::now());
        let in_phase = |name: &str, phase: &str| -> Pod {
            let metadata = json!({"namespace": "team", "name": name, "resourceVersion": "1"});
            serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).unwrap()
        };
        let ended = |index: &ContainerIndex| index.ended().remove("team").map_or(0, |pods| pods.len());
        index.put(&in_phase("a", "Running"), now).unwrap();
        assert!(!index.take_change() && ended(&index) == 0);
        index.put(&in_phase("a", "Failed"), now).unwrap();
        assert!(index.take_change() && index.ended()["team"].contains("a"));
        index.put(&in_phase("a", "Failed"), now).unwrap();
        assert!(!index.take_change());
        index.put(&in_phase("a", "Pending"), now).unwrap();
        assert!(index.take_change() && ended(&index) == 0);
        index.put(&in_phase("a", "Succeeded"), now).unwrap();
        assert!(index.take_change());
        index.remove(&in_phase("a", "Succeeded"), now).unwrap();
        assert!(!index.take_change() && ended(&index) == 1, "the kubelet's last list may still contain it");
        index.put(&in_phase("a", "Pending"), now).unwrap();
        assert!(index.take_change() && ended(&index) == 0);
        index.remove(&in_phase("a", "Failed"), now).unwrap();
        assert!(index.take_change() && ended(&index) == 1, "its last state is that of its deletion");
        index.replace(&[in_phase("a", "Failed"), in_phase("b", "Failed")], now).unwrap();
        assert!(index.take_change() && ended(&index) == 2);
        let later = now + Duration::from_secs(1);
        index.replace(&[in_phase("b", "Failed")], later).unwrap();
        index.replace(&[in_phase("b", "Failed")], later + Duration::from_secs(1)).unwrap();
        index.forget(now + RETENTION);
        assert!(!index.take_change() && ended(&index) == 2, "the pod of the first deletion is not this one");
        assert_eq!(index.due(), Some(later + RETENTION));
        index.forget(later + RETENTION);
        assert!(index.take_change() && ended(&index) == 1 && index.due().is_none());
        for n in 0..ENDED_LIMIT + 9 {
            index.put(&in_phase(&format!("p{n}"), "Failed"), now).unwrap();
        }
        assert_eq!(ended(&index), ENDED_LIMIT);
        index.replace(&[], later).unwrap();
        assert_eq!((ended(&index), index.deleted.len()), (GONE_LIMIT, GONE_LIMIT));
    }

    #[test]
    fn a_status_without_news_changes_nothing() {
        let (mut index, begin) = (ContainerIndex::default(), Instant::now());
        index.put(&pod("a", &[("main", "1")]), begin).unwrap();
        assert!(index.take_change());
        index.put(&pod("a", &[("main", "1")]), begin).unwrap();
        index.put(&pod("b", &[]), begin).unwrap();
        assert!(!index.take_change());
    }

    #[test]
    fn ten_thousand_pods_that_come_and_go_leave_nothing_behind() {
        let (mut index, begin) = (ContainerIndex::default(), Instant::now());
        let mut most = 0;
        for n in 0..10_000u32 {
            let now = begin + Duration::from_millis(360) * n;
            let the = pod(&format!("p{n}"), &[("main", &format!("{n:064x}"))]);
            index.put(&the, now).unwrap();
            index.remove(&the, now + Duration::from_secs(1)).unwrap();
            index.forget(now);
            most = most.max(index.claims.len());
        }
        assert_eq!(index.shown().len(), index.claims.len());
        // One every 360 ms, kept for 601 s.
        assert!((1_600..=1_700).contains(&most), "{most}");
        index.forget(begin + Duration::from_secs(3_600 + 2) + RETENTION);
        assert_eq!((index.claims.len(), index.gone.len(), index.present.len(), index.present_ids), (0, 0, 0, 0));
        assert!(index.claims.capacity() < 1_700);
    }

    #[test]
    fn ten_thousand_pods_at_once_are_bounded_too() {
        let (mut index, now) = (ContainerIndex::default(), Instant::now());
        for n in 0..10_000 {
            let the = pod(&format!("p{n}"), &[("main", &format!("{n:064x}"))]);
            index.put(&the, now).unwrap();
            index.remove(&the, now).unwrap();
        }
        assert_eq!((index.claims.len(), index.gone.len()), (GONE_LIMIT, GONE_LIMIT));
        assert!(index.shown().contains_key(&format!("{:064x}", 9_999)), "the youngest are kept");
        let refused =
            (0..20_000).find_map(|n| index.put(&pod(&format!("q{n}"), &[("m", &format!("q{n}"))]), now).err());
        assert!(matches!(refused, Some(Error::TooMany(_))));
        assert_eq!(index.present_ids, PRESENT_LIMIT);
        let before = index.shown();
        let list: Vec<_> = (0..=PRESENT_LIMIT).map(|n| pod(&format!("r{n}"), &[("m", &format!("r{n}"))])).collect();
        assert!(matches!(index.replace(&list, now), Err(Error::TooMany(PRESENT_LIMIT))));
        let after = index.shown();
        assert!(after.len() == before.len() && before.keys().all(|id| after.contains_key(id)), "nothing has changed");
    }
}
