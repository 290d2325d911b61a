//! The processes of one GPU over time: a process is (pid, start time), and it is remembered for a while after its end.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::Settings;
use super::listing::Listed;
use crate::attribution::{Identity, StartTime};
use crate::lanes::peaks::Peaks;
use crate::nvml::UtilizationSample;
use crate::snapshot::{Gpu, MigDevice, Other, Owner, Process, ProcessKind, Workload};

/// A driver forgets a process within a moment of its end; one that is listed for longer without being seen is hidden.
const OUT_OF_SIGHT_AFTER: Duration = Duration::from_secs(3);

/// The start of a process is known by the second of the machine's boot.
const START_IS_KNOWN_WITHIN: Duration = Duration::from_secs(2);

/// What tells apart the processes that live on one GPU: pid, and GPU instance and compute instance under MIG.
type Place = (u32, Option<(u32, u32)>);

/// The processes of a GPU, living ones and those that linger.
#[derive(Debug)]
pub(crate) struct Roster {
    tracks: Vec<Track>,
    /// When it was last folded.
    folded: Option<Instant>,
    peak_window: Duration,
    stay: Duration,
    limit: usize,
}

/// One process on the GPU (or on one of its MIG devices).
#[derive(Debug)]
struct Track {
    pid: u32,
    start: StartTime,
    instance: Option<(u32, u32)>,
    mig: Option<Arc<MigDevice>>,
    kind: ProcessKind,
    owner: Arc<Owner>,
    /// What it was counted for at the list before.
    before: Option<Arc<Workload>>,
    used: Option<u64>,
    /// Whether the driver ever told the memory of this process.
    measured: bool,
    peaks: Peaks,
    first_seen: Instant,
    /// The same by the wall clock.
    first_seen_at: SystemTime,
    ended: Option<Instant>,
    sm_utilization: Option<f64>,
    last_active: Option<Instant>,
}

/// What a workload has to know of a process that is on the GPU, or was until the last list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member<'r> {
    pub(super) pid: u32,
    pub(super) instance: Option<(u32, u32)>,
    pub(super) mig: Option<&'r Arc<MigDevice>>,
    pub(super) workload: &'r Arc<Workload>,
    /// What it was called at the list before, in the same place.
    pub(super) before: Option<&'r Arc<Workload>>,
    /// Whether the last list holds it.
    pub(super) alive: bool,
    pub(super) used: Option<u64>,
}

