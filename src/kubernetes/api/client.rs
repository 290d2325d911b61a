//! Requests for pods, each over its own connection.
//!
//! Invariants: the address, the trusted certificates and the token are those that the settings and files specify at the
//! time of the request, so that a change needs no restart. Kubeconfig files, commands that print tokens and proxies
//! from the environment are not used, redirects are not followed, and every retry is counted. A connection does not
//! outlive its response: requests are rare (a list, then one watch per minute), so keeping connections open would save
//! nothing.

use std::future::Future;
use std::io;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_rustls::HttpsConnectorBuilder;
use tower::ServiceExt;

use super::body;
use super::endpoint::Endpoint;
use super::error::Error;
use super::settings::{Server, Settings};
use crate::blocking_read::BlockingRead;

const AGENT: &str = concat!("vram-exporter/", env!("CARGO_PKG_VERSION"));
/// The longest `Retry-After` that is honoured.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// A client of one API server.
#[derive(Debug)]
pub(super) struct Client {
    server: Server,
    timeout: Duration,
    endpoint: BlockingRead<Result<Endpoint, Error>>,
    token: BlockingRead<io::Result<String>>,
}

impl Client {
    pub(super) fn new(settings: &Settings) -> Self {
        let (server, timeout) = (settings.server.clone(), settings.timeout);
        Self { server, timeout, endpoint: BlockingRead::default(), token: BlockingRead::default() }
    }

    /// Ends `step` with [`Error::Timeout`] when it exceeds the timeout.
    pub(super) async fn in_time<T>(&self, step: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::time::timeout(self.timeout, step).await.map_err(|_| Error::Timeout(self.timeout))?
    }

    /// Requests the pods that `query` selects, and returns the response when it begins. Any status other than success
    /// is an error. To be called under [`Client::in_time`].
    pub(super) async fn pods(&self, query: &str) -> Result<Response<Incoming>, Error> {
        // Half the timeout, so that a file whose read hangs is reported as such and not as a server timeout.
        let limit = self.timeout / 2;
        let server = self.server.clone();
        let endpoint = self.endpoint.take(limit, move || Endpoint::read(&server)).await;
        let endpoint = endpoint.unwrap_or_else(|error| Err(Endpoint::unread(&self.server, &error)))?;
        let token = match &endpoint.token {
            Some(file) => Some(file.bearer(&self.token, limit).await?),
            None => None,
        };
        let response = send(endpoint, token, query).await?;
        let code = response.status().as_u16();
        if response.status().is_success() {
            Ok(response)
        } else if let Some(after) = retry_after(&response) {
            Err(Error::Busy { code, after })
        } else if response.status().is_redirection() {
            let text = "a redirect that is not followed; it may lead to a login page".to_owned();
            Err(Error::Refused { code, text })
        } else {
            Err(Error::refused(code, &body::whole(response.into_body()).await?))
        }
    }
}

async fn send(endpoint: Endpoint, token: Option<HeaderValue>, query: &str) -> Result<Response<Incoming>, Error> {
    let Endpoint { uri, tls, .. } = endpoint;
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let request = Request::get(format!("/api/v1/pods?{query}"))
        .header(HOST, host)
        .header(USER_AGENT, AGENT)
        .header(ACCEPT, "application/json");
    let mut request = request.body(Empty::<Bytes>::new()).map_err(|error| Error::Url(error.to_string()))?;
    request.headers_mut().extend(token.map(|token| (AUTHORIZATION, token)));
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
    let stream = connector.oneshot(uri).await.map_err(|error| Error::transport(&*error))?;
    let (mut sender, connection) = handshake(stream).await.map_err(|error| Error::transport(&error))?;
    // The task ends when the response has been read or dropped. The connection's errors are reported by the response.
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(|error| Error::transport(&error))
}

/// How long an overloaded server asks the client to wait; `None` if the response does not specify this in seconds.
fn retry_after<B>(response: &Response<B>) -> Option<Duration> {
    let busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    busy.contains(&response.status()).then(|| Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::kubernetes::api::LIST_AGAIN;

    /// What a proxy does that has no server behind it: it accepts the connection and closes it.
    #[tokio::test]
    async fn a_connection_that_is_closed_before_tls_is_established_counts_as_unreachable() {
        let folder = tempfile::tempdir().unwrap();
        let ca_file = folder.path().join("ca.crt");
        let authority = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&ca_file, authority.cert.pem()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let server = Server::At { url, token_file: None, ca_file: Some(ca_file) };
        let timeout = Duration::from_secs(20);
        let settings = Settings { server, node: "node-1".to_owned(), timeout, list_again: LIST_AGAIN };
        let error = Client::new(&settings).pods("").await.unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    }
}
