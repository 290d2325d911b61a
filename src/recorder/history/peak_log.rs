//! The highest memory use of each minute, and what the processes held according to the list that was read next to it.
//!
//! Invariants: a peak and the processes that held it are one entry, so that every answer about a peak names the same
//! holders; the list is the first one that was read after the peak, and its time and its sum are kept with it.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use super::device_list::DeviceList;
use super::{COARSE, HeapUse, Micros, Now, PeakHolder, ProcessRef, RecordedPeak, SECOND, allocation};
use crate::snapshot::Process;

/// The length of the time for which one peak is kept.
const MINUTE: Micros = 60 * SECOND;
/// The maximum number of holders that a peak names.
const HOLDERS: usize = 5;
/// This many peaks are always kept: of the minute that goes on, and of the one before.
const LAST: usize = 2;
/// Up to this number, the holders are processes; if there are more, their workloads.
const FEW: usize = 3;

/// The peaks of one device, oldest first.
#[derive(Debug, Default)]
pub(crate) struct PeakLog {
    minutes: VecDeque<Peak>,
}

/// The peak of a minute.
#[derive(Debug, Clone)]
pub(crate) struct Peak {
    /// When it was reached, within its minute. A peak that a minute began with was reached then.
    pub(crate) at: Micros,
    /// Bytes.
    pub(crate) used: u64,
    /// `None` until a list is read after it.
    listing: Option<Listing>,
    /// Whether it gets no list any more.
    is_closed: bool,
}

/// What a list shows.
#[derive(Debug, Clone)]
struct Listing {
    at: Micros,
    /// Bytes that all processes on the device held, as far as the driver reports them.
    held: u64,
    /// Bytes that no visible process held; `None` if that is unknown.
    unattributed: Option<u64>,
    processes: u64,
    /// How many of them the driver reports without their memory.
    unreported: u64,
    /// Shared with the minutes before, if they are the same.
    holders: Arc<[PeakHolder]>,
}

impl PeakLog {
    /// Begins the minute that contains `at`, in which the device held `used` from the beginning, if it has not begun.
    pub(crate) fn roll(&mut self, at: Micros, used: Option<u64>) {
        let begin = at - at % MINUTE;
        if let Some(used) = used
            && self.minutes.back().is_some_and(|last| last.at < begin)
        {
            self.minutes.push_back(Peak { at: begin, used, listing: None, is_closed: false });
        }
    }

    /// Records a sample. One that arrives after its minute has ended still belongs to it, if it is the minute before.
    pub(crate) fn see(&mut self, at: Micros, used: u64) {
        let recent = self.minutes.len().saturating_sub(2);
        let is_later = self.minutes.back().is_none_or(|last| last.at < at);
        let same = self.minutes.range_mut(recent..).find(|peak| peak.at / MINUTE == at / MINUTE);
        match same {
            Some(peak) if used > peak.used => *peak = Peak { at, used, listing: None, is_closed: false },
            Some(_) => {}
            None if is_later => self.minutes.push_back(Peak { at, used, listing: None, is_closed: false }),
            None => {}
        }
    }

    /// Records a list that was read at `at`, if it is the first one after a peak.
    pub(crate) fn list(&mut self, list: &DeviceList<'_>, at: Micros) {
        // The peak of the minute before can have been at its end.
        let recent = self.minutes.len().saturating_sub(2);
        let is_open = |peak: &Peak| peak.listing.is_none() && !peak.is_closed && peak.at < at;
        if !self.minutes.range(recent..).any(is_open) {
            return;
        }
        let before = self.minutes.iter().rev().find_map(|peak| peak.listing.as_ref());
        let listing = Listing::of(list, at, before.map(|listing| &listing.holders));
        self.minutes.range_mut(recent..).filter(|peak| is_open(peak)).for_each(|peak| {
            peak.listing = Some(listing.clone());
        });
    }

    /// The peak that was reached at this moment.
    pub(crate) fn reached(&self, at: Micros) -> Option<&Peak> {
        self.minutes.iter().rev().find(|peak| peak.at == at)
    }

    /// Lets the peak that was reached at this moment stay without a list: it was passed on without one.
    pub(crate) fn close(&mut self, at: Micros) {
        self.minutes.iter_mut().filter(|peak| peak.at == at).for_each(|peak| peak.is_closed = true);
    }

    /// The peaks of the minutes that have a part in the time from `from` to `to`.
    pub(crate) fn within(&self, from: Micros, to: Micros) -> impl Iterator<Item = &Peak> {
        self.minutes.iter().filter(move |peak| peak.at / MINUTE >= from / MINUTE && peak.at <= to)
    }

    /// Drops what is too old at `now`.
    pub(crate) fn age(&mut self, now: Micros) {
        let oldest = now.saturating_sub(COARSE + MINUTE);
        while self.minutes.front().is_some_and(|peak| peak.at < oldest) {
            self.minutes.pop_front();
        }
    }

