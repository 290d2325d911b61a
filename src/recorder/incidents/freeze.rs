//! Builds an incident from the histories of its GPU.

use std::cmp::Reverse;

use super::facts::facts;
use super::trigger::Trigger;
use super::words::{self, Roles};
use crate::recorder::history::incident::{
    Between, Growth, Holder, Incident, IncidentGpu, IncidentMig, Kind, Peak, VERSION,
};
use crate::recorder::history::{
    DeviceHistory, Event, FINE, Histories, Micros, Now, ProcessHistory, Recorded, SECOND, chart, ending, time, unix,
};

/// How long the recording of an incident continues after its moment.
pub(super) const AFTER: Micros = 10 * SECOND;
/// How far before the moment the search for the GPU's peak begins.
const PEAK_WITHIN: Micros = 5 * SECOND;
/// The length of a part in the GPU's chart and in a process's chart.
const GPU_STEP: Micros = SECOND / 10;
const PROCESS_STEP: Micros = SECOND / 2;
/// The maximum numbers of processes and of events in an incident.
const MAX_PROCESSES: usize = 16;
const MAX_EVENTS: usize = 200;

/// The incident for a trigger, as far as it is known now. `None` if the trigger's GPU is no longer known.
pub(crate) fn freeze(
    histories: &Histories,
    trigger: &Trigger,
    now: Now,
    host: Option<&str>,
    simulated: bool,
) -> Option<Incident> {
    let gpu = histories.device(&trigger.device)?;
    let (begin, end) = (trigger.at.saturating_sub(FINE), now.micros.min(trigger.at + AFTER));
    let is_end = matches!(trigger.kind, Kind::EndedAtPeak | Kind::OutOfMemory);
    let peak_by = if is_end { trigger.at } else { end };
    let peak = gpu.memory.highest(trigger.at.saturating_sub(PEAK_WITHIN), peak_by);
    // If the GPU's memory is unknown, the processes are shown as they were at the moment of the trigger.
    let moment = peak.map_or(trigger.at, |(at, _)| histories.list_moment(gpu, at).min(peak_by.max(at)));
    let present = |process: &&ProcessHistory| process.ended.is_none_or(|(_, by)| by >= begin) && process.first <= end;
    let mut processes: Vec<_> = gpu.processes().filter(present).collect();
    let held = |process: &ProcessHistory| process.series.at(moment).filter(|_| process.first <= moment);
    let is_cause = |process: &ProcessHistory| trigger.process == Some(process.holding());
    // The process that ended is never left out.
    processes.sort_by_key(|process| Reverse((held(process), process.peak)));
    let cause = processes.iter().position(|process| is_cause(process)).map(|index| {
        let shown = index.min(MAX_PROCESSES - 1);
        processes.swap(index, shown);
        shown
    });
    let listed_bytes = processes.iter().filter_map(|process| held(process)).reduce(u64::saturating_add);
    let more_processes = processes.len().saturating_sub(MAX_PROCESSES);
    let holders: Vec<Holder> =
        (processes.iter().take(MAX_PROCESSES)).map(|process| holder(process, gpu, (begin, end), moment, now)).collect();
    // A recorder that has been running for less than ten seconds knows only the growth in the last second.
    let grew = |holder: &Holder| holder.grew.ten_seconds.or(holder.grew.second);
    let mut growers: Vec<_> = (holders.iter().enumerate())
        .filter_map(|(position, holder)| Some((grew(holder).filter(|bytes| *bytes > 0)?, position)))
        .collect();
    growers.sort_unstable_by_key(|(bytes, position)| (Reverse(*bytes), *position));
    let roles = Roles { cause, grower: growers.first().map(|(_, position)| *position) };
    let mut incident = Incident {
        version: VERSION,
        id: id(trigger, gpu, now),
        kind: trigger.kind,
        at: now.unix(trigger.at),
        count: 1,
        last_at: None,
        workload: None,
        tenant: None,
        interrupted: false,
        complete: now.micros >= trigger.at + AFTER,
        summary: String::new(),
        host: host.map(str::to_owned),
        simulated,
        gpu: IncidentGpu {
            index: gpu.gpu.index,
            uuid: gpu.gpu.uuid.clone(),
            name: gpu.gpu.name.clone(),
            mig: gpu.mig.as_deref().map(|device| IncidentMig {
                mig_uuid: device.uuid.clone(),
                gpu_instance: device.gpu_instance,
                compute_instance: device.compute_instance,
                profile: device.profile.clone(),
            }),
            allocatable_bytes: Some(gpu.allocatable).filter(|bytes| *bytes > 0),
        },
        out_of_memory: trigger.failure.as_deref().cloned(),
        facts: trigger.failure.as_deref().map(facts).unwrap_or_default(),
        peak: peak.map(|(at, used_bytes)| Peak {
            at: now.unix(at),
            until: gpu.memory.last_at_least(used_bytes, peak_by).map(|until| now.unix(until)),
            used_bytes,
            left_bytes: (gpu.allocatable > 0).then(|| gpu.allocatable.saturating_sub(used_bytes)),
            listed_at: histories.listed_at(gpu, moment).map(|at| now.unix(at)),
            listed_bytes,
        }),
        grew_most: growers.into_iter().map(|(_, position)| holders[position].who.pid).collect(),
        processes: holders,
        more_processes,
        events: events(histories, gpu, begin, end, now),
        memory: chart(&gpu.memory, begin, end, GPU_STEP, now),
    };
    incident.summary = words::summary(&incident, trigger, roles);
    Some(incident)
}

