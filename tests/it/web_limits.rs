//! What clients may take of the web server: those that are slow, silent, many or rude cost others nothing.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::web::{Answer, LIMITS, Served, ask, process};
use vram_exporter::config::ListenAddress;
use vram_exporter::faults::{Reason, Source};
use vram_exporter::http::{Limits, Listener};
use vram_exporter::snapshot::GpuState;

const ASKED: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n";
/// How long anything may take before a test calls it missing. Generous: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);

fn served(limits: Limits) -> Served {
    Served::within(limits, "/metrics", |_| ())
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// What the server still sends until it closes.
fn rest(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("the connection is not closed: {error}"),
    }
}

/// Whether the server has closed it, without waiting for that.
fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let closed = match stream.peek(&mut [0]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    };
    stream.set_nonblocking(false).unwrap();
    closed
}

/// One answer over a connection that stays open: its head and as much as the head promises.
fn converse(mut stream: &TcpStream) -> String {
    stream.write_all(ASKED).unwrap();
    let mut bytes = Vec::new();
    let mut one = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut one).unwrap();
        bytes.push(one[0]);
    }
    let head = String::from_utf8(bytes).unwrap().to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap().parse().unwrap();
    stream.read_exact(&mut vec![0; length]).unwrap();
    head
}

/// A client that asks again and again and reads nothing, until nothing more fits into the buffers between the two.
fn gorge(address: SocketAddr) -> TcpStream {
    gorge_on(address, ASKED)
}

fn gorge_on(address: SocketAddr, asked: &[u8]) -> TcpStream {
    let mut stream = connect(address);
    // Long enough that a server that is only slow is not taken for one that waits.
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    while stream.write_all(&asked.repeat(200)).is_ok() {}
    stream
}

/// Whether the server has let go of a client that reads nothing, told by what it says of another request.
fn is_cut(mut glutton: &TcpStream) -> bool {
    glutton.set_nonblocking(true).unwrap();
    glutton.write(ASKED).is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
}

