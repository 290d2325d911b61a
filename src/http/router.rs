//! The exporter's paths, and how it responds to a request for each of them.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, Method, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use futures_util::stream;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::SizeAbove;

use super::accept::Wanted;
use super::allowance::Allowance;
use super::api;
use super::assets::{self, ICON, RUNBOOK, RUNBOOK_PAGE};
use super::health::{self, HEALTH, READINESS};
use super::landing;
use super::long;
use super::response::{overloaded, text};
use super::state::HttpState;
use crate::dcgm::Families;
use crate::faults::{Reason, Source};
use gpu_metrics::{Format, Parts, Scrape, Scraped};

/// The page needs its own files and the API, and nothing else. Even a name rendered as markup could neither run a script
/// nor load anything.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// All paths of the exporter. Responses are compressed if the client accepts that.
pub fn router(state: HttpState) -> Router {
    let telemetry_path = literal(&state.telemetry_path);
    let pages = health_routes()
        .merge(api::routes())
        .without_v07_checks()
        .route("/", get(page))
        .route(RUNBOOK, get(|| async { guarded_page(RUNBOOK_PAGE) }))
        .route(&telemetry_path, get(scrape));
    // The configured path takes precedence over the icon; it cannot be the path of any other file of the page.
    let files = assets::ALL.iter().filter(|asset| asset.path != ICON || telemetry_path != ICON);
    let pages = files.fold(pages, |pages, asset| pages.route(asset.path, get(|| async { asset.response() })));
    pages.fallback(not_found).with_state(Arc::new(state)).layer(compression())
}

/// The paths of dcgm-exporter: `/metrics` with its families, `/health`, and a page with links to both. Health and
/// readiness have the exporter's own paths too.
pub fn dcgm_router(state: HttpState, families: Arc<Families>) -> Router {
    let scrape =
        async move |method: Method, Extension(allowance): Extension<Allowance>, Wanted(format): Wanted| match method {
            Method::HEAD => (format_headers(format), unsent()).into_response(),
            _ => scraped(families.scrape(format), format, &allowance).await,
        };
    let links = "<!DOCTYPE html><title>vram-exporter</title><p>The metric families of dcgm-exporter: \
                 <a href=\"/metrics\">/metrics</a></p><p><a href=\"/health\">/health</a></p>\n";
    let nowhere = || async { text(StatusCode::NOT_FOUND, "nothing here; the metrics are at /metrics") };
    let pages = health_routes()
        .route("/", get(move || async move { guarded_page(links.to_owned()) }))
        .route("/health", get(healthz))
        .route("/metrics", get(scrape));
    pages.fallback(nowhere).with_state(Arc::new(state)).layer(compression())
}

/// Health and readiness alone, for a listener of their own.
pub fn health_router(state: HttpState) -> Router {
    health_routes().with_state(Arc::new(state))
}

/// The fastest level, for small bodies too: the network to a scraper is fast, and the text shrinks tenfold at any level.
fn compression() -> CompressionLayer<SizeAbove> {
    CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(SizeAbove::new(0))
}

fn health_routes() -> Router<Arc<HttpState>> {
    Router::new().without_v07_checks().route(HEALTH, get(healthz)).route(READINESS, get(readyz))
}

/// A route that matches only this path, whatever braces it contains.
fn literal(path: &str) -> String {
    path.replace('{', "{{").replace('}', "}}")
}

async fn scrape(
    State(state): State<Arc<HttpState>>,
    method: Method,
    Extension(allowance): Extension<Allowance>,
    Wanted(format): Wanted,
) -> Response {
    if method == Method::HEAD {
        return (format_headers(format), unsent()).into_response();
    }
    match state.metrics.scrape(format) {
        Ok(scrape) => scraped(scrape, format, &allowance).await,
        Err(error) => {
            state.faults.raise(Source::Http, Reason::Encoding, None, &error);
            text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
        }
    }
}

/// The text of a scrape. A long one is sent while it is being written.
async fn scraped<S: Scraped>(scrape: Scrape<S>, format: Format, allowance: &Allowance) -> Response {
    let head = format_headers(format);
    if !scrape.is_long() {
        return (head, scrape.whole()).into_response();
    }
    let Some(writer) = allowance.writer(scrape.held_bytes()).await else { return overloaded() };
    let body = long::body(writer, move |out| {
        scrape.in_chunks(|chunk| out.take(chunk));
        Ok(())
    });
    (head, body).into_response()
}

/// The headers of a scrape. A cache must know that the response depends on the header `Accept`.
fn format_headers(format: Format) -> [(HeaderName, &'static str); 2] {
    [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")]
}

/// The body of the response to a HEAD. No Content-Length is set: this body is empty, but the body of the response to a
/// GET would not be.
fn unsent() -> Body {
    Body::from_stream(stream::empty::<Result<Vec<u8>, Infallible>>())
}

async fn healthz(State(state): State<Arc<HttpState>>) -> Response {
    match state.unhealthy() {
        None => text(StatusCode::OK, health::healthy(&state.snapshot.vitals)),
        Some(problem) => text(StatusCode::SERVICE_UNAVAILABLE, problem),
    }
}

async fn readyz(State(state): State<Arc<HttpState>>) -> Response {
    let parts = Parts::load(&state.snapshot);
    match health::unready(&parts.driver, &parts.gpus(state.metrics.settings())) {
        None => text(StatusCode::OK, "ok"),
        Some(problem) => text(StatusCode::SERVICE_UNAVAILABLE, problem),
    }
}

async fn page(State(state): State<Arc<HttpState>>) -> Response {
    guarded_page(landing::page(&Parts::load(&state.snapshot), &state))
}

fn guarded_page(page: impl Into<Body>) -> Response {
    let headers = [(header::CONTENT_SECURITY_POLICY, PAGE_POLICY), (header::REFERRER_POLICY, "no-referrer")];
    (headers, Html::<Body>(page.into())).into_response()
}

async fn not_found(State(state): State<Arc<HttpState>>) -> Response {
    text(StatusCode::NOT_FOUND, format!("nothing here; the metrics are at {}", state.telemetry_path))
}

#[cfg(test)]
mod tests;
