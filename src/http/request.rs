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

/// The largest request head, in bytes. A scraper sends a few hundred bytes; authentication tickets that a proxy adds take a
/// few thousand.
pub(super) const MAX_HEAD_BYTES: usize = 32 * 1024;

/// The bytes of the request line and of the headers, without spaces around their values. hyper reads more than it can tell
/// to be too long, so a head of up to twice the limit gets here.
pub(super) fn head_bytes<B>(request: &Request<B>) -> usize {
    const LINE: usize = "  HTTP/1.1\r\n".len();
    const HEADER: usize = ": \r\n".len();
    const END: usize = "\r\n".len();
    let uri = request.uri();
    let scheme = uri.scheme_str().map_or(0, |scheme| scheme.len() + "://".len());
    let authority = uri.authority().map_or(0, |authority| authority.as_str().len());
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER);
    request.method().as_str().len() + scheme + authority + path + LINE + headers.sum::<usize>() + END
}

/// Whether a request addresses one of these names. Without names, it may address any. A page of another site can make a
/// browser send requests to the exporter under the site's own name, by changing the address behind this name.
pub(super) fn is_for<B>(request: &Request<B>, hosts: &[String]) -> bool {
    let header = request.headers().get(header::HOST).map(|host| host.as_bytes());
    let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let mut addressed = header.into_iter().chain(authority).peekable();
    let is_known = |host: &[u8]| {
        let name = name_of(host);
        hosts.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name))
    };
    hosts.is_empty() || (addressed.peek().is_some() && addressed.all(is_known))
}

/// A host without its port and the dot at its end.
fn name_of(host: &[u8]) -> &[u8] {
    let is_port = |rest: &[u8]| rest.iter().all(u8::is_ascii_digit);
    let colon = host.iter().rposition(|byte| *byte == b':').filter(|colon| is_port(&host[colon + 1..]));
    // The last colon of an IPv6 address is within the brackets.
    let name = &host[..colon.unwrap_or(host.len())];
    name.strip_suffix(b".").unwrap_or(name)
}

/// What is wrong with the `Host` of a request according to RFC 9112, section 3.2. Whether the
/// name is that of this server is [`is_for`]'s question.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, host: Option<&str>) -> Request<()> {
        let request = Request::get(uri);
        let request = if let Some(host) = host { request.header(header::HOST, host) } else { request };
        request.body(()).unwrap()
    }

    #[test]
    fn only_a_request_for_a_known_name_is_for_this_server() {
        let hosts = ["gpu1.example.com", "10.0.0.1", "[::1]"].map(str::to_owned);
        for host in
            ["gpu1.example.com", "GPU1.example.com:9836", "gpu1.example.com.:1", "10.0.0.1:9836", "[::1]", "[::1]:9836"]
        {
            assert!(is_for(&request("/metrics", Some(host)), &hosts), "{host}");
        }
        for host in [
            "evil.example",
            "gpu1.example.com.evil.example",
            "xgpu1.example.com",
            "10.0.0.1:x",
            "[::1",
            "::1",
            "",
            ":9836",
        ] {
            assert!(!is_for(&request("/metrics", Some(host)), &hosts), "{host}");
        }
        assert!(!is_for(&request("/metrics", None), &hosts), "HTTP/1.0 need not name a host");
        assert!(!is_for(&request("http://evil.example/metrics", Some("10.0.0.1")), &hosts));
        assert!(is_for(&request("http://10.0.0.1:9836/metrics", Some("10.0.0.1")), &hosts));
        assert!(is_for(&request("/metrics", Some("evil.example")), &[]) && is_for(&request("/metrics", None), &[]));
    }

    #[test]
    fn the_size_of_a_head_is_that_of_its_bytes() {
        for (uri, head) in [
            ("/metrics?a=b", "GET /metrics?a=b HTTP/1.1\r\nhost: test:9\r\n\r\n"),
            ("http://test/x", "GET http://test/x HTTP/1.1\r\nhost: test:9\r\n\r\n"),
        ] {
            assert_eq!(head_bytes(&request(uri, Some("test:9"))), head.len(), "{uri}");
        }
    }
}
