//! The limits of the web server: slow, silent, numerous or hostile clients do not affect others.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use crate::harness::{Answer, PATIENCE, until};
use crate::web::{LIMITS, Served, ask, connect_from, process};
use gpu_readings::faults::{Reason, Source};
use gpu_readings::snapshot::GpuState;
use vram_exporter::http::Limits;

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n";

fn connect(address: SocketAddr) -> TcpStream {
    crate::harness::connect(address).unwrap()
}

fn served(limits: Limits) -> Served {
    Served::within(limits, "/metrics", |_| ())
}

/// Everything that the server still sends until it closes the connection.
fn read_to_close(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("the connection is not closed: {error}"),
    }
}

/// Checks without waiting whether the server has closed the connection.
fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let closed = match stream.peek(&mut [0]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    };
    stream.set_nonblocking(false).unwrap();
    closed
}

/// Reads one response over a connection that stays open: its head, and the body, whose length is in the head.
fn request(mut stream: &TcpStream) -> String {
    stream.write_all(REQUEST).unwrap();
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

/// A client that sends requests without reading, until the buffers between client and server are full.
fn flood(address: SocketAddr, request_bytes: &[u8]) -> TcpStream {
    let mut stream = connect(address);
    // Long enough to tell a server that is waiting from one that is merely slow.
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    while stream.write_all(&request_bytes.repeat(200)).is_ok() {}
    stream
}

/// Whether the server has disconnected a client that reads nothing, in which case the client can send
/// no further request.
fn is_disconnected(mut greedy: &TcpStream) -> bool {
    greedy.set_nonblocking(true).unwrap();
    greedy.write(REQUEST).is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
}

fn count(server: &Served, reason: Reason) -> u64 {
    server.faults.count(Source::Http, reason)
}

/// A server that shows many processes.
fn busy(limits: Limits) -> Served {
    let server = served(limits);
    let processes = (0..60).map(|pid| process(pid, &format!("process-{pid}-{}", "x".repeat(80)), 1 << 30)).collect();
    server.show(GpuState::Up, "H200", processes);
    server
}

#[test]
fn a_client_that_never_ends_its_request_is_disconnected_and_counted() {
    let server = served(Limits { read_timeout: Duration::from_millis(300), ..LIMITS });
    let silent = connect(server.address);
    let slow = connect(server.address);
    let sending = thread::spawn(move || {
        // Sending single bytes does not extend the time limit, which applies to the whole head.
        let mut slow = slow;
        REQUEST
            .iter()
            .take_while(|byte| {
                thread::sleep(Duration::from_millis(50));
                slow.write_all(&[**byte]).is_ok()
            })
            .count()
    });
    assert_eq!(read_to_close(&silent), b"");
    assert!(sending.join().unwrap() < REQUEST.len());
    assert_eq!(count(&server, Reason::Timeout), 2);
    assert_eq!(server.get("/metrics").status, 200);
}

#[test]
fn an_idle_connection_outlives_the_read_timeout_but_not_the_idle_one() {
    let brief = Duration::from_secs(1);
    let server = served(Limits { read_timeout: brief, idle_timeout: brief * 5, ..LIMITS });
    let stream = connect(server.address);
    assert!(request(&stream).starts_with("http/1.1 200"));
    thread::sleep(brief * 2);
    assert!(request(&stream).starts_with("http/1.1 200"), "the read timeout does not apply to an idle connection");
    assert_eq!(read_to_close(&stream), b"");
    assert_eq!(count(&server, Reason::Timeout), 0, "the end of an idle connection is not a fault");
}

#[test]
fn a_client_that_reads_nothing_of_its_response_is_disconnected() {
    let server = busy(Limits { write_timeout: Duration::from_millis(300), ..LIMITS });
    let greedy = flood(server.address, REQUEST);
    until("the client is disconnected", || count(&server, Reason::Timeout) > 0 && is_disconnected(&greedy));
}

#[test]
fn a_client_that_reads_nothing_loses_its_permit_to_one_that_waits() {
    let server = busy(Limits { max_requests: 1, ..LIMITS });
    let greedy = flood(server.address, REQUEST);
    // Health needs no permit.
    assert_eq!((server.get("/healthz").status, server.get("/readyz").status), (200, 200));
    let mut refused = 0;
    until("the client has lost its permit", || {
        let answer = server.get("/metrics");
        if answer.status == 503 {
            assert_eq!(answer.header("retry-after"), "1");
            refused += 1;
            return false;
        }
        assert_eq!((answer.status, answer.value("vram_exporter_nvml_up")), (200, "1"));
        is_disconnected(&greedy)
    });
    assert_eq!(count(&server, Reason::Overloaded), refused);
}

#[test]
fn a_permit_is_free_again_once_the_response_has_left() {
    let server = served(Limits { max_requests: 1, ..LIMITS });
    let kept: Vec<_> = (0..4).map(|_| connect(server.address)).collect();
    for _ in 0..5 {
        kept.iter().for_each(|stream| assert!(request(stream).starts_with("http/1.1 200")));
        assert_eq!(server.ask("HEAD", "/metrics", "").status, 200);
        assert_eq!(server.ask("GET", "/metrics", "Accept-Encoding: gzip\r\n").status, 200);
        assert_eq!(server.get("/nowhere").status, 404);
    }
    assert_eq!(count(&server, Reason::Overloaded), 0);
}

#[test]
fn a_full_pool_closes_the_connection_that_is_needed_least() {
    let server = served(Limits { max_connections: 3, max_requests: 3, ..LIMITS });
    let silent = [connect(server.address), connect(server.address)];
    let idle = connect(server.address);
    assert!(request(&idle).starts_with("http/1.1 200"));
    // The client may have read the response a moment before the server notices that it was sent.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(server.get("/metrics").status, 200);
    until("the idle connection is closed first", || is_closed(&idle));
    assert!(!silent.iter().any(is_closed));
    let _new = [connect(server.address), connect(server.address)];
    until("the oldest one that has not sent its request is closed", || is_closed(&silent[0]));
    assert_eq!(server.get("/metrics").status, 200);
    assert_eq!(count(&server, Reason::Overloaded), 0);
}

#[test]
fn clients_that_read_no_probe_response_cannot_take_all_connections() {
    let server = served(Limits { max_connections: 3, max_requests: 3, ..LIMITS });
    let health = b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n";
    let greedy_clients: Vec<_> = thread::scope(|scope| {
        let address = server.address;
        let flooding: Vec<_> = (0..3).map(|_| scope.spawn(move || flood(address, health))).collect();
        flooding.into_iter().map(|flooding| flooding.join().unwrap()).collect()
    });
    until("a newcomer is admitted", || {
        let mut stream = connect(server.address);
        let mut bytes = Vec::new();
        let written = stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        written.is_ok() && stream.read_to_end(&mut bytes).is_ok() && bytes.starts_with(b"HTTP/1.1 503")
    });
    until("one of them is disconnected", || greedy_clients.iter().any(is_disconnected));
}

#[test]
fn a_disconnected_client_is_counted_once_with_several_listeners() {
    let server = served(Limits { read_timeout: Duration::from_millis(300), ..LIMITS });
    let silent: Vec<_> = (0..20).map(|_| connect(server.address)).collect();
    server.beside(server.server.clone());
    silent.iter().for_each(|stream| assert_eq!(read_to_close(stream), b""));
    thread::sleep(Duration::from_millis(600));
    assert_eq!(count(&server, Reason::Timeout), 20);
}

#[test]
fn hundreds_of_idle_clients_keep_no_other_from_a_response() {
    crate::harness::allow_many_files();
    let server = served(LIMITS);
    let silent: Vec<_> = (0..150).map(|_| connect(server.address)).collect();
    let greedy: Vec<_> = (0..150)
        .map(|_| {
            let mut stream = connect(server.address);
            stream.write_all(&REQUEST.repeat(2)).unwrap();
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
    until("the server recovers", || server.get("/metrics").status == 200);
}

#[test]
fn an_invalid_request_is_refused_and_its_connection_closed() {
    let server = served(LIMITS);
    let long = |count: usize| format!("GET /metrics HTTP/1.1\r\nHost: test\r\nCookie: {}\r\n\r\n", "x".repeat(count));
    let many: String = (0..2000).map(|n| format!("X-{n}: y\r\n")).collect();
    let many = format!("GET /metrics HTTP/1.1\r\nHost: test\r\n{many}\r\n");
    // A request that is larger than what the server is willing to read may end in a reset that discards the response.
    for (bytes, status, lost) in [
        ("\0\x01\x02\x03\r\n\r\n".to_owned(), " 400 ", false),
        ("GET\r\n\r\n".to_owned(), " 400 ", false),
        ("\x16\x03\x01\x02\x00\x01\r\n\r\n".to_owned(), " 400 ", false),
        ("GET /metrics HTTP/9.9\r\n\r\n".to_owned(), " 400 ", false),
        (long(1 << 20), " 431 ", true),
        (many, " 431 ", true),
    ] {
        let mut stream = connect(server.address);
        // The server need not accept what it will not read.
        let _ = stream.write_all(bytes.as_bytes());
        let answer = String::from_utf8_lossy(&read_to_close(&stream)).into_owned();
        let status_line = answer.lines().next().unwrap_or_default();
        assert!(
            status_line.contains(status) || (lost && status_line.is_empty()),
            "{:?}: {status_line}",
            &bytes[..20.min(bytes.len())]
        );
    }
    let mut polite = connect(server.address);
    polite.write_all(long(8000).replace("Cookie", "Connection: close\r\nCookie").as_bytes()).unwrap();
    assert!(read_to_close(&polite).starts_with(b"HTTP/1.1 200"));
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn a_head_of_exactly_the_limit_is_answered_and_a_longer_one_is_not() {
    const LIMIT: usize = 32 * 1024;
    let server = served(LIMITS);
    let begin = "GET /metrics HTTP/1.1\r\nhost: test\r\nconnection: close\r\n";
    // One long value, and many short ones.
    let head = |bytes: usize, name: &str| {
        let rest = bytes - begin.len() - name.len() - ": \r\n\r\n".len();
        format!("{begin}{name}: {}\r\n\r\n", "x".repeat(rest))
    };
    let line = |bytes: usize| {
        let fixed = "GET /metrics? HTTP/1.1\r\nhost: test\r\n\r\n".len();
        format!("GET /metrics?{} HTTP/1.1\r\nhost: test\r\n\r\n", "x".repeat(bytes - fixed))
    };
    for (bytes, status) in [(LIMIT, 200), (LIMIT + 1, 431), (48 * 1024, 431), (60 * 1024, 431)] {
        for head in [head(bytes, "cookie"), line(bytes)] {
            assert_eq!(head.len(), bytes);
            let mut stream = connect(server.address);
            stream.write_all(head.as_bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let answer = String::from_utf8_lossy(&read_to_close(&stream)).into_owned();
            let line = answer.lines().next().unwrap_or_default();
            // A head that is not read to its end may end in a reset that discards the response.
            let lost = line.is_empty() && bytes > LIMIT + 1;
            assert!(line.contains(&format!(" {status} ")) || lost, "{bytes}: {line}");
        }
    }
}

/// Requests the metrics and reads a few bytes of the response at a time, for as long as it lasts.
fn trickle(address: SocketAddr, from: [u8; 4]) -> thread::JoinHandle<()> {
    let mut stream = connect_from(address, from);
    stream.write_all(REQUEST).unwrap();
    thread::spawn(move || {
        while stream.read(&mut [0; 16]).is_ok_and(|count| count > 0) {
            thread::sleep(Duration::from_millis(20));
        }
    })
}

#[test]
fn slow_clients_of_one_address_keep_no_other_address_from_a_response() {
    let server = served(Limits { max_requests: 4, ..LIMITS });
    let processes = (0..20_000).map(|pid| process(pid, &format!("process-{pid}"), 1 << 30)).collect();
    server.show(GpuState::Up, "H200", processes);
    server.get("/metrics");
    let slow: Vec<_> = (0..8).map(|_| trickle(server.address, [127, 0, 0, 3])).collect();
    until("they hold all responses", || server.server.responses() == 4);
    for _ in 0..3 {
        assert_eq!(server.get("/metrics").status, 200);
    }
    drop(slow);
}

#[test]
fn two_servers_have_one_limit() {
    let server = served(Limits { max_connections: 3, max_requests: 3, ..LIMITS });
    let address = server.beside(server.server.beside(axum::Router::new()));
    let silent: Vec<_> = (0..6).map(|n| connect(if n % 2 == 0 { server.address } else { address })).collect();
    until("no more than three are open", || silent.iter().filter(|stream| !is_closed(stream)).count() <= 3);
    assert_eq!(ask(server.address, "GET", "/healthz", "").status, 200);
}

#[test]
fn only_requests_for_an_allowed_host_are_answered_and_probes_always() {
    let server = served(LIMITS);
    let address = server.beside(server.server.for_hosts(vec!["gpu1.example.com".to_owned()]));
    let status = |path: &str, host: &str| {
        let mut stream = connect(address);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        Answer::parse(&read_to_close(&stream), "GET").unwrap().status
    };
    for path in ["/metrics", "/", "/api/v1/gpus", "/page.js", "/nowhere"] {
        assert_eq!(status(path, "evil.example"), 421, "{path}");
        assert_ne!(status(path, "GPU1.example.com:9836"), 421, "{path}");
    }
    assert_eq!((status("/healthz", "evil.example"), status("/readyz", "evil.example")), (200, 503));
}

#[test]
fn pipelined_requests_and_half_closed_connections_are_answered() {
    let server = served(LIMITS);
    let mut stream = connect(server.address);
    stream.write_all(&REQUEST.repeat(5)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let answers = String::from_utf8(read_to_close(&stream)).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 5);
    let mut old = connect(server.address);
    old.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    assert!(read_to_close(&old).starts_with(b"HTTP/1.0 200"));
}

#[test]
fn a_shutdown_waits_only_for_responses_under_way() {
    let server = busy(LIMITS);
    let idle = connect(server.address);
    assert!(request(&idle).starts_with("http/1.1 200"));
    let silent = connect(server.address);
    let mut slow = connect(server.address);
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
    assert_eq!(slow.peek(&mut [0]).unwrap(), 1);
    server.stop.send(()).unwrap();
    let whole = read_to_close(&slow);
    assert!(whole.ends_with(b"0\r\n\r\n"), "the response was cut off");
    assert_eq!((read_to_close(&idle), read_to_close(&silent)), (vec![], vec![]));
    server.runtime.block_on(async { tokio::time::timeout(PATIENCE, server.ended).await }).unwrap().unwrap();
}
