//! The web server: `/metrics`, health, readiness and a page for people.
//!
//! Invariant: no request calls the driver or waits for a lane, and every request is answered or refused at once, whatever
//! state the driver is in and whatever other clients do.
//!
//! The way of a request: a [`Listener`] gives a connection, the [`Server`] takes it into its pool and speaks HTTP with it,
//! and the [`router`] answers.

mod connection;
mod health;
mod html;
mod landing;
mod listener;
mod pool;
mod server;

pub use listener::Listener;
pub use server::Server;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, Method, StatusCode, Version, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::{self, StreamExt as _};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{self, Receiver};
use tokio::task::{JoinError, JoinHandle};
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::SizeAbove;

use crate::faults::{Faults, Reason, Source};
use crate::metrics::{self, Metrics, Parts, Scrape};
use crate::snapshot::Snapshot;

/// How long a lane may be silent, unless said otherwise.
pub const ALIVE_WITHIN: Duration = Duration::from_secs(10);
/// Whether the process and its lanes live.
const HEALTH: &str = "/healthz";
/// Whether there is something to scrape.
const READINESS: &str = "/readyz";
/// Where browsers look for an icon, whatever page they show.
const ICON: &str = "/favicon.ico";
const ICON_SVG: &str = include_str!("http/icon.svg");

/// Pieces of a long scrape that may wait for the client.
const QUEUED_CHUNKS: usize = 8;
/// Long scrapes that are written at once while they leave. Each has a thread, which its client holds for as long as it takes;
/// further ones are written first and sent then.
const WRITERS: usize = 4;

const TEXT: &str = "text/plain; charset=utf-8";
/// The page needs its own style and icon and nothing else, so a name that slipped through as markup could still load nothing.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// What clients may take of the exporter, all listeners together.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Requests that are answered at once, those whose answer has not wholly left included; health is not counted.
    pub max_requests: usize,
    /// Connections that are open at once.
    pub max_connections: usize,
    /// How long a client may take from connecting, or from a request's first byte, to the request's last header.
    pub read_timeout: Duration,
    /// How long an answer may take to leave.
    pub write_timeout: Duration,
    /// How long a connection may rest between two requests.
    pub idle_timeout: Duration,
}

/// What the answers are made from.
#[derive(Debug, Clone)]
pub struct HttpState {
    /// The registry.
    pub metrics: Arc<Metrics>,
    /// The latest readings.
    pub snapshot: Arc<Snapshot>,
    /// Where a failed answer is counted.
    pub faults: Arc<Faults>,
    /// The path of the metrics: begins with `/` and is none of the exporter's other paths.
    pub telemetry_path: String,
    /// When the exporter started.
    pub started: Instant,
    /// How long a lane may be silent before the exporter counts as not alive.
    pub alive_within: Duration,
    /// Who writes long scrapes while they leave.
    writers: Arc<Semaphore>,
}

impl HttpState {
    /// The state of an exporter that starts now, with [`ALIVE_WITHIN`].
    pub fn new(metrics: Arc<Metrics>, snapshot: Arc<Snapshot>, faults: Arc<Faults>, telemetry_path: &str) -> Self {
        let telemetry_path = telemetry_path.to_owned();
        let (started, writers) = (Instant::now(), Arc::new(Semaphore::new(WRITERS)));
        Self { metrics, snapshot, faults, telemetry_path, started, alive_within: ALIVE_WITHIN, writers }
    }

    /// Why the exporter is not alive, as `/healthz` tells it; `None` while it is.
    pub fn unhealthy(&self) -> Option<String> {
        health::unhealthy(&self.snapshot.vitals, self.started.elapsed(), self.alive_within)
    }
}

/// All paths of the exporter, compressed when the client asks for it.
pub fn router(state: HttpState) -> Router {
    // Fastest, and small bodies too: a scraper's network is near, and the text shrinks tenfold at any level.
    let compression = CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(SizeAbove::new(0));
    let telemetry_path = literal(&state.telemetry_path);
    let pages = health_routes().route("/", get(page)).route(&telemetry_path, get(scrape));
    // Who asks for the metrics there gets them.
    let pages = if telemetry_path == ICON { pages } else { pages.route(ICON, get(icon)) };
    pages.fallback(not_found).with_state(Arc::new(state)).layer(compression)
}

