//! Incidents, and the recorder's own figures: how much memory it uses and how much it has dropped.

use super::exposition::Exposition;
use super::family::{Family, Section, Unit, When};
use super::label::Labels;
use crate::snapshot::RecorderPart;

static INCIDENTS: Family = Family::counter(
    "gpu_memory_incidents_total",
    Unit::Number,
    When::Recorder,
    &["gpu", "uuid", "kind"],
    "Incidents since the exporter started: moments of which the recorder kept a copy. A series appears with its first incident, which rate() and increase() cannot see: use gpu_memory_last_incident_timestamp_seconds in alerts.",
);
static LAST: Family = Family::gauge(
    "gpu_memory_last_incident_timestamp_seconds",
    Unit::Seconds,
    When::Recorder,
    &["gpu", "uuid", "kind"],
    "Unix time of the last incident in seconds. Absent before the first one.",
);
static BYTES: Family = Family::gauge(
    "vram_exporter_recorder_bytes",
    Unit::Bytes,
    When::Recorder,
    &[],
    "Estimated memory that the recorder takes for the recent past and the incidents in bytes, at most recorder.max-memory-mib.",
);
static DROPPED: Family = Family::counter(
    "vram_exporter_recorder_dropped_total",
    Unit::Number,
    When::Recorder,
    &[],
    "Ended processes, events and older parts of histories that the recorder dropped to stay within its memory, and readings that came faster than it took them.",
);

pub(super) static SECTION: Section = Section {
    title: "Incidents",
    intro: "Absent if the recorder is switched off (`recorder.max-memory-mib` is 0). `kind` is `ended_at_peak` (a process ended within \
            5 s of its own highest memory while its GPU was at least 95 % full), `near_limit` (98 % reached), `gpu_lost`, `memory_xid` \
            or `on_demand`; [recorder.md](recorder.md) explains them. The two families about the recorder itself are left out with \
            `web.disable-exporter-metrics`.",
    families: &[&INCIDENTS, &LAST, &BYTES, &DROPPED],
};

pub(super) fn collect(part: &RecorderPart, exporter_metrics: bool, out: &mut Exposition<'_>) {
    let labels: Vec<_> = part
        .incidents
        .iter()
        .map(|incident| {
            let labels = Labels::default().and_number("gpu", incident.gpu).and("uuid", &incident.uuid);
            labels.and("kind", incident.kind)
        })
        .collect();
    out.add(&INCIDENTS, labels.iter().zip(&part.incidents).map(|(labels, incident)| (labels, incident.count as f64)));
    out.add(&LAST, labels.iter().zip(&part.incidents).map(|(labels, incident)| (labels, incident.last)));
    if part.on && exporter_metrics {
        out.add_one(&BYTES, part.bytes as f64);
        out.add_one(&DROPPED, part.dropped as f64);
    }
}
