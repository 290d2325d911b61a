//! Serves HTTP/1 connections of a test double, with or without TLS.

use std::convert::Infallible;
use std::error::Error;

use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

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
