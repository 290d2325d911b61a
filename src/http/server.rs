//! Serves connections: admits them, performs the TLS handshake if TLS is configured, speaks HTTP, and closes
//! connections that are overdue.
//!
//! Invariant: a client can use only a bounded amount of memory for a bounded time, and no client can keep another from
//! getting a response.
//!
//! The methods are in the order in which a request passes through them: [`Server::serve`], `accept`,
//! `serve_connection`, `handshake`, `serve_http`, `respond`, `authorize_and_route`.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;
use web_config::{Guard, Refusal};

use super::allowance::{Admission, Allowance};
use super::connection::Connection;
use super::health::is_probe;
use super::listener::Listener;
use super::origin::Origin;
use super::pool::{ConnectionPool, RESPONSE};
use super::request::{MAX_HEAD_BYTES, has_body, head_bytes, host_problem, is_for};
use super::response::{overloaded, refused, text, whole};
use super::stream::{Stream, TrackedBody, TrackedStream};
use crate::config::Limits;
use crate::faults::{Faults, Reason, Source};
use crate::unix_socket::ACCEPT_RETRY_PAUSE;

/// How long open connections may take to end after the shutdown has begun.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// The shortest time between two searches for overdue connections.
const SWEEP_PAUSE: Duration = Duration::from_millis(100);

/// How a client's requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    /// As the guard requires.
    AsConfigured,
    /// Without TLS although TLS is required, so the response reveals nothing.
    PlainInsteadOfTls,
}

/// A web server: any number of listeners for the same pages, within the same limits.
#[derive(Debug, Clone)]
pub struct Server {
    router: Router,
    guard: Arc<Guard>,
    pool: Arc<ConnectionPool>,
    faults: Arc<Faults>,
    /// The names that requests may address; none means any.
    hosts: Arc<[String]>,
}

impl Server {
    /// A server for `router`; `guard` decides which connections and requests are admitted.
    pub fn new(router: Router, guard: Arc<Guard>, limits: Limits, faults: Arc<Faults>) -> Arc<Self> {
        Arc::new(Self { router, guard, pool: ConnectionPool::new(limits), faults, hosts: Arc::new([]) })
    }

    /// The same server for requests that address one of these names, in lower case and without ports. None: any name.
    pub fn for_hosts(self: &Arc<Self>, hosts: Vec<String>) -> Arc<Self> {
        Arc::new(Self { hosts: hosts.into(), ..(**self).clone() })
    }

    /// A server for another router, with the same guard and names, and within the same limits: both together have no more
    /// connections and responses in progress than one alone may have.
    pub fn beside(self: &Arc<Self>, router: Router) -> Arc<Self> {
        Arc::new(Self { router, ..(**self).clone() })
    }

    /// How many responses are in progress. For tests.
    #[doc(hidden)]
    pub fn responses(&self) -> usize {
        self.pool.responses()
    }

