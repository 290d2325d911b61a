//! The processes of one GPU over time: a process is (pid, start time), and it is remembered for a while after its end.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::Settings;
use super::listing::Listed;
use crate::attribution::{Identity, StartTime};
use crate::lanes::peaks::Peaks;
use crate::nvml::UtilizationSample;
use crate::snapshot::{Gpu, MigDevice, Other, Owner, Process, ProcessKind};

/// The processes of a GPU, living ones and those that linger.
#[derive(Debug)]
pub(crate) struct Roster {
    tracks: Vec<Track>,
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
    used: Option<u64>,
    /// Whether the driver ever told the memory of this process.
    measured: bool,
    peaks: Peaks,
    first_seen: Instant,
    ended: Option<Instant>,
    sm_utilization: Option<f64>,
    last_active: Option<Instant>,
}

impl Roster {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            tracks: Vec::new(),
            peak_window: settings.peak_window,
            stay: settings.peak_window + settings.linger,
            limit: settings.series_limit,
        }
    }

    /// Folds a list that was read at `now`.
    pub(super) fn fold(
        &mut self,
        entries: &[Listed],
        gpu: &Gpu,
        now: Instant,
        mut identify: impl FnMut(u32) -> Identity,
    ) {
        let mut seen = HashSet::with_capacity(entries.len());
        for entry in entries {
            let identity = identify(entry.pid);
            let index = self.track(entry, identity, gpu, now);
            seen.insert(index);
            self.tracks[index].see(entry, now);
        }
        for (index, track) in self.tracks.iter_mut().enumerate() {
            if track.ended.is_none() && !seen.contains(&index) {
                track.end(now);
            }
        }
        self.forget(now);
    }

    /// Where the entry's process stands in the roster, newly entered if it must be.
    fn track(&mut self, entry: &Listed, identity: Identity, gpu: &Gpu, now: Instant) -> usize {
        let Identity { start, owner } = identity;
        let same_place = |track: &Track| track.pid == entry.pid && track.instance == entry.instance;
        let living = self.tracks.iter().position(|track| track.ended.is_none() && same_place(track));
        if let Some(index) = living {
            let track = &mut self.tracks[index];
            // The driver lists a process for a moment after /proc has forgotten it; nobody else has the pid then.
            if start == StartTime::Unknown && track.start != StartTime::Unknown {
                return index;
            }
            if start == track.start || track.start == StartTime::Unknown {
                track.start = start;
                track.owner = owner;
                return index;
            }
            track.end(now);
        }
        // A process that left the GPU and came back is the same process while it lives.
        let back = |track: &Track| track.start == start && start != StartTime::Unknown && same_place(track);
        if let Some(index) = self.tracks.iter().position(back) {
            self.tracks[index].ended = None;
            self.tracks[index].owner = owner;
            return index;
        }
        let mig = entry.instance.and_then(|ids| {
            gpu.mig.iter().find(|device| (device.gpu_instance, device.compute_instance) == ids).cloned()
        });
        self.tracks.push(Track {
            pid: entry.pid,
            start,
            instance: entry.instance,
            mig,
            kind: entry.kind,
            owner,
            used: None,
            measured: false,
            peaks: Peaks::new(self.peak_window),
            first_seen: now,
            ended: None,
            sm_utilization: None,
            last_active: None,
        });
        self.tracks.len() - 1
    }

    /// Forgets the ended ones that stayed long enough, those whose name and pid are taken by another, and, so that a
    /// burst of short processes stays bounded, the earliest ended beyond the cap.
    fn forget(&mut self, now: Instant) {
        let stay = self.stay;
        self.tracks.retain(|track| track.ended.is_none_or(|ended| now.saturating_duration_since(ended) <= stay));
        let mut taken = HashSet::new();
        // Newest first: the latest holder of a label set keeps it.
        let mut newest: Vec<usize> = (0..self.tracks.len()).collect();
        newest.sort_by_key(|&index| {
            let track = &self.tracks[index];
            (track.ended.is_some(), std::cmp::Reverse(track.ended.unwrap_or(track.first_seen)))
        });
        let mut kept = HashSet::new();
        let mut ended = 0;
        for index in newest {
            let track = &self.tracks[index];
            let labels = (track.pid, track.instance, track.kind, track.owner.name.clone());
            ended += usize::from(track.ended.is_some());
            if taken.insert(labels) && (track.ended.is_none() || ended <= self.limit) {
                kept.insert(index);
            }
        }
        let mut index = 0;
        self.tracks.retain(|_| {
            index += 1;
            kept.contains(&(index - 1))
        });
    }

    /// Folds what the driver says of the work of each process since it was last asked.
    pub(super) fn worked(&mut self, samples: &[UtilizationSample], asked_at: (Instant, SystemTime)) {
        for track in self.tracks.iter_mut().filter(|track| track.ended.is_none()) {
            let own = samples.iter().filter(|sample| sample.pid == track.pid);
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

    /// The pids of the living.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.tracks.iter().filter(|track| track.ended.is_none()).map(|track| track.pid).collect()
    }

    /// Bytes that the living processes hold together; `None` while one of them is unknown.
    pub(super) fn used(&self) -> Option<u64> {
        self.tracks.iter().filter(|track| track.ended.is_none()).map(|track| track.used).sum()
    }

    /// What is published: the largest, at most as many as the cap says, and what the others hold together.
    pub(super) fn show(&mut self, now: Instant) -> (Vec<Process>, Option<Other>) {
        self.tracks.sort_by_key(|track| {
            std::cmp::Reverse((track.ended.is_none(), track.used.unwrap_or_else(|| track.peaks.highest())))
        });
        let shown = self.tracks.len().min(self.limit);
        let others = &self.tracks[shown..];
        let other = (!others.is_empty()).then(|| Other {
            processes: others.len() as u64,
            used: others.iter().filter_map(|track| track.used).reduce(|sum, used| sum + used),
        });
        (self.tracks[..shown].iter_mut().map(|track| track.show(now)).collect(), other)
    }
}

impl Track {
    fn see(&mut self, entry: &Listed, now: Instant) {
        self.kind = entry.kind;
        self.used = entry.used;
        if let Some(used) = entry.used {
            self.measured = true;
            self.peaks.see(used, now);
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

/// A moment of the wall clock as one of the monotonic clock. A timestamp of the future (the clock was set back) is now.
fn when(micros: u64, (instant, wall): (Instant, SystemTime)) -> Instant {
    let then = SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
    instant.checked_sub(wall.duration_since(then).unwrap_or_default()).unwrap_or(instant)
}
