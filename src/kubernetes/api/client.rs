//! Requests to the API server, each over its own connection.
//!
//! Invariants: the address, the trusted certificates and the token are those that the settings and files specify at the
//! time of the request, so that a change needs no restart. Kubeconfig files and commands that print tokens are not
//! used, and every retry is counted. A connection does not outlive its response: requests are rare (a list, then one watch
//! per minute), so keeping connections open would save nothing.

use std::future::Future;
use std::io;
use std::time::Duration;

use http_body_util::Full;
use hyper::header::{ACCEPT, AUTHORIZATION};
use hyper::{Request, Response, StatusCode};

use super::body::{self, ANSWER_LIMIT};
use super::declared::Wanted;
use super::endpoint::Endpoint;
use super::error::Error;
use super::{Server, Settings};
use crate::blocking_read::BlockingRead;
use crate::client::{Body, Connection, Secrets, retry_after};

/// A client of one API server.
#[derive(Debug)]
pub(super) struct Client {
    server: Server,
    timeout: Duration,
    /// The labels of pods that are kept of an answer.
    pub(super) labels: Wanted,
    endpoint: BlockingRead<Result<Endpoint, Error>>,
    token: BlockingRead<io::Result<String>>,
}

impl Client {
    pub(super) fn new(settings: &Settings) -> Self {
        let (server, timeout) = (settings.server.clone(), settings.timeout);
        let (labels, endpoint, token) = (settings.labels.clone(), BlockingRead::default(), BlockingRead::default());
        Self { server, timeout, labels, endpoint, token }
    }

    /// Ends `step` with [`Error::Timeout`] when it exceeds the timeout.
    pub(super) async fn in_time<T>(&self, step: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::time::timeout(self.timeout, step).await.map_err(|_| Error::Timeout(self.timeout))?
    }

    /// Requests what `target`, a path with a query, names, and returns the response when it begins. Any status other than
    /// success is an error. To be called under [`Client::in_time`].
    pub(super) async fn get(&self, target: &str) -> Result<Response<Body>, Error> {
        // Half the timeout, so that a file whose read hangs is reported as such and not as a server timeout.
        let limit = self.timeout / 2;
        let server = self.server.clone();
        let endpoint = self.endpoint.take(limit, move || Endpoint::read(&server)).await;
        let endpoint = endpoint.unwrap_or_else(|error| Err(Endpoint::unread(&self.server, &error)))?;
        let token = match &endpoint.token {
            Some(file) => Some(file.bearer(&self.token, limit).await?),
            None => None,
        };
        let request = Request::get(target).header(ACCEPT, "application/json");
        let mut request =
            request.body(Full::default()).map_err(|error| Error::Url(format!("is not usable: {error}")))?;
        request.headers_mut().extend(token.map(|token| (AUTHORIZATION, token)));
        let secrets = Secrets::of(request.headers());
        let connection =
            Connection::open(&endpoint.url, endpoint.tls).await.map_err(|error| Error::transport(&error))?;
        let response = connection.send(request).await.map_err(|error| Error::transport(&error))?;
        let code = response.status().as_u16();
        if response.status().is_success() {
            Ok(response)
        } else if let Some(after) = retry_after(response.headers()).filter(|_| is_busy(response.status())) {
            Err(Error::Busy { code, after })
        } else if response.status().is_redirection() {
            let text = "a redirect that is not followed; it may lead to a login page".to_owned();
            Err(Error::Refused { code, text })
        } else {
            Err(Error::refused(code, &body::whole(response.into_body(), ANSWER_LIMIT).await?, &secrets))
        }
    }
}

/// Whether a server that is overloaded answers with this status.
fn is_busy(status: StatusCode) -> bool {
    [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT].contains(&status)
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
        let settings =
            Settings { server, node: "node-1".to_owned(), timeout, list_again: LIST_AGAIN, labels: Wanted::default() };
        let error = Client::new(&settings).get("/api/v1/pods").await.unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    }
}
