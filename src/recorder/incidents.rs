//! The incidents that are kept in memory: those in progress, and the latest complete ones.
//!
//! Invariants: an incident is visible as soon as its moment is known, and what it recorded is replaced only once, when
//! it is complete. While it is in progress, another moment of the same kind and tenant on the same device belongs to
//! it; if the moment was reported by a process, only one of the same workload. Later moments of the same workload are
//! repeats: they raise its count. What is kept is bounded by number and bytes, and `retention` decides what is given
//! up.

mod facts;
pub(super) mod freeze;
mod subject;
pub(super) mod text;
pub(super) mod trace;
pub(super) mod trigger;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::freeze::{AFTER, freeze};
use self::subject::Subject;
use self::trigger::Trigger;
use super::disk::retention::{Claim, Room, surplus};
use super::history::{DeviceHistory, DeviceKey, Histories, Incident, IncidentGpu, Kind, Micros, Now, SECOND};
use crate::snapshot::IncidentCount;

/// The maximum number of incidents that are kept in memory: of one device and kind, and in all.
const OF_KIND: usize = 8;
const IN_ALL: usize = 128;
/// The incidents may use the limit of the recorder's memory divided by this number.
const SHARE: usize = 4;
/// The maximum number of incidents of one kind on a device that are in progress at the same time.
const IN_PROGRESS: usize = 8;
/// A moment is a repeat if it follows the last one of the same workload within this time, and the first one within
/// `REPEATS_SINCE_FIRST`. So what was recorded is never much older than the moments that are counted with it.
const REPEATS_SINCE_LAST: Micros = 600 * SECOND;
const REPEATS_SINCE_FIRST: Micros = 3600 * SECOND;
/// An incident that repeats is written to disk again at most this often.
const WRITTEN_EVERY: Micros = 60 * SECOND;

/// The incidents, oldest first.
#[derive(Debug)]
pub(super) struct Incidents {
    kept: Vec<Kept>,
    pub(super) room: Room,
    /// The number of moments since the exporter started, by the UUIDs of the GPU and the MIG device, and the kind.
    counts: BTreeMap<(String, Option<String>, Kind), IncidentCount>,
    /// The machine's name.
    host: Option<String>,
}

/// What a moment became.
#[derive(Debug)]
pub(super) enum Moment {
    /// An incident of its own.
    New(Arc<Incident>),
    /// A repeat of an incident, which counts it.
    Repeat,
    /// A part of an incident that was recorded or repeated less than ten seconds ago. It is not counted.
    Part(Arc<Incident>),
}

#[derive(Debug)]
struct Kept {
    /// Set while the incident is in progress.
    trigger: Option<Trigger>,
    /// `None` for an incident of an earlier run, which no moment repeats.
    moments: Option<Moments>,
    incident: Arc<Incident>,
    claim: Claim,
}

/// The moments of an incident.
#[derive(Debug, Clone)]
struct Moments {
    device: DeviceKey,
    xid: Option<u64>,
    subject: Subject,
    first: Micros,
    last: Micros,
    /// When it was last written, and whether it has repeated since.
    written: Micros,
    changed: bool,
}

impl Moments {
    fn are_repeated_by(&self, trigger: &Trigger, subject: &Subject) -> bool {
        let is_alike = self.device == trigger.device && self.xid == trigger.xid && self.subject == *subject;
        let since = |before: Micros| trigger.at.saturating_sub(before);
        is_alike && since(self.last) <= REPEATS_SINCE_LAST && since(self.first) <= REPEATS_SINCE_FIRST
    }
}

impl Incidents {
    /// `host` is the machine's name, and `memory_limit` that of the whole recorder in bytes.
    pub(super) fn new(host: Option<String>, memory_limit: usize) -> Self {
        let room = Room { of_kind: OF_KIND, count: IN_ALL, bytes: (memory_limit / SHARE) as u64 };
        Self { kept: Vec::new(), room, counts: BTreeMap::new(), host }
    }

    /// Adds an incident from an earlier run, whose file has this size. If that run ended while the incident was being
    /// recorded, the incident is completed and returned.
    pub(super) fn restore(&mut self, mut incident: Incident, bytes: usize) -> Option<Arc<Incident>> {
        let is_cut = !incident.complete;
        if is_cut {
            incident.interrupt();
        }
        let mut kept = Kept::new(None, None, incident);
        kept.claim.bytes = kept.claim.bytes.max(bytes as u64);
        let incident = self.push(kept);
        is_cut.then_some(incident)
    }

