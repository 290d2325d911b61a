//! How pushes are delivered: attempts, statuses, hanging and hostile receivers, TLS, the last push.

use std::time::Duration;

use super::receiver::{Push, Receiver, Reply};
use super::{GPU, SOON, export, flags};
use crate::api_server::Authority;
use crate::faults::faults;
use crate::harness::{Exporter, Machine, eventually, until};

fn count(exporter: &Exporter, reason: &str) -> f64 {
    faults(&exporter.scrape(), "otlp", reason)
}

fn pushes(exporter: &Exporter, outcome: &str) -> f64 {
    exporter.scrape().value("vram_exporter_otlp_pushes_total", &[("outcome", outcome)]).unwrap()
}

fn logged(exporter: &Exporter, words: &[&str]) -> String {
    eventually("the log line", || {
        let log = exporter.log();
        let line = log.lines().find(|line| words.iter().all(|word| line.contains(word)))?;
        Some(line.to_owned())
    })
}

#[test]
fn requests_are_compressed_unless_that_is_switched_off() {
    for (flag, encoding) in [("--otlp.compression=gzip", Some("gzip")), ("--otlp.compression=none", None)] {
        let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[]));
        let _exporter = export(&machine, &receiver, &[flag]);
        let [push] = receiver.first();
        assert_eq!(push.headers.get("content-encoding").map(String::as_str), encoding);
        assert_eq!(push.path, "/v1/metrics");
        assert_eq!(push.headers["user-agent"], format!("vram-exporter/{}", env!("CARGO_PKG_VERSION")));
    }
}

#[test]
fn a_push_that_is_refused_for_now_is_tried_again_and_delivered() {
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[Reply::Status(503, None, "busy")]));
    let flags = ["--otlp.interval=20s", "--memory.peak-window=20s", &receiver.flag()];
    let exporter = Exporter::start(machine.command(&flags));
    let [first, second] = receiver.first();
    assert_eq!(first.body, second.body, "the same push");
    until("it is counted", || pushes(&exporter, "delivered") == 1.0);
    assert_eq!((pushes(&exporter, "dropped"), count(&exporter, "overloaded")), (0.0, 1.0));
    logged(&exporter, &["fault", "otlp", &receiver.url(), "503", "busy"]);
    let at = exporter.scrape().value("vram_exporter_otlp_last_delivery_timestamp_seconds", &[]).unwrap();
    assert!(at >= second.points[0].time as f64 / 1e9 - 1.0, "{at}");
}

#[test]
fn the_receivers_wish_to_wait_is_honoured_beyond_the_interval() {
    let wait = Reply::Status(429, Some(("retry-after", "3")), "");
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[wait]));
    let exporter = export(&machine, &receiver, &[]);
    let [first, second] = receiver.first();
    assert!(second.at - first.at >= Duration::from_secs(3), "{:?}", second.at - first.at);
    assert_ne!(first.points[0].time, second.points[0].time, "the old values are dropped");
    until("it is counted", || pushes(&exporter, "delivered") >= 1.0);
    assert_eq!(pushes(&exporter, "dropped"), 1.0);
}

#[test]
fn a_push_that_is_refused_for_good_is_dropped_with_a_way_out() {
    for (code, reason, words) in [
        (400, "rejected", "does not accept"),
        (401, "no_permission", "otlp.headers-file"),
        (404, "not_found", "check the path of otlp.endpoint"),
        (413, "rejected", "too large"),
        (501, "unknown", "501"),
    ] {
        let refusal = Reply::Status(code, None, "because\nof\u{1b}[31m reasons");
        let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[refusal]));
        let exporter = export(&machine, &receiver, &[]);
        let line = logged(&exporter, &["fault", "otlp", &receiver.url(), &code.to_string(), words]);
        assert!(line.contains("because of") && line.contains("u{1b}[31m reasons"), "{line}");
        let [first, second] = receiver.first();
        assert_ne!(first.points[0].time, second.points[0].time, "{code}: it is not tried again");
        assert_eq!((count(&exporter, reason), pushes(&exporter, "dropped")), (1.0, 1.0), "{code}");
        until("the next one is delivered", || pushes(&exporter, "delivered") >= 1.0);
    }
}

#[test]
fn a_redirect_is_not_followed() {
    let (machine, elsewhere) = (Machine::new(GPU), Receiver::start(&[]));
    let receiver = Receiver::start(&[]);
    let location: &'static str = format!("{}/v1/metrics", elsewhere.url()).leak();
    receiver.answer(Reply::Status(307, Some(("location", location)), ""));
    let exporter = export(&machine, &receiver, &[]);
    logged(&exporter, &["307", "redirects are not followed"]);
    let [_, _] = receiver.first();
    assert!(elsewhere.pushes().is_empty());
}

