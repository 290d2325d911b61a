//! The API, `/api/v1/…`: the recorded history, the incidents and the reports about workloads as JSON.
//! `docs/openapi.yaml` describes it.
//!
//! Invariants: every response is bounded in size, and a long one is written while it is being sent; a value that is not known is absent or null, never 0; the API changes
//! nothing, except that a client that had to authenticate can request an incident.

mod listed;
mod parameters;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::sync::Arc;

use axum::extract::rejection::ExtensionRejection;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts as Head;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use serde::Serialize;

use self::listed::Listed;
use self::parameters::Parameters;
use super::allowance::{Admission, Allowance};
use super::long::{self, Chunks};
use super::response::overloaded;
use super::state::HttpState;
use crate::machine;
use crate::recorder::{self, History, HistoryQuery, JobReport, Recorder, SeriesKind};
use gpu_metrics::Parts;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// The memory of a value, in bytes, up to which its JSON is not worth a thread.
const SHORT: usize = 64 << 10;
/// The memory of a process or workload and of an event, in bytes, with their texts. It is no less than nearly all of them
/// use.
const ENTRY: usize = 1024;
/// The path of the incidents.
const INCIDENTS: &str = "/api/v1/incidents";
/// The maximum number of processes or workloads in a response.
const MAX_ENTRIES: usize = 2048;
/// The maximum number of events in a response, and the number returned if the request sets no limit.
const MAX_EVENTS: usize = 4096;
const DEFAULT_EVENTS: usize = 200;
/// The maximum number of reports in a response, and the number returned if the request sets no limit.
const MAX_REPORTS: usize = 1024;
const DEFAULT_REPORTS: usize = 100;

/// The routes of the API.
pub(super) fn routes() -> Router<Arc<HttpState>> {
    Router::new()
        .route("/api/v1/gpus", get(gpus))
        .route("/api/v1/processes", get(processes))
        .route("/api/v1/workloads", get(workloads))
        .route("/api/v1/history", get(history))
        .route("/api/v1/events", get(events))
        .route(INCIDENTS, get(incidents).post(request_incident))
        .route("/api/v1/incidents/{id}", get(incident))
        .route("/api/v1/reports", get(reports))
}

/// An error response: its status and the reason.
pub(super) struct Problem(StatusCode, String);

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        json(self.0, &BTreeMap::from([("error", self.1)]))
    }
}

impl Problem {
    pub(super) fn bad_request(why: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, why.into())
    }
}

