//! An incident as a Chrome trace (the JSON object format), which Perfetto opens: a counter for the GPU and one for each
//! process, and an instant for each event.
//!
//! Source of the format: "Trace Event Format" by the Chromium authors, phases `C` (counter), `i` (instant) and `M`
//! (metadata). Times are in microseconds. Here they are counted from the beginning of the chart, because a trace viewer
//! shows them unchanged.
//!
//! The names are chosen to suit what Perfetto's page (v52) shows: it writes the pid after the name of a process, shows
//! a counter under its name and the name of its value, and lists processes with instants first and the others in the
//! order of their names. An instant that belongs to no thread appears on a track without a name.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::words;
use crate::format;
use crate::recorder::history::{Chart, Event, EventKind, Holder, Incident, names};

/// The pid of the GPU's track. Pids of processes are never 0.
const GPU_TRACK: u32 = 0;
/// No pid is higher (`PID_MAX_LIMIT` of the kernel).
const MAX_PID: u32 = 1 << 22;
/// The thread of the instants, within the GPU's track.
const EVENTS: u32 = 1;
/// The unit of the counters. Their names state it, because trace viewers show numbers without a unit. The quotient is
/// exact, because no value has more than 53 significant bits.
const GIB: f64 = 1_073_741_824.0;

/// Writes the trace of an incident as JSON. No more than one of its events is in memory.
///
/// # Errors
/// When the trace cannot be written.
pub fn write_chrome_trace(incident: &Incident, out: &mut dyn Write) -> io::Result<()> {
    let charts = incident.processes.iter().map(|holder| &holder.memory).chain([&incident.memory]);
    let begins = charts.filter_map(|chart| chart.points.first().map(|point| point.0));
    let begin = begins.chain(incident.events.iter().map(|event| event.at)).fold(incident.at, f64::min);
    let micros = |at: f64| ((at - begin) * 1e6).round();
    out.write_all(b"{\"traceEvents\":[")?;
    let mut is_first = true;
    let mut put = |event: Value| {
        out.write_all(if std::mem::take(&mut is_first) { b"" } else { b"," })?;
        Ok(serde_json::to_writer(&mut *out, &event)?)
    };
    named(GPU_TRACK, &gpu(incident), 0).into_iter().try_for_each(&mut put)?;
    put(metadata(GPU_TRACK, EVENTS, "thread_name", json!({ "name": "events" })))?;
    counter(&mut put, (GPU_TRACK, GPU_TRACK), "", &incident.memory, micros)?;
    let digits = incident.processes.len().to_string().len();
    for (at, holder) in incident.processes.iter().enumerate() {
        let (who, rank) = (&holder.who, at + 1);
        let track = track(&incident.processes, at);
        if track.is_new {
            // Without the pid, which is shown next to it.
            let name = names::process(who.name.as_deref(), None, words::owner(who));
            let name = format!("{rank:0digits$}. {name}");
            named(track.id, &name, rank).into_iter().try_for_each(&mut put)?;
        }
        let device = who.mig_uuid.as_ref().map_or_else(String::new, |uuid| format!(" {uuid}"));
        counter(&mut put, (track.id, who.pid), &device, &holder.memory, micros)?;
    }
    for event in &incident.events {
        put(instant(&sentence(event), micros(event.at), json!({ "event": event })))?;
    }
    let label = format!("incident: {}", incident.kind.words());
    put(instant(&label, micros(incident.at), json!({ "summary": incident.summary })))?;
    let other = json!({
        "incident": incident.id,
        "gpu_uuid": incident.gpu.uuid,
        "begin_unix_seconds": begin,
        "summary": incident.summary,
    });
    write!(out, "],\"displayTimeUnit\":\"ms\",\"otherData\":{other}}}")
}

/// `GPU 2 (NVIDIA H200)`, and whether it is simulated.
fn gpu(incident: &Incident) -> String {
    let model = incident.gpu.name.as_deref().map_or_else(String::new, |model| format!(" ({})", names::name(model)));
    let simulated = if incident.simulated { ", SIMULATED" } else { "" };
    format!("{}{model}{simulated}", words::device(&incident.gpu))
}

