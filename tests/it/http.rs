//! The web server over real sockets: what each path returns and when, and how the server shuts down.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::harness::{Answer, until};
use crate::web::{LIMITS, Served, ask, deaf, gunzip, process};
use gpu_readings::snapshot::*;
use vram_exporter::http::Limits;

// ---- metrics
// ---------------------------------------------------------------------------------------------------------

#[test]
fn gzip_comes_when_asked_for_and_small_bodies_too() {
    let server = Served::start();
    let asked = |path| server.ask("GET", path, "Accept-Encoding: deflate, gzip;q=0.8\r\n");
    let metrics = asked("/metrics");
    assert_eq!(metrics.header("content-encoding"), "gzip");
    assert_eq!(metrics.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let text = gunzip(&metrics.bytes);
    assert!(text.contains("\nvram_exporter_nvml_up 0\n"));
    assert!(metrics.bytes.len() * 3 < text.len());
    let small = asked("/healthz");
    assert_eq!((small.header("content-encoding"), gunzip(&small.bytes).as_str()), ("gzip", "ok\n"));
    for without in ["", "Accept-Encoding: gzip;q=0\r\n"] {
        let plain = server.ask("GET", "/metrics", without);
        assert_eq!((plain.status, plain.header("content-encoding")), (200, ""), "{without}");
        assert_eq!(plain.header("content-type"), metrics.header("content-type"));
        assert_eq!(plain.value("vram_exporter_nvml_up"), "0", "there is no driver, from the first second on");
    }
}

#[test]
fn a_head_has_the_headers_of_a_get_or_omits_them() {
    let server = Served::start();
    server.show(GpuState::Up, "H200", vec![process(1, "train.py", 1 << 30)]);
    for path in ["/metrics", "/", "/healthz", "/readyz", "/favicon.ico", "/nowhere"] {
        for headers in ["", "Accept-Encoding: gzip\r\n"] {
            let (head, got) = (server.ask("HEAD", path, headers), server.ask("GET", path, headers));
            assert_eq!((head.status, head.bytes.len()), (got.status, 0), "{path} {headers}");
            for name in ["content-type", "content-encoding", "vary", "cache-control", "content-security-policy"] {
                let found = head.header(name);
                assert!([got.header(name), ""].contains(&found), "{path} {headers}: {name} {found}");
            }
            // The length of a scrape is known only once it has been written.
            let known = if path == "/metrics" { "" } else { got.header("content-length") };
            assert_eq!(head.header("content-length"), known, "{path} {headers}");
        }
    }
}

#[test]
fn scrapes_are_counted_this_one_included_and_nothing_else_is() {
    let server = Served::start();
    assert_eq!(server.get("/metrics").value("vram_exporter_scrapes_total"), "1");
    server.get("/");
    server.get("/readyz");
    assert_eq!(server.get("/metrics").value("vram_exporter_scrapes_total"), "2");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..10).for_each(|_| assert_eq!(server.get("/metrics").status, 200)));
        }
    });
    assert_eq!(server.get("/metrics").value("vram_exporter_scrapes_total"), "83");
}

/// 4000 processes: more text than is sent in one piece.
fn with_many_processes() -> Served {
    with_processes(Served::start(), 4_000)
}

fn with_processes(server: Served, count: u32) -> Served {
    server.show(GpuState::Up, "NVIDIA H200", (0..count).map(|pid| process(pid, "train.py", 1 << 20)).collect());
    server
}

#[test]
fn a_long_scrape_is_streamed_and_complete() {
    let server = with_many_processes();
    let first = server.get("/metrics");
    let head = (first.header("transfer-encoding"), first.status);
    assert_eq!(head, ("", 200), "the first scrape has no earlier length to go by");
    for headers in ["", "Accept-Encoding: gzip\r\n"] {
        let long = server.ask("GET", "/metrics", headers);
        assert_eq!((long.header("transfer-encoding"), long.status), ("chunked", 200));
        assert_eq!(long.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
        let text = if headers.is_empty() { long.body.clone() } else { gunzip(&long.bytes) };
        assert!(text.len() > 512 << 10);
        let series = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
        };
        assert_eq!(series(&text), series(&first.body));
    }
    assert_eq!(server.get("/metrics").value("vram_exporter_scrapes_total"), "4");
}

