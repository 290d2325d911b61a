//! Headers that may be secret, and what is refused before anything is sent.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::process::Command;

use super::receiver::{Receiver, Reply};
use super::{GPU, export, flags};
use crate::harness::{Exporter, Machine, assert_refused, bare, ended, eventually};

const SECRET: &str = "s3cr3t-t0ken";

#[test]
fn headers_come_from_the_file_and_the_variable_and_are_never_shown() {
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[]));
    // The faults show the words of the errors.
    receiver.answer(Reply::Echo(401));
    let path = machine.folder.path().join("headers");
    fs::write(&path, format!("# of the receiver\nAuthorization: Bearer {SECRET}\n")).unwrap();
    let mut command = machine.command(&["--log.level=trace"]);
    command.args(flags(&receiver, &[&format!("--otlp.headers-file={}", path.display())]));
    command.env("OTEL_EXPORTER_OTLP_HEADERS", format!("x-scope-orgid=team-{SECRET}"));
    let exporter = Exporter::start(command);
    let [push] = receiver.first();
    assert_eq!(push.headers["authorization"], format!("Bearer {SECRET}"));
    assert_eq!(push.headers["x-scope-orgid"], format!("team-{SECRET}"));
    exporter.logged("answered 401");
    exporter.logged("[redacted] is unknown: who are you?");
    fs::write(&path, format!("Authorization: Bearer new-{SECRET}\n")).unwrap();
    receiver.until("the new token", |push| push.headers["authorization"] == format!("Bearer new-{SECRET}"));
    // A file that has become invalid is a fault, which names the line.
    fs::write(&path, format!("{SECRET}\n")).unwrap();
    exporter.logged("line 1 is not of the form");
    assert!(!exporter.scrape().text.contains(SECRET));
    assert!(!exporter.log().contains(SECRET), "{}", exporter.log());
}

