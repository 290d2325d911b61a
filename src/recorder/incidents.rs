//! The incidents that are kept in memory: those in progress, and the latest complete ones.
//!
//! Invariant: an incident is visible as soon as its moment is known, and is replaced only once, when it is complete.
//! While an incident is in progress, another moment of the same kind on the same GPU belongs to it. If the moment was
//! reported by a process, the incident must also have been reported by that process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::clock::Now;
use super::freeze::{AFTER, freeze};
use super::incident::{Incident, IncidentGpu, Kind};
use super::ledger::{Ledger, Trigger};
use crate::snapshot::IncidentCount;

/// The number of incidents that are kept in memory.
const MAX_KEPT: usize = 32;
/// The maximum number of client-requested incidents that are kept in memory.
const MAX_REQUESTED: usize = 8;

/// The maximum number of process-reported incidents that are kept in memory. Without this limit, a process could push
/// out all other incidents.
const MAX_REPORTED: usize = 16;
/// The maximum number of processes on a GPU that can each have an incident of their own at the same time.
const MAX_VICTIMS: usize = 8;

/// The incidents, oldest first.
#[derive(Debug, Default)]
pub(super) struct Incidents {
    kept: VecDeque<Kept>,
    /// The number of incidents since the exporter started, by the GPU's UUID and the kind.
    counts: BTreeMap<(String, Kind), IncidentCount>,
    /// The machine's name.
    host: Option<String>,
}

#[derive(Debug)]
struct Kept {
    /// Set while the incident is in progress.
    trigger: Option<Trigger>,
    incident: Arc<Incident>,
    bytes: usize,
}

impl Incidents {
    /// `host` is the machine's name.
    pub(super) fn new(host: Option<String>) -> Self {
        Self { host, ..Self::default() }
    }

    /// Adds an incident from an earlier run.
    pub(super) fn restore(&mut self, incident: Incident) {
        self.push(None, incident);
    }

    /// Freezes the incident for a trigger. Returns the new incident and `true`, or `false` and the incident in progress
    /// to which the moment belongs, or `None` if the GPU is no longer known.
    pub(super) fn record(
        &mut self,
        trigger: Trigger,
        ledger: &Ledger,
        now: Now,
        simulated: bool,
    ) -> Option<(Arc<Incident>, bool)> {
        let is_alike = |kept: &&Kept| {
            let other = kept.trigger.as_ref();
            other.is_some_and(|other| other.kind == trigger.kind && other.gpu == trigger.gpu)
        };
        let mut alike = self.kept.iter().filter(is_alike);
        let in_progress = match trigger.kind {
            // Each process that ran out of memory has its own report.
            Kind::OutOfMemory if alike.clone().count() < MAX_VICTIMS => {
                alike.find(|kept| kept.trigger.as_ref().is_some_and(|other| other.process == trigger.process))
            }
            _ => alike.next(),
        };
        if let Some(in_progress) = in_progress {
            return Some((in_progress.incident.clone(), false));
        }
        let mut incident = freeze(ledger, &trigger, now, self.host.as_deref(), simulated)?;
        let taken = |id: &str| self.kept.iter().any(|kept| kept.incident.id == id);
        if taken(&incident.id) {
            let id = (2..).map(|n| format!("{}-{n}", incident.id)).find(|id| !taken(id));
            incident.id = id.unwrap_or_default();
        }
        self.count(&incident);
        Some((self.push(Some(trigger), incident), true))
    }

    /// Replaces each incident with its complete version once the ten seconds after its moment have passed, and returns
    /// the complete versions.
    pub(super) fn complete(&mut self, ledger: &Ledger, now: Now, simulated: bool) -> Vec<Arc<Incident>> {
        let mut complete = Vec::new();
        for kept in &mut self.kept {
            let Some(trigger) = kept.trigger.take_if(|trigger| now.micros >= trigger.at + AFTER) else { continue };
            if let Some(mut incident) = freeze(ledger, &trigger, now, self.host.as_deref(), simulated) {
                incident.id.clone_from(&kept.incident.id);
                *kept = Kept::new(None, incident);
                complete.push(kept.incident.clone());
            }
        }
        complete
    }

    fn push(&mut self, trigger: Option<Trigger>, incident: Incident) -> Arc<Incident> {
        let kept = Kept::new(trigger, incident);
        let incident = kept.incident.clone();
        self.kept.push_back(kept);
        for (kind, most) in [(Kind::OnDemand, MAX_REQUESTED), (Kind::OutOfMemory, MAX_REPORTED)] {
            let is_such = |kept: &Kept| kept.incident.kind == kind;
            if self.kept.iter().filter(|kept| is_such(kept)).count() > most {
                let oldest = self.kept.iter().position(is_such);
                oldest.map(|index| self.kept.remove(index));
            }
        }
        if self.kept.len() > MAX_KEPT {
            self.kept.pop_front();
        }
        incident
    }

    /// All incidents that are kept, oldest first.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = &Arc<Incident>> {
        self.kept.iter().map(|kept| &kept.incident)
    }

    /// The number of incidents since the exporter started, by GPU and kind. The id of an incident that is no longer
    /// kept is left out.
    pub(super) fn counts(&self) -> impl Iterator<Item = IncidentCount> {
        self.counts.values().map(|counted| {
            let is_kept = |id: &String| self.all().any(|incident| incident.id == *id);
            IncidentCount { last_id: counted.last_id.clone().filter(is_kept), ..counted.clone() }
        })
    }

    fn count(&mut self, incident: &Incident) {
        let IncidentGpu { index, uuid, .. } = &incident.gpu;
        let kind = incident.kind.label();
        let none = || IncidentCount { gpu: *index, uuid: uuid.clone(), kind, count: 0, last: 0.0, last_id: None };
        let counted = self.counts.entry((uuid.clone(), incident.kind)).or_insert_with(none);
        counted.gpu = *index;
        counted.count += 1;
        counted.last = incident.at;
        counted.last_id = Some(incident.id.clone());
    }

    /// An upper estimate of the memory that the incidents use.
    pub(super) fn bytes(&self) -> usize {
        self.kept.iter().map(|kept| kept.bytes).sum()
    }
}

impl Kept {
    fn new(trigger: Option<Trigger>, incident: Incident) -> Self {
        let bytes = incident.bytes();
        Self { trigger, incident: Arc::new(incident), bytes }
    }
}