type Answer = Result<Response, Problem>;

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => sent(status, JSON, body),
        Err(error) => super::response::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn sent(status: StatusCode, content_type: &'static str, body: impl IntoResponse) -> Response {
    (status, [(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// What is asked, and what may be held for the answer.
struct Asked {
    state: Arc<HttpState>,
    allowance: Allowance,
    query: Option<String>,
}

impl FromRequestParts<Arc<HttpState>> for Asked {
    type Rejection = ExtensionRejection;

    async fn from_request_parts(parts: &mut Head, state: &Arc<HttpState>) -> Result<Self, ExtensionRejection> {
        let Extension(allowance) = Extension::from_request_parts(parts, state).await?;
        Ok(Self { state: state.clone(), allowance, query: parts.uri.query().map(str::to_owned) })
    }
}

impl Asked {
    /// A response that `write` writes while it is being sent. `held`: the bytes that `write` keeps in use.
    async fn long(
        &self,
        held: usize,
        content_type: &'static str,
        write: impl FnOnce(&mut Chunks) -> io::Result<()> + Send + 'static,
    ) -> Answer {
        let Some(writer) = self.allowance.writer(held).await else { return Ok(overloaded()) };
        Ok(sent(StatusCode::OK, content_type, long::body(writer, write)))
    }

    /// The value that `make` returns, as JSON. `most`: the bytes that the value uses at most. A long value is made only when
    /// the response has its share.
    async fn long_json<T: Serialize>(&self, most: usize, make: impl FnOnce() -> T + Send + 'static) -> Answer {
        if most <= SHORT {
            return Ok(json(StatusCode::OK, &make()));
        }
        self.long(most, JSON, move |out| Ok(serde_json::to_writer(out, &make())?)).await
    }

    fn parameters(&self) -> Result<Parameters, Problem> {
        Parameters::read(self.query.as_deref())
    }

    /// The parameter `limit`, the only one that is accepted.
    fn limit(&self) -> Result<usize, Problem> {
        let mut given = self.parameters()?;
        let limit = given.limit(MAX_ENTRIES, MAX_ENTRIES)?;
        given.end(&["limit"])?;
        Ok(limit)
    }

    fn recorder(&self) -> Result<&Arc<Recorder>, Problem> {
        let off = "the recorder is switched off: recorder.max-memory-mib is 0";
        self.state.recorder.as_ref().ok_or_else(|| Problem(StatusCode::NOT_FOUND, off.to_owned()))
    }
}

async fn gpus(asked: Asked) -> Answer {
    asked.parameters()?.end(&[])?;
    let state = asked.state;
    Ok(json(StatusCode::OK, &machine::gpus(&Parts::load(&state.snapshot), state.metrics.settings())))
}

async fn processes(asked: Asked) -> Answer {
    let most = asked.limit()?;
    let state = asked.state.clone();
    let parts = Parts::load(&state.snapshot);
    let listed: usize = state.snapshot.processes.load().gpus.iter().map(|gpu| gpu.processes.len()).sum();
    let found = move || {
        let visits = state.recorder.as_ref().map(|recorder| recorder.visits()).unwrap_or_default();
        machine::processes(&parts, state.metrics.settings(), &visits, most)
    };
    asked.long_json(listed.min(most) * ENTRY, found).await
}

async fn workloads(asked: Asked) -> Answer {
    let most = asked.limit()?;
    let state = asked.state.clone();
    let parts = Parts::load(&state.snapshot);
    let listed: usize = state.snapshot.processes.load().gpus.iter().map(|gpu| gpu.workloads.len()).sum();
    let found = move || machine::workloads(&parts, state.metrics.settings(), most);
    asked.long_json(listed.min(most) * ENTRY, found).await
}

async fn history(asked: Asked) -> Answer {
    let recorder = asked.recorder()?;
    let mut given = asked.parameters()?;
    let of: &[SeriesKind] = match given.text("of").as_deref() {
        None | Some("gpus") => &[SeriesKind::Gpus],
        Some("processes") => &[SeriesKind::Processes],
        Some("workloads") => &[SeriesKind::Workloads],
        Some("all") => &SeriesKind::ALL,
        Some(_) => return Err(Problem::bad_request("of: must be gpus, processes, workloads or all")),
    };
    let (from, to, step) = (given.time("from")?, given.time("to")?, given.number("step", 0.01, 3600.0)?);
    let uuid = given.text("uuid");
    given.end(&["of", "from", "to", "step", "uuid"])?;
    if from.zip(to).is_some_and(|(from, to)| from >= to) {
        return Err(Problem::bad_request("from: must be before to"));
    }
    let history = recorder.history(&HistoryQuery { from, to, step, uuid, of });
    asked.long(history.bytes(), JSON, move |out| write_history(history, out)).await
}

/// The history as one object. Each series is read from the recorder when the client has room for it.
fn write_history(mut history: History, out: &mut Chunks) -> io::Result<()> {
    let mut begin = serde_json::to_vec(&history.plan.head)?;
    // The object goes on.
    begin.pop();
    out.write_all(&begin)?;
    out.write_all(b",\"series\":[")?;
    let mut is_first = true;
    for series in history.by_ref() {
        out.write_all(if std::mem::take(&mut is_first) { b"" } else { b"," })?;
        serde_json::to_writer(&mut *out, &series)?;
    }
    write!(out, "],\"more_series\":{},\"more_workloads\":{}}}", history.plan.more_series, history.plan.more_workloads)
}

async fn events(asked: Asked) -> Answer {
    let recorder = asked.recorder()?.clone();
    let mut given = asked.parameters()?;
    let (from, to) = (given.time("from")?, given.time("to")?);
    let limit = given.limit(MAX_EVENTS, DEFAULT_EVENTS)?;
    given.end(&["from", "to", "limit"])?;
    asked.long_json(limit * ENTRY, move || BTreeMap::from([("events", recorder.events(from, to, limit))])).await
}

async fn incidents(asked: Asked) -> Answer {
    let kept = asked.recorder()?.incidents();
    let incidents: Vec<_> = kept.iter().rev().map(|incident| Listed::of(incident)).collect();
    Ok(json(StatusCode::OK, &BTreeMap::from([("incidents", incidents)])))
}

/// One incident, in the format that the parameter `format` selects: `json`, `text`, or `trace` for Perfetto.
async fn incident(Path(id): Path<String>, asked: Asked) -> Answer {
    let recorder = asked.recorder()?;
    let mut given = asked.parameters()?;
    let format = given.text("format");
    given.end(&["format"])?;
    let unknown = || Problem(StatusCode::NOT_FOUND, format!("no such incident; {INCIDENTS} lists those that are kept"));
    let incident = recorder.incident(&id).ok_or_else(unknown)?;
    match format.as_deref() {
        None | Some("json") => {
            asked.long(incident.bytes(), JSON, move |out| Ok(serde_json::to_writer(out, &*incident)?)).await
        }
        Some("text") => Ok(sent(StatusCode::OK, TEXT, recorder::text(&incident))),
        Some("trace") => {
            asked.long(incident.bytes(), JSON, move |out| recorder::write_chrome_trace(&incident, out)).await
        }
        Some(_) => Err(Problem::bad_request("format: must be json, text or trace")),
    }
}

/// The reports about workloads, in the format that the parameter `format` selects: `json`, `lines` (JSON Lines), or `text`.
async fn reports(asked: Asked) -> Answer {
    let recorder = asked.recorder()?;
    let mut given = asked.parameters()?;
    let (job, workload, format) = (given.text("job"), given.text("workload"), given.text("format"));
    let limit = given.limit(MAX_REPORTS, DEFAULT_REPORTS)?;
    given.end(&["job", "workload", "format", "limit"])?;
    let reports = recorder.reports(job.as_deref(), workload.as_deref(), limit);
    let held = reports.iter().map(|report| report.bytes()).sum();
    match format.as_deref() {
        None | Some("json") => asked.long(held, JSON, move |out| write_reports(&reports, out)).await,
        Some("lines") => {
            let write = move |out: &mut Chunks| {
                reports.iter().try_for_each(|report| {
                    serde_json::to_writer(&mut *out, &**report)?;
                    out.write_all(b"\n")
                })
            };
            asked.long(held, "application/x-ndjson", write).await
        }
        Some("text") => {
            let write = move |out: &mut Chunks| {
                reports.iter().enumerate().try_for_each(|(index, report)| {
                    out.write_all(if index == 0 { b"" } else { b"\n" })?;
                    out.write_all(recorder::report_text(report).as_bytes())
                })
            };
            asked.long(held, TEXT, write).await
        }
        Some(_) => Err(Problem::bad_request("format: must be json, lines or text")),
    }
}

fn write_reports(reports: &[Arc<JobReport>], out: &mut Chunks) -> io::Result<()> {
    let reports: Vec<_> = reports.iter().map(|report| &**report).collect();
    Ok(serde_json::to_writer(out, &BTreeMap::from([("reports", reports)]))?)
}

/// Records an incident. Only for clients that had to authenticate, because each request takes memory away from earlier
/// incidents.
async fn request_incident(asked: Asked, headers: HeaderMap) -> Answer {
    let recorder = asked.recorder()?;
    if asked.allowance.admission == Admission::Open {
        let why = "only a client that has to authenticate can request an incident: configure users or client certificates \
                   in web.config-file";
        return Err(Problem(StatusCode::FORBIDDEN, why.to_owned()));
    }
    // A browser sends its user's password even with requests that other sites initiate.
    let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    if site.is_some_and(|site| !matches!(site, b"same-origin" | b"none")) {
        return Err(Problem(StatusCode::FORBIDDEN, "a request from another site is not accepted".to_owned()));
    }
    let none = || Problem(StatusCode::SERVICE_UNAVAILABLE, "no GPU has been read yet".to_owned());
    let incident = recorder.record().ok_or_else(none)?;
    Ok(json(StatusCode::CREATED, &Listed::of(&incident)))
}
