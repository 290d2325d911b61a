//! Asks the API server: a connection for each question, under kube's client.
//!
//! Invariant: nothing of a connection outlives its answer, and the certificates to trust are those that the files hold
//! when it is made: a new authority needs no restart. Questions are rare, a list and then a watch each minute, so that
//! keeping connections would spare nothing.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::client::conn::http1::handshake;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response};
use hyper_rustls::HttpsConnectorBuilder;
use kube::client::{Body, DynBody};
use tower::{BoxError, Service, ServiceExt};

use super::blocking_read::BlockingRead;
use super::endpoint::Endpoint;
use super::error::Error;
use super::{Server, Settings};

/// Who asks.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    server: Server,
    /// For the files alone; how long an answer may take is not judged here.
    limit: Duration,
    reading: Arc<BlockingRead<Result<Endpoint, Error>>>,
}

impl Caller {
    /// A caller for the server of these settings.
    pub(super) fn new(settings: &Settings) -> Self {
        // With half of the time, so that it is the file that is named and not the server that was not asked.
        Self { server: settings.server.clone(), limit: settings.timeout / 2, reading: Arc::default() }
    }

    /// Where the server is now.
    pub(super) async fn endpoint(&self) -> Result<Endpoint, Error> {
        let server = self.server.clone();
        let read = self.reading.take(self.limit, move || Endpoint::read(&server)).await;
        read.unwrap_or_else(|error: io::Error| Err(Endpoint::unread(&self.server, &error)))
    }

    async fn ask(&self, mut question: Request<Body>) -> Result<Response<Box<DynBody>>, BoxError> {
        let Endpoint { uri, tls, .. } = self.endpoint().await?;
        let host = uri.authority().map_or("", |authority| authority.as_str());
        question.headers_mut().insert(HOST, HeaderValue::from_str(host)?);
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        let (mut asking, connection) = handshake(connector.oneshot(uri).await?).await?;
        // It ends when the answer was read or let go; what went wrong is told there.
        tokio::spawn(connection);
        let answer = asking.send_request(question).await?;
        Ok(answer.map(|body| Box::new(body.map_err(BoxError::from)) as Box<DynBody>))
    }
}

impl Service<Request<Body>> for Caller {
    type Response = Response<Box<DynBody>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, question: Request<Body>) -> Self::Future {
        let caller = self.clone();
        Box::pin(async move { caller.ask(question).await })
    }
}
