//! The workloads of one GPU over time: the sums over their processes, and the highest of these sums.
//!
//! Invariants: a peak is the peak of a sum of one moment, never a sum of peaks; a workload outlives its processes, so
//! that a process that is started again goes on with it; a workload whose name came late keeps what it had before.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Settings;
use super::list_cache::ListEntry;
use super::table::WorkloadMember;
use crate::lanes::peaks::Record;
use crate::snapshot::{MigDevice, Other, Workload, WorkloadUse};

/// GPU instance and compute instance under MIG.
type Instance = Option<(u32, u32)>;

/// The workloads of a GPU, living ones and those that linger.
#[derive(Debug)]
pub(crate) struct Workloads {
    entries: Vec<WorkloadEntry>,
    peak_window: Duration,
    stay: Duration,
    limit: usize,
}

/// One workload on the GPU (or on one of its MIG devices).
#[derive(Debug)]
struct WorkloadEntry {
    workload: Arc<Workload>,
    instance: Instance,
    mig: Option<Arc<MigDevice>>,
    sum: Sum,
    record: Record,
    /// When its last process ended.
    ended: Option<Instant>,
}

/// The processes of a workload at one moment.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    processes: u64,
    /// Bytes; `None` while one of them is unknown.
    used: Option<u64>,
}

impl Sum {
    fn add(&mut self, used: Option<u64>) {
        let before = if self.processes == 0 { Some(0) } else { self.used };
        self.used = before.zip(used).map(|(sum, bytes)| sum.saturating_add(bytes));
        self.processes += 1;
    }
}

