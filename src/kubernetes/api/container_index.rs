//! Which container id has which names, and for how long after it went; and which pods have ended.
//!
//! Invariants: an id that two containers lay claim to is shown under neither. An id that went (its pod was deleted, its
//! container replaced, a list no longer holds it) stays for [`RETENTION`], because its process may still hold memory
//! and be looked up late. What is kept is bounded, whatever the server tells.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::snapshot::{EndedPods, PodContainer};

use super::error::Error;
use super::pod::{ContainerName, Pod};

/// How long an id stays after it went.
pub const RETENTION: Duration = Duration::from_secs(600);
/// Most ids of pods that exist. A node runs some hundred pods.
const PRESENT_LIMIT: usize = 16_384;
/// Most pods that are known to have ended, which a cluster keeps by the thousand. Those beyond count as the kubelet says.
const ENDED_LIMIT: usize = 16_384;
/// Most ids that are kept after they went; beyond it the oldest goes first.
const GONE_LIMIT: usize = 4_096;

/// The names of this node's containers.
#[derive(Debug, Default)]
pub struct ContainerIndex {
    /// What each pod tells now, by namespace and name.
    present: HashMap<(String, String), Vec<ContainerName>>,
    /// How many ids that is.
    present_ids: usize,
    /// Who lays claim to an id: one container, unless something is wrong.
    claims: HashMap<Arc<str>, Vec<Claim>>,
    /// What went, the oldest first. An entry whose claim was renewed has no effect.
    gone: VecDeque<(Instant, ContainerName)>,
    /// The pods that have ended and are not deleted yet.
    ended: HashSet<(String, String)>,
    /// Whether [`ContainerIndex::shown`] or [`ContainerIndex::ended`] is another than the last time.
    changed: bool,
}

#[derive(Debug)]
struct Claim {
    holder: Arc<PodContainer>,
    /// Since when the pod does not tell of it any more.
    gone: Option<Instant>,
}

impl ContainerIndex {
    /// Takes a complete list: what it does not hold is gone.
    pub fn replace(&mut self, pods: &[Pod], now: Instant) -> Result<(), Error> {
        let listed: HashSet<_> = pods.iter().filter_map(Pod::key).collect();
        let absent = |(namespace, name): &&(String, String)| !listed.contains(&(namespace.as_str(), name.as_str()));
        for key in self.present.keys().filter(absent).cloned().collect::<Vec<_>>() {
            self.withdraw(&key, now);
        }
        let before = self.ended.len();
        self.ended.retain(|(namespace, name)| listed.contains(&(namespace.as_str(), name.as_str())));
        self.changed |= self.ended.len() < before;
        pods.iter().try_for_each(|pod| self.put(pod, now))
    }

    /// Takes a pod as it is now. An error, and no change, where that would be more than can be.
    pub fn put(&mut self, pod: &Pod, now: Instant) -> Result<(), Error> {
        let Some((namespace, name)) = pod.key() else { return Ok(()) };
        let (key, told) = ((namespace.to_owned(), name.to_owned()), pod.containers());
        let before = self.present.get(&key).map_or(0, Vec::len);
        if self.present_ids - before + told.len() > PRESENT_LIMIT {
            return Err(Error::TooMany(PRESENT_LIMIT));
        }
        let before = self.present.remove(&key).unwrap_or_default();
        self.present_ids = self.present_ids - before.len() + told.len();
        for old in before.iter().filter(|old| !told.contains(old)) {
            self.let_go(old, now);
        }
        for new in told.iter().filter(|new| !before.contains(new)) {
            self.claim(new);
        }
        self.changed |= match pod.has_ended() {
            true => self.ended.len() < ENDED_LIMIT && self.ended.insert(key.clone()),
            false => self.ended.remove(&key),
        };
        if !told.is_empty() {
            self.present.insert(key, told);
        }
        Ok(())
    }

    /// Takes note that a pod was deleted. `last` is what it was in the end.
    pub fn remove(&mut self, last: &Pod, now: Instant) -> Result<(), Error> {
        let taken = self.put(last, now);
        if let Some((namespace, name)) = last.key() {
            let key = (namespace.to_owned(), name.to_owned());
            self.withdraw(&key, now);
            self.changed |= self.ended.remove(&key);
        }
        taken
    }

