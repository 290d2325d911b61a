//! An incident as a Chrome trace (the JSON array format), which Perfetto opens: a counter for the GPU and one for each
//! process, and an instant for each event.
//!
//! Source of the format: "Trace Event Format" by the Chromium authors, phases `C` (counter), `i` (instant) and `M`
//! (metadata). Times are in microseconds. Here they count from the beginning of the chart, because a trace viewer shows
//! them unchanged.

use serde_json::{Value, json};

use super::event::{Event, What};
use super::incident::{Chart, Incident};
use super::words;
use crate::format;

/// The pid of the GPU's track. Pids of processes are never 0.
const GPU_TRACK: u32 = 0;
/// The unit of the counters. Their names state it, because trace viewers show numbers without a unit.
const MIB: f64 = 1_048_576.0;

/// The trace of an incident, as JSON.
pub fn chrome_trace(incident: &Incident) -> Vec<u8> {
    let charts = incident.processes.iter().map(|holder| &holder.memory).chain([&incident.memory]);
    let begins = charts.filter_map(|chart| chart.points.first().map(|point| point.0));
    let begin = begins.chain(incident.events.iter().map(|event| event.at)).fold(incident.at, f64::min);
    let micros = |at: f64| ((at - begin) * 1e6).round();
    let gpu = format!("GPU {} {}", incident.gpu.index, incident.gpu.uuid);
    let mut events = named(GPU_TRACK, &gpu, 0).to_vec();
    counter(&mut events, GPU_TRACK, "used MiB", &incident.memory, micros);
    for (rank, holder) in incident.processes.iter().enumerate() {
        // If one process uses two MIG devices, both share the track of that process.
        let device = holder.who.mig_uuid.as_ref().map_or_else(String::new, |uuid| format!(" {uuid}"));
        events.extend(named(holder.who.pid, &words::process(&holder.who), rank + 1));
        counter(&mut events, holder.who.pid, &format!("used MiB{device}"), &holder.memory, micros);
    }
    events.extend(
        incident.events.iter().map(|event| instant(&sentence(event), micros(event.at), json!({ "event": event }))),
    );
    events.push(instant(
        &format!("incident: {}", incident.kind.label()),
        micros(incident.at),
        json!({ "summary": incident.summary }),
    ));
    let trace = json!({
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": { "incident": incident.id, "begin_unix_seconds": begin, "summary": incident.summary },
    });
    trace.to_string().into_bytes()
}

/// The name of a track, and its place, without which a viewer would sort the tracks by their pids.
fn named(pid: u32, name: &str, place: usize) -> [Value; 2] {
    let metadata =
        |kind: &str, args: Value| json!({ "ph": "M", "name": kind, "pid": pid, "tid": pid, "ts": 0, "args": args });
    [metadata("process_name", json!({ "name": name })), metadata("process_sort_index", json!({ "sort_index": place }))]
}

/// Two samples for each part: its highest value where the part begins, and its last value in the middle.
fn counter(events: &mut Vec<Value>, pid: u32, name: &str, chart: &Chart, micros: impl Fn(f64) -> f64) {
    let sample = |at: f64, bytes: u64| json!({ "ph": "C", "name": name, "pid": pid, "tid": pid, "ts": micros(at), "args": { "MiB": bytes as f64 / MIB } });
    for &(at, _, max, last) in &chart.points {
        events.extend(max.map(|max| sample(at, max)));
        let after = last.filter(|_| last != max);
        events.extend(after.map(|last| sample(at + chart.step_seconds / 2.0, last)));
        if max.is_none() {
            events.push(instant(&format!("{name} of pid {pid} is unknown from here"), micros(at), json!({})));
        }
    }
}

fn instant(name: &str, ts: f64, args: Value) -> Value {
    json!({ "ph": "i", "s": "g", "name": name, "pid": GPU_TRACK, "tid": GPU_TRACK, "ts": ts, "args": args })
}

/// An event in a few words.
pub(super) fn sentence(event: &Event) -> String {
    match &event.what {
        What::ExporterStarted => "the exporter started".to_owned(),
        What::DriverOpened { version } => {
            format!("driver {} opened", version.as_deref().unwrap_or("of unknown version"))
        }
        What::DriverClosed { problem } => {
            format!("driver closed: {}", words::name(problem.as_deref().unwrap_or("no reason known")))
        }
        What::GpuLost => "the GPU stopped responding".to_owned(),
        What::GpuStalled => "a driver call for the GPU does not return".to_owned(),
        What::GpuBack => "the GPU responds again".to_owned(),
        What::Xid { xid, count } => format!("Xid {xid} ({count}×)"),
        What::ProcessStarted(who) => format!("{} appeared", words::process(who)),
        What::ProcessEnded { who, peak_bytes, lived_seconds, .. } => {
            let peak = peak_bytes.map_or_else(|| "unknown".to_owned(), format::bytes);
            format!("{} ended after {lived_seconds:.1} s; its highest memory use was {peak}", words::process(who))
        }
        What::NewPeak { used_bytes, .. } => {
            format!("new highest memory use of the GPU: {}", format::bytes(*used_bytes))
        }
        What::Reached { ratio, used_bytes } => {
            format!("memory reached {:.0} % ({})", ratio * 100.0, format::bytes(*used_bytes))
        }
        What::Incident { id } => format!("incident {id} recorded"),
    }
}