#[test]
fn the_call_sites_of_a_job_are_not_pushed() {
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[]));
    machine.control(&format!("[[process]]\npid = {}\nmemory = \"1GiB\"\n", std::process::id()));
    let socket = machine.folder.path().join("allocator.sock");
    let sites = format!("--allocator.socket={}", socket.display());
    let exporter = export(&machine, &receiver, &["--path.procfs=/proc", "--allocator.sites=true", &sites]);
    let uuid = exporter.scrape().all("gpu_info").next().unwrap().label("uuid").unwrap().to_owned();
    let mut client = UnixStream::connect(&socket).unwrap();
    writeln!(client, r#"{{"type":"hello","version":1}}"#).unwrap();
    let of = format!(r#""framework":"pytorch","device":"{uuid}""#);
    let look =
        format!(r#""roles":{{"gradients":5}},"sites":[{{"site":"{SECRET}.py:1 f","role":"gradients","bytes":5}}]"#);
    let growth = format!(r#""seconds":1,"sites":[{{"site":"{SECRET}.py:2 g","role":"gradients","bytes":5}}]"#);
    let modules = format!(r#""modules":[{{"module":"{SECRET}.3","bytes":5}}]"#);
    let failed = format!(r#""requested_bytes":5,"site":"{SECRET}.py:3 h","frames":["{SECRET}.py:3 h"]"#);
    writeln!(client, r#"{{"type":"report",{of},"allocated_bytes":5}}"#).unwrap();
    // Said again, because values that are not confirmed for some seconds are not shown.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for (kind, more) in
                    [("sites", &look), ("growth", &growth), ("modules", &modules), ("out_of_memory", &failed)]
                {
                    writeln!(client, r#"{{"type":"{kind}",{of},{more}}}"#).unwrap();
                }
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        });
        exporter.scrape_until("the call site", |scrape| scrape.text.contains(SECRET));
        let incident = eventually("the incident", || {
            let all = exporter.json("/api/v1/incidents");
            let id = all["incidents"][0]["id"].as_str()?.to_owned();
            Some(exporter.json(&format!("/api/v1/incidents/{id}")))
        });
        let memory = &incident["out_of_memory"]["memory"];
        assert!(
            memory["grew"]["sites"][0]["site"].is_string() && memory["modules"][0]["module"].is_string(),
            "{incident}"
        );
        let push = receiver.until("the role", |push| push.all("gpu_process_allocator_role_bytes", &[]).count() == 1);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(push.all("gpu_process_allocator_site_bytes", &[]).count(), 0);
        assert!(!push.points.iter().any(|point| format!("{point:?}").contains(SECRET)));
    });
}

#[test]
fn what_cannot_work_is_refused_at_the_start_without_showing_a_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let bad_headers = format!("--otlp.headers-file={}", file("bad", &format!("Host: {SECRET}\n")));
    let no_certificate = format!("--otlp.ca-file={}", file("ca.pem", SECRET));
    let endpoint = "--otlp.endpoint=https://otlp.example";
    let (pipe, certificates) = (folder.path().join("pipe"), folder.path().join("long.pem"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::write(&certificates, vec![b'\n'; (1 << 20) + 1]).unwrap();
    let no_file = format!("--otlp.headers-file={}", pipe.display());
    let no_folder = format!("--otlp.ca-file={}", folder.path().display());
    let too_long = format!("--otlp.ca-file={}", certificates.display());
    let cases: [(&[&str], &str); 12] = [
        (&[endpoint, &no_file], "it is not a regular file"),
        (&[endpoint, &no_folder], "it is not a regular file"),
        (&[endpoint, &too_long], "longer than 1048576 bytes"),
        (&["--otlp.endpoint=localhost:4318"], "must be a URL that begins with http:// or https://, such as"),
        (&["--otlp.endpoint=grpc://localhost:4317"], "http:// or https://"),
        (&["--otlp.endpoint=https://user:s3cr3t-@a"], "otlp.headers-file"),
        (&["--otlp.endpoint=https://a/#part"], "fragment"),
        (&[endpoint, "--otlp.headers-file=/nonexistent"], "/nonexistent"),
        (&[endpoint, &bad_headers], "line 1 names a header that the request sets itself"),
        (&[endpoint, &no_certificate], "otlp.ca-file"),
        (&["--otlp.headers-file=/x"], "given together with otlp.endpoint"),
        (&[endpoint, "--otlp.interval=2m"], "at most memory.peak-window = 1m"),
    ];
    for (flags, words) in cases {
        for action in [&["--check-config"][..], &[]] {
            let refused = assert_refused(&mut bare(&[flags, action].concat()), &[words]);
            assert!(!refused.err.contains(SECRET), "{flags:?}: {}", refused.err);
        }
    }
    let with = |name: &str, value: &[u8], words: &[&str]| {
        let mut command = bare(&[endpoint, "--check-config"]);
        let refused = assert_refused(command.env(name, OsStr::from_bytes(value)), words);
        assert!(refused.err.contains(name) && !refused.err.contains(SECRET), "{}", refused.err);
    };
    with("OTEL_EXPORTER_OTLP_HEADERS", SECRET.as_bytes(), &[]);
    for name in ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"] {
        with(name, b"a=\xff", &["not UTF-8"]);
    }
}

#[test]
fn a_headers_file_that_becomes_a_pipe_costs_the_pushes_only() {
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[]));
    let path = machine.folder.path().join("headers");
    fs::write(&path, "a: b\n").unwrap();
    let exporter = export(&machine, &receiver, &[&format!("--otlp.headers-file={}", path.display())]);
    let [_] = receiver.first();
    fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    exporter.logged("it is not a regular file");
    assert_eq!(exporter.scrape().all("gpu_memory_used_bytes").count(), 1);
    assert!(exporter.terminate().success());
}

#[test]
fn the_printed_configuration_names_the_file_and_shows_no_header() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("headers");
    fs::write(&path, format!("Authorization: Bearer {SECRET}\n")).unwrap();
    let flags = ["--otlp.endpoint=http://localhost:4318", &format!("--otlp.headers-file={}", path.display())];
    for action in ["--print-config", "--check-config"] {
        let mut command = bare(&flags);
        let ended = ended(command.arg(action).env("OTEL_EXPORTER_OTLP_HEADERS", format!("a={SECRET}")));
        let text = ended.out;
        assert!(ended.status == Some(0) && !text.contains(SECRET), "{text}");
        assert_eq!(text.contains(path.to_str().unwrap()), action == "--print-config", "{text}");
    }
}

#[test]
fn without_an_endpoint_nothing_is_pushed_and_nothing_is_shown_about_pushes() {
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[]));
    let mut command = machine.command(&[]);
    // The standard variables alone switch nothing on.
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url());
    let exporter = Exporter::start(command);
    let scrape = exporter.scrape_until("the process", |s| s.all("gpu_process_memory_used_bytes").count() == 1);
    assert!(!scrape.text.contains("otlp"));
    assert!(exporter.terminate().success());
    assert!(receiver.pushes().is_empty());
    // With one, the families and the source of faults are there.
    let exporter = export(&machine, &receiver, &[]);
    let scrape = exporter.scrape();
    assert_eq!(scrape.all("vram_exporter_otlp_pushes_total").count(), 2);
    assert_eq!(scrape.value("vram_exporter_faults_total", &[("source", "otlp")]), Some(0.0));
}