impl Roster {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            tracks: Vec::new(),
            folded: None,
            peak_window: settings.peak_window,
            stay: settings.peak_window + settings.linger,
            limit: settings.series_limit,
        }
    }

    /// Where the living stand, by pid and MIG instance.
    fn living(&self) -> HashMap<Place, usize> {
        let living = self.tracks.iter().enumerate().filter(|(_, track)| track.ended.is_none());
        living.map(|(index, track)| (track.place(), index)).collect()
    }

    /// Ends the processes that had the pids of a list before, where those were other ones, and says whether there was
    /// one: then the list may still tell a former holder's memory.
    pub(super) fn end_former(&mut self, entries: &[Listed], identities: &[Identity], now: Instant) -> bool {
        let living = self.living();
        let mut reused = false;
        for (entry, identity) in entries.iter().zip(identities) {
            let former = living.get(&entry.place()).map(|&index| &mut self.tracks[index]);
            if let Some(former) = former.filter(|track| track.is_former_of(identity)) {
                former.end(now);
                reused = true;
            }
        }
        reused
    }

    /// The pids in earlier lists of a pass that its last list does not hold, but that were on the GPU until then.
    pub(super) fn gone_since<'l>(&self, entries: &[Listed], earlier: &'l [Vec<Listed>]) -> HashSet<&'l Listed> {
        let last: HashSet<Place> = entries.iter().map(Listed::place).collect();
        earlier.iter().flatten().filter(|entry| !last.contains(&entry.place())).collect()
    }

    /// Whether somebody else has the pid of a living process by now.
    pub(super) fn passed_on(&self, entry: &Listed, identity: &Identity) -> bool {
        let here = |track: &&Track| track.ended.is_none() && track.place() == entry.place();
        self.tracks.iter().find(here).is_some_and(|track| track.is_former_of(identity))
    }

    /// Folds lists that were read at `now`: the last one is what is on the GPU, with who has each pid; the earlier ones
    /// are known to peaks only.
    pub(super) fn fold(
        &mut self,
        (entries, earlier): (&[Listed], &[Vec<Listed>]),
        identities: &[Identity],
        gpu: &Gpu,
        now: Instant,
    ) {
        let mut living = self.living();
        let mut seen = HashSet::with_capacity(entries.len());
        let before = self.tracks.len();
        let mut ended = false;
        for track in &mut self.tracks {
            track.before.clone_from(&track.owner.workload);
        }
        for (entry, identity) in entries.iter().zip(identities.iter().cloned()) {
            let index = self.track(entry, identity, living.get(&entry.place()).copied(), now);
            living.insert(entry.place(), index);
            seen.insert(index);
            self.tracks[index].see(entry, gpu, now);
        }
        for entry in earlier.iter().flatten() {
            if let Some(&index) = living.get(&entry.place()) {
                self.tracks[index].remember(entry.used, now);
            }
        }
        for (index, track) in self.tracks.iter_mut().enumerate() {
            if track.ended.is_none() && !seen.contains(&index) {
                track.end(now);
                ended = true;
            }
        }
        if ended || self.tracks.len() > before {
            self.make_room();
        }
        let stay = self.stay;
        self.tracks.retain(|track| track.ended.is_none_or(|ended| now.saturating_duration_since(ended) <= stay));
        self.folded = Some(now);
    }

    /// Where the entry's process stands in the roster, newly entered if it must be. `living`: who stands in its place.
    fn track(&mut self, entry: &Listed, identity: Identity, living: Option<usize>, now: Instant) -> usize {
        if let Some(index) = living {
            let track = &mut self.tracks[index];
            // The driver lists a process for a moment after /proc has forgotten it; nobody else has the pid then.
            if identity.start == StartTime::Unknown {
                return index;
            }
            if !track.is_former_of(&identity) {
                track.start = identity.start;
                track.take_owner(identity.owner);
                return index;
            }
            track.end(now);
        }
        let Identity { start, owner } = identity;
        // A process that left the GPU and came back is the same process while it lives.
        let back =
            |track: &Track| track.start == start && start != StartTime::Unknown && track.place() == entry.place();
        if let Some(index) = self.tracks.iter().position(back) {
            self.tracks[index].ended = None;
            self.tracks[index].take_owner(owner);
            return index;
        }
        self.tracks.push(Track::new(entry, start, owner, self.peak_window, now));
        self.tracks.len() - 1
    }

    /// Forgets the ended ones whose labels are taken by another and, so that a burst of short processes stays bounded,
    /// the earliest ended beyond the cap.
    fn make_room(&mut self) {
        // Newest first: the latest holder of a label set keeps it.
        self.tracks.sort_by_key(|track| (track.ended.is_some(), Reverse(track.ended.unwrap_or(track.first_seen))));
        let mut taken = HashSet::with_capacity(self.tracks.len());
        let mut ended = 0;
        let kept: Vec<bool> = self
            .tracks
            .iter()
            .map(|track| {
                ended += usize::from(track.ended.is_some());
                let pod = track.owner.workload.as_ref().and_then(|workload| workload.pod.as_deref());
                let labels = (track.pid, track.instance, track.kind, track.owner.name.as_deref(), pod);
                taken.insert(labels) && (track.ended.is_none() || ended <= self.limit)
            })
            .collect();
        let mut kept = kept.into_iter();
        self.tracks.retain(|_| kept.next().unwrap_or(true));
    }

    /// The driver cannot tell what the processes do.
    pub(super) fn work_unknown(&mut self) {
        for track in &mut self.tracks {
            (track.sm_utilization, track.last_active) = (None, None);
        }
    }

    /// Folds what the driver says of the work of each process since it was last asked.
    pub(super) fn worked(&mut self, samples: &[UtilizationSample], asked_at: (Instant, SystemTime)) {
        for track in self.tracks.iter_mut().filter(|track| track.ended.is_none()) {
            // What was measured before the first sight may be a former holder's of the pid.
            let since_seen = |sample: &&UtilizationSample| when(sample.timestamp, asked_at) >= track.first_seen;
            let own = samples.iter().filter(|sample| sample.pid == track.pid).filter(since_seen);
            let latest = own.clone().max_by_key(|sample| sample.timestamp);
            track.sm_utilization = latest.map(|sample| sample.sm);
            let worked = own.filter(|sample| sample.active).map(|sample| when(sample.timestamp, asked_at)).max();
            // The driver answers, so what it does not mention did no work.
            let since = track.last_active.unwrap_or(track.first_seen);
            track.last_active = Some(worked.map_or(since, |worked| worked.max(since)));
        }
    }

    /// The driver's own maximum for a living process.
    pub(super) fn raise(&mut self, pid: u32, peak: u64) {
        for track in self.tracks.iter_mut().filter(|track| track.ended.is_none() && track.pid == pid) {
            track.peaks.raise(peak);
            track.measured = true;
        }
    }

    /// How many processes are on the GPU.
    pub(super) fn alive(&self) -> usize {
        self.tracks.iter().filter(|track| track.ended.is_none()).count()
    }

    /// The processes of known workloads that live, or ended at the last list.
    pub(super) fn members(&self) -> impl Iterator<Item = Member<'_>> {
        let there = |track: &&Track| track.ended.is_none() || (track.ended.is_some() && track.ended == self.folded);
        self.tracks.iter().filter(there).filter_map(|track| {
            let Track { pid, instance, used, .. } = *track;
            let (workload, before) = (track.owner.workload.as_ref()?, track.before.as_ref());
            Some(Member {
                pid,
                instance,
                mig: track.mig.as_ref(),
                workload,
                before,
                alive: track.ended.is_none(),
                used,
            })
        })
    }

    /// How many living processes `/proc` never showed, though they are listed for longer than the driver lists one
    /// that ended.
    pub(super) fn out_of_sight(&self, now: Instant) -> u64 {
        let unseen = |track: &&Track| {
            let lasting = now.saturating_duration_since(track.first_seen) > OUT_OF_SIGHT_AFTER;
            track.ended.is_none() && track.start == StartTime::Unknown && lasting
        };
        self.tracks.iter().filter(unseen).count() as u64
    }

    /// The pids of the living.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.tracks.iter().filter(|track| track.ended.is_none()).map(|track| track.pid).collect()
    }

    /// Bytes that the living processes hold together; `None` while one of them is unknown.
    pub(super) fn used(&self) -> Option<u64> {
        total(self.tracks.iter().filter(|track| track.ended.is_none()))
    }

    /// The same for the processes of one GPU instance.
    pub(super) fn used_in(&self, gpu_instance: u32) -> Option<u64> {
        let inside = |track: &&Track| track.ended.is_none() && track.instance.is_some_and(|ids| ids.0 == gpu_instance);
        total(self.tracks.iter().filter(inside))
    }

    /// What is published: the largest, at most as many as the cap says, and what the others hold together.
    pub(super) fn show(&mut self, now: Instant) -> (Vec<Process>, Option<Other>) {
        self.tracks
            .sort_by_key(|track| Reverse((track.ended.is_none(), track.used.unwrap_or_else(|| track.peaks.highest()))));
        let shown = self.tracks.len().min(self.limit);
        let others = &self.tracks[shown..];
        let other = (!others.is_empty()).then(|| Other {
            entries: others.len() as u64,
            processes: others.iter().filter(|track| track.ended.is_none()).count() as u64,
            used: others.iter().filter_map(|track| track.used).reduce(u64::saturating_add),
        });
        (self.tracks[..shown].iter_mut().map(|track| track.show(now)).collect(), other)
    }
}

