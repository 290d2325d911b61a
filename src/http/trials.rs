//! What holds of the web server whatever a client sends and whatever names it shows: every request is answered in a form
//! that a client understands, or the connection is closed; nothing hangs, and no name becomes markup.

#![allow(clippy::panic, reason = "a trial panics where what must hold does not")]

mod made;
mod reader;

use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::{Builder, Runtime};

use super::{HttpState, Limits, Server, router};
use crate::faults::Faults;
use crate::metrics::Metrics;
use crate::metrics::trials::settings;
use crate::snapshot::Snapshot;
use crate::snapshot::trials::{Names, publish};
use crate::trials::Pieces;
use crate::web_config::Guard;
use reader::{Answer, read};

/// What stands between the client and the server, in bytes: less than an answer, so that each waits for the other.
const PIPE: usize = 4096;
/// Client and server take turns; a server that had so many in a row waits for the client.
const QUIET: usize = 64;
/// More than one client needs, so that none of them is met here.
const LIMITS: Limits = Limits {
    max_requests: 4,
    max_connections: 4,
    read_timeout: Duration::from_secs(60),
    write_timeout: Duration::from_secs(60),
    idle_timeout: Duration::from_secs(60),
};
/// Nothing takes so long; a trial that does hangs.
const HANGS: Duration = Duration::from_secs(8);
/// What the exporter answers by itself, and what hyper says of requests that are none.
const STATUSES: [u16; 10] = [200, 204, 400, 404, 405, 408, 413, 414, 431, 503];

struct Host {
    runtime: Runtime,
    server: Arc<Server>,
    snapshot: Arc<Snapshot>,
}

/// One server for all trials, and one trial at a time.
static HOST: LazyLock<Mutex<Host>> = LazyLock::new(|| {
    let (snapshot, faults) = (Snapshot::new(), Arc::new(Faults::default()));
    let metrics = Metrics::new(snapshot.clone(), faults.clone(), settings()).expect("the table of families is sound");
    let router = router(HttpState::new(Arc::new(metrics), snapshot.clone(), faults.clone(), "/metrics"));
    let guard = Guard::open(None, faults.clone()).expect("no file is read");
    let server = Server::new(router, Arc::new(guard), LIMITS, faults);
    let runtime = Builder::new_current_thread().enable_all().build().expect("the system gives a timer and a poll");
    Mutex::new(Host { runtime, server, snapshot })
});

/// Sends the bytes over one connection and reads what comes back. True where a request was understood.
pub fn http(data: &[u8]) -> bool {
    let made = Pieces::of(data).map(|mut pieces| made::requests(&mut pieces));
    let sent = made.as_deref().unwrap_or(data);
    let host = HOST.lock().unwrap_or_else(PoisonError::into_inner);
    let answers = host.runtime.block_on(async {
        let talk = talk(&host.server, sent);
        tokio::time::timeout(HANGS, talk).await.expect("an answer, or a close")
    });
    for answer in &answers {
        assert!(STATUSES.contains(&answer.status), "{answer:?}");
    }
    assert!(answers.len() <= sent.windows(2).filter(|end| end[0] == b'\n' || end[1] == b'\n').count() + 1);
    answers.iter().any(|answer| answer.status < 400 || answer.status == 404)
}

/// Shows a page full of such names. True where it shows a GPU.
pub fn page(data: &[u8]) -> bool {
    let host = HOST.lock().unwrap_or_else(PoisonError::into_inner);
    publish(&mut Names::of(data), &host.snapshot);
    let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answers = host.runtime.block_on(talk(&host.server, request));
    let [Answer { status: 200, body }] = answers.as_slice() else { panic!("{answers:?}") };
    let text = std::str::from_utf8(body).expect("the page is UTF-8");
    reader::assert_tags(text);
    text.contains("<td")
}

async fn talk(server: &Server, sent: &[u8]) -> Vec<Answer> {
    let (client, stream) = tokio::io::duplex(PIPE);
    // What the server makes of the connection in the end is its own affair: the client judges by what it got.
    let ((), answers) = tokio::join!(server.meet(stream), converse(client, sent));
    answers
}

/// Sends all, takes what comes, and closes once nothing comes any more: a client that closes earlier is not answered.
async fn converse(client: DuplexStream, sent: &[u8]) -> Vec<Answer> {
    let (mut from, mut to) = tokio::io::split(client);
    let (mut received, mut piece, mut quiet) = (Vec::new(), [0; PIPE], 0);
    let mut sending = pin!(to.write_all(sent));
    let (mut is_sending, mut is_open) = (true, true);
    while is_open && quiet < QUIET {
        tokio::select! {
            biased;
            read = from.read(&mut piece) => match read.expect("a pipe in memory only ends") {
                0 => is_open = false,
                length => {
                    received.extend_from_slice(&piece[..length]);
                    quiet = 0;
                }
            },
            // The server may have closed before it had read all.
            _ = &mut sending, if is_sending => is_sending = false,
            () = tokio::task::yield_now() => quiet += 1,
        }
    }
    assert!(!is_open || !is_sending, "the server neither reads nor closes after {}", received.escape_ascii());
    let _ = to.shutdown().await;
    from.read_to_end(&mut received).await.expect("a pipe in memory only ends");
    read(&received, sent)
}

#[cfg(test)]
mod tests {
    use crate::trials::drive;

    const ROOT: &str = env!("CARGO_MANIFEST_DIR");

    #[test]
    fn every_request_is_answered_or_the_connection_closed() {
        let understood = drive(ROOT, "http", 800, super::http);
        assert!(understood > 150, "{understood} understood");
    }

    #[test]
    fn no_name_becomes_markup() {
        let shown = drive(ROOT, "names", 200, super::page);
        assert!(shown > 100, "{shown} shown");
    }
}
