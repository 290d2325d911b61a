//! Serves connections: takes them in, speaks TLS where it is asked for, and ends them when they are over or overdue.
//!
//! Invariant: a client costs a bounded amount of memory for a bounded time, and no client can keep another from an answer.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Version, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;
use web_config::{Guard, Refusal};

use super::connection::{Connection, TrackedBody, TrackedStream};
use super::listener::{Listener, Stream};
use super::pool::{ConnectionGuard, ConnectionPool};
use super::{Limits, is_health, text};
use crate::faults::{Faults, Reason, Source};

/// How long open connections may take to end after the shutdown began.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);
/// The largest head of a request. A scraper's has some hundred bytes, a proxy's tickets some thousand.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// How often overdue connections are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);
/// Between two attempts to accept where the system has nothing left to give.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// How a client's requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    /// As they should.
    AsConfigured,
    /// Without TLS, where TLS is required: nothing is revealed.
    PlainInsteadOfTls,
}

/// A web server: any number of listeners for the same pages, within the same limits.
#[derive(Debug)]
pub struct Server {
    router: Router,
    guard: Arc<Guard>,
    pool: Arc<ConnectionPool>,
    faults: Arc<Faults>,
}

impl Server {
    /// A server of these pages, to whom the guard lets in.
    pub fn new(router: Router, guard: Arc<Guard>, limits: Limits, faults: Arc<Faults>) -> Arc<Self> {
        Arc::new(Self { router, guard, pool: ConnectionPool::new(limits), faults })
    }

