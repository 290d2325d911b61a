//! The client of a command: it asks one server, and reads whole answers.
//!
//! Invariant: no more bytes of an answer are read than the caller allows.

use std::path::Path;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName};
use hyper::{HeaderMap, Request, StatusCode, http};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::runtime;

use super::access::{self, Access};
use super::error::Error;
use super::https::Connection;
use super::{Secrets, whole};
use crate::server_url::ServerUrl;

/// What the server answered, whatever its status.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// What of the request must not be shown.
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
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(Error::transport)?;
    let output = runtime.block_on(async { tokio::time::timeout(timeout, future).await.ok() });
    // A name that is still being looked up must not delay the end.
    runtime.shutdown_background();
    Ok(output)
}

/// A server, and how it is asked.
#[derive(Debug)]
pub struct Client {
    /// The server.
    pub server: ServerUrl,
    access: Access,
}

impl Client {
    /// Reads how the server is asked: from a file in the format of promtool's HTTP client configuration, and the files that it
    /// names. Without one, the server is asked without a password, and the certificates of the system are trusted. Sends
    /// nothing. May block for a long time.
    ///
    /// # Errors
    /// When a file cannot be used, or there is no certificate to trust.
    pub fn new(server: ServerUrl, config: Option<&Path>) -> Result<Self, access::Error> {
        let access = Access::read(&server, config)?;
        Ok(Self { server, access })
    }

    /// Asks for a path below that of the server's URL. An answer of more than `limit` bytes is an error.
    ///
    /// # Errors
    /// When there is no whole answer.
    pub async fn get(&self, path: &str, query: &[(&str, &str)], limit: usize) -> Result<Answer, Error> {
        let target = format!("{}?{}", self.target(path), encoded(query));
        self.ask(Request::get(target).body(Full::default()), limit).await
    }

    /// Sends a form to a path below that of the server's URL. An answer of more than `limit` bytes is an error.
    ///
    /// # Errors
    /// When there is no whole answer.
    pub async fn post(&self, path: &str, form: &[(&str, &str)], limit: usize) -> Result<Answer, Error> {
        let request = Request::post(self.target(path)).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        self.ask(request.body(encoded(form).into()), limit).await
    }

    fn target(&self, path: &str) -> String {
        format!("{}{path}", self.server.path().trim_end_matches('/'))
    }

    async fn ask(&self, request: http::Result<Request<Full<Bytes>>>, limit: usize) -> Result<Answer, Error> {
        let mut request = request.map_err(Error::transport)?;
        let mut headers = self.access.headers.clone();
        headers.extend(std::mem::take(request.headers_mut()));
        *request.headers_mut() = headers;
        let secrets = Secrets::of(request.headers());
        let connection = Connection::open(&self.server, self.access.tls.clone()).await?;
        let (head, body) = connection.send(request).await?.into_parts();
        let body = whole(body, limit).await?;
        Ok(Answer { status: head.status, headers: head.headers, body, secrets })
    }
}

/// Names and values as the query of a URL and a form have them.
fn encoded(pairs: &[(&str, &str)]) -> String {
    let pair = |(name, value): &(&str, &str)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC));
    pairs.iter().map(pair).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_any_bytes_is_one_parameter_below_the_path_of_the_server() {
        let client = Client::new(ServerUrl::parse("http://a/gpu/", "", "").unwrap(), None).unwrap();
        assert_eq!(client.target("/api/v1/reports"), "/gpu/api/v1/reports");
        assert_eq!(
            encoded(&[("format", "lines"), ("workload", "unit:a&limit=1 #é")]),
            "format=lines&workload=unit%3Aa%26limit%3D1%20%23%C3%A9"
        );
    }
}