    /// Serves until `shutdown` is ready, then gives the responses in progress a short time to finish.
    pub async fn serve(self: Arc<Self>, listener: Listener, shutdown: impl Future<Output = ()>) {
        let (end, ending) = watch::channel(false);
        let mut connections = JoinSet::new();
        // When the connections are next searched for overdue ones. Without a connection, nothing wakes this task.
        let (mut is_due, mut sweep) = (false, pin!(tokio::time::sleep(Duration::ZERO)));
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => {
                        self.clone().accept(accepted, &mut connections, &ending);
                        if !is_due {
                            is_due = true;
                            sweep.as_mut().reset(self.pool.earliest_deadline(Instant::now()).into());
                        }
                    }
                    Err(error) => self.pause_after(error).await,
                },
                Some(ended) = connections.join_next() => if let Err(panicked) = ended {
                    self.faults.raise(Source::Http, Reason::Panicked, None, &panicked);
                },
                () = &mut sweep, if is_due => match self.close_overdue(Instant::now()) {
                    Some(next) => sweep.as_mut().reset(next.max(Instant::now() + SWEEP_PAUSE).into()),
                    None => is_due = false,
                },
            }
        }
        drop(listener);
        end.send_replace(true);
        let drained = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(SHUTDOWN_GRACE, drained).await.is_err() {
            tracing::warn!(connections = connections.len(), "connections did not end in time and are closed");
        }
    }

    /// Admits a connection to the pool and serves it on a task of its own.
    fn accept(
        self: Arc<Self>,
        (stream, origin): (Box<dyn Stream>, Origin),
        connections: &mut JoinSet<()>,
        ending: &watch::Receiver<bool>,
    ) {
        let Some(admitted) = self.pool.admit(origin) else {
            let why = "as many connections as web.max-connections allows are being answered";
            return self.raise(Reason::Overloaded, why);
        };
        let ending = ending.clone();
        connections.spawn(async move { self.serve_connection(stream, &admitted.connection, ending).await });
    }

    /// Serves a connection until either side ends it, or the pool closes it.
    async fn serve_connection(
        &self,
        stream: Box<dyn Stream>,
        connection: &Arc<Connection>,
        mut ending: watch::Receiver<bool>,
    ) {
        let serve = async {
            let handshake = tokio::select! {
                () = begun(&mut ending) => return,
                handshake = self.handshake(stream) => handshake,
            };
            match handshake {
                Ok((stream, transport)) => {
                    self.serve_http(stream, connection, transport, ending).await;
                    if transport == Transport::PlainInsteadOfTls {
                        self.raise(Reason::Handshake, "a client speaks HTTP without TLS");
                    }
                }
                Err(error) => self.faults.raise(Source::Http, Reason::Handshake, None, &error),
            }
        };
        tokio::select! {
            () = connection.close_requested() => {}
            () = serve => {}
        }
    }

    /// Performs the TLS handshake if TLS is configured. If the first byte is an upper-case letter, it begins an
    /// HTTP method and not a handshake.
    async fn handshake(&self, stream: Box<dyn Stream>) -> io::Result<(Box<dyn Stream>, Transport)> {
        let Some(tls) = self.guard.tls() else { return Ok((stream, Transport::AsConfigured)) };
        let (mut read, write) = tokio::io::split(stream);
        let first = read.read_u8().await?;
        let stream = tokio::io::join(io::Cursor::new([first]).chain(read), write);
        if first.is_ascii_uppercase() {
            return Ok((Box::new(stream), Transport::PlainInsteadOfTls));
        }
        Ok((Box::new(TlsAcceptor::from(tls).accept(stream).await?), Transport::AsConfigured))
    }

    /// Serves one client on a stream that no listener accepted, until either side ends it. For tests.
    #[doc(hidden)]
    pub async fn serve_stream(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let admitted = self.pool.admit(Origin::default()).expect("a test opens no more connections than the limit");
        let (_runs, ending) = watch::channel(false);
        self.serve_connection(Box::new(stream), &admitted.connection, ending).await;
    }

    /// Speaks HTTP until either side ends the connection. A shutdown ends it after the response in progress.
    async fn serve_http(
        &self,
        stream: Box<dyn Stream>,
        connection: &Arc<Connection>,
        transport: Transport,
        mut ending: watch::Receiver<bool>,
    ) {
        let io = TokioIo::new(TrackedStream::new(stream, connection.clone()));
        let service = service_fn(|request| self.respond(request, connection.clone(), transport));
        let mut protocol = http1::Builder::new();
        // The pool limits the time, because it can tell a request that has begun from a pause between two requests.
        protocol.half_close(true).max_buf_size(MAX_HEAD_BYTES).header_read_timeout(None);
        let mut serving = pin!(protocol.serve_connection(io, service));
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = begun(&mut ending) => {
                if !connection.is_responding() {
                    return;
                }
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = ended {
            // A client's mistake is not a fault of the exporter; hyper has responded if a response was due.
            tracing::debug!(error = crate::faults::chain(&error), "connection ended early");
        }
    }

    /// Responds to one request. The share, if the request needs one, stays with the connection until the response has
    /// been sent. No cache may keep a response, unless its handler says otherwise.
    async fn respond(
        &self,
        request: Request<Incoming>,
        connection: Arc<Connection>,
        transport: Transport,
    ) -> Result<Response<TrackedBody>, Infallible> {
        connection.begin_response();
        let is_too_long = head_bytes(&request) > MAX_HEAD_BYTES;
        let is_last = is_too_long || has_body(&request) || transport == Transport::PlainInsteadOfTls;
        let mut response = match transport {
            _ if is_too_long => {
                let why = format!("the request line and the headers must have at most {MAX_HEAD_BYTES} bytes");
                text(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, why)
            }
            Transport::AsConfigured => self.authorize_and_route(request.map(Body::new), &connection).await,
            Transport::PlainInsteadOfTls => text(StatusCode::BAD_REQUEST, "this port speaks TLS; use https://"),
        };
        let headers = response.headers_mut();
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        for (name, value) in self.guard.headers().iter() {
            response.headers_mut().insert(name, value.clone());
        }
        if is_last {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response.map(|body| TrackedBody::new(body, connection)))
    }

    /// Passes a request to the router, or responds with the reason for refusing it. Health probes need neither a
    /// password, a name that is allowed, nor a share.
    async fn authorize_and_route(&self, mut request: Request, connection: &Arc<Connection>) -> Response {
        if let Some(problem) = host_problem(&request) {
            return text(StatusCode::BAD_REQUEST, problem);
        }
        if has_body(&request) {
            return text(StatusCode::PAYLOAD_TOO_LARGE, "requests with a body are not accepted");
        }
        if is_probe(request.uri().path()) {
            return self.route(request).await;
        }
        if !is_for(&request, &self.hosts) {
            return text(
                StatusCode::MISDIRECTED_REQUEST,
                "web.allowed-hosts does not contain the Host of this request",
            );
        }
        let origin = connection.origin;
        if let Err(refusal) = self.guard.admit_from(request.headers(), origin.0).await {
            self.raise_refusal(refusal, request.headers());
            return refused(refusal);
        }
        let Some(share) = self.pool.acquire(origin, RESPONSE).await else {
            self.raise(Reason::Overloaded, "as many requests as web.max-requests allows are being answered");
            return overloaded();
        };
        connection.hold(share);
        let admission = if self.guard.demands_credentials() { Admission::Authenticated } else { Admission::Open };
        let allowance = Allowance::new(self.pool.clone(), origin, admission);
        request.extensions_mut().insert(allowance.clone());
        // Rendering takes milliseconds: a client that sends requests without a pause waits
        // behind the others each time.
        if self.pool.is_busy() {
            tokio::task::yield_now().await;
        }
        let is_cut_unnoticed = request.version() < Version::HTTP_11 && request.method() != Method::HEAD;
        let response = self.route(request).await;
        if is_cut_unnoticed { whole(response, &allowance).await } else { response }
    }

    async fn route(&self, request: Request) -> Response {
        match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    fn raise_refusal(&self, refusal: Refusal, asked: &HeaderMap) {
        match refusal {
            // In HTTP a client usually sends its first request without a password, which is not a fault.
            Refusal::Unauthorized if !asked.contains_key(header::AUTHORIZATION) => {}
            Refusal::Unauthorized => self.raise(Reason::NoPermission, "a client gave a wrong name or password"),
            Refusal::TooManyRequests => {
                self.raise(Reason::Overloaded, "clients send requests more often than rate_limit allows");
            }
            Refusal::Busy => self.raise(Reason::Overloaded, "too many passwords are waiting to be checked"),
        }
    }

    /// Closes overdue connections. Returns when the next one can become overdue; `None` if there is no connection.
    fn close_overdue(&self, now: Instant) -> Option<Instant> {
        let why = "a client took too long to send its request, or to take its response";
        self.pool.close_overdue(now, || self.raise(Reason::Timeout, why))
    }

    /// Waits after a failed accept. A connection that failed before it began is not a fault of the exporter; if the
    /// system is out of resources, a pause gives other connections time to release some.
    async fn pause_after(&self, error: io::Error) {
        use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
        if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
            self.faults.raise(Source::Http, Reason::Connection, None, &error);
            tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
        }
    }

    fn raise(&self, reason: Reason, why: &'static str) {
        self.faults.raise(Source::Http, reason, None, &io::Error::other(why));
    }
}

/// Waits until the shutdown has begun.
async fn begun(ending: &mut watch::Receiver<bool>) {
    // An error means that the server is gone, which is a shutdown too.
    let _ = ending.wait_for(|ending| *ending).await;
}
