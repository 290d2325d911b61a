//! Checks that every request has to pass before anything else looks at it.

use axum::http::{Request, Version, header};
use hyper::body::Body;

/// Whether a request has a body. No page reads one, so the request is refused and its connection closed after the response:
/// hyper looks for the next request behind a body while the response still waits to leave, and would write its response to
/// an invalid one into the middle of it; and of an upgrade with a body it drops the rest of the response.
pub(super) fn has_body<B: Body>(request: &Request<B>) -> bool {
    !request.body().is_end_stream()
}

/// What is wrong with the `Host` of a request, by RFC 9112, section 3.2. The server has no name of its own and accepts any.
pub(super) fn host_problem<B>(request: &Request<B>) -> Option<&'static str> {
    let can_be_in_a_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:%[]".contains(byte);
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if request.version() >= Version::HTTP_11 => Some("a request must name its Host"),
        (Some(_), Some(_)) => Some("a request must name one Host and no second one"),
        (Some(host), None) if !host.as_bytes().iter().all(can_be_in_a_name) => {
            Some("the Host of this request is no name")
        }
        _ => None,
    }
}