/// Health and readiness alone, for a listener of their own.
pub fn health_router(state: HttpState) -> Router {
    health_routes().with_state(Arc::new(state))
}

fn health_routes() -> Router<Arc<HttpState>> {
    Router::new().without_v07_checks().route(HEALTH, get(healthz)).route(READINESS, get(readyz))
}

/// Whether the path is one of those that tell health and nothing else: they need no password and no place.
fn is_health(path: &str) -> bool {
    path == HEALTH || path == READINESS
}

/// The path as a route that matches it alone, whatever braces it holds.
fn literal(path: &str) -> String {
    path.replace('{', "{{").replace('}', "}}")
}

async fn scrape(State(state): State<Arc<HttpState>>, method: Method, version: Version) -> Response {
    let head = [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)];
    if method == Method::HEAD {
        // A body of unknown length: this one is empty, and a GET's would not be.
        return (head, Body::from_stream(stream::empty::<Result<Vec<u8>, Infallible>>())).into_response();
    }
    match state.metrics.scrape() {
        Ok(scrape) => (head, text_of(scrape, version, &state.writers)).into_response(),
        Err(error) => {
            state.faults.report(Source::Http, Reason::Encoding, None, &error);
            text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
        }
    }
}

/// The text of a scrape. A long one leaves while it is written, if there is a writer for it: it never stands in memory as a
/// whole, and a client that is slow, or gone, stops the writing. Not for HTTP/1.0, where an answer that is cut looks like one that ended.
fn text_of(scrape: Scrape, version: Version, writers: &Arc<Semaphore>) -> Body {
    let writer = (scrape.is_long() && version >= Version::HTTP_11).then(|| writers.clone().try_acquire_owned().ok());
    let Some(writer) = writer.flatten() else { return scrape.whole().into() };
    let (send, chunks) = mpsc::channel(QUEUED_CHUNKS);
    let writing = tokio::task::spawn_blocking(move || {
        scrape.in_pieces(|chunk| send.blocking_send(chunk).is_ok());
        // Not earlier: a client that is gone must not leave its writer to the next one's count.
        drop(writer);
    });
    // The compression asks once more after the end.
    Body::from_stream(stream::unfold((chunks, Some(writing)), next_chunk).fuse())
}

/// Pieces as they come, and an error where the writing ended before the text: a scrape that breaks off must not pass for whole.
async fn next_chunk(
    (mut chunks, mut writing): (Receiver<Vec<u8>>, Option<JoinHandle<()>>),
) -> Option<(Result<Vec<u8>, JoinError>, (Receiver<Vec<u8>>, Option<JoinHandle<()>>))> {
    if let Some(chunk) = chunks.recv().await {
        return Some((Ok(chunk), (chunks, writing)));
    }
    let died = writing.take()?.await.err()?;
    Some((Err(died), (chunks, writing)))
}

async fn healthz(State(state): State<Arc<HttpState>>) -> Response {
    verdict(state.unhealthy(), health::remark(&state.snapshot.vitals))
}

async fn readyz(State(state): State<Arc<HttpState>>) -> Response {
    let parts = Parts::load(&state.snapshot);
    verdict(health::unready(&parts.driver, &parts.gpus(state.metrics.settings())), None)
}

async fn page(State(state): State<Arc<HttpState>>) -> Response {
    let page = landing::page(&Parts::load(&state.snapshot), state.metrics.settings(), &state.telemetry_path);
    let headers = [
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, Html(page)).into_response()
}

async fn icon() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "image/svg+xml"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "max-age=86400"),
    ];
    (headers, ICON_SVG).into_response()
}

async fn not_found(State(state): State<Arc<HttpState>>) -> Response {
    text(StatusCode::NOT_FOUND, format!("nothing here; the metrics are at {}", state.telemetry_path))
}

fn verdict(problem: Option<String>, remark: Option<String>) -> Response {
    match problem {
        None => text(StatusCode::OK, remark.unwrap_or_else(|| "ok".to_owned())),
        Some(problem) => text(StatusCode::SERVICE_UNAVAILABLE, problem),
    }
}

fn text(status: StatusCode, line: String) -> Response {
    let headers: [(HeaderName, &str); 2] = [(header::CONTENT_TYPE, TEXT), (header::CACHE_CONTROL, "no-store")];
    (status, headers, line + "\n").into_response()
}