impl Workloads {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            entries: Vec::new(),
            peak_window: settings.peak_window,
            stay: settings.peak_window + settings.linger,
            limit: settings.series_limit,
        }
    }

    /// Folds the processes as they were listed at `now`, and what earlier lists of the same pass said of them and of
    /// those that have ended since.
    pub(super) fn fold(&mut self, members: &[WorkloadMember<'_>], earlier: &[Vec<ListEntry>], now: Instant) {
        self.rename(members);
        let mut sums: HashMap<(Arc<Workload>, Instance), (Sum, &WorkloadMember<'_>)> = HashMap::new();
        for member in members.iter().filter(|member| member.alive) {
            let entry = sums.entry((member.workload.clone(), member.instance)).or_insert((Sum::default(), member));
            entry.0.add(member.used);
            // They share a device, and of one that came while the layout was unknown it is not known which.
            if entry.1.mig.is_none() {
                entry.1 = member;
            }
        }
        sums.values().for_each(|(_, member)| self.place(member));
        for entry in &mut self.entries {
            let key = (entry.workload.clone(), entry.instance);
            let own = sums.get(&key).is_some_and(|(_, member)| entry.goes_on_with(member));
            match own.then(|| sums.remove(&key)).flatten() {
                Some((sum, member)) => entry.see(sum, member, now),
                None => entry.end(now),
            }
        }
        let mut came: Vec<_> = sums.into_values().collect();
        came.sort_unstable_by_key(|(_, member)| (member.pid, member.instance));
        for (sum, member) in came {
            let mut entry = WorkloadEntry::new(member, self.peak_window);
            entry.see(sum, member, now);
            self.entries.push(entry);
        }
        earlier.iter().for_each(|list| self.recall(members, list, now));
        let stay = self.stay;
        self.entries.retain(|entry| entry.ended.is_none_or(|at| now.saturating_duration_since(at) <= stay));
        self.make_room();
    }

    /// The sums of an earlier list of the same pass: they are over, but they were.
    fn recall(&mut self, members: &[WorkloadMember<'_>], list: &[ListEntry], now: Instant) {
        let whose: HashMap<_, _> = members.iter().map(|member| ((member.pid, member.instance), member)).collect();
        let mut sums: HashMap<(&Workload, Instance), (Sum, &WorkloadMember<'_>)> = HashMap::new();
        for entry in list {
            if let Some(&member) = whose.get(&entry.slot()) {
                let key = (&**member.workload, member.instance);
                sums.entry(key).or_insert((Sum::default(), member)).0.add(entry.used);
            }
        }
        for (sum, member) in sums.into_values() {
            let position = self.position(member);
            let entry = match position {
                Some(position) => &mut self.entries[position],
                // It came and went within one pass.
                None => {
                    self.entries.push(WorkloadEntry::new(member, self.peak_window));
                    self.entries.last_mut().expect("just pushed")
                }
            };
            entry.record.see(sum.used, now);
            if entry.sum.processes == 0 {
                entry.end(now);
            }
        }
    }

    /// Where the processes of a workload bear another name than at the list before (the pod's name came, or the
    /// user's), the workload is the same and goes on under the new name.
    fn rename(&mut self, members: &[WorkloadMember<'_>]) {
        let alive = members.iter().filter(|member| member.alive);
        let living: HashSet<_> = alive.clone().map(|member| (&**member.workload, member.instance)).collect();
        for member in alive {
            let Some(before) = member.before.filter(|before| *before != member.workload) else { continue };
            if living.contains(&(&**before, member.instance)) {
                continue;
            }
            let Some(old) = self.position(&WorkloadMember { workload: before, ..*member }) else { continue };
            match self.position(member) {
                None => self.entries[old].workload = member.workload.clone(),
                Some(new) => {
                    // The sum was at least as high as a part of it.
                    let gone = self.entries[old].record.clone();
                    self.entries[new].record.absorb(&gone);
                    self.entries.swap_remove(old);
                }
            }
        }
    }

    /// Where a workload came to a device while the layout was unknown, and the device proves to be one that it was on before,
    /// both are one.
    fn place(&mut self, member: &WorkloadMember<'_>) {
        let Some(device) = member.mig else { return };
        let of_member = |entry: &WorkloadEntry| entry.workload == *member.workload && entry.instance == member.instance;
        let mut entries = self.entries.iter();
        let unplaced = entries.position(|a| of_member(a) && a.mig.is_none() && a.ended.is_none());
        let placed = |a: &WorkloadEntry| of_member(a) && a.mig.as_ref().is_some_and(|own| own.uuid == device.uuid);
        if let Some((unplaced, placed)) = unplaced.zip(self.entries.iter().position(placed)) {
            let gone = self.entries[unplaced].record.clone();
            self.entries[placed].record.absorb(&gone);
            self.entries.swap_remove(unplaced);
        }
    }

    fn position(&self, member: &WorkloadMember<'_>) -> Option<usize> {
        self.entries.iter().position(|entry| {
            entry.workload == *member.workload && entry.instance == member.instance && entry.goes_on_with(member)
        })
    }

    /// Forgets the earliest ended beyond the cap, so that workloads that come and go stay bounded.
    fn make_room(&mut self) {
        let ended = self.entries.iter().filter(|entry| entry.ended.is_some()).count();
        if ended > self.limit {
            let mut times: Vec<Instant> = self.entries.iter().filter_map(|entry| entry.ended).collect();
            times.sort_unstable();
            let mut surplus = ended - self.limit;
            let latest = times[surplus - 1];
            self.entries.retain(|entry| {
                let goes = surplus > 0 && entry.ended.is_some_and(|at| at <= latest);
                surplus -= usize::from(goes);
                !goes
            });
        }
    }

    /// The driver's own maximum of one process: its workload held at least as much.
    pub(super) fn raise(&mut self, member: &WorkloadMember<'_>, peak: u64) {
        if let Some(position) = self.position(member) {
            self.entries[position].record.raise(peak);
        }
    }

    /// What is published: the largest, at most as many as the cap says, and what the others hold together.
    pub(super) fn show(&mut self, now: Instant) -> (Vec<WorkloadUse>, Option<Other>) {
        self.entries.sort_by_key(|entry| {
            let size = entry.sum.used.unwrap_or_else(|| entry.record.peak().unwrap_or(0));
            Reverse((entry.ended.is_none(), size, entry.ended))
        });
        let shown = self.entries.len().min(self.limit);
        let others = &self.entries[shown..];
        let other = (!others.is_empty()).then(|| Other {
            entries: others.len() as u64,
            processes: others.iter().map(|entry| entry.sum.processes).sum(),
            used: others.iter().filter_map(|entry| entry.sum.used).reduce(u64::saturating_add),
        });
        (self.entries[..shown].iter_mut().map(|entry| entry.show(now)).collect(), other)
    }
}

impl WorkloadEntry {
    fn new(member: &WorkloadMember<'_>, peak_window: Duration) -> Self {
        Self {
            workload: member.workload.clone(),
            instance: member.instance,
            mig: member.mig.cloned(),
            sum: Sum::default(),
            record: Record::new(peak_window),
            ended: None,
        }
    }

    /// Whether it is about the member's MIG device. The ids of a GPU instance are given again when a GPU is cut once more: a
    /// device that is not known is not taken for the one that had its ids.
    fn goes_on_with(&self, member: &WorkloadMember<'_>) -> bool {
        match (&self.mig, member.mig) {
            (Some(own), Some(other)) => own.uuid == other.uuid,
            (Some(_), None) => false,
            (None, Some(_)) => self.ended.is_none(),
            (None, None) => true,
        }
    }

    fn see(&mut self, sum: Sum, member: &WorkloadMember<'_>, now: Instant) {
        self.workload.clone_from(member.workload);
        // The layout may be read after the process came.
        self.mig = member.mig.cloned().or(self.mig.take());
        self.sum = sum;
        self.ended = None;
        self.record.see(sum.used, now);
    }

    fn end(&mut self, now: Instant) {
        if self.ended.is_none() {
            self.ended = Some(now);
            self.sum = Sum::default();
            self.record.end(now);
        }
    }

    fn show(&mut self, now: Instant) -> WorkloadUse {
        WorkloadUse {
            workload: self.workload.clone(),
            mig: self.mig.clone(),
            processes: self.sum.processes,
            used: self.sum.used,
            window_peak: self.record.window_peak(now, self.ended.is_some()),
            peak: self.record.peak(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{PodContainer, ProcessKind, WorkloadKind};

    const MIB: u64 = 1 << 20;
    const WINDOW: Duration = Duration::from_secs(60);
    const LINGER: Duration = Duration::from_secs(300);

    fn workloads(limit: usize) -> Workloads {
        Workloads { entries: Vec::new(), peak_window: WINDOW, stay: WINDOW + LINGER, limit }
    }

    fn unit(name: &str) -> Arc<Workload> {
        Arc::new(Workload { name: format!("unit:{name}"), kind: WorkloadKind::Systemd, pod: None })
    }

    fn of(workload: &Arc<Workload>, pid: u32, used: impl Into<Option<u64>>) -> WorkloadMember<'_> {
        WorkloadMember {
            pid,
            instance: None,
            mig: None,
            workload,
            before: Some(workload),
            alive: true,
            used: used.into(),
        }
    }

    fn listed(pid: u32, used: u64) -> ListEntry {
        ListEntry { pid, kind: ProcessKind::Compute, used: Some(used), instance: None }
    }

    fn only(workloads: &mut Workloads, now: Instant) -> WorkloadUse {
        let (mut shown, other) = workloads.show(now);
        assert_eq!((shown.len(), other), (1, None));
        shown.remove(0)
    }

    #[test]
    fn the_peak_is_the_peak_of_the_sum_and_not_the_sum_of_the_peaks() {
        let (start, job, mut workloads) = (Instant::now(), unit("job"), workloads(9));
        workloads.fold(&[of(&job, 1, 900 * MIB), of(&job, 2, 100 * MIB)], &[], start);
        workloads.fold(&[of(&job, 1, 100 * MIB), of(&job, 2, 700 * MIB)], &[], start);
        let shown = only(&mut workloads, start);
        assert_eq!((shown.processes, shown.used), (2, Some(800 * MIB)));
        assert_eq!((shown.window_peak, shown.peak), (Some(1000 * MIB), Some(1000 * MIB)));
    }

    #[test]
    fn memory_that_moved_from_one_process_to_another_between_two_lists_is_not_counted_twice() {
        let (start, job, mut workloads) = (Instant::now(), unit("job"), workloads(9));
        let earlier = [vec![listed(1, 900 * MIB), listed(2, 0)], vec![listed(1, 500 * MIB), listed(2, 600 * MIB)]];
        workloads.fold(&[of(&job, 1, 0), of(&job, 2, 900 * MIB)], &earlier, start);
        let shown = only(&mut workloads, start);
        assert_eq!((shown.used, shown.peak), (Some(900 * MIB), Some(1100 * MIB)));
    }

    #[test]
    fn a_restarted_process_goes_on_with_its_workload() {
        let (start, job, mut workloads) = (Instant::now(), unit("job"), workloads(9));
        workloads.fold(&[of(&job, 1, 900 * MIB)], &[], start);
        workloads.fold(&[], &[], start + WINDOW);
        let between = only(&mut workloads, start + WINDOW);
        assert_eq!((between.processes, between.used, between.peak), (0, None, Some(900 * MIB)));
        workloads.fold(&[of(&job, 2, 5 * MIB)], &[], start + 2 * WINDOW);
        let again = only(&mut workloads, start + 2 * WINDOW);
        assert_eq!((again.processes, again.used, again.peak), (1, Some(5 * MIB), Some(900 * MIB)));
        workloads.fold(&[], &[], start + 3 * WINDOW);
        workloads.fold(&[], &[], start + 4 * WINDOW + LINGER);
        assert_eq!(only(&mut workloads, start + 4 * WINDOW + LINGER).window_peak, Some(0));
        workloads.fold(&[], &[], start + 5 * WINDOW + LINGER);
        assert!(workloads.show(start).0.is_empty());
    }

    #[test]
    fn an_unknown_member_makes_the_sum_unknown_and_not_smaller() {
        let (start, job, mut workloads) = (Instant::now(), unit("job"), workloads(9));
        workloads.fold(&[of(&job, 1, 900 * MIB), of(&job, 2, None)], &[], start);
        let shown = only(&mut workloads, start);
        assert_eq!((shown.processes, shown.used, shown.window_peak, shown.peak), (2, None, None, None));
    }

    #[test]
    fn a_name_that_comes_late_keeps_what_was_seen_before_it() {
        let (start, mut workloads) = (Instant::now(), workloads(9));
        let container = Arc::new(Workload { name: "container:3b1f".into(), kind: WorkloadKind::Container, pod: None });
        let pod = PodContainer { namespace: "team-b".into(), pod: "nb".into(), container: "main".into() };
        let named =
            Arc::new(Workload { name: "team-b/nb/main".into(), kind: WorkloadKind::Kubernetes, pod: Some(pod.into()) });
        workloads.fold(&[of(&container, 1, 900 * MIB)], &[], start);
        let late = |pid, used| WorkloadMember { before: Some(&container), ..of(&named, pid, Some(used)) };
        workloads.fold(&[late(1, 5 * MIB)], &[], start);
        let shown = only(&mut workloads, start);
        assert_eq!((shown.workload.name.as_str(), shown.peak), ("team-b/nb/main", Some(900 * MIB)));
        // A new container of the same pod, seen before the cluster told its name.
        workloads.fold(&[of(&container, 2, 950 * MIB)], &[], start);
        assert_eq!(workloads.entries.len(), 2);
        workloads.fold(&[late(2, 5 * MIB)], &[], start);
        let shown = only(&mut workloads, start);
        assert_eq!((shown.processes, shown.peak, shown.window_peak), (1, Some(950 * MIB), Some(950 * MIB)));
    }

    #[test]
    fn a_process_that_changes_its_place_alone_takes_no_peak_along() {
        let (start, old, new, mut workloads) = (Instant::now(), unit("old"), unit("new"), workloads(9));
        workloads.fold(&[of(&old, 1, 900 * MIB), of(&old, 2, MIB)], &[], start);
        let moved = WorkloadMember { before: Some(&old), ..of(&new, 2, MIB) };
        workloads.fold(&[of(&old, 1, 900 * MIB), moved], &[], start);
        let (shown, _) = workloads.show(start);
        let peak = |name: &str| shown.iter().find(|shown| shown.workload.name == name).unwrap().peak;
        assert_eq!((peak("unit:old"), peak("unit:new")), (Some(901 * MIB), Some(MIB)));
    }

    #[test]
    fn a_spike_that_killed_its_process_within_one_pass_is_the_workloads_too() {
        let (start, job, mut workloads) = (Instant::now(), unit("job"), workloads(9));
        workloads.fold(&[of(&job, 1, 100 * MIB), of(&job, 2, 5 * MIB)], &[], start);
        let died = WorkloadMember { alive: false, used: None, ..of(&job, 1, 0) };
        let earlier = [vec![listed(1, 900 * MIB), listed(2, 5 * MIB)]];
        workloads.fold(&[died, of(&job, 2, 5 * MIB)], &earlier, start);
        let shown = only(&mut workloads, start);
        assert_eq!((shown.processes, shown.used, shown.peak), (1, Some(5 * MIB), Some(905 * MIB)));
        let died = WorkloadMember { alive: false, used: None, ..of(&job, 2, 0) };
        workloads.fold(&[died], &[vec![listed(2, 950 * MIB)]], start);
        let shown = only(&mut workloads, start);
        assert_eq!((shown.processes, shown.used, shown.peak), (0, None, Some(950 * MIB)));
    }

    #[test]
    fn a_late_name_does_not_make_a_peak_younger() {
        let (start, mut workloads) = (Instant::now(), workloads(9));
        let (container, named) = (unit("c"), unit("n"));
        let at = |seconds| start + Duration::from_secs(seconds);
        workloads.fold(&[of(&named, 1, 5 * MIB), of(&container, 2, 950 * MIB)], &[], at(0));
        for second in 1..59 {
            workloads.fold(&[of(&named, 1, 5 * MIB), of(&container, 2, 5 * MIB)], &[], at(second));
        }
        let late = WorkloadMember { before: Some(&container), ..of(&named, 2, 5 * MIB) };
        workloads.fold(&[of(&named, 1, 5 * MIB), late], &[], at(59));
        assert_eq!(only(&mut workloads, at(59)).window_peak, Some(950 * MIB));
        for second in 60..116 {
            workloads.fold(&[of(&named, 1, 5 * MIB), of(&named, 2, 5 * MIB)], &[], at(second));
        }
        assert_eq!(only(&mut workloads, at(115)).window_peak, Some(10 * MIB));
    }

    #[test]
    fn a_mig_device_inherits_nothing_from_the_one_that_had_its_ids() {
        let (start, job, mut workloads) = (Instant::now(), unit("job"), workloads(9));
        let device = |uuid: &str| Arc::new(MigDevice { uuid: uuid.into(), gpu_instance: 1, ..MigDevice::default() });
        let (a, b) = (device("MIG-a"), device("MIG-b"));
        let on =
            |mig, pid, mib| WorkloadMember { instance: Some((1, 0)), mig: Some(mig), ..of(&job, pid, Some(mib * MIB)) };
        workloads.fold(&[on(&a, 1, 60_000)], &[], start);
        for _ in 0..2 {
            workloads.fold(&[on(&b, 2, 5)], &[], start);
            let (shown, _) = workloads.show(start);
            let on = |uuid: &str| shown.iter().find(|w| w.mig.as_ref().unwrap().uuid == uuid).unwrap();
            assert_eq!((on("MIG-b").peak, on("MIG-b").used), (Some(5 * MIB), Some(5 * MIB)));
            assert_eq!((on("MIG-a").peak, on("MIG-a").used), (Some(60_000 * MIB), None));
        }
    }

    #[test]
    fn what_comes_while_the_layout_is_unknown_is_on_no_device_until_that_is_known() {
        let (start, job) = (Instant::now(), unit("job"));
        let device = |uuid: &str| Arc::new(MigDevice { uuid: uuid.into(), gpu_instance: 1, ..MigDevice::default() });
        let (a, b) = (device("MIG-a"), device("MIG-b"));
        for (found, peaks) in [(&a, &[(Some("MIG-a"), 38)][..]), (&b, &[(Some("MIG-a"), 30), (Some("MIG-b"), 38)])] {
            let mut workloads = workloads(9);
            let on = |mig, pid, mib| WorkloadMember { instance: Some((1, 0)), mig, ..of(&job, pid, Some(mib * MIB)) };
            let mut after = |member: &[WorkloadMember<'_>]| {
                workloads.fold(member, &[], start);
                let (shown, _) = workloads.show(start);
                let entry = |w: WorkloadUse| (w.mig.map(|mig| mig.uuid.clone()), w.peak.unwrap() / MIB, w.used);
                let mut shown: Vec<_> = shown.into_iter().map(entry).collect();
                shown.sort();
                shown
            };
            after(&[on(Some(&a), 1, 30)]);
            after(&[]);
            let unknown = after(&[on(None, 2, 38)]);
            assert_eq!(unknown, [(None, 38, Some(38 * MIB)), (Some("MIG-a".into()), 30, None)]);
            // Another one of the same workload keeps the device it is known to be on.
            let known = after(&[on(None, 2, 3), on(Some(found), 3, 5)]);
            let known: Vec<_> = known.iter().map(|(mig, peak, _)| (mig.as_deref(), *peak)).collect();
            assert_eq!(known, peaks, "{}", found.uuid);
        }
    }

    #[test]
    fn one_workload_on_two_mig_devices_is_two_entries() {
        let (start, job, mut workloads) = (Instant::now(), unit("job"), workloads(9));
        let on = |gpu_instance, pid| WorkloadMember { instance: Some((gpu_instance, 0)), ..of(&job, pid, Some(MIB)) };
        workloads.fold(&[on(1, 1), on(2, 2)], &[], start);
        assert_eq!(workloads.show(start).0.len(), 2);
    }

    #[test]
    fn the_cap_keeps_the_largest_and_sums_the_rest() {
        let (start, mut workloads) = (Instant::now(), workloads(2));
        let jobs: Vec<_> = (1..=5).map(|n| unit(&n.to_string())).collect();
        let members: Vec<_> = jobs.iter().zip(1..).map(|(job, n)| of(job, n, u64::from(n) * MIB)).collect();
        workloads.fold(&members, &[], start);
        let (shown, other) = workloads.show(start);
        assert_eq!(shown.iter().map(|shown| shown.used).collect::<Vec<_>>(), [Some(5 * MIB), Some(4 * MIB)]);
        assert_eq!(other, Some(Other { entries: 3, processes: 3, used: Some(6 * MIB) }));
    }

    #[test]
    fn ten_thousand_workloads_that_come_and_go_leave_no_more_than_the_cap() {
        let (start, mut workloads) = (Instant::now(), workloads(256));
        for round in 0..10_000_u32 {
            let job = unit(&round.to_string());
            workloads.fold(&[of(&job, round, MIB)], &[], start + Duration::from_millis(360) * round);
        }
        assert!(workloads.entries.len() <= 257, "{}", workloads.entries.len());
        assert!(workloads.show(start).0.iter().any(|shown| shown.workload.name == "unit:9998"), "the latest stay");
    }
}
