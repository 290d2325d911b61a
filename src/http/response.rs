//! Responses that consist of one line of text.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use web_config::Refusal;

/// One line of plain text, which no cache may keep.
pub(super) fn text(status: StatusCode, line: impl Into<String>) -> Response {
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    (status, headers, line.into() + "\n").into_response()
}

/// No request permit became free in time.
pub(super) fn overloaded() -> Response {
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once; try again");
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// The guard did not admit the request.
pub(super) fn refused(refusal: Refusal) -> Response {
    let status = refusal.status();
    let mut response = text(status, status.canonical_reason().unwrap_or_default());
    if let Some(challenge) = refusal.challenge() {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
    response
}