    /// Records a moment. Returns `None` if the GPU is no longer known.
    pub(super) fn record(
        &mut self,
        trigger: Trigger,
        histories: &Histories,
        now: Now,
        simulated: bool,
    ) -> Option<Moment> {
        let device = histories.device(&trigger.device)?;
        let subject = Subject::of(device, &trigger);
        if let Some(index) = self.in_progress(&trigger, &subject) {
            let kept = &mut self.kept[index];
            kept.take_account(&trigger, histories, now, self.host.as_deref(), simulated);
            return Some(Moment::Part(kept.take_subject(subject)));
        }
        if let Some(index) = self.repeated(&trigger, &subject) {
            let kept = &mut self.kept[index];
            let moments = kept.moments.as_mut()?;
            if trigger.at.saturating_sub(moments.last) < AFTER {
                return Some(Moment::Part(kept.incident.clone()));
            }
            (moments.last, moments.changed) = (trigger.at, true);
            let incident = Arc::make_mut(&mut kept.incident);
            incident.count += 1;
            incident.last_at = Some(now.unix(trigger.at));
            let incident = kept.incident.clone();
            self.count(&incident, device);
            return Some(Moment::Repeat);
        }
        let mut incident = freeze(histories, &trigger, now, self.host.as_deref(), simulated)?;
        let taken = |id: &str| self.kept.iter().any(|kept| kept.incident.id == id);
        if taken(&incident.id) {
            let id = (2..).map(|n| format!("{}-{n}", incident.id)).find(|id| !taken(id));
            incident.id = id.unwrap_or_default();
        }
        incident.workload.clone_from(&subject.workload);
        incident.tenant.clone_from(&subject.tenant);
        self.count(&incident, device);
        let (first, written) = (trigger.at, now.micros);
        let (device, xid) = (trigger.device.clone(), trigger.xid);
        let moments = Moments { device, xid, subject, first, last: first, written, changed: false };
        Some(Moment::New(self.push(Kept::new(Some(trigger), Some(moments), incident))))
    }

    /// The position of the incident in progress to which a moment belongs.
    fn in_progress(&self, trigger: &Trigger, subject: &Subject) -> Option<usize> {
        let is_alike = |&(_, kept): &(usize, &Kept)| {
            kept.trigger.as_ref().is_some_and(|other| other.kind == trigger.kind && other.device == trigger.device)
        };
        let mut alike = self.kept.iter().enumerate().filter(is_alike);
        let belongs = |(_, kept): &(usize, &Kept)| {
            let other = kept.moments.as_ref().map(|moments| &moments.subject);
            other.is_some_and(|other| match trigger.kind {
                // Each workload that ran out of memory has its own report.
                Kind::OutOfMemory => other == subject,
                // A device can fill before the first list that contains its holder.
                Kind::NearLimit if other.tenant.is_none() => true,
                _ => other.tenant == subject.tenant,
            })
        };
        let found = if alike.clone().count() >= IN_PROGRESS { alike.next() } else { alike.find(belongs) };
        found.map(|(index, _)| index)
    }

    /// The position of the latest incident that a moment repeats.
    fn repeated(&self, trigger: &Trigger, subject: &Subject) -> Option<usize> {
        let is_repeated = |kept: &Kept| {
            let moments = kept.moments.as_ref();
            kept.incident.kind == trigger.kind
                && moments.is_some_and(|moments| moments.are_repeated_by(trigger, subject))
        };
        // Each request of a client is about the present.
        if trigger.kind == Kind::OnDemand { None } else { self.kept.iter().rposition(is_repeated) }
    }

    /// Replaces each incident with its complete version once the ten seconds after its moment have passed. Returns the
    /// incidents that are to be written: the complete versions, and those that have repeated.
    pub(super) fn complete(&mut self, histories: &Histories, now: Now, simulated: bool) -> Vec<Arc<Incident>> {
        let mut to_write = Vec::new();
        for kept in &mut self.kept {
            if kept.trigger.as_ref().is_some_and(|trigger| now.micros >= trigger.at + AFTER) {
                kept.freeze_again(histories, now, self.host.as_deref(), simulated);
                to_write.push(kept.incident.clone());
            } else if let Some(moments) = &mut kept.moments
                && moments.changed
                && now.micros.saturating_sub(moments.written) >= WRITTEN_EVERY
            {
                (moments.written, moments.changed) = (now.micros, false);
                to_write.push(kept.incident.clone());
            }
        }
        self.give_up();
        to_write
    }

    /// Ends what is in progress, because the exporter ends. Returns the incidents that are to be written.
    pub(super) fn finish(&mut self, histories: &Histories, now: Now, simulated: bool) -> Vec<Arc<Incident>> {
        let mut to_write = Vec::new();
        for kept in &mut self.kept {
            let is_cut = kept.trigger.is_some();
            kept.freeze_again(histories, now, self.host.as_deref(), simulated);
            if is_cut && !kept.incident.complete {
                Arc::make_mut(&mut kept.incident).interrupt();
            }
            if is_cut || kept.moments.as_ref().is_some_and(|moments| moments.changed) {
                to_write.push(kept.incident.clone());
            }
        }
        to_write
    }