impl Track {
    fn new(entry: &Listed, start: StartTime, owner: Arc<Owner>, peak_window: Duration, now: Instant) -> Self {
        Self {
            pid: entry.pid,
            start,
            instance: entry.instance,
            mig: None,
            kind: entry.kind,
            owner,
            before: None,
            used: None,
            measured: false,
            peaks: Peaks::new(peak_window),
            first_seen: now,
            first_seen_at: SystemTime::now(),
            ended: None,
            sm_utilization: None,
            last_active: None,
        }
    }

    fn place(&self) -> Place {
        (self.pid, self.instance)
    }

    /// Whether the one who has the pid now is another process than this one.
    fn is_former_of(&self, identity: &Identity) -> bool {
        match (self.start, identity.start) {
            (_, StartTime::Unknown) => false,
            // Seen before `/proc` showed it: it cannot have started after that.
            (StartTime::Unknown, _) => {
                identity.owner.start.is_some_and(|start| start > self.first_seen_at + START_IS_KNOWN_WITHIN)
            }
            (own, other) => own != other,
        }
    }

    /// Takes what is known of the owner by now. A process that was resolved anew and lives elsewhere, or as another user,
    /// is not called otherwise than before: it has moved, and takes nothing along.
    fn take_owner(&mut self, owner: Arc<Owner>) {
        if self.owner.home != owner.home || self.owner.uid != owner.uid {
            self.before = None;
        }
        self.owner = owner;
    }

