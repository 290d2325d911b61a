//! Sentences about incidents and processes, for people.
//!
//! Invariants: a sentence reports only what was observed; no name can send control characters to a terminal or reverse
//! the direction of the text around it.

use std::fmt::Write as _;

use super::trigger::Trigger;
use crate::format::bytes;
use crate::recorder::history::incident::{Holder, Incident, IncidentGpu, Kind};
use crate::recorder::history::names::{self, name};
use crate::recorder::history::peak::SAME_MOMENT;
use crate::recorder::history::{Failure, ProcessRef};
use crate::snapshot::XidGroup;

/// Growth below this number of bytes is not worth a sentence.
const GREW: i64 = 256 << 20;
/// The sentence stating that the numbers in an incident do not include allocations that the driver refused.
const REFUSED: &str = "An allocation that the driver refused is never held, so no number here contains it.";

/// `train.py (pid 4711, slurm:77)`.
pub(super) fn process(who: &ProcessRef) -> String {
    names::process(who.name.as_deref(), Some(who.pid), owner(who))
}

/// The workload, or the user.
pub(super) fn owner(who: &ProcessRef) -> Option<&str> {
    who.workload.as_deref().or(who.user.as_deref())
}

/// `train.py (pid 4711, slurm:77) could not allocate 2.00 GiB: pytorch reports 1.20 GiB free, …`, or `… asked the driver for
/// 2.00 GiB and was refused, with 1.20 GiB free at the last reading before`.
pub(super) fn failure(failed: &Failure) -> String {
    let (who, requested) = (process(&failed.who), bytes(failed.requested_bytes));
    let Some(framework) = &failed.framework else {
        let left = failed
            .free_bytes
            .map_or_else(String::new, |free| format!(", with {} free at the last reading before", bytes(free)));
        return format!("{who} asked the driver for {requested} and was refused{left}");
    };
    let known =
        [(failed.free_bytes, "free"), (failed.allocated_bytes, "allocated"), (failed.reserved_bytes, "reserved")];
    let known: Vec<_> = known.iter().filter_map(|(value, what)| Some(format!("{} {what}", bytes((*value)?)))).collect();
    let told = if known.is_empty() { "no figures".to_owned() } else { known.join(", ") };
    let refused = failed
        .refused_bytes
        .map_or_else(String::new, |refused| format!("; the driver refused its request for {}", bytes(refused)));
    format!("{who} could not allocate {requested}: {} reports {told}{refused}", name(framework))
}

/// The positions, among the processes of an incident, of those that its sentences name. A pid would not do, because two
/// of them can have had the same one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Roles {
    /// The process that ended or reported a failure.
    pub(super) cause: Option<usize>,
    /// The process that grew the most.
    pub(super) grower: Option<usize>,
}

/// The sentences at the top of an incident.
pub(super) fn summary(incident: &Incident, trigger: &Trigger, roles: Roles) -> String {
    let mut text = String::new();
    let gpu = device(&incident.gpu);
    let level = level(incident);
    let at = |position: usize| incident.processes.get(position);
    // Writing into a String cannot fail.
    let _ = match (trigger.kind, roles.cause.and_then(at)) {
        (Kind::EndedAtPeak, Some(holder)) => {
            let peak = holder.peak_bytes.map_or_else(|| "unknown".to_owned(), bytes);
            let within = holder.ended.zip(holder.at_peak_until).map(|(ended, until)| ended.by - until);
            let within = within.map_or_else(String::new, |seconds| format!(" within {:.1} s", seconds.max(0.1)));
            let (who, exit) = (process(&holder.who), holder.exit.suffix());
            let grew = grew(holder).map_or_else(String::new, |by| format!(", after growing by {} in 10 s", bytes(by)));
            write!(text, "{who} ended{within} of its highest memory use, {peak}{grew}{exit}; {gpu}{level}.")
        }
        (Kind::EndedAtPeak, None) => write!(text, "A process ended at its highest memory use; {gpu}{level}."),
        (Kind::OutOfMemory, _) => match &incident.out_of_memory {
            // The framework's figures are of the failure itself, those of the GPU of the time that the sentence names.
            Some(failed) => write!(text, "{}. {gpu}{level}.", failure(failed)),
            None => write!(text, "A process could not allocate memory; {gpu}{level}."),
        },
        (Kind::NearLimit, _) => write!(text, "{gpu} became nearly full: it{level}."),
        (Kind::GpuLost, _) => write!(text, "{gpu} stopped responding; before that it{level}."),
        (Kind::MemoryXid, _) => {
            let xid = trigger.xid.unwrap_or_default();
            let meaning = XidGroup::of(xid).map_or_else(String::new, |group| format!(" ({})", group.meaning));
            write!(text, "The driver reported Xid {xid}{meaning} for {gpu}, which{level}.")
        }
        (Kind::OnDemand, _) => write!(text, "Requested by a client: {gpu}{level}."),
    };
    if let Some(most) = incident.processes.first().filter(|_| roles.cause != Some(0))
        && let Some(used) = most.used_bytes
    {
        let listed = incident.peak.as_ref().and_then(|peak| when(incident, peak.listed_at?));
        let listed = listed.map_or_else(String::new, |when| format!(" (listed{when})"));
        let _ = write!(text, " {} held the most, {}{listed}.", process(&most.who), bytes(used));
    }
    let is_cause = incident.kind == Kind::EndedAtPeak && roles.grower == roles.cause;
    if let Some(grower) = roles.grower.and_then(at).filter(|_| !is_cause)
        && let Some(by) = grew(grower)
    {
        let _ = write!(text, " {} grew the most in the 10 s before, by {}.", process(&grower.who), bytes(by));
    }
    if incident.kind == Kind::EndedAtPeak {
        let _ = write!(text, " {REFUSED}");
    }
    text
}

/// `GPU 2`, or `MIG device 1g.10gb (GPU instance 3) of GPU 2`.
pub(super) fn device(gpu: &IncidentGpu) -> String {
    let Some(mig) = &gpu.mig else { return format!("GPU {}", gpu.index) };
    let profile = mig.profile.as_deref().map_or_else(String::new, |profile| format!(" {}", name(profile)));
    format!("MIG device{profile} (GPU instance {}) of GPU {}", mig.gpu_instance, gpu.index)
}

/// ` had 138.5 GiB of 140.0 GiB in use 0.4 s before, with 1.48 GiB left`: all of one reading.
fn level(incident: &Incident) -> String {
    let Some(peak) = &incident.peak else { return " had an unknown amount of memory in use".to_owned() };
    let when = when(incident, peak.until.unwrap_or(peak.at)).unwrap_or_default();
    match (peak.left_bytes, incident.gpu.allocatable_bytes) {
        (Some(left), Some(allocatable)) => {
            format!(" had {} of {} in use{when}, with {} left", bytes(peak.used_bytes), bytes(allocatable), bytes(left))
        }
        _ => format!(" had {} in use{when}", bytes(peak.used_bytes)),
    }
}

/// ` 0.4 s before` or ` 0.4 s later`: when a reading was taken, counted from the incident; `None` if at the same
/// moment.
fn when(incident: &Incident, at: f64) -> Option<String> {
    let before = incident.at - at;
    let direction = if before > 0.0 { "before" } else { "later" };
    (before.abs() >= SAME_MOMENT).then(|| format!(" {:.1} s {direction}", before.abs()))
}

/// Bytes by which a process grew in ten seconds, if that is worth a sentence.
fn grew(holder: &Holder) -> Option<u64> {
    holder.grew.ten_seconds.filter(|by| *by >= GREW).map(i64::unsigned_abs)
}
