//! Requests made of HTTP's own parts: most of them right, with now and then a line that is not.

use crate::trials::Pieces;

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
const HEADERS: [&str; 26] = [
    "host: x",
    "host: x\r\nhost: y",
    "connection: close",
    "connection: keep-alive",
    "connection: upgrade\r\nupgrade: h2c",
    "accept-encoding: gzip",
    "accept-encoding: gzip;q=0, *;q=1",
    "accept-encoding: ,,;q=",
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

/// Some requests, one after the other.
pub(super) fn requests(pieces: &mut Pieces<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..1 + pieces.below(4) {
        request(pieces, &mut out);
    }
    if pieces.once_in(8) {
        out.truncate(pieces.below(256));
    }
    out
}

fn request(pieces: &mut Pieces<'_>, out: &mut Vec<u8>) {
    let method = if pieces.once_in(16) { pieces.bytes(8) } else { pieces.pick(&METHODS).as_bytes() };
    let target = match pieces.below(16) {
        0 => [b"/", pieces.bytes(60)].concat(),
        1 => format!("/{}", "a".repeat(pieces.below(256) * pieces.below(256))).into_bytes(),
        _ => pieces.pick(&TARGETS).as_bytes().to_vec(),
    };
    let version = pieces.pick(&VERSIONS).as_bytes();
    let end: &[u8] = if pieces.once_in(12) { b"\n" } else { b"\r\n" };
    out.extend_from_slice(&[method, b" ", &target, b" ", version, end].concat());
    if !pieces.once_in(6) {
        out.extend_from_slice(&[b"host: y".as_slice(), end].concat());
    }
    for _ in 0..pieces.below(6) {
        match pieces.below(16) {
            0 => out.extend_from_slice(pieces.bytes(60)),
            1 => (0..pieces.below(160)).for_each(|at| out.extend_from_slice(format!("x{at}: y\r\n").as_bytes())),
            2 => out.extend_from_slice(format!("x: {}", "y".repeat(pieces.below(256) * pieces.below(256))).as_bytes()),
            _ => out.extend_from_slice(pieces.pick(&HEADERS).as_bytes()),
        }
        out.extend_from_slice(end);
    }
    out.extend_from_slice(end);
    match pieces.below(8) {
        0 => out.extend_from_slice(b"5\r\nhello\r\n0\r\n\r\n"),
        1 => out.extend_from_slice(b"hello"),
        2 => out.extend_from_slice(b"ffffffffffffffffff\r\n"),
        3 => out.extend_from_slice(pieces.bytes(40)),
        _ => {}
    }
}