    fn push(&mut self, kept: Kept) -> Arc<Incident> {
        let incident = kept.incident.clone();
        self.kept.push(kept);
        self.give_up();
        incident
    }

    fn give_up(&mut self) {
        let mut claims: Vec<_> = self.kept.iter().map(|kept| kept.claim.clone()).collect();
        while let Some(index) = surplus(&claims, self.room) {
            claims.remove(index);
            self.kept.remove(index);
        }
    }

    /// All incidents that are kept, oldest first.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = &Arc<Incident>> {
        self.kept.iter().map(|kept| &kept.incident)
    }

    /// The number of moments since the exporter started, repeats included, by GPU and kind. The id of an incident that
    /// is no longer kept is left out.
    pub(super) fn counts(&self) -> impl Iterator<Item = IncidentCount> {
        self.counts.values().map(|counted| {
            let is_kept = |id: &String| self.all().any(|incident| incident.id == *id);
            IncidentCount { last_id: counted.last_id.clone().filter(is_kept), ..counted.clone() }
        })
    }

    /// Counts a moment of a device that has an incident or repeats it.
    fn count(&mut self, incident: &Incident, device: &DeviceHistory) {
        let IncidentGpu { index, uuid, .. } = &incident.gpu;
        let (kind, mig) = (incident.kind.label(), device.mig.as_deref().cloned());
        let key = (uuid.clone(), device.mig_uuid().map(str::to_owned), incident.kind);
        let none = || IncidentCount { gpu: *index, uuid: uuid.clone(), mig, kind, count: 0, last: 0.0, last_id: None };
        let counted = self.counts.entry(key).or_insert_with(none);
        counted.gpu = *index;
        counted.count += 1;
        counted.last = incident.last_at.unwrap_or(incident.at);
        counted.last_id = Some(incident.id.clone());
    }

    /// Forgets the counts of the MIG devices for which `is_known` is false: their UUIDs do not come back.
    pub(super) fn forget_mig(&mut self, is_known: impl Fn(&str) -> bool) {
        self.counts.retain(|(_, mig, _), _| mig.as_deref().is_none_or(&is_known));
    }

    /// An upper estimate of the memory that the incidents use.
    pub(super) fn bytes(&self) -> usize {
        self.kept.iter().map(|kept| usize::try_from(kept.claim.bytes).unwrap_or(usize::MAX)).sum()
    }
}

impl Kept {
    fn new(trigger: Option<Trigger>, moments: Option<Moments>, incident: Incident) -> Self {
        let claim = claim(&incident);
        Self { trigger, moments, incident: Arc::new(incident), claim }
    }

    /// Adopts the subject of a later part of the same moment if its own was unknown. Returns the incident.
    fn take_subject(&mut self, subject: Subject) -> Arc<Incident> {
        if let Some(moments) = self.moments.as_mut().filter(|moments| moments.subject == Subject::default()) {
            let incident = Arc::make_mut(&mut self.incident);
            incident.workload.clone_from(&subject.workload);
            incident.tenant.clone_from(&subject.tenant);
            moments.subject = subject;
            self.claim = claim(&self.incident);
        }
        self.incident.clone()
    }

    /// Adds another account of the failure that an incident in progress is about.
    fn take_account(&mut self, other: &Trigger, histories: &Histories, now: Now, host: Option<&str>, simulated: bool) {
        let Some((trigger, failure)) = self.trigger.as_mut().zip(other.failure.as_deref()) else { return };
        if let Some(own) = trigger.failure.as_deref_mut() {
            own.join(failure);
        }
        let trigger = trigger.clone();
        self.freeze_again(histories, now, host, simulated);
        self.trigger = Some(trigger);
    }

    /// Replaces an incident in progress with what is known now, and ends its recording.
    fn freeze_again(&mut self, histories: &Histories, now: Now, host: Option<&str>, simulated: bool) {
        let Some(trigger) = self.trigger.take() else { return };
        let Some(incident) = freeze(histories, &trigger, now, host, simulated) else { return };
        let Incident { id, count, last_at, workload, tenant, .. } = (*self.incident).clone();
        let incident = Incident { id, count, last_at, workload, tenant, ..incident };
        self.claim = claim(&incident);
        self.incident = Arc::new(incident);
    }
}

fn claim(incident: &Incident) -> Claim {
    Claim { group: incident.group(), tenant: incident.tenant(), bytes: incident.bytes() as u64 }
}
