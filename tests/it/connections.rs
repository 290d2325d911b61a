//! Serves HTTP/1 connections of a test double, with or without TLS.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;

use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// A double on a free loopback port, in a runtime of its own. It ends with this value.
pub(crate) struct Double {
    pub(crate) address: SocketAddr,
    scheme: &'static str,
    _runtime: Runtime,
}

impl Double {
    pub(crate) fn start<R, F, B>(tls: Option<TlsAcceptor>, reply: R) -> Self
    where
        R: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        runtime.spawn(serve(listener, tls, reply));
        Self { address, scheme, _runtime: runtime }
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }
}

/// Answers every request on every connection with `reply`, for ever. The connections end with this future.
pub(crate) async fn serve<R, F, B>(listener: TcpListener, tls: Option<TlsAcceptor>, reply: R)
where
    R: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (tls, reply) = (tls.clone(), reply.clone());
        connections.spawn(async move {
            match tls {
                None => connection(stream, reply).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        connection(stream, reply).await;
                    }
                }
            }
        });
    }
}

async fn connection<R, F, B>(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, reply: R)
where
    R: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    let service = service_fn(move |request| {
        let response = reply(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    // The client may close the connection at any time.
    let _ = Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