#[test]
fn clients_that_read_nothing_occupy_a_few_writers_and_another_address_is_answered() {
    // No client is disconnected for taking long alone, however busy the machine is.
    let limits = Limits { write_timeout: Duration::from_secs(600), ..LIMITS };
    // More text than the queue between a writer and its client holds.
    let server = with_processes(Served::within(limits, "/metrics", |_| ()), 20_000);
    let whole = server.get("/metrics");
    let before = server.threads();
    assert!(before >= 2, "{before} threads");
    let deaf: Vec<_> =
        (0..30).map(|_| deaf(server.address, [127, 0, 0, 3], b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")).collect();
    until("the writers", || server.threads() > before);
    std::thread::sleep(Duration::from_millis(500));
    let threads = server.threads();
    assert!(threads > before && threads <= before + 16, "{before} threads, then {threads}");
    let scrape = server.get("/metrics");
    assert_eq!((scrape.status, scrape.header("transfer-encoding")), (200, "chunked"));
    assert!(scrape.body.len() > whole.body.len() / 2);
    drop(deaf);
}

#[test]
fn a_long_response_to_an_old_client_has_its_length_and_uses_the_same_memory() {
    let server = with_processes(Served::start(), 8_000);
    let whole = server.get("/metrics");
    let old = |server: &Served| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::parse(&bytes, "GET").unwrap()
    };
    let answer = old(&server);
    assert_eq!((answer.status, answer.header("transfer-encoding")), (200, ""));
    assert_eq!(answer.header("content-length").parse::<usize>().unwrap(), answer.body.len());
    assert!(answer.body.len() > whole.body.len() / 2);
    let server = with_processes(Served::start(), 100_000);
    server.get("/metrics");
    assert_eq!(old(&server).status, 505, "it would take too much memory");
}

#[test]
fn no_response_is_kept_or_sniffed() {
    let server = with_many_processes();
    let is_kept = |method, path, cache| {
        let answer = server.ask(method, path, "");
        let kept = (answer.header("cache-control"), answer.header("x-content-type-options"));
        assert_eq!(kept, (cache, "nosniff"), "{method} {path}");
    };
    let api = ["/api/v1/gpus", "/api/v1/processes", "/api/v1/workloads", "/api/v1/history"];
    for path in ["/metrics", "/", "/healthz", "/readyz", "/nowhere"].into_iter().chain(api) {
        ["GET", "HEAD", "POST"].into_iter().for_each(|method| is_kept(method, path, "no-store"));
    }
    is_kept("GET", "/page.js", "no-cache");
    is_kept("GET", "/favicon.ico", "max-age=86400");
}

#[test]
fn a_head_is_no_scrape_and_a_client_that_leaves_one_is_no_fault_and_blocks_no_other() {
    let server = with_many_processes();
    server.get("/metrics");
    for _ in 0..50 {
        assert_eq!(server.ask("HEAD", "/metrics", "").status, 200);
    }
    for _ in 0..60 {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
    }
    assert_eq!(server.get("/metrics").value("vram_exporter_scrapes_total"), "62");
    assert_eq!(server.faults.counts().map(|(_, _, count)| count).sum::<u64>(), 0);
}

#[test]
fn the_metrics_are_at_the_configured_path_alone() {
    for path in ["/gpu/metrics", "/{all}", "/:x/*y"] {
        let server = Served::with(path, |_| ());
        assert_eq!(server.get(path).value("vram_exporter_nvml_up"), "0", "{path}");
        let other = server.get("/metrics");
        assert_eq!(other.status, 404);
        assert!(other.body.contains(path));
        assert!(server.get("/").body.contains(&format!("href=\"{path}\"")));
    }
}

#[test]
fn other_methods_and_other_paths_are_refused() {
    let server = Served::start();
    for path in ["/metrics", "/healthz", "/readyz", "/"] {
        for method in ["POST", "PUT", "DELETE"] {
            let answer = server.ask(method, path, "Content-Length: 0\r\n");
            assert_eq!(answer.status, 405, "{method} {path}");
            assert_eq!(answer.header("allow"), "GET,HEAD");
        }
    }
    for path in ["/metric", "/metrics/", "/..%2fetc/passwd", "/favicon"] {
        let answer = server.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.body.contains("/metrics"));
    }
}

