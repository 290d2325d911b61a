//! An exporter with one metric behind a web-config file, built on axum and hyper:
//! `cargo run -p web-config --example exporter -- web-config.yml`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example reports to its user")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;
use web_config::{Event, Guard};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args_os().nth(1).map(PathBuf::from);
    let guard = Arc::new(Guard::open(file.as_deref(), |event| match event {
        Event::Accepted(summary) => println!("web-config: {summary}; {}", summary.notes.join("; ")),
        Event::Refused(error) => eprintln!("web-config unchanged: {error}"),
        Event::Panicked(error) => eprintln!("web-config: {error}"),
    })?);
    tokio::spawn(guard.clone().watch());

    let metrics = get(async || "up 1\n");
    let authorize = middleware::from_fn_with_state(guard.clone(), authorize);
    let app = Router::new().route("/metrics", metrics).layer(authorize);

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let (app, guard) = (app.clone(), guard.clone());
        tokio::spawn(async move {
            if let Err(error) = serve_connection(stream, app, &guard).await {
                eprintln!("connection: {error}");
            }
        });
    }
}

/// Admits a request or refuses it, and adds the headers from the web-config file.
async fn authorize(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match guard.admit(request.headers()).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => {
            let challenge = refusal.challenge().map(|challenge| [(header::WWW_AUTHENTICATE, challenge)]);
            (refusal.status(), challenge, ()).into_response()
        }
    };
    for (name, value) in guard.headers().iter() {
        response.headers_mut().insert(name, value.clone());
    }
    response
}

/// Gets the TLS settings for each connection, so that a new certificate takes effect at once.
async fn serve_connection(stream: TcpStream, app: Router, guard: &Guard) -> Result<(), Box<dyn Error + Send + Sync>> {
    match guard.tls() {
        Some(tls) => serve_http(TlsAcceptor::from(tls).accept(stream).await?, app).await,
        None => serve_http(stream, app).await,
    }
}

async fn serve_http<S>(stream: S, app: Router) -> Result<(), Box<dyn Error + Send + Sync>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| app.clone().oneshot(request.map(Body::new)));
    Ok(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await?)
}