    fn see(&mut self, entry: &Listed, gpu: &Gpu, now: Instant) {
        self.kind = entry.kind;
        self.used = entry.used;
        // Looked up each time: the layout may have been read after the process came.
        let here = |device: &&Arc<MigDevice>| Some((device.gpu_instance, device.compute_instance)) == entry.instance;
        self.mig = gpu.mig.iter().find(here).cloned();
        self.remember(entry.used, now);
    }

    fn remember(&mut self, used: Option<u64>, now: Instant) {
        if let Some(bytes) = used {
            self.measured = true;
            self.peaks.see(bytes, now);
        }
    }

    fn end(&mut self, now: Instant) {
        self.ended = Some(now);
        self.used = None;
        self.sm_utilization = None;
        if self.measured {
            // From now on the process holds nothing.
            self.peaks.see(0, now);
        }
    }

    fn show(&mut self, now: Instant) -> Process {
        let alive = self.ended.is_none();
        let within = self.peaks.within_window(now);
        Process {
            pid: self.pid,
            kind: self.kind,
            mig: self.mig.clone(),
            owner: self.owner.clone(),
            alive,
            used: self.used,
            window_peak: self.measured.then(|| within.unwrap_or(0)).filter(|_| within.is_some() || !alive),
            peak: self.measured.then(|| self.peaks.highest()),
            sm_utilization: self.sm_utilization,
            last_active: self.last_active.filter(|_| alive),
        }
    }
}

/// Bytes together; `None` while one is unknown.
fn total<'t>(mut tracks: impl Iterator<Item = &'t Track>) -> Option<u64> {
    tracks.try_fold(0, |sum: u64, track| Some(sum.saturating_add(track.used?)))
}

