//! The advice for a group of runs.
//!
//! Invariant: advice is made only from memory that was needed, from enough samples of enough time; what makes it impossible
//! is said.

use std::collections::{BTreeMap, BTreeSet};

use text_and_sizes::sizing;

use super::devices::{Devices, Memory};
use super::groups::{GroupKey, Members};
use super::history::Run;
use super::record::{Action, Basis, Reason, Workload};
use super::reservation;
use super::rising;
use super::run_key::RunKey;
use super::span::{self, Span};
use super::units::{self, Given};

/// From this percentage of the driver's peak on, the need that clients report explains how the memory has changed.
const EXPLAINED: u64 = 90;
/// Less than this share of what a workload may hold is not worth a change, in percent.
const WORTH: u128 = 5;
/// The source of a budget that is a MIG device.
const MIG: &str = "mig";
/// The source where there is no budget: the whole device.
const DEVICE: &str = "device";

/// What is enough for advice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Enough {
    pub(super) samples: u64,
    /// Seconds.
    pub(super) span: u64,
}

/// Judges a group, which has at least one run. What could be given back depends on the other groups, and is 0 here.
pub(super) fn judge(key: &GroupKey, members: &Members<'_>, devices: &Devices, span: Span, enough: Enough) -> Workload {
    let runs = || members.iter().map(|(_, run)| *run);
    let driver_peak = runs().map(|run| run.driver_peak).max().unwrap_or(0);
    let peak = runs().map(Run::need).max().unwrap_or(0);
    let by_clients = runs().any(|run| run.need() == peak && run.clients.is_some());
    let clients = || runs().filter_map(|run| run.clients.as_ref());
    let samples = runs().map(Run::samples).sum();
    let out_of_memory = clients().filter_map(|clients| clients.out_of_memory).reduce(|a, b| a + b);

    let highest = highest(members);
    let [first, last] =
        [highest.keys().next(), highest.keys().next_back()].map(|index| index.map(|index| span.end_of(*index)));
    let span_seconds = last.zip(first).map_or(0, |(last, first)| last - first);
    // The times are true to one interval, which is long if the range is, and otherwise a minute.
    let certain = span_seconds.saturating_sub(span.interval - span::SHORTEST);
    let reached = highest.iter().find(|(_, peak)| **peak >= driver_peak).map(|(index, _)| *index);

    let memory = |key: &RunKey| devices.memory(&key.gpu(), key.mig_uuid.as_deref());
    let preallocates =
        reservation::first(members.iter().filter_map(|(key, run)| reservation::reason(run, memory(key))));
    let latest = latest(members, memory);
    let latest_memory = latest.and_then(|(key, _)| memory(key));
    let current = current(members, latest, latest_memory);
    let request = sizing::request(peak, latest_memory.map_or(0, Memory::allocatable));
    // If clients report a need far below the driver's peak, it is what an allocator keeps that has been rising.
    let is_explained = !by_clients || reservation::is_at(EXPLAINED, peak, driver_peak);
    // A restart that takes more is no rise, so each run is judged by itself.
    let rising = runs().filter_map(|run| rising::rate(&run.intervals, span.interval)).max().filter(|_| is_explained);
    let last_shortage = runs().filter_map(|run| run.shortage).max();
    let failed = out_of_memory.unwrap_or(0) > 0;
    let has_failed = failed || last_shortage.is_some();
    let reason = match () {
        () if failed => Reason::FailedAllocations,
        () if has_failed => Reason::Shortage,
        () if samples < enough.samples => Reason::TooFewSamples,
        () if span_seconds < enough.span || certain * 2 < enough.span => Reason::TooShort,
        () if preallocates.is_some() => Reason::Preallocated,
        () if rising.is_some() => Reason::Rising,
        () if request.is_none() => Reason::ExceedsDevice,
        () => Reason::Peak,
    };
    let advice = request.filter(|_| reason == Reason::Peak);
    let beyond = latest.zip(latest_memory).and_then(|((key, _), memory)| {
        let is_full = has_failed && reservation::is_near(driver_peak, memory.allocatable());
        let wanted = if is_full { driver_peak.saturating_add(1) } else { sizing::with_margin(peak) };
        (is_full || reason == Reason::ExceedsDevice).then(|| units::beyond(key, memory, wanted, devices))
    });
    let devices_now = runs().filter(|run| run.is_now).count() as u64;
    let units = advice.zip(latest).and_then(|(advice, (key, _))| {
        let outside = clients().filter_map(|clients| clients.outside).max();
        let gpu = key.gpu();
        let processes = runs().map(|run| run.processes).max().unwrap_or(0);
        let given = Given { advice, peak, outside, processes, gpu: &gpu, mig_uuid: key.mig_uuid.as_deref() };
        units::units(given, devices)
    });
    let mut action = match (advice, &current, reason) {
        (Some(advice), Some((current, _)), _) => {
            let total = latest_memory.map_or(0, |memory| memory.total);
            action(advice, peak, *current, total)
        }
        (None, Some((current, _)), Reason::FailedAllocations | Reason::Shortage)
            if reservation::is_near(driver_peak, *current) =>
        {
            Action::Raise
        }
        (None, Some((current, _)), Reason::ExceedsDevice) if peak > *current => Action::Raise,
        _ => Action::None,
    };
    if action == Action::Lower && !can_shrink(latest, latest_memory, &current, &units) {
        action = Action::Keep;
    }
    let frameworks: BTreeSet<_> = clients().flat_map(|clients| &clients.frameworks).collect();
    Workload {
        cluster: key.cluster.clone(),
        workload: key.workload.clone(),
        kind: key.kind.clone(),
        runs: members.len() as u64,
        devices: members.iter().map(|(key, _)| (&key.uuid, &key.mig_uuid)).collect::<BTreeSet<_>>().len() as u64,
        devices_now,
        samples,
        first,
        last,
        span_seconds,
        driver_peak_bytes: driver_peak,
        peak_from: reached.map(|index| span.begin_of(index)),
        peak_until: reached.map(|index| span.end_of(index)),
        intervals: highest.len() as u64,
        intervals_near_peak: highest.values().filter(|peak| reservation::is_near(**peak, driver_peak)).count() as u64,
        basis: if by_clients { Basis::Allocator } else { Basis::Driver },
        peak_bytes: peak,
        allocated_peak_bytes: clients().map(|clients| clients.allocated_peak).max(),
        frameworks: frameworks.into_iter().cloned().collect(),
        out_of_memory,
        last_shortage,
        preallocates,
        current_bytes: current.as_ref().map(|(bytes, _)| *bytes),
        current_source: current.map(|(_, source)| source),
        advice_bytes: advice,
        reason,
        rising_bytes_per_hour: rising.filter(|_| reason == Reason::Rising),
        beyond,
        action,
        freed_bytes: 0,
        units,
        simulated: members.iter().any(|(key, _)| devices.gpus.get(&key.gpu()).is_some_and(|gpu| gpu.simulated)),
    }
}

