//! Responses of one line of text, and responses that must not be streamed.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, stream};
use hyper::body::Body as _;
use web_config::Refusal;

use super::allowance::Allowance;
use super::shares::Share;

/// The longest response, in bytes, to a client that cannot tell a complete response from a truncated one.
const LONGEST_WHOLE: usize = 8 << 20;
/// The bytes by which its memory grows.
const GROWTH: usize = 256 << 10;

/// One line of plain text.
pub(super) fn text(status: StatusCode, line: impl Into<String>) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], line.into() + "\n").into_response()
}

/// No share became free in time.
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

/// The response with its length, as HTTP/1.0 needs it: without it, a truncated response looks complete there. The body is
/// collected before it is sent, in memory that is asked for as it grows.
pub(super) async fn whole(response: Response, allowance: &Allowance) -> Response {
    let (mut head, body) = response.into_parts();
    if body.size_hint().exact().is_some() {
        return Response::from_parts(head, body);
    }
    let (mut chunks, mut length): (Vec<Bytes>, usize) = (Vec::new(), 0);
    let mut shares: Vec<Share> = Vec::new();
    let mut body = body.into_data_stream();
    while let Some(chunk) = body.next().await {
        let Ok(chunk) = chunk else {
            return text(StatusCode::INTERNAL_SERVER_ERROR, "the response could not be written");
        };
        length += chunk.len();
        if length > LONGEST_WHOLE {
            let why = format!("a response of more than {LONGEST_WHOLE} bytes needs HTTP/1.1");
            return text(StatusCode::HTTP_VERSION_NOT_SUPPORTED, why);
        }
        chunks.push(chunk);
        while shares.len() * GROWTH < length {
            let Some(share) = allowance.memory(GROWTH).await else { return overloaded() };
            shares.push(share);
        }
    }
    head.headers.insert(header::CONTENT_LENGTH, length.into());
    // The memory is given back with the chunks.
    let sent = stream::iter(chunks).map(move |chunk| {
        let _held = &shares;
        Ok::<_, std::convert::Infallible>(chunk)
    });
    Response::from_parts(head, Body::from_stream(sent))
}