    /// Drops the older half of the peaks until they use at most `bytes`, but not the last two: these lose only their
    /// holders.
    pub(crate) fn bound(&mut self, bytes: usize) {
        while self.bytes() > bytes && self.minutes.len() > LAST {
            self.minutes.drain(..(self.minutes.len() / 2).min(self.minutes.len() - LAST));
            self.minutes.shrink_to_fit();
        }
        if self.bytes() > bytes {
            self.minutes.iter_mut().for_each(|peak| (peak.listing, peak.is_closed) = (None, true));
        }
    }

    /// The memory that the peaks use.
    pub(crate) fn bytes(&self) -> usize {
        let holders = |peak: &Peak| peak.listing.as_ref().map(|listing| listing.holders.clone());
        let mut holders: Vec<_> = self.minutes.iter().filter_map(holders).collect();
        holders.dedup_by(|later, earlier| Arc::ptr_eq(later, earlier));
        let texts: usize = holders.iter().map(|holders| heap_use(holders)).sum();
        self.minutes.capacity() * size_of::<Peak>() + texts
    }
}

fn heap_use(holders: &[PeakHolder]) -> usize {
    allocation(size_of_val(holders) + 2 * size_of::<usize>()) + holders.iter().map(HeapUse::heap_use).sum::<usize>()
}

impl Listing {
    /// `before`: the holders of the peak before.
    fn of(list: &DeviceList<'_>, at: Micros, before: Option<&Arc<[PeakHolder]>>) -> Self {
        let living = || list.holders().filter(|process| process.alive);
        let other = list.other();
        let of_other = other.and_then(|other| other.used);
        let held = living().filter_map(|process| process.used).chain(of_other).fold(0, u64::saturating_add);
        let unreported = living().filter(|process| process.used.is_none()).count();
        let processes = living().count() as u64 + other.map_or(0, |other| other.processes);
        let holders = holders(living().filter(|process| process.used.is_some()).collect());
        let holders = before.filter(|before| ***before == *holders).cloned().unwrap_or_else(|| holders.into());
        Self { at, held, unattributed: list.unattributed(), processes, unreported: unreported as u64, holders }
    }
}

/// The largest holders: processes if there are few, and otherwise the workloads, with the processes that have none by
/// their names.
fn holders(processes: Vec<&Process>) -> Vec<PeakHolder> {
    let mut holders: Vec<PeakHolder> = Vec::new();
    let is_few = processes.len() <= FEW;
    for process in processes {
        let mut holder = holder(process);
        if !is_few {
            holder.pid = None;
            if holder.workload.is_some() {
                (holder.name, holder.user) = (None, None);
            }
        }
        let same = holders.iter_mut().find(|other| !is_few && other.is_same_group(&holder));
        match same {
            Some(other) => {
                other.used_bytes = other.used_bytes.saturating_add(holder.used_bytes);
                other.processes += 1;
                other.mig_uuid = other.mig_uuid.take().filter(|uuid| holder.mig_uuid.as_ref() == Some(uuid));
            }
            None => holders.push(holder),
        }
    }
    holders.retain(|holder| holder.used_bytes > 0);
    holders.sort_by_key(|holder| Reverse(holder.used_bytes));
    holders.truncate(HOLDERS);
    holders
}

/// A process and what it holds.
fn holder(process: &Process) -> PeakHolder {
    let who = ProcessRef::of(process.pid, &process.owner, process.mig.as_deref());
    let ProcessRef { pid, namespace_pid: _, name, user, workload, mig_uuid } = who;
    let used_bytes = process.used.unwrap_or(0);
    PeakHolder { pid: Some(pid), name, user, workload, mig_uuid, processes: 1, used_bytes }
}

impl Peak {
    /// Whether a list was read after it.
    pub(crate) fn is_listed(&self) -> bool {
        self.listing.is_some()
    }

    /// The peak with its times on the wall clock.
    pub(crate) fn shown(&self, now: Now) -> RecordedPeak {
        let listing = self.listing.as_ref();
        let mut peak = RecordedPeak {
            minute: self.at / MINUTE,
            at: now.unix(self.at),
            used_bytes: self.used,
            listed_at: listing.map(|listing| now.unix(listing.at)),
            listed_bytes: listing.map(|listing| listing.held),
            unattributed_bytes: listing.and_then(|listing| listing.unattributed),
            processes: listing.map(|listing| listing.processes),
            unreported: listing.map_or(0, |listing| listing.unreported),
            holders: listing.map(|listing| listing.holders.to_vec()).unwrap_or_default(),
            held_by: String::new(),
        };
        peak.held_by = peak.sentence();
        peak
    }
}

#[cfg(test)]
mod tests;
