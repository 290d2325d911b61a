//! The checks that every request must pass before any other processing.

use axum::http::{Request, Version, header};
use hyper::body::Body;

/// Whether a request has a body. No page reads one, so the request is refused and its connection closed after the
/// response: hyper parses the next request after a body while the response is still being sent. If that request were
/// invalid, hyper would write an error into the middle of the response. For an upgrade request with a body, hyper
/// would drop the rest of the response.
pub(super) fn has_body<B: Body>(request: &Request<B>) -> bool {
    !request.body().is_end_stream()
}

/// What is wrong with the `Host` of a request according to RFC 9112, section 3.2. The server has no name of its own and
/// accepts any valid one.
pub(super) fn host_problem<B>(request: &Request<B>) -> Option<&'static str> {
    let can_be_in_a_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:%[]".contains(byte);
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if request.version() >= Version::HTTP_11 => Some("a request must name its Host"),
        (Some(_), Some(_)) => Some("a request must name only one Host"),
        (Some(host), None) if !host.as_bytes().iter().all(can_be_in_a_name) => {
            Some("the Host of this request is not a valid name")
        }
        _ => None,
    }
}