    /// Forgets what went long ago.
    pub fn forget(&mut self, now: Instant) {
        while self.due().is_some_and(|due| due <= now) {
            self.forget_oldest();
        }
    }

    /// When there is something to forget next; `None` while nothing is gone.
    pub fn due(&self) -> Option<Instant> {
        self.gone.front().map(|(since, _)| *since + RETENTION)
    }

    /// Whether there is something new to show since the last question.
    pub(super) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Every id that one container alone lays claim to.
    pub fn shown(&self) -> HashMap<String, Arc<PodContainer>> {
        let sole = |(id, claims): (&Arc<str>, &Vec<Claim>)| match claims.as_slice() {
            [claim] => Some((id.to_string(), claim.holder.clone())),
            _ => None,
        };
        self.claims.iter().filter_map(sole).collect()
    }

    /// The pods that have ended.
    pub(super) fn ended(&self) -> EndedPods {
        let mut ended = EndedPods::new();
        for (namespace, name) in &self.ended {
            ended.entry(namespace.clone()).or_default().insert(name.clone());
        }
        ended
    }

    fn withdraw(&mut self, key: &(String, String), now: Instant) {
        let told = self.present.remove(key).unwrap_or_default();
        self.present_ids -= told.len();
        for old in &told {
            self.let_go(old, now);
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

    fn let_go(&mut self, named: &ContainerName, now: Instant) {
        let claims = self.claims.get_mut(&named.0).into_iter().flatten();
        for claim in claims.filter(|claim| claim.holder == named.1) {
            claim.gone = Some(now);
        }
        self.gone.push_back((now, named.clone()));
        if self.gone.len() > GONE_LIMIT {
            self.forget_oldest();
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
        // What a crowd of pods once needed is given back.
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

    fn shown(names: &ContainerIndex) -> Vec<String> {
        let mut shown: Vec<_> =
            names.shown().iter().map(|(id, of)| format!("{id} {}/{}", of.pod, of.container)).collect();
        shown.sort();
        shown
    }

    #[test]
    fn a_replaced_container_stays_for_the_retention_and_no_longer() {
        let (mut names, begin) = (ContainerIndex::default(), Instant::now());
        names.put(&pod("a", &[("main", "1")]), begin).unwrap();
        let later = begin + Duration::from_secs(60);
        names.put(&pod("a", &[("main", "2")]), later).unwrap();
        assert_eq!(shown(&names), ["1 a/main", "2 a/main"]);
        assert_eq!(names.due(), Some(later + RETENTION));
        names.forget(later + RETENTION - Duration::from_millis(1));
        assert_eq!(shown(&names), ["1 a/main", "2 a/main"]);
        names.forget(later + RETENTION);
        assert_eq!(shown(&names), ["2 a/main"]);
        names.remove(&pod("a", &[("main", "2")]), later + RETENTION).unwrap();
        names.forget(later + RETENTION * 2);
        assert_eq!((shown(&names).len(), names.present_ids, names.due()), (0, 0, None));
    }

    #[test]
    fn what_comes_back_is_not_forgotten_by_its_first_going() {
        let (mut names, begin) = (ContainerIndex::default(), Instant::now());
        let the = pod("a", &[("main", "1")]);
        names.put(&the, begin).unwrap();
        names.replace(&[], begin).unwrap();
        names.replace(std::slice::from_ref(&the), begin + Duration::from_secs(1)).unwrap();
        names.forget(begin + RETENTION * 2);
        assert_eq!(shown(&names), ["1 a/main"]);
    }

    #[test]
    fn an_id_under_two_names_is_shown_under_neither() {
        let (mut names, begin) = (ContainerIndex::default(), Instant::now());
        names.put(&pod("a", &[("main", "1"), ("side", "2")]), begin).unwrap();
        names.put(&pod("b", &[("main", "1")]), begin).unwrap();
        assert_eq!(shown(&names), ["2 a/side"]);
        names.put(&pod("c", &[("x", "3"), ("y", "3")]), begin).unwrap();
        assert_eq!(shown(&names), ["2 a/side"], "two names within one pod");
        names.remove(&pod("b", &[("main", "1")]), begin).unwrap();
        assert_eq!(shown(&names), ["2 a/side"], "while it may still be meant");
        names.forget(begin + RETENTION);
        assert_eq!(shown(&names), ["1 a/main", "2 a/side"]);
    }

    #[test]
    fn a_pod_has_ended_from_its_terminal_phase_until_another_has_its_name() {
        let (mut names, now) = (ContainerIndex::default(), Instant::now());
        let in_phase = |name: &str, phase: &str| -> Pod {
            let metadata = json!({"namespace": "team", "name": name, "resourceVersion": "1"});
            serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).unwrap()
        };
        let ended = |names: &ContainerIndex| names.ended().remove("team").map_or(0, |pods| pods.len());
        names.put(&in_phase("a", "Running"), now).unwrap();
        assert!(!names.take_change() && ended(&names) == 0);
        names.put(&in_phase("a", "Failed"), now).unwrap();
        assert!(names.take_change() && names.ended()["team"].contains("a"));
        names.put(&in_phase("a", "Failed"), now).unwrap();
        assert!(!names.take_change());
        names.put(&in_phase("a", "Pending"), now).unwrap();
        assert!(names.take_change() && ended(&names) == 0);
        names.put(&in_phase("a", "Succeeded"), now).unwrap();
        names.remove(&in_phase("a", "Succeeded"), now).unwrap();
        assert!(names.take_change() && ended(&names) == 0);
        names.replace(&[in_phase("a", "Failed"), in_phase("b", "Failed")], now).unwrap();
        assert!(names.take_change() && ended(&names) == 2);
        names.replace(&[in_phase("b", "Failed")], now).unwrap();
        assert!(names.take_change() && ended(&names) == 1);
        for n in 0..ENDED_LIMIT + 9 {
            names.put(&in_phase(&format!("p{n}"), "Failed"), now).unwrap();
        }
        assert_eq!(ended(&names), ENDED_LIMIT);
    }

    #[test]
    fn a_status_that_tells_nothing_new_changes_nothing() {
        let (mut names, begin) = (ContainerIndex::default(), Instant::now());
        names.put(&pod("a", &[("main", "1")]), begin).unwrap();
        assert!(names.take_change());
        names.put(&pod("a", &[("main", "1")]), begin).unwrap();
        names.put(&pod("b", &[]), begin).unwrap();
        assert!(!names.take_change());
    }

    #[test]
    fn ten_thousand_pods_that_come_and_go_leave_nothing_behind() {
        let (mut names, begin) = (ContainerIndex::default(), Instant::now());
        let mut most = 0;
        for n in 0..10_000u32 {
            let now = begin + Duration::from_millis(360) * n;
            let the = pod(&format!("p{n}"), &[("main", &format!("{n:064x}"))]);
            names.put(&the, now).unwrap();
            names.remove(&the, now + Duration::from_secs(1)).unwrap();
            names.forget(now);
            most = most.max(names.claims.len());
        }
        assert_eq!(names.shown().len(), names.claims.len());
        // One each 360 ms, kept for 601 s.
        assert!((1_600..=1_700).contains(&most), "{most}");
        names.forget(begin + Duration::from_secs(3_600 + 2) + RETENTION);
        assert_eq!((names.claims.len(), names.gone.len(), names.present.len(), names.present_ids), (0, 0, 0, 0));
        assert!(names.claims.capacity() < 1_700);
    }

    #[test]
    fn a_crowd_in_one_moment_is_bounded_too() {
        let (mut names, now) = (ContainerIndex::default(), Instant::now());
        for n in 0..10_000 {
            let the = pod(&format!("p{n}"), &[("main", &format!("{n:064x}"))]);
            names.put(&the, now).unwrap();
            names.remove(&the, now).unwrap();
        }
        assert_eq!((names.claims.len(), names.gone.len()), (GONE_LIMIT, GONE_LIMIT));
        assert!(names.shown().contains_key(&format!("{:064x}", 9_999)), "the youngest are kept");
        let refused =
            (0..20_000).find_map(|n| names.put(&pod(&format!("q{n}"), &[("m", &format!("q{n}"))]), now).err());
        assert!(matches!(refused, Some(Error::TooMany(_))));
        assert_eq!(names.present_ids, PRESENT_LIMIT);
    }
}
