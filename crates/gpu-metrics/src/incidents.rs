//! Incidents, and the recorder's own figures: how much memory it uses and how much it has dropped.

use super::exposition::Exposition;
use super::family::{Cadence, Family, Series};
use super::joined::joined;
use super::label::{Labels, distinct};
use super::mig;
use super::openmetrics::{Counted, Exemplar};
use super::section::{Pass, Section};
use super::workloads;
use gpu_readings::snapshot::IncidentKind;

/// Only an incident of a MIG device has the labels of a MIG device.
const INCIDENT: Series =
    Series::new(Cadence::Recorder, &["gpu", "uuid", "mig_uuid", "gpu_instance", "compute_instance", "profile", "kind"]);
const RECORDER: Series = Series::new(Cadence::Recorder, &[]);

static INCIDENTS: Family = INCIDENT.family(
    "gpu_memory_incidents_total",
    "Incidents since the exporter started, and their repeats, of which the recorder kept no copy of their own. Moments less than ten seconds after the last are not counted. A series appears with its first incident, which rate() and increase() cannot see: use gpu_memory_last_incident_timestamp_seconds in alerts.",
);
static LAST: Family = INCIDENT.family(
    "gpu_memory_last_incident_timestamp_seconds",
    "Unix time of the last incident or repeat in seconds. Absent before the first one.",
);
static SHORTAGE: Family = Series::new(Cadence::Recorder, workloads::LABELS).family(
    "gpu_workload_memory_last_shortage_timestamp_seconds",
    "Unix time in seconds at which a process of the workload last ended at the memory limit (an incident of the kind ended_at_peak, repeats included) or reported a failed allocation on this GPU or MIG device. It needs more than it held then. Stays until the report about the workload is final.",
);
static BYTES: Family = RECORDER.family(
    "vram_exporter_recorder_bytes",
    "Estimated memory that the recorder takes for the recent past and the incidents in bytes, at most recorder.max-memory-mib.",
);
static DROPPED: Family = RECORDER.family(
    "vram_exporter_recorder_dropped_total",
    "Ended processes, events, reports and older parts of histories that the recorder dropped to stay within its memory, and readings that came faster than it took them.",
);

pub(super) static SECTION: Section = Section {
    title: "Incidents",
    intro: joined!(
        ["Absent if the recorder is switched off (`recorder.max-memory-mib` is 0). `kind` of an incident is one of "],
        *IncidentKind::LIST,
        [
            "; [incidents.md](incidents.md) says when each is recorded. The two families about the recorder itself are left out with `web.disable-exporter-metrics`."
        ],
    ),
    families: &[&INCIDENTS, &LAST, &SHORTAGE, &BYTES, &DROPPED],
    collect,
};

/// The label of an exemplar: the id with which the API answers for the incident.
const EXEMPLAR: &str = "incident_id";

fn collect(pass: &Pass<'_>, out: &mut Exposition<'_>) {
    let part = pass.snapshot.recorder.load();
    let labels: Vec<_> = part
        .incidents
        .iter()
        .map(|incident| {
            let labels = Labels::of_gpu(incident.gpu, &incident.uuid);
            let labels = match &incident.mig {
                Some(device) => mig::and_device(labels, device),
                None => labels,
            };
            labels.and("kind", incident.kind)
        })
        .collect();
    let counted = part.incidents.iter().map(|incident| {
        let exemplar = incident.last_id.as_deref().map(|id| Exemplar { name: EXEMPLAR, id, at: incident.last });
        Counted { value: incident.count as f64, since: part.counted_since, exemplar }
    });
    out.add(&INCIDENTS, labels.iter().zip(counted));
    out.add(&LAST, labels.iter().zip(&part.incidents).map(|(labels, incident)| (labels, incident.last)));
    let shortages = part.shortages.iter().map(|short| {
        let base = Labels::of_gpu(short.gpu.index, &short.gpu.uuid);
        (workloads::labels(&base, &short.workload, short.mig.as_deref()), short.last)
    });
    // Two devices that are not identified yet have the same labels.
    let shortages = distinct(shortages.collect(), |last, other| *last = last.max(*other));
    out.add(&SHORTAGE, shortages.iter().map(|(labels, last)| (labels, *last)));
    if part.on && pass.settings.exporter_metrics {
        out.add_one(&BYTES, part.bytes);
        out.add_one(&DROPPED, Counted::since(Some(pass.started), part.dropped as f64));
    }
}
