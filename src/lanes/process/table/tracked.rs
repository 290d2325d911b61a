//! One process on a GPU: who it is, what it holds, how high it went.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::attribution::{Identity, StartTime};
use crate::lanes::peaks::Record;
use crate::lanes::process::list_cache::ListEntry;
use crate::lanes::process::table::ListContext;
use crate::snapshot::{Ended, MigDevice, Owner, Process, ProcessKind, Workload};

/// The start of a process is known by the second of the machine's boot.
const START_IS_KNOWN_WITHIN: Duration = Duration::from_secs(2);

/// What tells apart the processes that live on one GPU: pid, and GPU instance and compute instance under MIG.
pub(super) type ProcessSlot = (u32, Option<(u32, u32)>);

/// One process on the GPU (or on one of its MIG devices).
#[derive(Debug)]
pub(super) struct TrackedProcess {
    pub(super) pid: u32,
    pub(super) start: StartTime,
    pub(super) instance: Option<(u32, u32)>,
    pub(super) mig: Option<Arc<MigDevice>>,
    pub(super) kind: ProcessKind,
    pub(super) owner: Arc<Owner>,
    /// What it was counted for at the list before.
    pub(super) before: Option<Arc<Workload>>,
    pub(super) used: Option<u64>,
    pub(super) record: Record,
    pub(super) first_seen: Instant,
    /// The same by the wall clock.
    pub(super) first_seen_at: SystemTime,
    /// When a list last held it.
    pub(super) last_seen: Instant,
    pub(super) ended: Option<Instant>,
    pub(super) sm_utilization: Option<f64>,
    pub(super) last_active: Option<Instant>,
}

impl TrackedProcess {
    pub(super) fn new(
        entry: &ListEntry,
        start: StartTime,
        owner: Arc<Owner>,
        peak_window: Duration,
        now: Instant,
    ) -> Self {
        Self {
            pid: entry.pid,
            start,
            instance: entry.instance,
            mig: None,
            kind: entry.kind,
            owner,
            before: None,
            used: None,
            record: Record::new(peak_window),
            first_seen: now,
            first_seen_at: SystemTime::now(),
            last_seen: now,
            ended: None,
            sm_utilization: None,
            last_active: None,
        }
    }

    pub(super) fn slot(&self) -> ProcessSlot {
        (self.pid, self.instance)
    }

    /// Whether the one who has the pid now is another process than this one.
    pub(super) fn is_former_of(&self, identity: &Identity) -> bool {
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
    pub(super) fn take_owner(&mut self, owner: Arc<Owner>) {
        if self.owner.location != owner.location || self.owner.uid != owner.uid {
            self.before = None;
        }
        self.owner = owner;
    }

    pub(super) fn see(&mut self, entry: &ListEntry, known: ListContext<'_>, now: Instant) {
        if !known.unread.contains(&self.kind) {
            self.kind = entry.kind;
        }
        self.used = entry.used;
        self.last_seen = now;
        // Looked up each time: the layout may have been read after the process came.
        let here = |device: &&Arc<MigDevice>| Some((device.gpu_instance, device.compute_instance)) == entry.instance;
        if let Some(layout) = known.layout {
            self.mig = layout.iter().find(here).cloned();
        }
        self.record.see(entry.used, now);
    }

    pub(super) fn end(&mut self, now: Instant) {
        self.ended = Some(now);
        self.used = None;
        self.sm_utilization = None;
        self.record.end(now);
    }

    pub(super) fn show(&mut self, now: Instant) -> Process {
        let alive = self.ended.is_none();
        Process {
            pid: self.pid,
            kind: self.kind,
            mig: self.mig.clone(),
            owner: self.owner.clone(),
            alive,
            ended: self.ended.map(|by| Ended { after: self.last_seen, by }),
            used: self.used,
            window_peak: self.record.window_peak(now, !alive),
            peak: self.record.peak(),
            sm_utilization: self.sm_utilization,
            last_active: self.last_active.filter(|_| alive),
        }
    }
}
