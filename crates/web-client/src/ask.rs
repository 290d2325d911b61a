//! One question of a command to a server, and its whole answer.
//!
//! Invariant: no more bytes of an answer are read than the caller allows.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, StatusCode};
use tokio::runtime;

use super::https::Connection;
use super::{Secrets, Tls, error, innermost, whole};
use crate::server_url::ServerUrl;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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

impl From<error::Error> for Error {
    fn from(error: error::Error) -> Self {
        match error {
            error::Error::TooLong(limit) => Self::TooLong(limit),
            error => Self::Unreachable(innermost(&error)),
        }
    }
}

/// What is sent to the server.
#[derive(Debug)]
pub struct Question<'a> {
    /// The server.
    pub server: &'a ServerUrl,
    /// The method of the request.
    pub method: Method,
    /// The path and the query.
    pub target: &'a str,
    /// Headers besides `Host` and `User-Agent`, which they replace.
    pub headers: HeaderMap,
    /// The body of the request; empty for none.
    pub body: Bytes,
    /// Which certificates to trust, if the URL is `https://`.
    pub tls: Tls,
    /// The longest answer that is read, in bytes.
    pub limit: usize,
}

/// What the server answered, whatever its status.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body, of at most [`Question::limit`] bytes.
    pub body: Bytes,
    /// What of the question must not be shown.
    pub secrets: Secrets,
}

impl Answer {
    /// A header as text; empty if it is absent or is not text.
    pub fn header(&self, name: HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// Runs the future to its end on this thread; `None` if it takes longer than the timeout.
///
/// # Errors
/// When the system has no resources for it.
pub fn within<F: Future>(timeout: Duration, future: F) -> Result<Option<F::Output>, Error> {
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
pub async fn ask(question: Question<'_>) -> Result<Answer, Error> {
    let request = Request::builder().method(question.method).uri(question.target).body(Full::new(question.body));
    let mut request = request.map_err(|error| Error::Local(error.to_string()))?;
    let secrets = Secrets::of(&question.headers);
    request.headers_mut().extend(question.headers);
    let connection = Connection::open(question.server, question.tls).await?;
    let (head, body) = connection.send(request).await?.into_parts();
    let body = whole(body, question.limit).await?;
    Ok(Answer { status: head.status, headers: head.headers, body, secrets })
}

/// The header `Authorization` for `user:password`; `None` if it contains bytes that no header can contain.
pub fn basic(credentials: &[u8]) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(credentials))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let header = basic(b"ada:secret").unwrap();
        assert_eq!(header, "Basic YWRhOnNlY3JldA==");
        assert!(!format!("{header:?}").contains("YWRh"));
    }
}