fn holder(
    process: &ProcessHistory,
    gpu: &DeviceHistory,
    (begin, end): (Micros, Micros),
    moment: Micros,
    now: Now,
) -> Holder {
    let held = |at: Micros| ending::held(process, gpu, at);
    let grew = |span: Micros| {
        let (after, before) = (held(moment)?, held(moment.checked_sub(span)?)?);
        i64::try_from(i128::from(after) - i128::from(before)).ok()
    };
    let last_seen = process.ended.map_or(end, |(after, _)| after);
    Holder {
        who: process.who(),
        used_bytes: held(moment).filter(|_| process.first <= moment),
        peak_bytes: process.peak.map(|(peak, _)| peak),
        peak_at: process.peak.map(|(_, at)| now.unix(at)),
        at_peak_until: (process.peak)
            .map(|(peak, at)| now.unix(process.series.last_at_least(peak, last_seen).unwrap_or(at))),
        grew: Growth { second: grew(SECOND), ten_seconds: grew(10 * SECOND), minute: grew(60 * SECOND) },
        started_at: process.start().and_then(unix),
        ended: process.ended.map(|(after, by)| Between { after: now.unix(after), by: now.unix(by) }),
        exit: process.exit,
        memory: chart(&process.series, begin.max(process.first), end, PROCESS_STEP, now),
    }
}

/// The latest events of the machine, of one GPU as a whole, and of one device of it.
fn events(histories: &Histories, gpu: &DeviceHistory, begin: Micros, end: Micros, now: Now) -> Vec<Event> {
    let concerns = |event: &Recorded| {
        let mig = event.mig.as_ref().map(|device| device.uuid.as_str());
        event.gpu.as_ref().is_none_or(|(_, uuid)| *uuid == gpu.gpu.uuid) && (mig.is_none() || mig == gpu.mig_uuid())
    };
    histories.events.latest(begin, end, MAX_EVENTS, now, concerns)
}

/// The incident's id: the time in UTC, the GPU and the kind. It is unique, sorts by time, and is usable as a file name.
fn id(trigger: &Trigger, gpu: &DeviceHistory, now: Now) -> String {
    let digits: String = time(now.unix(trigger.at)).chars().filter(|c| c.is_ascii_digit() || *c == 'T').collect();
    let instance = gpu.mig.as_ref().map_or_else(String::new, |device| format!("-mig{}", device.gpu_instance));
    format!("{digits}-gpu{}{instance}-{}", gpu.gpu.index, trigger.kind.label())
}
