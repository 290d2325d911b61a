//! Requests built from the parts of HTTP. Most lines are valid.

use crate::choices::{Choose, Unstructured};

const METHODS: [&str; 10] = ["GET", "GET", "GET", "HEAD", "POST", "OPTIONS", "CONNECT", "PUT", "PRI", "get"];
const TARGETS: [&str; 18] = [
    "/metrics",
    "/",
    "/healthz",
    "/readyz",
    "/metrics?a=b",
    "/metrics/",
    "//metrics",
    "/%6detrics",
    "/../metrics",
    "*",
    "http://x/metrics",
    "x:80",
    "/a%zz",
    "/\u{e9}",
    "/a#b",
    "",
    "/{a}",
    "/*",
];
const VERSIONS: [&str; 6] = ["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/1.2"];
const HEADERS: [&str; 30] = [
    "host: x",
    "host: x\r\nhost: y",
    "connection: close",
    "connection: keep-alive",
    "connection: upgrade\r\nupgrade: h2c",
    "accept-encoding: gzip",
    "accept-encoding: gzip;q=0, *;q=1",
    "accept-encoding: ,,;q=",
    "accept: application/openmetrics-text;version=1.0.0",
    "accept: text/plain;q=0.5, application/openmetrics-text; version=\"1.0.0\"; charset=utf-8;q=0.75",
    "accept: ,;=\"\\,*/*;q=",
    "accept: \u{e9}/*;q=1.0000",
    "content-length: 0",
    "content-length: 5",
    "content-length: 5\r\ncontent-length: 5",
    "content-length: -1",
    "content-length: 18446744073709551616",
    "transfer-encoding: chunked",
    "transfer-encoding: gzip",
    "transfer-encoding: chunked\r\ncontent-length: 5",
    "expect: 100-continue",
    "authorization: Basic YTpi",
    "authorization: Basic =",
    "range: bytes=0-1",
    "if-modified-since: x",
    " folded: x",
    "a b: c",
    ": empty",
    "x:\u{1}",
    "te: trailers",
];

/// A few requests in sequence.
pub(super) fn requests(u: &mut Unstructured<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..1 + u.below(4) {
        request(u, &mut out);
    }
    if u.once_in(8) {
        out.truncate(u.below(256));
    }
    out
}

fn request(u: &mut Unstructured<'_>, out: &mut Vec<u8>) {
    let method = if u.once_in(16) { u.up_to(8) } else { u.pick(&METHODS).as_bytes() };
    let target = match u.below(16) {
        0 => [b"/", u.up_to(60)].concat(),
        1 => format!("/{}", "a".repeat(u.below(256) * u.below(256))).into_bytes(),
        _ => u.pick(&TARGETS).as_bytes().to_vec(),
    };
    let version = u.pick(&VERSIONS).as_bytes();
    let end: &[u8] = if u.once_in(12) { b"\n" } else { b"\r\n" };
    out.extend_from_slice(&[method, b" ", &target, b" ", version, end].concat());
    if !u.once_in(6) {
        out.extend_from_slice(&[b"host: y".as_slice(), end].concat());
    }
    for _ in 0..u.below(6) {
        match u.below(16) {
            0 => out.extend_from_slice(u.up_to(60)),
            1 => (0..u.below(160)).for_each(|at| out.extend_from_slice(format!("x{at}: y\r\n").as_bytes())),
            2 => out.extend_from_slice(format!("x: {}", "y".repeat(u.below(256) * u.below(256))).as_bytes()),
            _ => out.extend_from_slice(u.pick(&HEADERS).as_bytes()),
        }
        out.extend_from_slice(end);
    }
    out.extend_from_slice(end);
    match u.below(8) {
        0 => out.extend_from_slice(b"5\r\nhello\r\n0\r\n\r\n"),
        1 => out.extend_from_slice(b"hello"),
        2 => out.extend_from_slice(b"ffffffffffffffffff\r\n"),
        3 => out.extend_from_slice(u.up_to(40)),
        _ => {}
    }
}
