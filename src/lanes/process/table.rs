//! The processes of one GPU over time: a process is (pid, start time), and it is remembered for a while after its end.

mod tracked;

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::Settings;
use super::list_cache::ListEntry;
use crate::attribution::{Identity, StartTime};
use crate::nvml::UtilizationSample;
use crate::snapshot::{MigDevice, Other, Process, ProcessKind, Workload};
use tracked::{ProcessSlot, TrackedProcess};

/// A driver forgets a process within a moment of its end; one that is listed for longer without being seen is hidden.
const OUT_OF_SIGHT_AFTER: Duration = Duration::from_secs(3);

/// The processes of a GPU, living ones and those that linger.
#[derive(Debug)]
pub(crate) struct ProcessTable {
    processes: Vec<TrackedProcess>,
    /// When it was last folded.
    folded: Option<Instant>,
    peak_window: Duration,
    stay: Duration,
    limit: usize,
}

/// What is known at the moment of a list, beside the list.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListContext<'k> {
    /// The MIG devices; `None` where the layout is not known: then a process stays where it was.
    pub(super) layout: Option<&'k [Arc<MigDevice>]>,
    /// The lists that were refused: their processes may still be on the GPU, with memory that nobody tells.
    pub(super) unread: &'k [ProcessKind],
}

/// What a workload has to know of a process that is on the GPU, or was until the last list.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkloadMember<'r> {
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