/// The track of a process.
struct Track {
    id: u32,
    /// Whether no earlier process has it.
    is_new: bool,
}

/// The track of the process at a position. Its id is the pid, or a number above all pids if an earlier process, which
/// is another one, had the same pid. If a process uses two MIG devices, both share its track, which has the name of the
/// first entry.
fn track(processes: &[Holder], at: usize) -> Track {
    let (earlier, Holder { who, started_at, .. }) = (&processes[..at], &processes[at]);
    let is_same = |other: &Holder| {
        other.who.pid == who.pid && other.started_at == *started_at && other.who.mig_uuid != who.mig_uuid
    };
    if let Some(first) = earlier.iter().position(is_same) {
        return Track { is_new: false, ..track(processes, first) };
    }
    let is_taken = earlier.iter().any(|other| other.who.pid == who.pid);
    let id = if is_taken { MAX_PID.saturating_add(at as u32) } else { who.pid };
    Track { id, is_new: true }
}

/// The name of a track, and its place for viewers that sort by it.
fn named(pid: u32, name: &str, place: usize) -> [Value; 2] {
    [
        metadata(pid, pid, "process_name", json!({ "name": name })),
        metadata(pid, pid, "process_sort_index", json!({ "sort_index": place })),
    ]
}

fn metadata(pid: u32, tid: u32, kind: &str, args: Value) -> Value {
    json!({ "ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args })
}

/// Two samples for each part: its highest value where the part begins, and its last value in the middle.
fn counter(
    put: &mut impl FnMut(Value) -> io::Result<()>,
    (track, pid): (u32, u32),
    device: &str,
    chart: &Chart,
    micros: impl Fn(f64) -> f64,
) -> io::Result<()> {
    let name = format!("used{device}");
    let sample = |at: f64, bytes: u64| json!({ "ph": "C", "name": name, "pid": track, "tid": track, "ts": micros(at), "args": { "GiB": bytes as f64 / GIB } });
    for &(at, _, max, last) in &chart.points {
        match max {
            Some(max) => put(sample(at, max))?,
            None => put(instant(&unknown(pid, device), micros(at), json!({})))?,
        }
        if let Some(last) = last.filter(|_| last != max) {
            put(sample(at + chart.step_seconds / 2.0, last))?;
        }
    }
    Ok(())
}

/// A viewer keeps showing a counter's last value, so this text marks where the value becomes unknown.
fn unknown(pid: u32, device: &str) -> String {
    let owner = if pid == GPU_TRACK { "the GPU".to_owned() } else { format!("pid {pid}") };
    format!("used memory of {owner}{device} is unknown from here")
}

fn instant(name: &str, ts: f64, args: Value) -> Value {
    json!({ "ph": "i", "s": "t", "name": name, "pid": GPU_TRACK, "tid": EVENTS, "ts": ts, "args": args })
}

/// An event in a few words.
pub(super) fn sentence(event: &Event) -> String {
    match &event.what {
        EventKind::ExporterStarted => "the exporter started".to_owned(),
        EventKind::DriverOpened { version } => {
            format!("driver {} opened", version.as_deref().unwrap_or("of unknown version"))
        }
        EventKind::DriverClosed { problem } => {
            format!("driver closed: {}", names::name(problem.as_deref().unwrap_or("no reason known")))
        }
        EventKind::GpuLost => "the GPU stopped responding".to_owned(),
        EventKind::GpuStalled => "a driver call for the GPU does not return".to_owned(),
        EventKind::GpuBack => "the GPU responds again".to_owned(),
        EventKind::Xid { xid, count } => format!("Xid {xid} ({count}×)"),
        EventKind::ProcessStarted(who) => format!("{} appeared", words::process(who)),
        EventKind::ProcessEnded { who, peak_bytes, lived_seconds, exit, .. } => {
            let (who, exit) = (words::process(who), exit.suffix());
            let peak = peak_bytes.map_or_else(|| "unknown".to_owned(), format::bytes);
            format!("{who} ended after {lived_seconds:.1} s{exit}; its highest memory use was {peak}")
        }
        EventKind::OutOfMemory(failure) => words::failure(failure),
        EventKind::NewPeak { used_bytes, held_by, mig_uuid, .. } => {
            let device = mig_uuid.as_deref().map_or_else(|| "the GPU".to_owned(), names::name);
            format!("new highest memory use of {device}: {}, {held_by}", format::bytes(*used_bytes))
        }
        EventKind::Reached { ratio, used_bytes, mig_uuid } => {
            let device = mig_uuid.as_deref().map_or_else(String::new, |uuid| format!(" of {}", names::name(uuid)));
            format!("memory{device} reached {:.0} % ({})", ratio * 100.0, format::bytes(*used_bytes))
        }
        EventKind::Incident { id, .. } => format!("incident {id} recorded"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_by_rank_and_two_mig_devices_of_a_process_share_its_track() {
        let holder = |pid: u32, device: &str| {
            json!({ "pid": pid, "name": format!("job{pid}"), "user": "ada", "mig_uuid": device, "grew": {},
                "memory": { "step_seconds": 0.1, "points": [[8.0, 0, 1 << 30, 1 << 29], [9.0, null, null, null]] } })
        };
        let processes: Vec<Value> = (1..=9).map(|pid| holder(pid, "MIG-a")).chain([holder(1, "MIG-b")]).collect();
        let incident = json!({ "version": 1, "id": "x", "kind": "near_limit", "at": 10.0, "complete": true, "summary": "",
            "simulated": true, "gpu": { "index": 3, "uuid": "GPU-3", "name": "NVIDIA H200" }, "processes": processes,
            "more_processes": 0, "grew_most": [], "events": [], "memory": { "step_seconds": 0.1, "points": [] } });
        let mut trace = Vec::new();
        write_chrome_trace(&serde_json::from_value(incident).unwrap(), &mut trace).unwrap();
        let trace: Value = serde_json::from_slice(&trace).unwrap();
        let of = |phase: &str, pid: u32, name: &str| -> Vec<Value> {
            let events = trace["traceEvents"].as_array().unwrap().iter();
            let found = events.filter(|event| event["ph"] == phase && event["pid"] == pid && event["name"] == name);
            found.map(|event| event["args"].clone()).collect()
        };
        assert_eq!(of("M", 0, "process_name"), [json!({ "name": "GPU 3 (NVIDIA H200), SIMULATED" })]);
        assert_eq!(of("M", 1, "process_name"), [json!({ "name": "01. job1, ada" })]);
        for name in ["used MIG-a", "used MIG-b"] {
            assert_eq!(of("C", 1, name), [json!({ "GiB": 1.0 }), json!({ "GiB": 0.5 })]);
        }
        assert_eq!(of("i", 0, "used memory of pid 1 MIG-b is unknown from here").len(), 1);
    }

    #[test]
    fn two_processes_with_one_pid_have_a_track_each() {
        let holder = |started_at: Option<f64>, device: Option<&str>| {
            let holder = json!({ "pid": 7, "started_at": started_at, "mig_uuid": device, "grew": {},
                "memory": { "step_seconds": 0.1, "points": [] } });
            serde_json::from_value::<Holder>(holder).unwrap()
        };
        let track_ids =
            |holders: &[Holder]| -> Vec<u32> { (0..holders.len()).map(|at| track(holders, at).id).collect() };
        assert_eq!(track_ids(&[holder(Some(1.0), None), holder(Some(2.0), None)]), [7, MAX_PID + 1]);
        // Nothing is on a device twice at the same time, so these are two processes although their starts are unknown.
        assert_eq!(track_ids(&[holder(None, None), holder(None, None)]), [7, MAX_PID + 1]);
        assert_eq!(track_ids(&[holder(Some(1.0), Some("a")), holder(Some(1.0), Some("b"))]), [7, 7]);
    }
}