/// A moment of the wall clock as one of the monotonic clock. A timestamp of the future (the clock was set back) is now.
fn when(micros: u64, (instant, wall): (Instant, SystemTime)) -> Instant {
    let then = SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
    instant.checked_sub(wall.duration_since(then).unwrap_or_default()).unwrap_or(instant)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::snapshot::PodContainer;

    const MIB: u64 = 1 << 20;
    const WINDOW: Duration = Duration::from_secs(60);
    const LINGER: Duration = Duration::from_secs(300);

    fn roster(limit: usize) -> Roster {
        Roster { tracks: Vec::new(), folded: None, peak_window: WINDOW, stay: WINDOW + LINGER, limit }
    }

    fn listed(pid: u32, used: impl Into<Option<u64>>) -> Listed {
        Listed { pid, kind: ProcessKind::Compute, used: used.into(), instance: None }
    }

    fn named(start: u64, name: &str) -> Identity {
        let owner = Arc::new(Owner { name: Some(name.into()), ..Owner::default() });
        Identity { start: StartTime::Ticks(start), owner }
    }

    fn unseen() -> Identity {
        Identity { start: StartTime::Unknown, owner: Arc::default() }
    }

    fn fold(roster: &mut Roster, entries: &[Listed], now: Instant, identity: &Identity) {
        roster.fold((entries, &[]), &vec![identity.clone(); entries.len()], &Gpu::default(), now);
    }

    fn only(roster: &mut Roster, now: Instant) -> Process {
        let (mut shown, other) = roster.show(now);
        assert_eq!((shown.len(), other), (1, None));
        shown.remove(0)
    }

    #[test]
    fn a_reused_pid_starts_anew_and_the_old_one_keeps_its_peak() {
        let (start, mut roster) = (Instant::now(), roster(9));
        fold(&mut roster, &[listed(7, 900 * MIB)], start, &named(1, "train.py"));
        let later = start + Duration::from_millis(10);
        fold(&mut roster, &[listed(7, 5 * MIB)], later, &named(2, "serve.py"));
        let (shown, _) = roster.show(later);
        let of = |name: &str| shown.iter().find(|p| p.owner.name.as_deref() == Some(name)).unwrap();
        assert_eq!((of("serve.py").used, of("serve.py").peak), (Some(5 * MIB), Some(5 * MIB)));
        assert_eq!((of("train.py").used, of("train.py").peak), (None, Some(900 * MIB)));
        assert!(!of("train.py").alive && of("serve.py").alive);
    }

    #[test]
    fn a_list_from_before_a_pid_passed_on_is_not_believed() {
        let (start, mut roster) = (Instant::now(), roster(9));
        fold(&mut roster, &[listed(7, 900 * MIB)], start, &named(1, "train.py"));
        let mut ends = |identity| roster.end_former(&[listed(7, 900 * MIB)], &[identity], start);
        assert!(!ends(named(1, "train.py")));
        assert!(!ends(unseen()), "who cannot be seen is nobody else");
        assert!(ends(named(2, "serve.py")));
        assert!(!ends(named(2, "serve.py")), "once is enough");
        assert!(!only(&mut roster, start).alive);
    }

    fn started(start: u64, at: SystemTime) -> Identity {
        let identity = named(start, "serve.py");
        let owner = Owner { start: Some(at), ..(*identity.owner).clone() };
        Identity { owner: Arc::new(owner), ..identity }
    }

    #[test]
    fn who_started_after_the_first_sight_is_not_who_was_seen() {
        let (start, mut roster) = (Instant::now(), roster(9));
        let wall = SystemTime::now();
        fold(&mut roster, &[listed(7, 900 * MIB)], start, &unseen());
        fold(&mut roster, &[listed(7, 5 * MIB)], start + WINDOW, &started(1, wall + WINDOW));
        let (shown, _) = roster.show(start + WINDOW);
        let of = |name: Option<&str>| shown.iter().find(|p| p.owner.name.as_deref() == name).unwrap();
        assert_eq!((of(Some("serve.py")).peak, of(None).peak), (Some(5 * MIB), Some(900 * MIB)));

        let mut roster = Roster { tracks: Vec::new(), ..roster };
        fold(&mut roster, &[listed(7, 900 * MIB)], start, &unseen());
        fold(&mut roster, &[listed(7, 5 * MIB)], start + WINDOW, &started(1, wall - WINDOW));
        assert_eq!(only(&mut roster, start + WINDOW).peak, Some(900 * MIB), "it was there before");
    }

    #[test]
    fn what_an_earlier_list_says_of_a_pid_that_passed_on_is_seen_to_be_anothers() {
        let (start, mut roster) = (Instant::now(), roster(9));
        fold(&mut roster, &[listed(7, MIB), listed(8, MIB)], start, &named(1, "train.py"));
        let earlier = [vec![listed(7, 900 * MIB), listed(8, MIB)]];
        let gone: Vec<_> = roster.gone_since(&[listed(8, MIB)], &earlier).into_iter().collect();
        assert_eq!(gone, [&listed(7, 900 * MIB)]);
        assert!(roster.passed_on(gone[0], &named(2, "serve.py")));
        assert!(!roster.passed_on(gone[0], &unseen()), "it died, and nobody has its pid");
    }

    #[test]
    fn a_process_that_moved_takes_nothing_along_and_one_that_is_named_does() {
        let (start, mut roster) = (Instant::now(), roster(9));
        let at = |unit: &str, workload: &str| {
            let workload = Workload { name: workload.into(), kind: crate::snapshot::WorkloadKind::Systemd, pod: None };
            let home = crate::snapshot::Home { unit: Some(unit.into()), ..crate::snapshot::Home::default() };
            let owner = Owner { home, workload: Some(Arc::new(workload)), ..Owner::default() };
            Identity { start: StartTime::Ticks(1), owner: Arc::new(owner) }
        };
        let before = |roster: &Roster| roster.members().next().unwrap().before.map(|workload| workload.name.clone());
        fold(&mut roster, &[listed(7, MIB)], start, &at("a", "unit:a"));
        fold(&mut roster, &[listed(7, MIB)], start, &at("a", "named"));
        assert_eq!(before(&roster).as_deref(), Some("unit:a"));
        fold(&mut roster, &[listed(7, MIB)], start, &at("b", "unit:b"));
        assert_eq!(before(&roster), None);
    }

    #[test]
    fn one_name_in_two_pods_is_two_processes() {
        let (start, mut roster) = (Instant::now(), roster(9));
        let in_pod = |start: u64, pod: &str| {
            let names = PodContainer { namespace: "n".into(), pod: pod.into(), container: "c".into() };
            let name = format!("n/{pod}/c");
            let workload = Workload { name, kind: crate::snapshot::WorkloadKind::Kubernetes, pod: Some(names.into()) };
            let identity = named(start, "python3");
            let owner = Owner { workload: Some(Arc::new(workload)), ..(*identity.owner).clone() };
            Identity { owner: Arc::new(owner), ..identity }
        };
        fold(&mut roster, &[listed(7, 900 * MIB)], start, &in_pod(1, "a"));
        fold(&mut roster, &[listed(7, 5 * MIB)], start, &in_pod(2, "b"));
        assert_eq!(roster.show(start).0.len(), 2, "the ended one keeps its peak");
    }

    #[test]
    fn a_pid_reused_under_the_same_name_leaves_one_entry() {
        let (start, mut roster) = (Instant::now(), roster(9));
        fold(&mut roster, &[listed(7, 900 * MIB)], start, &named(1, "train.py"));
        fold(&mut roster, &[listed(7, 5 * MIB)], start + WINDOW, &named(2, "train.py"));
        assert_eq!(only(&mut roster, start + WINDOW).peak, Some(5 * MIB));
    }

    #[test]
    fn a_process_whose_proc_is_gone_while_the_driver_still_lists_it_stays_itself() {
        let (start, mut roster) = (Instant::now(), roster(9));
        fold(&mut roster, &[listed(7, 900 * MIB)], start, &named(1, "train.py"));
        fold(&mut roster, &[listed(7, 300 * MIB)], start, &unseen());
        let shown = only(&mut roster, start);
        assert_eq!((shown.owner.name.as_deref(), shown.used), (Some("train.py"), Some(300 * MIB)));
    }

    #[test]
    fn a_process_seen_before_its_proc_could_be_read_gets_its_name() {
        let (start, mut roster) = (Instant::now(), roster(9));
        fold(&mut roster, &[listed(7, 900 * MIB)], start, &unseen());
        fold(&mut roster, &[listed(7, 300 * MIB)], start, &named(1, "train.py"));
        let shown = only(&mut roster, start);
        assert_eq!((shown.owner.name.as_deref(), shown.peak), (Some("train.py"), Some(900 * MIB)));
    }

    #[test]
    fn the_peaks_of_an_ended_process_stay_for_window_and_linger() {
        let (start, mut roster) = (Instant::now(), roster(9));
        fold(&mut roster, &[listed(7, 900 * MIB)], start, &named(1, "train.py"));
        let end = start + Duration::from_secs(1);
        fold(&mut roster, &[], end, &unseen());
        let at_once = only(&mut roster, end);
        assert_eq!((at_once.used, at_once.window_peak, at_once.peak), (None, Some(900 * MIB), Some(900 * MIB)));
        let after_window = only(&mut roster, end + 2 * WINDOW);
        assert_eq!((after_window.window_peak, after_window.peak), (Some(0), Some(900 * MIB)));
        fold(&mut roster, &[], end + WINDOW + LINGER + Duration::from_secs(1), &unseen());
        assert_eq!(roster.show(end + WINDOW + LINGER).0.len(), 0);
    }

    #[test]
    fn unknown_memory_is_absent_and_makes_the_sum_unknown() {
        let (start, mut roster) = (Instant::now(), roster(9));
        fold(&mut roster, &[listed(7, None)], start, &named(1, "Xorg"));
        let shown = only(&mut roster, start);
        assert_eq!((shown.used, shown.window_peak, shown.peak), (None, None, None));
        assert_eq!(roster.used(), None);
        fold(&mut roster, &[listed(7, 3 * MIB)], start, &named(1, "Xorg"));
        assert_eq!(roster.used(), Some(3 * MIB));
    }

    #[test]
    fn the_cap_keeps_the_largest_and_sums_the_rest() {
        let (start, mut roster) = (Instant::now(), roster(2));
        let entries: Vec<_> = (1..=5).map(|pid| listed(pid, u64::from(pid) * MIB)).collect();
        let identities: Vec<_> = (1..=5).map(|start| named(start, "job")).collect();
        roster.fold((&entries, &[]), &identities, &Gpu::default(), start);
        let (shown, other) = roster.show(start);
        assert_eq!(shown.iter().map(|p| p.pid).collect::<Vec<_>>(), [5, 4]);
        assert_eq!(other, Some(Other { entries: 3, processes: 3, used: Some(6 * MIB) }));
        assert_eq!(roster.used(), Some(15 * MIB));
    }

    #[test]
    fn ten_thousand_short_processes_leave_no_more_than_the_cap() {
        let (start, mut roster) = (Instant::now(), roster(256));
        for round in 0..10_000_u32 {
            let now = start + Duration::from_millis(360) * round;
            fold(&mut roster, &[listed(round, MIB)], now, &named(u64::from(round), "short"));
        }
        assert!(roster.tracks.len() <= 257, "{}", roster.tracks.len());
    }

    #[test]
    fn work_is_dated_by_the_driver_and_idleness_counts_from_the_first_sight() {
        let (start, mut roster) = (Instant::now(), roster(9));
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let sample = |timestamp, active| UtilizationSample { pid: 7, timestamp, sm: 0.5, active };
        fold(&mut roster, &[listed(7, MIB)], start, &named(1, "train.py"));
        // A sample from before the first sight does not make the process older than what is known of it.
        roster.worked(&[sample(990_000_000, true)], (start, wall));
        assert_eq!(only(&mut roster, start).last_active, Some(start));
        let later = start + Duration::from_secs(10);
        roster.worked(&[sample(1_009_500_000, true)], (later, wall + Duration::from_secs(10)));
        let shown = only(&mut roster, later);
        assert_eq!(shown.last_active, Some(later - Duration::from_millis(500)));
        assert_eq!(shown.sm_utilization, Some(0.5));
        roster.worked(&[], (later + WINDOW, wall + Duration::from_secs(70)));
        let idle = only(&mut roster, later + WINDOW);
        assert_eq!((idle.sm_utilization, idle.last_active), (None, Some(later - Duration::from_millis(500))));
    }
}