#[test]
fn a_request_names_one_host() {
    let server = Served::start();
    let statuses = |asked: &str| -> Vec<u16> {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(asked.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).unwrap();
        answers.split("HTTP/1.").skip(1).map(|answer| answer[2..5].parse().unwrap()).collect()
    };
    for path in ["/metrics", "/", "/healthz", "/nowhere"] {
        assert_eq!(statuses(&format!("GET {path} HTTP/1.1\r\n\r\n")), [400], "{path}");
    }
    for hosts in ["Host: a\r\nHost: a\r\n", "Host: a b\r\n", "Host: a/b\r\n", "Host: a@b\r\n", "Host: \u{e9}\r\n"] {
        for version in ["1.0", "1.1"] {
            assert_eq!(statuses(&format!("GET /metrics HTTP/{version}\r\n{hosts}\r\n")), [400], "{hosts:?} {version}");
        }
    }
    for host in
        ["", "a", "a:9836", "a_b.example", "[::1]:9836", "[fe80::1%25eth0]", "10.0.0.1", "xn--bcher-kva.example:"]
    {
        assert_eq!(statuses(&format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n")), [200], "{host:?}");
    }
    assert_eq!(statuses("GET /metrics HTTP/1.0\r\n\r\n"), [200]);
    assert_eq!(statuses("GET http://a/metrics HTTP/1.1\r\n\r\n"), [400]);
    assert_eq!(statuses("GET /nowhere HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), [400, 200]);
    assert_eq!(server.get("/metrics").value("vram_exporter_scrapes_total"), "11", "a refused request is not a scrape");
}

// ---- health and readiness
// --------------------------------------------------------------------------------------------

#[test]
fn health_is_that_of_the_lanes() {
    let young = Served::start();
    assert_eq!((young.get("/healthz").status, &*young.get("/healthz").body), (200, "ok\n"));

    let limit = Duration::from_millis(400);
    let server = Served::with("/metrics", |state| {
        state.started = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
        state.alive_within = limit;
    });
    let silent = server.get("/healthz");
    assert_eq!(silent.status, 503);
    assert!(silent.body.contains("sampling has not started"));

    // On a busy machine a beat may be old before the request arrives, so there is a new beat before each request.
    until("every lane beats", || {
        Lane::ALL.iter().for_each(|&lane| server.snapshot.vitals.beat(lane, Instant::now()));
        server.get("/healthz").status == 200
    });
}

#[test]
fn readiness_follows_the_driver_and_the_first_sample() {
    let server = Served::start();
    let expect = |status, part: &str| {
        let answer = server.get("/readyz");
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.body.contains(part), "{}", answer.body);
    };
    expect(503, "not been opened");
    let problem = Some("libnvidia-ml.so.1: not found".to_owned());
    server.snapshot.clear(Driver { problem: problem.clone(), ..Driver::default() });
    expect(503, "libnvidia-ml.so.1: not found");
    server.show(GpuState::Unsampled, "H200", vec![]);
    expect(503, "GPU 0 has not been sampled");
    server.snapshot.memory.store(Arc::default());
    expect(503, "GPU 0 has not been sampled");
    server.show(GpuState::Up, "H200", vec![]);
    expect(200, "ok");
    server.show(GpuState::Unreadable, "H200", vec![]);
    expect(200, "ok");
    server.snapshot.clear(Driver { problem, ..Driver::default() });
    expect(503, "not found");
    assert_eq!(server.get("/healthz").status, 200);
}

// ---- the end
// ---------------------------------------------------------------------------------------------------------

#[test]
fn the_server_ends_although_a_client_never_finishes_its_request() {
    let Served { runtime, address, stop, ended, .. } = Served::start();
    let mut slow = TcpStream::connect(address).unwrap();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost:").unwrap();
    assert_eq!(ask(address, "GET", "/healthz", "").status, 200);
    stop.send(()).unwrap();
    let patience = Duration::from_secs(15);
    let outcome = runtime.block_on(async { tokio::time::timeout(patience, ended).await });
    outcome.expect("the server must not wait for the client for ever").unwrap();
    assert!(TcpStream::connect(address).is_err(), "the port is closed");
}