impl ProcessTable {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            processes: Vec::new(),
            folded: None,
            peak_window: settings.peak_window,
            stay: settings.peak_window + settings.linger,
            limit: settings.series_limit,
        }
    }

    /// Where the living stand, by pid and MIG instance.
    fn living(&self) -> HashMap<ProcessSlot, usize> {
        let living = self.processes.iter().enumerate().filter(|(_, track)| track.ended.is_none());
        living.map(|(index, track)| (track.slot(), index)).collect()
    }

    /// Ends the processes that had the pids of a list before, where those were other ones, and says whether there was
    /// one: then the list may still tell a former holder's memory.
    pub(super) fn end_former(&mut self, entries: &[ListEntry], identities: &[Identity], now: Instant) -> bool {
        let living = self.living();
        let mut reused = false;
        for (entry, identity) in entries.iter().zip(identities) {
            let former = living.get(&entry.slot()).map(|&index| &mut self.processes[index]);
            if let Some(former) = former.filter(|track| track.is_former_of(identity)) {
                former.end(now);
                reused = true;
            }
        }
        reused
    }

    /// The pids in earlier lists of a pass that its last list does not hold, but that were on the GPU until then.
    pub(super) fn gone_since<'l>(
        &self,
        entries: &[ListEntry],
        earlier: &'l [Vec<ListEntry>],
    ) -> HashSet<&'l ListEntry> {
        // Nearly every pass has one list only.
        if earlier.is_empty() {
            return HashSet::new();
        }
        let last: HashSet<ProcessSlot> = entries.iter().map(ListEntry::slot).collect();
        earlier.iter().flatten().filter(|entry| !last.contains(&entry.slot())).collect()
    }

    /// Whether somebody else has the pid of a living process by now.
    pub(super) fn passed_on(&self, entry: &ListEntry, identity: &Identity) -> bool {
        let here = |track: &&TrackedProcess| track.ended.is_none() && track.slot() == entry.slot();
        self.processes.iter().find(here).is_some_and(|track| track.is_former_of(identity))
    }

    /// Folds lists that were read at `now`: the last one is what is on the GPU, with who has each pid; the earlier ones
    /// are known to peaks only.
    pub(super) fn fold(
        &mut self,
        (entries, earlier): (&[ListEntry], &[Vec<ListEntry>]),
        identities: &[Identity],
        known: ListContext<'_>,
        now: Instant,
    ) {
        let mut living = self.living();
        let mut seen = HashSet::with_capacity(entries.len());
        let before = self.processes.len();
        let mut ended = false;
        for track in &mut self.processes {
            track.before.clone_from(&track.owner.workload);
        }
        for (entry, identity) in entries.iter().zip(identities.iter().cloned()) {
            let index = self.track(entry, identity, living.get(&entry.slot()).copied(), now);
            living.insert(entry.slot(), index);
            seen.insert(index);
            self.processes[index].see(entry, known, now);
        }
        for entry in earlier.iter().flatten() {
            if let Some(&index) = living.get(&entry.slot()) {
                self.processes[index].record.see(entry.used, now);
            }
        }
        for (index, track) in self.processes.iter_mut().enumerate() {
            if track.ended.is_some() || seen.contains(&index) {
                continue;
            }
            if known.unread.contains(&track.kind) {
                track.used = None;
                continue;
            }
            track.end(now);
            ended = true;
        }
        if ended || self.processes.len() > before {
            self.make_room();
        }
        let stay = self.stay;
        self.processes.retain(|track| track.ended.is_none_or(|ended| now.saturating_duration_since(ended) <= stay));
        self.folded = Some(now);
    }

    /// Where the entry's process stands in the table, newly entered if it must be. `living`: who stands in its place.
    fn track(&mut self, entry: &ListEntry, identity: Identity, living: Option<usize>, now: Instant) -> usize {
        if let Some(index) = living {
            let track = &mut self.processes[index];
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
        let back = |track: &TrackedProcess| {
            track.start == start && start != StartTime::Unknown && track.slot() == entry.slot()
        };
        if let Some(index) = self.processes.iter().position(back) {
            self.processes[index].ended = None;
            self.processes[index].take_owner(owner);
            return index;
        }
        self.processes.push(TrackedProcess::new(entry, start, owner, self.peak_window, now));
        self.processes.len() - 1
    }

    /// Forgets the ended ones whose labels are taken by another and, so that a burst of short processes stays bounded,
    /// the earliest ended beyond the cap.
    fn make_room(&mut self) {
        // Newest first: the latest holder of a label set keeps it.
        self.processes.sort_by_key(|track| (track.ended.is_some(), Reverse(track.ended.unwrap_or(track.first_seen))));
        let mut taken = HashSet::with_capacity(self.processes.len());
        let mut ended = 0;
        let kept: Vec<bool> = self
            .processes
            .iter()
            .map(|track| {
                ended += usize::from(track.ended.is_some());
                let pod = track.owner.workload.as_ref().and_then(|workload| workload.pod.as_deref());
                let labels = (track.pid, track.instance, track.kind, track.owner.name.as_deref(), pod);
                taken.insert(labels) && (track.ended.is_none() || ended <= self.limit)
            })
            .collect();
        let mut kept = kept.into_iter();
        self.processes.retain(|_| kept.next().unwrap_or(true));
    }

    /// The driver cannot tell what the processes do.
    pub(super) fn work_unknown(&mut self) {
        for track in &mut self.processes {
            (track.sm_utilization, track.last_active) = (None, None);
        }
    }

    /// Folds what the driver says of the work of each process since it was last asked.
    pub(super) fn worked(&mut self, samples: &[UtilizationSample], asked_at: (Instant, SystemTime)) {
        let mut samples: Vec<_> = samples.iter().collect();
        samples.sort_by_key(|sample| sample.pid);
        for track in self.processes.iter_mut().filter(|track| track.ended.is_none()) {
            let from = samples.partition_point(|sample| sample.pid < track.pid);
            let of_pid = samples[from..].iter().copied().take_while(|sample| sample.pid == track.pid);
            // What was measured before the first sight may be a former holder's of the pid.
            let since_seen = |sample: &&UtilizationSample| when(sample.timestamp, asked_at) >= track.first_seen;
            let own = of_pid.filter(since_seen);
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
        for track in self.processes.iter_mut().filter(|track| track.ended.is_none() && track.pid == pid) {
            track.record.raise(peak);
        }
    }

    /// How many processes are on the GPU.
    pub(super) fn alive(&self) -> usize {
        self.processes.iter().filter(|track| track.ended.is_none()).count()
    }

    /// The processes of known workloads that live, or ended at the last list.
    pub(super) fn members(&self) -> impl Iterator<Item = WorkloadMember<'_>> {
        let there = |track: &&TrackedProcess| track.ended.is_none() || track.ended == self.folded;
        self.processes.iter().filter(there).filter_map(|track| {
            let TrackedProcess { pid, instance, used, .. } = *track;
            let (workload, before) = (track.owner.workload.as_ref()?, track.before.as_ref());
            Some(WorkloadMember {
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
    pub(super) fn invisible(&self, now: Instant) -> u64 {
        let unseen = |track: &&TrackedProcess| {
            let lasting = now.saturating_duration_since(track.first_seen) > OUT_OF_SIGHT_AFTER;
            track.ended.is_none() && track.start == StartTime::Unknown && lasting
        };
        self.processes.iter().filter(unseen).count() as u64
    }

    /// The pids of the living.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.processes.iter().filter(|track| track.ended.is_none()).map(|track| track.pid).collect()
    }

    /// Bytes that the living processes hold together; `None` while one of them is unknown.
    pub(super) fn used(&self) -> Option<u64> {
        total(self.processes.iter().filter(|track| track.ended.is_none()))
    }

    /// The same for the processes of one GPU instance.
    pub(super) fn used_in(&self, gpu_instance: u32) -> Option<u64> {
        let inside =
            |track: &&TrackedProcess| track.ended.is_none() && track.instance.is_some_and(|ids| ids.0 == gpu_instance);
        total(self.processes.iter().filter(inside))
    }

    /// What is published: the largest, at most as many as the cap says, and what the others hold together.
    pub(super) fn show(&mut self, now: Instant) -> (Vec<Process>, Option<Other>) {
        self.processes.sort_by_key(|track| {
            Reverse((track.ended.is_none(), track.used.unwrap_or_else(|| track.record.peak().unwrap_or(0))))
        });
        let shown = self.processes.len().min(self.limit);
        let others = &self.processes[shown..];
        let alive = || others.iter().filter(|track| track.ended.is_none());
        let processes = alive().count() as u64;
        let other = (!others.is_empty()).then(|| Other {
            entries: others.len() as u64,
            processes,
            used: (processes > 0).then(|| total(alive())).flatten(),
        });
        (self.processes[..shown].iter_mut().map(|track| track.show(now)).collect(), other)
    }
}

/// Bytes together; `None` while one is unknown.
fn total<'t>(mut processes: impl Iterator<Item = &'t TrackedProcess>) -> Option<u64> {
    processes.try_fold(0, |sum: u64, track| Some(sum.saturating_add(track.used?)))
}

/// A moment of the wall clock as one of the monotonic clock. A timestamp of the future (the clock was set back) is now.
fn when(micros: u64, (instant, wall): (Instant, SystemTime)) -> Instant {
    let then = SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
    instant.checked_sub(wall.duration_since(then).unwrap_or_default()).unwrap_or(instant)
}

#[cfg(test)]
mod tests;
