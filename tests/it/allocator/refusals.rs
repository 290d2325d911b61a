//! Refusals: each cause has its own reason, and a refusal changes nothing.

use super::*;

#[test]
fn a_client_of_another_version_is_told_and_disconnected() {
    let (site, exporter, _) = Site::with_self(GIB);
    let mut client = Client::open(&site.socket);
    client.send(r#"{"type":"hello","version":7}"#);
    let answer = client.answer();
    assert_eq!((&answer["type"], &answer["reason"]), (&"error".into(), &"unsupported_version".into()), "{answer}");
    assert_eq!(answer["message"], "version 7 is not supported; this exporter supports versions 1 and 2");
    let mut client = Client::open(&site.socket);
    client.send(ALIVE);
    assert_eq!(client.refusal(), "unsupported_version", "no hello first");
    // A client that sends nothing at all is disconnected too.
    let mut silent = Client::open(&site.socket);
    assert_eq!(silent.refusal(), "unsupported_version");
    until("all are counted", || faults(&exporter, "unsupported_version") == 3);
}

#[test]
fn a_message_that_is_not_allowed_ends_the_connection_and_its_values() {
    let (site, exporter, uuid) = Site::with_self(4 * GIB);
    let pid = std::process::id();
    let lines = [
        report("pytorch", &uuid, r#""allocated_bytes":-1"#),
        "nonsense".to_owned(),
        report("pytorch", "0", r#""allocated_bytes":1"#),
        r#"{"type":"measurement","framework":"jax","device":"GPU-1","name":"","peak_bytes":1}"#.to_owned(),
        r#"{"type":"out_of_memory","framework":"jax","device":"GPU-1"}"#.to_owned(),
    ];
    for (count, line) in (1..).zip(&lines) {
        let mut client = site.connect();
        client.report(&uuid, &format!(r#""allocated_bytes":{count}"#));
        exporter.scrape_until("the value", |s| value(s, ALLOCATED, pid) == Some(count));
        client.send(line);
        assert_eq!(client.refusal(), "invalid_message", "{line}");
        exporter.scrape_until("no value", |s| reported(s).is_empty());
        assert_eq!(faults(&exporter, "invalid_message"), count, "{line}");
    }
}

#[test]
fn a_line_that_is_too_long_ends_the_connection() {
    let (site, exporter, uuid) = Site::with_self(4 * GIB);
    let padded = |length: usize| {
        let line = report("pytorch", &uuid, r#""allocated_bytes":5,"pad":"""#);
        let pad = "x".repeat(length - line.len());
        line.replace(r#""pad":"""#, &format!(r#""pad":"{pad}""#))
    };
    let mut client = site.connect();
    client.send(&padded(4096));
    exporter.scrape_until("the longest line", |s| value(s, ALLOCATED, std::process::id()) == Some(5));
    client.send(&padded(4097));
    assert_eq!(client.refusal(), "message_too_long");
    let mut endless = site.connect();
    endless.write(&[b'x'; 4200]);
    assert_eq!(endless.refusal(), "message_too_long");
    assert_eq!(faults(&exporter, "message_too_long"), 2);
}

#[test]
fn a_contradiction_is_counted_what_is_unknown_is_ignored_and_the_connection_stays() {
    let (site, exporter, uuid) = Site::with_self(4 * GIB);
    let mut client = site.connect();
    client.send(r#"{"type":"forecast","device":5,"more":[{}]}"#);
    client.report(&uuid, r#""allocated_bytes":100,"reserved_bytes":200,"temperature":{"a":[1.5]}"#);
    let values = |s: &Scrape| [ALLOCATED, RESERVED].map(|family| value(s, family, std::process::id()));
    let first = exporter.scrape_until("the values", |s| values(s)[1] == Some(200));
    assert_eq!(first.value("vram_exporter_faults_total", &[("source", "allocator")]), Some(0.0));
    client.report(&uuid, r#""allocated_bytes":201"#);
    until("it is counted", || faults(&exporter, "inconsistent") == 1);
    assert_eq!(values(&exporter.scrape()), [Some(100), Some(200)]);
    client.report(&uuid, r#""allocated_bytes":101"#);
    exporter.scrape_until("the connection is there", |s| values(s)[0] == Some(101));
}

#[test]
fn a_process_without_an_identity_is_refused() {
    let site = Site::new();
    let socket = format!("--allocator.socket={}", site.socket.display());
    // The simulated procfs does not contain this test.
    let exporter = site.machine.export(&[&socket]);
    let mut client = Client::open(&site.socket);
    client.send(HELLO);
    assert_eq!(client.refusal(), "unknown_process");
    assert_eq!(faults(&exporter, "unknown_process"), 1);
}

#[test]
fn keys_and_connections_are_limited() {
    let (site, exporter, uuid) = Site::with_self(4 * GIB);
    let mut clients: Vec<_> = (0..4).map(|_| site.connect()).collect();
    let mut fifth = Client::open(&site.socket);
    assert_eq!(fifth.refusal(), "too_many_connections");
    for framework in 0..6 {
        clients[3].send(&report(&format!("fw{framework}"), &uuid, r#""allocated_bytes":1"#));
    }
    until("two frameworks are too many", || faults(&exporter, "too_many_keys") == 2);
    for region in 0..40 {
        clients[2].send(&format!(
            r#"{{"type":"measurement","framework":"jax","device":"{uuid}","name":"region {region}","peak_bytes":1}}"#
        ));
    }
    until("eight regions are too many", || faults(&exporter, "too_many_keys") == 10);
    let shown = |s: &Scrape| (s.all(ALLOCATED).count(), s.all("gpu_process_allocator_region_peak_bytes").count());
    exporter.scrape_until("four frameworks and 32 regions", |s| shown(s) == (4, 32));
}
