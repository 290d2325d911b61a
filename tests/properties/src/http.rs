//! Any bytes from a client: every request gets a valid response or the connection closes, and nothing hangs. And a page
//! with any names: no name becomes markup.

mod arbitrary;
mod reader;

use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::{Builder, Runtime};

use gpu_metrics::Metrics;
use gpu_readings::faults::Faults;
use gpu_readings::snapshot::Snapshot;
use vram_exporter::http::{HttpState, Limits, Server, router};
use web_config::Guard;

use crate::choices::choices;
use crate::exposition::settings;
use crate::machine::{Names, publish};
use reader::{Response, read};

/// Bytes buffered between client and server: fewer than a response contains, so that each side has to wait for the
/// other.
const PIPE: usize = 4096;
/// Client and server take turns. After this many turns without a byte, the server must be waiting for the client.
const QUIET: usize = 64;
/// Higher than a single client needs, so that no limit is reached.
const LIMITS: Limits = Limits {
    max_requests: 4,
    max_connections: 4,
    read_timeout: Duration::from_secs(60),
    write_timeout: Duration::from_secs(60),
    idle_timeout: Duration::from_secs(60),
};
/// An exchange that takes this long counts as hanging.
const HANGS: Duration = Duration::from_secs(8);
/// The exporter's statuses, and hyper's for malformed requests.
const STATUSES: [u16; 10] = [200, 204, 400, 404, 405, 408, 413, 414, 431, 503];

struct Host {
    runtime: Runtime,
    server: Arc<Server>,
    snapshot: Arc<Snapshot>,
}

/// One server for all runs, used by one run at a time.
static HOST: LazyLock<Mutex<Host>> = LazyLock::new(|| {
    let (snapshot, faults) = (Snapshot::new(), Arc::new(Faults::default()));
    let metrics = Metrics::new(snapshot.clone(), faults.clone(), settings()).expect("the table of families is sound");
    let router = router(HttpState::new(Arc::new(metrics), snapshot.clone(), faults.clone(), "/metrics"));
    let guard = Guard::open(None, |_| ()).expect("a guard without a file opens");
    let server = Server::new(router, Arc::new(guard), LIMITS, faults);
    let runtime = Builder::new_current_thread().enable_all().build().expect("the system has a timer and epoll");
    Mutex::new(Host { runtime, server, snapshot })
});

/// Sends the bytes over one connection and reads the responses. True if a request was understood.
pub fn http(data: &[u8]) -> bool {
    let generated = choices(data).map(|mut u| arbitrary::requests(&mut u));
    let sent = generated.as_deref().unwrap_or(data);
    let host = HOST.lock().unwrap_or_else(PoisonError::into_inner);
    let responses = host.runtime.block_on(async {
        let talk = exchange(&host.server, sent);
        tokio::time::timeout(HANGS, talk).await.expect("a response, or the end of the connection")
    });
    for response in &responses {
        assert!(STATUSES.contains(&response.status), "{response:?}");
    }
    assert!(responses.len() <= sent.windows(2).filter(|end| end[0] == b'\n' || end[1] == b'\n').count() + 1);
    responses.iter().any(|response| response.status < 400 || response.status == 404)
}

/// Renders the page of a machine whose names come from the input. True if it shows a GPU.
pub fn page(data: &[u8]) -> bool {
    let host = HOST.lock().unwrap_or_else(PoisonError::into_inner);
    publish(&mut Names::of(data), &host.snapshot);
    let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let responses = host.runtime.block_on(exchange(&host.server, request));
    let [Response { status: 200, body }] = responses.as_slice() else { panic!("{responses:?}") };
    let text = std::str::from_utf8(body).expect("the page is UTF-8");
    reader::assert_tags(text);
    text.contains("<td")
}

async fn exchange(server: &Server, sent: &[u8]) -> Vec<Response> {
    let (client, stream) = tokio::io::duplex(PIPE);
    let ((), responses) = tokio::join!(server.serve_stream(stream), converse(client, sent));
    responses
}

/// Sends everything, receives, and closes when nothing more arrives: a client that closes earlier gets no response.
async fn converse(client: DuplexStream, sent: &[u8]) -> Vec<Response> {
    let (mut from, mut to) = tokio::io::split(client);
    let (mut received, mut piece, mut quiet) = (Vec::new(), [0; PIPE], 0);
    let mut sending = pin!(to.write_all(sent));
    let (mut is_sending, mut is_open) = (true, true);
    while is_open && quiet < QUIET {
        tokio::select! {
            biased;
            read = from.read(&mut piece) => match read.expect("a pipe in memory has no errors") {
                0 => is_open = false,
                length => {
                    received.extend_from_slice(&piece[..length]);
                    quiet = 0;
                }
            },
            // The server may close before it has read everything.
            _ = &mut sending, if is_sending => is_sending = false,
            () = tokio::task::yield_now() => quiet += 1,
        }
    }
    assert!(!is_open || !is_sending, "the server neither reads nor closes after {}", received.escape_ascii());
    let _ = to.shutdown().await;
    from.read_to_end(&mut received).await.expect("a pipe in memory has no errors");
    read(&received, sent)
}
