//! The exporter's paths, and how it responds to a request for each of them.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, StatusCode, Version, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::SizeAbove;

use super::api;
use super::health::{self, HEALTH, READINESS};
use super::landing::{self, ICON};
use super::response::text;
use super::state::HttpState;
use crate::faults::{Reason, Source};
use crate::metrics::{self, Parts};

const ICON_SVG: &str = include_str!("icon.svg");
/// The page needs its own style and icon and nothing else. Even a name rendered as markup could not load anything.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// All paths of the exporter; their responses are compressed when the client asks for it.
pub fn router(state: HttpState) -> Router {
    // The fastest level, for small bodies too: the network to a scraper is fast, and the text shrinks tenfold at any
    // level.
    let compression = CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(SizeAbove::new(0));
    let telemetry_path = literal(&state.telemetry_path);
    let pages = health_routes()
        .merge(api::routes())
        .without_v07_checks()
        .route("/", get(page))
        .route(&telemetry_path, get(scrape));
    // The configured path takes precedence over the icon.
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

/// A route that matches only this path, whatever braces it contains.
fn literal(path: &str) -> String {
    path.replace('{', "{{").replace('}', "}}")
}

async fn scrape(State(state): State<Arc<HttpState>>, method: Method, version: Version) -> Response {
    let head = [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)];
    if method == Method::HEAD {
        // The length is left open: this body is empty, but the body of the response to a GET would not be.
        return (head, Body::from_stream(stream::empty::<Result<Vec<u8>, Infallible>>())).into_response();
    }
    match state.metrics.scrape() {
        Ok(scrape) => (head, state.writers.body(scrape, version)).into_response(),
        Err(error) => {
            state.faults.report(Source::Http, Reason::Encoding, None, &error);
            text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
        }
    }
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

#[cfg(test)]
mod tests;