fn count(server: &Served, reason: Reason) -> u64 {
    server.faults.count(Source::Http, reason)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn show_much(server: &Served) {
    let processes = (0..60).map(|pid| process(pid, &format!("process-{pid}-{}", "x".repeat(80)), 1 << 30)).collect();
    server.show(GpuState::Up, "H200", processes);
}

#[test]
fn a_client_that_sends_nothing_or_never_ends_its_request_is_cut_and_counted() {
    let server = served(Limits { read_timeout: Duration::from_millis(300), ..LIMITS });
    let silent = connect(server.address);
    let slow = connect(server.address);
    let sending = thread::spawn(move || {
        // A byte now and then keeps nobody: the whole head is due in time.
        let mut slow = slow;
        ASKED
            .iter()
            .take_while(|byte| {
                thread::sleep(Duration::from_millis(50));
                slow.write_all(&[**byte]).is_ok()
            })
            .count()
    });
    assert_eq!(rest(&silent), b"");
    assert!(sending.join().unwrap() < ASKED.len());
    assert_eq!(count(&server, Reason::Timeout), 2);
    assert_eq!(server.get("/metrics").status, 200);
}

#[test]
fn a_connection_rests_between_requests_for_longer_than_a_request_may_take_but_not_for_ever() {
    let brief = Duration::from_secs(1);
    let server = served(Limits { read_timeout: brief, idle_timeout: brief * 5, ..LIMITS });
    let stream = connect(server.address);
    assert!(converse(&stream).starts_with("http/1.1 200"));
    thread::sleep(brief * 2);
    assert!(converse(&stream).starts_with("http/1.1 200"), "the rest is no request");
    assert_eq!(rest(&stream), b"");
    assert_eq!(count(&server, Reason::Timeout), 0, "a rest that ends is nobody's fault");
}

#[test]
fn a_client_that_takes_nothing_of_its_answer_is_cut() {
    let server = served(Limits { write_timeout: Duration::from_millis(300), ..LIMITS });
    show_much(&server);
    let glutton = gorge(server.address);
    until("it is cut", || count(&server, Reason::Timeout) > 0 && is_cut(&glutton));
}

#[test]
fn who_takes_nothing_loses_its_place_to_who_waits() {
    let server = served(Limits { max_requests: 1, ..LIMITS });
    show_much(&server);
    let glutton = gorge(server.address);
    let mut refused = 0;
    until("it has lost its place", || {
        let answer = server.get("/metrics");
        if answer.status == 503 {
            assert_eq!(answer.header("retry-after"), "1");
            refused += 1;
            return false;
        }
        assert_eq!((answer.status, answer.value("vram_exporter_nvml_up")), (200, "1"));
        is_cut(&glutton)
    });
    assert_eq!(count(&server, Reason::Overloaded), refused);
}

#[test]
fn health_needs_no_place() {
    let server = served(Limits { max_requests: 1, ..LIMITS });
    show_much(&server);
    let _glutton = gorge(server.address);
    assert_eq!(server.get("/healthz").status, 200);
    assert_eq!(server.get("/readyz").status, 200);
}

#[test]
fn a_place_is_free_again_once_the_answer_has_left() {
    let server = served(Limits { max_requests: 1, ..LIMITS });
    let kept: Vec<_> = (0..4).map(|_| connect(server.address)).collect();
    for _ in 0..5 {
        kept.iter().for_each(|stream| assert!(converse(stream).starts_with("http/1.1 200")));
        assert_eq!(server.ask("HEAD", "/metrics", "").status, 200);
        assert_eq!(server.ask("GET", "/metrics", "Accept-Encoding: gzip\r\n").status, 200);
        assert_eq!(server.get("/nowhere").status, 404);
    }
    assert_eq!(count(&server, Reason::Overloaded), 0);
}

#[test]
fn where_all_connections_are_taken_the_one_that_is_missed_least_goes() {
    let server = served(Limits { max_connections: 3, max_requests: 3, ..LIMITS });
    let silent = [connect(server.address), connect(server.address)];
    let resting = connect(server.address);
    assert!(converse(&resting).starts_with("http/1.1 200"));
    // For the server its answer has left a moment after the client has it.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(server.get("/metrics").status, 200);
    until("who was answered goes first", || is_closed(&resting));
    assert!(!silent.iter().any(is_closed));
    let _new = [connect(server.address), connect(server.address)];
    until("the oldest that owes a request goes", || is_closed(&silent[0]));
    assert_eq!(server.get("/metrics").status, 200);
    assert_eq!(count(&server, Reason::Overloaded), 0);
}

#[test]
fn clients_that_read_nothing_of_what_needs_no_place_cannot_take_all_connections_for_themselves() {
    let server = served(Limits { max_connections: 3, max_requests: 3, ..LIMITS });
    let health = b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n";
    let gluttons: Vec<_> = thread::scope(|scope| {
        let address = server.address;
        let gorging: Vec<_> = (0..3).map(|_| scope.spawn(move || gorge_on(address, health))).collect();
        gorging.into_iter().map(|gorging| gorging.join().unwrap()).collect()
    });
    until("a newcomer is let in", || {
        let mut stream = connect(server.address);
        let mut bytes = Vec::new();
        let asked = stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        asked.is_ok() && stream.read_to_end(&mut bytes).is_ok() && bytes.starts_with(b"HTTP/1.1 503")
    });
    until("for one of them", || gluttons.iter().any(is_cut));
}

#[test]
fn a_client_that_is_cut_is_counted_once_however_many_listeners_look() {
    let server = served(Limits { read_timeout: Duration::from_millis(300), ..LIMITS });
    let silent: Vec<_> = (0..20).map(|_| connect(server.address)).collect();
    let (runtime, second) = (&server.runtime, server.server.clone());
    let listener: Listener =
        runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap().try_into().unwrap();
    let other = runtime.spawn(second.serve(listener, std::future::pending()));
    silent.iter().for_each(|stream| assert_eq!(rest(stream), b""));
    thread::sleep(Duration::from_millis(600));
    assert_eq!(count(&server, Reason::Timeout), 20);
    other.abort();
}

#[test]
fn hundreds_of_idlers_keep_nobody_from_an_answer() {
    crate::harness::allow_many_files();
    let server = served(LIMITS);
    let silent: Vec<_> = (0..150).map(|_| connect(server.address)).collect();
    let greedy: Vec<_> = (0..150)
        .map(|_| {
            let mut stream = connect(server.address);
            stream.write_all(&ASKED.repeat(2)).unwrap();
            stream
        })
        .collect();
    let statuses: Vec<u16> = thread::scope(|scope| {
        let address = server.address;
        let scrapers: Vec<_> =
            (0..50).map(|_| scope.spawn(move || ask(address, "GET", "/metrics", "").status)).collect();
        scrapers.into_iter().map(|scraper| scraper.join().unwrap()).collect()
    });
    assert!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
    drop((silent, greedy));
    until("all is as before", || server.get("/metrics").status == 200);
}

#[test]
fn what_is_no_request_is_refused_and_its_connection_closed() {
    let server = served(LIMITS);
    let long = |count: usize| format!("GET /metrics HTTP/1.1\r\nHost: test\r\nCookie: {}\r\n\r\n", "x".repeat(count));
    let many: String = (0..2000).map(|n| format!("X-{n}: y\r\n")).collect();
    let many = format!("GET /metrics HTTP/1.1\r\nHost: test\r\n{many}\r\n");
    // What is larger than the server reads may be cut by a reset, in which its answer gets lost.
    for (bytes, status, lost) in [
        ("\0\x01\x02\x03\r\n\r\n".to_owned(), " 400 ", false),
        ("GET\r\n\r\n".to_owned(), " 400 ", false),
        ("\x16\x03\x01\x02\x00\x01\r\n\r\n".to_owned(), " 400 ", false),
        ("GET /metrics HTTP/9.9\r\n\r\n".to_owned(), " 400 ", false),
        (long(1 << 20), " 431 ", true),
        (many, " 431 ", true),
    ] {
        let mut stream = connect(server.address);
        // What the server does not want to read it need not take.
        let _ = stream.write_all(bytes.as_bytes());
        let answer = String::from_utf8_lossy(&rest(&stream)).into_owned();
        let told = answer.lines().next().unwrap_or_default();
        assert!(told.contains(status) || (lost && told.is_empty()), "{:?}: {told}", &bytes[..20.min(bytes.len())]);
    }
    let mut polite = connect(server.address);
    polite.write_all(long(8000).replace("Cookie", "Connection: close\r\nCookie").as_bytes()).unwrap();
    assert!(rest(&polite).starts_with(b"HTTP/1.1 200"));
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn requests_in_a_row_and_half_closed_connections_are_answered() {
    let server = served(LIMITS);
    let mut stream = connect(server.address);
    stream.write_all(&ASKED.repeat(5)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let answers = String::from_utf8(rest(&stream)).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 5);
    let mut old = connect(server.address);
    old.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    assert!(rest(&old).starts_with(b"HTTP/1.0 200"));
}

#[test]
fn the_end_lets_an_answer_finish_and_waits_for_nobody_else() {
    let server = served(LIMITS);
    show_much(&server);
    let resting = connect(server.address);
    assert!(converse(&resting).starts_with("http/1.1 200"));
    let silent = connect(server.address);
    let mut slow = connect(server.address);
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
    assert_eq!(slow.peek(&mut [0]).unwrap(), 1);
    server.stop.send(()).unwrap();
    let whole = rest(&slow);
    assert!(whole.ends_with(b"0\r\n\r\n"), "the answer was cut");
    assert_eq!((rest(&resting), rest(&silent)), (vec![], vec![]));
    server.runtime.block_on(async { tokio::time::timeout(PATIENCE, server.ended).await }).unwrap().unwrap();
}

// ---- socket files ----------------------------------------------------------------------------------------------------

fn bind(server: &Served, path: &std::path::Path) -> std::io::Result<Listener> {
    server.runtime.block_on(Listener::bind(&ListenAddress::Unix(path.to_owned())))
}

#[test]
fn a_socket_file_serves_and_goes_with_its_listener() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("exporter.sock");
    let server =
        Served::on(LIMITS, |runtime| runtime.block_on(Listener::bind(&ListenAddress::Unix(path.clone()))).unwrap());
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666, "the folder decides who may use it");
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let answer = Answer::parse(&bytes, "GET");
    assert_eq!(answer.value("vram_exporter_nvml_up"), "0");
    assert!(bind(&server, &path).is_err(), "somebody listens there");
    server.stop.send(()).unwrap();
    server.runtime.block_on(server.ended).unwrap();
    assert!(!path.exists());
}

#[test]
fn a_socket_that_another_one_put_in_its_place_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("exporter.sock");
    let server = served(LIMITS);
    let first = bind(&server, &path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // The folder gives the new file an inode of its own while the old one is still bound.
    let _second = bind(&server, &path).unwrap();
    drop(first);
    assert!(UnixStream::connect(&path).is_ok());
}

#[test]
fn an_abandoned_socket_is_replaced_and_any_other_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(LIMITS);
    let abandoned = folder.path().join("abandoned.sock");
    drop(UnixListener::bind(&abandoned).unwrap());
    assert!(abandoned.exists());
    assert!(bind(&server, &abandoned).is_ok());
    let precious = folder.path().join("precious");
    std::fs::write(&precious, "kept").unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    for taken in [&precious, &link] {
        assert_eq!(bind(&server, taken).unwrap_err().kind(), ErrorKind::AddrInUse);
    }
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");
}
