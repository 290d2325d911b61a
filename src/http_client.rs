//! One HTTP request over a connection of its own, for the subcommands that ask a server.
//!
//! Invariants: neither redirects nor proxies from the environment are followed; no more bytes of an answer are read than the
//! caller allows; an error is one line, and contains no header of the request.

use std::error::Error as StdError;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::header::{HOST, HeaderValue, USER_AGENT};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper_rustls::HttpsConnectorBuilder;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::runtime;
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::client_tls;

const AGENT: &str = concat!("vram-exporter/", env!("CARGO_PKG_VERSION"));
/// The longest text of a server in a message, in characters.
const QUOTED: usize = 300;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The server cannot be reached, or the connection failed.
    #[error("{0}")]
    Unreachable(String),
    /// The answer is longer than this number of bytes.
    #[error("more than {0} bytes")]
    TooLong(usize),
    /// The request cannot be made.
    #[error("{0}")]
    Local(String),
}

/// What is sent to the server.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    /// Where to connect to: the scheme and the host.
    pub(crate) server: &'a Uri,
    pub(crate) method: Method,
    /// The path and the query.
    pub(crate) target: &'a str,
    /// Headers besides `Host` and `User-Agent`, which they replace.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) tls: ClientConfig,
    /// The name in the server's certificate; `None`: the host.
    pub(crate) server_name: Option<ServerName<'static>>,
    /// The longest answer that is read, in bytes.
    pub(crate) limit: usize,
}

/// What the server answered, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// A header as text; empty if it is absent or is not text.
    pub(crate) fn header(&self, name: hyper::header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// Runs the future to its end on this thread; `None` if it takes longer than the timeout.
///
/// # Errors
/// When the system has no resources for it.
pub(crate) fn within<F: Future>(timeout: Duration, future: F) -> Result<Option<F::Output>, Error> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Local(error.to_string()))?;
    let output = runtime.block_on(async { tokio::time::timeout(timeout, future).await.ok() });
    // A name that is still being looked up must not delay the end.
    runtime.shutdown_background();
    Ok(output)
}

/// Sends the question and reads the answer.
///
/// # Errors
/// When there is no whole answer.
pub(crate) async fn ask(question: Question<'_>) -> Result<Answer, Error> {
    let limit = question.limit;
    // The task of the connection ends with this set.
    let mut tasks = JoinSet::new();
    let response = send(question, &mut tasks).await?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, limit).collect().await.map_err(|error| match error.is::<LengthLimitError>() {
        true => Error::TooLong(limit),
        false => Error::Unreachable(innermost(&*error)),
    })?;
    Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
}

async fn send(question: Question<'_>, tasks: &mut JoinSet<hyper::Result<()>>) -> Result<Response<Incoming>, Error> {
    let unreachable = |error: &(dyn StdError + 'static)| Error::Unreachable(innermost(error));
    let url = question.server;
    let host = url.authority().map_or("", |authority| authority.as_str());
    let request = Request::builder().method(question.method).uri(question.target);
    let request = request.header(HOST, host).header(USER_AGENT, AGENT).body(Full::new(question.body));
    let mut request = request.map_err(|error| Error::Local(error.to_string()))?;
    request.headers_mut().extend(question.headers);
    let builder = HttpsConnectorBuilder::new().with_tls_config(question.tls).https_or_http();
    let connector = match question.server_name {
        Some(name) => builder.with_server_name_resolver(hyper_rustls::FixedServerNameResolver::new(name)),
        None => builder,
    };
    let stream = connector.enable_http1().build().oneshot(url.clone()).await.map_err(|error| unreachable(&*error))?;
    let (mut sender, connection) = handshake(stream).await.map_err(|error| unreachable(&error))?;
    // The connection's errors are reported by the response.
    tasks.spawn(connection);
    sender.send_request(request).await.map_err(|error| unreachable(&error))
}

/// The TLS settings for a URL: the certificates in the file or, without one, those of the system; none for `http://`.
///
/// # Errors
/// When there is no certificate to trust.
pub(crate) fn tls(url: &Uri, ca_file: Option<&Path>) -> Result<ClientConfig, client_tls::Error> {
    match ca_file {
        _ if url.scheme_str() != Some("https") => client_tls::trusting_none(),
        None => client_tls::trusting_the_system(),
        Some(path) => client_tls::certificates(path).and_then(client_tls::trusting),
    }
}

/// The header `Authorization` for `user:password`; `None` if it contains bytes that no header can contain.
pub(crate) fn basic(credentials: &[u8]) -> Option<HeaderValue> {
    let value = HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(credentials))).ok();
    value.map(|mut value| {
        value.set_sensitive(true);
        value
    })
}

/// The innermost cause of a failure, in one line.
pub(crate) fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    // An error of the certificate's check is known only to its description.
    let text = innermost.to_string();
    one_line(if text.is_empty() { "the connection failed" } else { &text })
}

/// The beginning of a text in one line, without characters that a terminal would interpret.
pub(crate) fn one_line(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ").chars().filter(|c| is_plain(*c)).take(QUOTED).collect()
}

/// Whether a terminal shows the character and does nothing else.
pub(crate) fn is_plain(c: char) -> bool {
    let is_direction = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !c.is_control() && !is_direction
}

/// A URL of a server that a user names: `http://` or `https://` and a host, without a user and a query.
///
/// # Errors
/// Why it is none, for a message that begins with the flag. `secrets` names the flag that holds a password.
pub(crate) fn url(text: &str, example: &str, secrets: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|_| format!("must be a URL such as {example}"))?;
    let authority = url.authority().map_or("", |authority| authority.as_str());
    if !matches!(url.scheme_str(), Some("http" | "https")) || authority.is_empty() {
        return Err("must begin with http:// or https:// and a host".to_owned());
    }
    if authority.contains('@') {
        return Err(format!("must not contain a password, which other users can see; use {secrets}"));
    }
    if url.query().is_some() {
        return Err("must not contain a query".to_owned());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_a_server_is_one_short_line() {
        assert_eq!(one_line("a\n\u{1b}[31m b\u{202e}\t c"), "a [31m b c");
        assert_eq!(one_line(&"x".repeat(1000)).len(), QUOTED);
    }

    #[test]
    fn a_password_is_not_shown() {
        let header = basic(b"ada:secret").unwrap();
        assert_eq!(header, "Basic YWRhOnNlY3JldA==");
        assert!(!format!("{header:?}").contains("YWRh"));
    }
}