/// The highest window peak of each interval in which a run has samples.
fn highest(members: &Members<'_>) -> BTreeMap<u32, u64> {
    let mut highest: BTreeMap<u32, u64> = BTreeMap::new();
    for (index, interval) in members.iter().flat_map(|(_, run)| &run.intervals) {
        let peak = highest.entry(*index).or_default();
        *peak = interval.peak.max(*peak);
    }
    highest
}

/// The run that ends last; of several, the one on the largest device, then the first by UUID.
fn latest<'a>(members: &Members<'a>, memory: impl Fn(&RunKey) -> Option<Memory>) -> Option<(&'a RunKey, &'a Run)> {
    let order = |(key, run): &(&RunKey, &Run)| (run.last(), memory(key).map(Memory::allocatable));
    let name = |(key, _): &(&'a RunKey, &'a Run)| (&key.uuid, &key.mig_uuid);
    members.iter().copied().max_by(|a, b| order(a).cmp(&order(b)).then_with(|| name(b).cmp(&name(a))))
}

/// What the group may hold on one device now, and who says so.
fn current(members: &Members<'_>, latest: Option<(&RunKey, &Run)>, memory: Option<Memory>) -> Option<(u64, String)> {
    let last = latest?.1.last();
    let budgets = members.iter().filter(|(_, run)| run.last() == last).filter_map(|(_, run)| run.budget.clone());
    // Of equal budgets, the first by source.
    let budget = budgets.max_by(|a, b| a.0.cmp(&b.0).then_with(|| b.1.cmp(&a.1)));
    budget.or_else(|| Some((memory?.allocatable(), DEVICE.to_owned())))
}

fn action(advice: u64, peak: u64, current: u64, total: u64) -> Action {
    if advice > current {
        return if peak > current { Action::Raise } else { Action::Keep };
    }
    let less = u128::from(current - advice) * 100;
    if less > u128::from(current) * WORTH && less > u128::from(total) { Action::Lower } else { Action::Keep }
}

/// Whether less can be given. The memory of a MIG device is that of its profile.
fn can_shrink(
    latest: Option<(&RunKey, &Run)>,
    memory: Option<Memory>,
    current: &Option<(u64, String)>,
    units: &Option<super::record::Units>,
) -> bool {
    let on_mig = latest.is_some_and(|(key, _)| key.mig_uuid.is_some());
    let is_profile = current.as_ref().is_some_and(|(_, source)| source == DEVICE || source == MIG);
    if !on_mig || !is_profile {
        return true;
    }
    let profile = units.as_ref().and_then(|units| units.mig_profile.as_ref());
    profile.zip(memory).is_some_and(|(profile, memory)| profile.allocatable_bytes < memory.allocatable())
}
