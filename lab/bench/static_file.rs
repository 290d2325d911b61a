//! Serves a file with the exporter's own web server: the cost of HTTP alone, to compare with a scrape of the same size.
//!
//! `static_file FILE` listens on a free port of 127.0.0.1, prints the address, and answers `/metrics` with the file's
//! bytes until its standard input ends. The server, its limits, its compression and its single thread are the
//! exporter's; no metrics are gathered or formatted. Started by `bench.py`.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::get;
use gpu_metrics::Format;
use gpu_readings::faults::Faults;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::SizeAbove;
use vram_exporter::http::{Limits, Listener, Server};
use web_config::Guard;

/// The exporter's defaults.
const LIMITS: Limits = Limits {
    max_requests: 40,
    max_connections: 512,
    read_timeout: Duration::from_secs(10),
    write_timeout: Duration::from_secs(30),
    idle_timeout: Duration::from_secs(300),
};

fn main() -> Result<()> {
    let file = std::env::args_os().nth(1).context("static_file FILE: which file is to be served?")?;
    let file = Path::new(&file);
    let text = std::fs::read(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(Bytes::from(text)))
}

async fn serve(text: Bytes) -> Result<()> {
    let faults = Arc::new(Faults::default());
    let guard = Arc::new(Guard::open(None, |_| ())?);
    let listener = Listener::bind(&"127.0.0.1:0".parse().map_err(anyhow::Error::msg)?).await?;
    println!("{}", listener.name());
    Server::new(router(text), guard, LIMITS, faults).serve(listener, input_ended()).await;
    Ok(())
}

/// Serves the text, compressed in the same way as the exporter's pages.
fn router(text: Bytes) -> Router {
    let compression = CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(SizeAbove::new(0));
    let page = async move || ([(header::CONTENT_TYPE, Format::Text.content_type())], text.clone());
    Router::new().route("/metrics", get(page)).layer(compression)
}

/// Returns when the program that started this one has ended, which closes the standard input.
async fn input_ended() {
    // An input that cannot be read counts as ended.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await;
}
