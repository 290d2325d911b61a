//! One request over one connection.

use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{HeaderMap, Request, Response};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use super::body::Body;
use super::error::Error;
use super::meter::{Allowance, Metered};
use super::tls::Tls;
use crate::server_url::ServerUrl;

const AGENT: HeaderValue = HeaderValue::from_static(concat!("vram-exporter/", env!("CARGO_PKG_VERSION")));
/// The longest head of an answer, and the most of a body that is buffered, in bytes.
const BUFFER: usize = 64 << 10;
/// The longest `Retry-After` that is honoured.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// A connection that is ready for its request. It ends when it is dropped.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// The value of the header `Host`.
    host: HeaderValue,
    allowance: Allowance,
    /// The task of the connection, which ends with this set, whatever state the connection is in.
    task: JoinSet<hyper::Result<()>>,
}

impl Connection {
    /// Connects to the server, with TLS for `https://`.
    ///
    /// # Errors
    /// When there is no connection.
    pub async fn open(server: &ServerUrl, tls: Tls) -> Result<Self, Error> {
        let mut connector = HttpConnector::new();
        // The connector makes TCP connections for both schemes.
        connector.enforce_http(false);
        let stream = connector.oneshot(server.uri().clone()).await.map_err(Error::transport)?;
        let allowance = Allowance::new();
        let stream = Metered::new(stream.into_inner(), allowance.clone());
        let host = HeaderValue::try_from(server.authority()).map_err(Error::transport)?;
        if server.is_https() {
            let stream = tls.connect(server, stream).await.map_err(Error::transport)?;
            Self::over(stream, host, allowance).await
        } else {
            Self::over(stream, host, allowance).await
        }
    }

    async fn over<S>(stream: S, host: HeaderValue, allowance: Allowance) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut http = Builder::new();
        http.max_buf_size(BUFFER);
        let (sender, connection) = http.handshake(TokioIo::new(stream)).await.map_err(Error::transport)?;
        let mut task = JoinSet::new();
        // The connection's errors are reported by the response.
        task.spawn(connection);
        Ok(Self { sender, host, allowance, task })
    }

    /// Sends the request, with the headers `Host` and `User-Agent` unless it has its own, and returns the answer when its
    /// head has arrived.
    ///
    /// # Errors
    /// When the connection fails before that.
    pub async fn send(mut self, mut request: Request<Full<Bytes>>) -> Result<Response<Body>, Error> {
        request.headers_mut().entry(HOST).or_insert(self.host);
        request.headers_mut().entry(USER_AGENT).or_insert(AGENT);
        let response = self.sender.send_request(request).await.map_err(Error::transport)?;
        Ok(response.map(|incoming| Body::new(incoming, self.allowance, self.task)))
    }
}

/// How long the server asks to wait, at most five minutes; `None` if the answer does not specify this in seconds.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests;
