//! A client that writes HTTP by hand, over any stream, and reads one response.

use std::io::{Error, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::PATIENCE;

/// An HTTP response.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The status line and the headers.
    pub(crate) head: String,
    /// The body, without the framing of chunks.
    pub(crate) bytes: Vec<u8>,
    /// The body as text; empty if it is not UTF-8.
    pub(crate) body: String,
    /// Whether the body is complete, judging by the length or the last chunk that the server sent.
    pub(crate) whole: bool,
}

impl Answer {
    /// Sends one request, and reads the response until the server closes the connection. `headers` are further header lines,
    /// each with its line end.
    pub(crate) fn ask(mut stream: impl Read + Write, method: &str, path: &str, headers: &str) -> Result<Self> {
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n")?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        Self::parse(&bytes, method)
    }

    /// GETs a path over a new connection to an address.
    pub(crate) fn get(address: SocketAddr, path: &str) -> Result<Self> {
        Self::ask(connect(address)?, "GET", path, "")
    }

    /// GETs a path through a socket file, with further header lines.
    pub(crate) fn through(socket: &Path, path: &str, headers: &str) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Self::ask(stream, "GET", path, headers)
    }

    /// What a server sent in response to a request with this method.
    pub(crate) fn parse(bytes: &[u8], method: &str) -> Result<Self> {
        let end =
            bytes.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(|| Error::other("no end of the head"))?;
        let head = std::str::from_utf8(&bytes[..end]).map_err(Error::other)?.to_owned();
        let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let mut answer = Self { status, head, bytes: bytes[end + 4..].to_vec(), body: String::new(), whole: false };
        answer.whole = answer.header("content-length").parse() == Ok(answer.bytes.len());
        if answer.header("transfer-encoding") == "chunked" && method != "HEAD" {
            (answer.bytes, answer.whole) = join_chunks(&answer.bytes);
        }
        answer.body = String::from_utf8(answer.bytes.clone()).unwrap_or_default();
        Ok(answer)
    }

    /// The value of the first header with this name; empty if there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        let headers = self.head.lines().filter_map(|line| line.split_once(": "));
        headers.filter(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| value).next().unwrap_or_default()
    }

    /// The value of a series without labels.
    pub(crate) fn value(&self, name: &str) -> &str {
        self.body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap()
    }
}

/// A new connection, whose reads fail after [`PATIENCE`].
pub(crate) fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A chunked body, and whether its last, empty chunk has arrived.
fn join_chunks(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        let Some(chunk) = rest.get(end + 2..end + 2 + length) else { break };
        if length == 0 {
            return (body, true);
        }
        body.extend_from_slice(chunk);
        rest = rest.get(end + length + 4..).unwrap_or_default();
    }
    (body, false)
}