#[test]
fn a_receiver_that_hangs_or_floods_costs_its_pushes_only() {
    for (trouble, reason) in
        [(Reply::Silence, "timeout"), (Reply::Flood, "malformed"), (Reply::Text("<html>Log in</html>"), "malformed")]
    {
        let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[]));
        receiver.answer(trouble);
        let exporter = export(&machine, &receiver, &["--otlp.timeout=500ms"]);
        until("the fault", || count(&exporter, reason) >= 1.0);
        until("it is dropped", || pushes(&exporter, "dropped") >= 1.0);
        let scrape = exporter.scrape();
        assert_eq!(scrape.all("gpu_memory_used_bytes").count(), 1);
        assert_eq!(pushes(&exporter, "delivered"), 0.0);
        receiver.answer(Reply::Accept);
        until("it recovers", || pushes(&exporter, "delivered") >= 1.0);
        logged(&exporter, &["accepts the pushes", &receiver.url()]);
    }
}

#[test]
fn without_a_receiver_the_exporter_serves_and_ends() {
    let machine = Machine::new(GPU);
    // Bound and closed again: nothing listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = format!("--otlp.endpoint=http://{free}");
    let exporter = machine.export(&[&endpoint, SOON[0], SOON[1]]);
    logged(&exporter, &["no connection to the OTLP receiver", &free.to_string()]);
    assert!(count(&exporter, "connection") >= 1.0);
    assert!(exporter.terminate().success());
}

#[test]
fn points_that_the_receiver_rejects_are_counted_and_logged() {
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[Reply::Partial(3, "out of order")]));
    let exporter = export(&machine, &receiver, &[]);
    logged(&exporter, &["rejected 3 data points", "out of order", &receiver.url()]);
    until("a delivery", || pushes(&exporter, "delivered") >= 1.0);
    let rejected = exporter.scrape().value("vram_exporter_otlp_rejected_points_total", &[]);
    assert_eq!((rejected, pushes(&exporter, "dropped")), (Some(3.0), 0.0));
}

#[test]
fn a_receiver_behind_tls_is_trusted_by_its_authority_only() {
    let (machine, authority) = (Machine::new(GPU), Authority::new());
    let receiver = Receiver::start_tls(&authority);
    let path = machine.folder.path().join("ca.pem");
    authority.write(&path);
    let trusting = format!("--otlp.ca-file={}", path.display());
    let exporter = export(&machine, &receiver, &[&trusting]);
    let [_] = receiver.first();
    assert_eq!(count(&exporter, "connection"), 0.0);
    assert!(exporter.terminate().success());
    let before = receiver.pushes().len();
    Authority::new().write(&path);
    let exporter = export(&machine, &receiver, &[&trusting]);
    logged(&exporter, &["no connection to the OTLP receiver", "certificate"]);
    assert_eq!(receiver.pushes().len(), before);
}

#[test]
fn the_last_values_are_pushed_at_the_end_and_then_that_there_are_no_more() {
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[]));
    // The first push of its own would come much later.
    let exporter = Exporter::start(machine.command(&["--otlp.interval=1m", &receiver.flag()]));
    exporter.scrape_until("the process", |s| s.all("gpu_process_memory_used_bytes").count() == 1);
    assert!(exporter.terminate().success());
    let pushes = receiver.pushes();
    let [.., last, end] = &pushes[..] else { panic!("{}", pushes.len()) };
    assert_eq!(last.all("gpu_process_memory_used_bytes", &[("pid", "11")]).filter(|point| !point.gone).count(), 1);
    assert!(end.points.iter().all(|point| point.gone && point.value.is_none()));
    let names = |push: &Push| {
        let mut names: Vec<_> = push.points.iter().map(|point| (point.name.clone(), point.labels.clone())).collect();
        names.sort();
        names
    };
    assert_eq!(names(end), names(last));
    let millis = |push: &Push| push.points[0].time / 1_000_000;
    assert!(millis(end) > millis(last), "a receiver that keeps milliseconds tells them apart");
}

#[test]
fn a_receiver_that_hangs_does_not_keep_the_exporter_from_ending() {
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[]));
    receiver.answer(Reply::Silence);
    let exporter = export(&machine, &receiver, &[]);
    let [_] = receiver.first();
    exporter.signal(nix::sys::signal::Signal::SIGTERM);
    // The log line is the only trace: there is no scrape after the end.
    let line = logged(&exporter, &["the last push to the OTLP receiver took too long and was dropped"]);
    assert!(line.contains("limit=3s"), "less than otlp.timeout: {line}");
    assert!(exporter.terminate().success());
}

#[test]
fn the_end_is_reported_although_the_last_values_are_refused() {
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[]));
    let exporter = export(&machine, &receiver, &[]);
    until("a delivery", || pushes(&exporter, "delivered") >= 1.0);
    receiver.answer(Reply::Status(400, None, "no"));
    assert!(exporter.terminate().success());
    let end = receiver.pushes().pop().unwrap();
    assert!(!end.points.is_empty() && end.points.iter().all(|point| point.gone), "the last push is the end");
}

#[test]
fn once_pushes_nothing() {
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[]));
    let flags = flags(&receiver, &[]);
    machine.once(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(receiver.pushes().is_empty());
}
