//! Every question to the API server goes through here, inside kube's client.
//!
//! What kube leaves open is settled for each question: the token is read anew, the answer begins in time, its body is
//! bounded, `Retry-After` is heard, and a watch after one that ended soon is put off.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use kube::client::{Body, DynBody};
use tokio::sync::Notify;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service, ServiceExt};

use super::blocking_read::BlockingRead;
use super::bounded::Bounded;
use super::error::Error;
use super::pause::WatchThrottle;

/// The largest token file that is read.
const TOKEN_LIMIT: u64 = 64 << 10;
/// The longest pause that a server is granted.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// Where the token comes from.
#[derive(Debug)]
pub(super) struct TokenFile {
    pub(super) path: PathBuf,
    /// What it is needed as.
    pub(super) purpose: &'static str,
    /// Shared with the gates before, whose reading may still hang.
    pub(super) reading: Arc<BlockingRead<io::Result<String>>>,
}

/// What holds for every question.
#[derive(Debug)]
pub(super) struct Gate {
    token_file: Option<TokenFile>,
    timeout: Duration,
    /// Rung when a watch begins, which kube does not tell.
    watching: Arc<Notify>,
    pace: Mutex<WatchThrottle>,
}

impl Gate {
    /// A gate that waits up to `timeout` for an answer and rings `watching` when a watch begins.
    pub(super) fn new(token_file: Option<TokenFile>, timeout: Duration, watching: Arc<Notify>) -> Self {
        Self { token_file, timeout, watching, pace: Mutex::default() }
    }

    async fn pass<S>(&self, client: &tokio::sync::Mutex<S>, mut question: Request<Body>) -> Result<Answer, BoxError>
    where
        S: Service<Request<Body>, Response = Response<Box<DynBody>>, Error = BoxError>,
    {
        let watch = question.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
        if watch {
            self.pace().next(std::time::Instant::now())?;
        }
        let deadline = Instant::now() + self.timeout;
        self.introduce(&mut question).await?;
        let answer = async {
            // Held only until the question is handed over, not until its answer comes.
            let answer = client.lock().await.ready().await?.call(question);
            answer.await
        };
        let answer = tokio::time::timeout_at(deadline, answer).await.map_err(|_| Error::Timeout(self.timeout))??;
        if let Some(after) = retry_after(&answer) {
            return Err(Error::Busy { code: answer.status().as_u16(), after }.into());
        }
        // kube takes a redirection for a success, and one of a watch for a watch that has ended.
        if answer.status().is_redirection() {
            let text = "a redirection, as to a login page, which is not followed".to_owned();
            return Err(Error::Refused { code: answer.status().as_u16(), text }.into());
        }
        if watch && answer.status().is_success() {
            self.pace().begin(std::time::Instant::now());
            self.watching.notify_one();
            return Ok(answer.map(Bounded::lines));
        }
        Ok(answer.map(|body| Bounded::whole(body, deadline, self.timeout)))
    }

    /// Says who asks.
    async fn introduce(&self, question: &mut Request<Body>) -> Result<(), Error> {
        let agent = HeaderValue::from_static(concat!("vram-exporter/", env!("CARGO_PKG_VERSION")));
        question.headers_mut().insert(USER_AGENT, agent);
        if let Some(token_file) = &self.token_file {
            // With half of the time, so that it is the file that is named and not the server that was not asked.
            question.headers_mut().insert(AUTHORIZATION, token_file.bearer(self.timeout / 2).await?);
        }
        Ok(())
    }

    fn pace(&self) -> std::sync::MutexGuard<'_, WatchThrottle> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TokenFile {
    /// The token that the file holds now, without white space around it, which files made by hand have.
    async fn bearer(&self, limit: Duration) -> Result<HeaderValue, Error> {
        let failed = |error: io::Error| Error::file(&self.path, self.purpose, &error);
        let none = |text| failed(io::Error::new(io::ErrorKind::InvalidData, text));
        let path = self.path.clone();
        let read = move || {
            use std::io::Read;
            let mut text = String::new();
            std::fs::File::open(path)?.take(TOKEN_LIMIT).read_to_string(&mut text)?;
            Ok(text)
        };
        let text = self.reading.take(limit, read).await.and_then(|text| text).map_err(failed)?;
        if text.trim().is_empty() {
            return Err(none("the file is empty"));
        }
        let value = HeaderValue::try_from(format!("Bearer {}", text.trim()));
        let mut value = value.map_err(|_| none("it holds no token"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// How long a server that is too busy wants to be left alone; `None` where it does not say so in seconds.
fn retry_after<B>(answer: &Response<B>) -> Option<Duration> {
    let busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
    let seconds = answer.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    busy.contains(&answer.status()).then(|| Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER))
}

type Answer = Response<Bounded>;

/// Puts the gate around kube's client.
#[derive(Debug, Clone)]
pub(super) struct GateLayer(pub(super) Arc<Gate>);

impl<S> Layer<S> for GateLayer {
    type Service = Gated<S>;

    fn layer(&self, client: S) -> Gated<S> {
        Gated { gate: self.0.clone(), client: Arc::new(tokio::sync::Mutex::new(client)) }
    }
}

/// A client behind the gate.
#[derive(Debug)]
pub(super) struct Gated<S> {
    gate: Arc<Gate>,
    client: Arc<tokio::sync::Mutex<S>>,
}

impl<S> Service<Request<Body>> for Gated<S>
where
    S: Service<Request<Body>, Response = Response<Box<DynBody>>, Error = BoxError> + Send + 'static,
    S::Future: Send,
{
    type Response = Answer;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Answer, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, question: Request<Body>) -> Self::Future {
        let (gate, client) = (self.gate.clone(), self.client.clone());
        Box::pin(async move { gate.pass(&client, question).await })
    }
}