    /// Serves until `shutdown` is ready, then lets the answers under way end for a short while.
    pub async fn serve(self: Arc<Self>, listener: Listener, shutdown: impl Future<Output = ()>) {
        let (end, ending) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut rounds = tokio::time::interval(SWEEP_INTERVAL);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                accepted = listener.accept() => match accepted {
                    Ok(stream) => self.clone().accept(stream, &mut connections, &ending),
                    Err(error) => self.rest_after(error).await,
                },
                Some(ended) = connections.join_next() => self.note(ended),
                _ = rounds.tick() => self.close_overdue(),
            }
        }
        drop(listener);
        end.send_replace(true);
        let drained = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(SHUTDOWN_GRACE, drained).await.is_err() {
            tracing::warn!(connections = connections.len(), "connections did not end in time and are cut");
        }
    }

    fn accept(self: Arc<Self>, stream: Stream, connections: &mut JoinSet<()>, ending: &watch::Receiver<bool>) {
        let Some(guard) = self.pool.admit() else {
            return self
                .report(Reason::Overloaded, "as many connections as web.max-connections allows are being answered");
        };
        let ending = ending.clone();
        connections.spawn(async move {
            match stream {
                Stream::Tcp(stream) => self.serve_connection(stream, &guard, ending).await,
                Stream::Unix(stream) => self.serve_connection(stream, &guard, ending).await,
            }
        });
    }

    /// Speaks with a client until either side ends it, or it is cut.
    async fn serve_connection<S>(&self, stream: S, guard: &ConnectionGuard, ending: watch::Receiver<bool>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let connection = guard.connection();
        tokio::select! {
            () = connection.close_requested() => {}
            () = self.handshake(stream, connection, ending) => {}
        }
    }

    /// Shakes hands where TLS is asked for.
    async fn handshake<S>(&self, stream: S, connection: &Arc<Connection>, mut ending: watch::Receiver<bool>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let Some(tls) = self.guard.tls() else {
            return self.serve_http(stream, connection, ending, Transport::AsConfigured).await;
        };
        let begun = tokio::select! {
            () = begins(&mut ending) => return,
            begun = begin(stream) => begun,
        };
        let failed = match begun {
            Ok((b'A'..=b'Z', stream)) => {
                self.serve_http(stream, connection, ending, Transport::PlainInsteadOfTls).await;
                io::Error::other("a client speaks HTTP without TLS")
            }
            Ok((_, stream)) => {
                let shaken = tokio::select! {
                    () = begins(&mut ending) => return,
                    shaken = TlsAcceptor::from(tls).accept(stream) => shaken,
                };
                match shaken {
                    Ok(stream) => return self.serve_http(stream, connection, ending, Transport::AsConfigured).await,
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        self.faults.report(Source::Http, Reason::Handshake, None, &failed);
    }

    /// Serves one client on a stream that no listener accepted, until either side ends it. For tests.
    #[doc(hidden)]
    pub async fn serve_stream<S>(&self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let guard = self.pool.admit().expect("a test opens no more connections than the limit");
        let (_runs, ending) = watch::channel(false);
        self.serve_connection(stream, &guard, ending).await;
    }

    async fn serve_http<S>(
        &self,
        stream: S,
        connection: &Arc<Connection>,
        mut ending: watch::Receiver<bool>,
        transport: Transport,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let io = TokioIo::new(TrackedStream::new(stream, connection.clone()));
        let service = service_fn(|request| self.answer(request, connection.clone(), transport));
        let mut protocol = http1::Builder::new();
        // Time is bounded by the pool, which knows a request that is begun from a pause between two.
        protocol.half_close(true).max_buf_size(MAX_HEAD_BYTES).header_read_timeout(None);
        let mut serving = pin!(protocol.serve_connection(io, service));
        let over = tokio::select! {
            over = serving.as_mut() => over,
            () = begins(&mut ending) => {
                if !connection.is_responding() {
                    return;
                }
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = over {
            // What a client does wrong is its own affair; hyper has answered where an answer was due.
            tracing::debug!(error = crate::faults::chain(&error), "a connection ended early");
        }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        connection: Arc<Connection>,
        transport: Transport,
    ) -> Result<Response<TrackedBody>, Infallible> {
        connection.begin_response();
        let is_last = has_body(&request) || transport == Transport::PlainInsteadOfTls;
        let mut response = self.respond(request.map(Body::new), &connection, transport).await;
        if is_last {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response.map(|body| TrackedBody::new(body, connection)))
    }

    async fn respond(&self, request: Request, connection: &Connection, transport: Transport) -> Response {
        let mut response = match transport {
            Transport::AsConfigured => self.authorize_and_route(request, connection).await,
            Transport::PlainInsteadOfTls => {
                text(StatusCode::BAD_REQUEST, "TLS is spoken here; ask with https://".to_owned())
            }
        };
        for (name, value) in self.guard.headers().iter() {
            response.headers_mut().insert(name, value.clone());
        }
        response
    }

    /// Lets a request pass to the pages, or says why not. Health is told to everybody.
    async fn authorize_and_route(&self, request: Request, connection: &Connection) -> Response {
        if let Some(problem) = host_problem(&request) {
            return text(StatusCode::BAD_REQUEST, problem.to_owned());
        }
        if has_body(&request) {
            return text(StatusCode::PAYLOAD_TOO_LARGE, "no request here has a body".to_owned());
        }
        if !is_health(request.uri().path()) {
            if let Err(refusal) = self.guard.admit(request.headers()).await {
                return self.refuse(refusal, request.headers());
            }
            let Some(permit) = self.pool.acquire_permit().await else {
                self.report(Reason::Overloaded, "as many requests as web.max-requests allows are being answered");
                return busy();
            };
            connection.hold_permit(permit);
            // Rendering takes milliseconds: a client that asks in a row without a pause waits behind the others each time.
            if self.pool.is_busy() {
                tokio::task::yield_now().await;
            }
        }
        match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    fn refuse(&self, refusal: Refusal, asked: &HeaderMap) -> Response {
        match refusal {
            // A first request without a password is how HTTP goes, and no fault.
            Refusal::Unauthorized if !asked.contains_key(header::AUTHORIZATION) => {}
            Refusal::Unauthorized => self.report(Reason::NoPermission, "a client gave a wrong name or password"),
            Refusal::TooManyRequests => {
                self.report(Reason::Overloaded, "clients ask more often than rate_limit allows")
            }
            Refusal::Busy => self.report(Reason::Overloaded, "too many passwords wait to be looked at"),
        }
        let status = refusal.status();
        let mut response = text(status, status.canonical_reason().unwrap_or_default().to_owned());
        if let Some(challenge) = refusal.challenge() {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }

    fn close_overdue(&self) {
        let tell = || self.report(Reason::Timeout, "a client took too long to ask, or to take its answer");
        self.pool.close_overdue(Instant::now(), tell);
    }

    /// A connection that failed before it began is the client's affair; where the system gives nothing, a rest lets
    /// others give back what they hold.
    async fn rest_after(&self, error: io::Error) {
        use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
        if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
            self.faults.report(Source::Http, Reason::Connection, None, &error);
            tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
        }
    }

    fn note(&self, ended: Result<(), JoinError>) {
        if let Err(error) = ended {
            self.faults.report(Source::Http, Reason::Panicked, None, &error);
        }
    }

    fn report(&self, reason: Reason, why: &'static str) {
        self.faults.report(Source::Http, reason, None, &io::Error::other(why));
    }
}

/// Whether a request brings a body. Nobody here reads one, so it is refused in few words and is the last of its connection:
/// hyper looks for the next request behind a body while the answer still waits to leave, and would write what it says of
/// a bad one into the middle of that; and of an upgrade with a body it drops what is left of the answer.
fn has_body<B: hyper::body::Body>(request: &hyper::Request<B>) -> bool {
    !request.body().is_end_stream()
}

/// What is wrong with the `Host` of a request, as RFC 9112 (section 3.2) has it. No name is this server's own, so any will do.
fn host_problem<B>(request: &hyper::Request<B>) -> Option<&'static str> {
    let can_be_in_a_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:%[]".contains(byte);
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if request.version() >= Version::HTTP_11 => Some("a request must name its Host"),
        (Some(_), Some(_)) => Some("a request must name one Host and no second one"),
        (Some(host), None) if !host.as_bytes().iter().all(can_be_in_a_name) => {
            Some("the Host of this request is no name")
        }
        _ => None,
    }
}

/// Reads the first byte, and gives the stream back with it: a letter begins a method of HTTP, and no handshake.
async fn begin<S: AsyncRead + AsyncWrite>(stream: S) -> io::Result<(u8, impl AsyncRead + AsyncWrite)> {
    let (mut read, write) = tokio::io::split(stream);
    let first = read.read_u8().await?;
    Ok((first, tokio::io::join(io::Cursor::new([first]).chain(read), write)))
}

/// Waits until the server begins to end.
async fn begins(ending: &mut watch::Receiver<bool>) {
    // An error means that the server is gone: that is an end too.
    let _ = ending.wait_for(|ending| *ending).await;
}

fn busy() -> Response {
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once; try again".to_owned());
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
