//! What the exporter and its commands refuse to connect to, what they never show of a URL or a header, and what a server can make them do.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

use crate::harness::{Exporter, Machine, assert_refused, bare, ended, tool};
use crate::web_config::pki::{Pki, SERVER};

const SECRET: &str = "s3cr3t-t0ken";
/// More than a server may make the exporter read, with the buffers of the system.
const FLOOD: usize = 64 << 20;

/// The command lines that connect to `url`, each with the word that its refusal names. The last arguments make each end if
/// the URL is accepted.
fn connecting(url: &str) -> [(Vec<String>, &'static str); 4] {
    let line = |args: &[&str]| args.iter().map(|arg| arg.replace("URL", url)).collect();
    [
        (line(&["--otlp.endpoint=URL", "--check-config"]), "otlp.endpoint"),
        (line(&["--kubernetes.node-name=a", "--kubernetes.api-server=URL", "--check-config"]), "kubernetes.api-server"),
        (line(&["report", "--job=1", "--timeout=1", "--url=URL"]), "--url"),
        (line(&["advise", "--timeout=1s", "--prometheus.url=URL"]), "--prometheus.url"),
    ]
}

fn said(command: &mut Command) -> (Option<i32>, String) {
    let ended = ended(command);
    (ended.status, ended.out + &ended.err)
}

/// The tool if the first argument is one of its subcommands, otherwise the exporter.
fn program(args: &[impl AsRef<str>]) -> Command {
    let args: Vec<_> = args.iter().map(AsRef::as_ref).collect();
    let is_tool = args.first().is_some_and(|first| ["report", "advise", "run"].contains(first));
    if is_tool { tool(&args) } else { bare(&args) }
}

#[test]
fn a_url_that_names_no_port_of_a_host_is_refused_before_anything_is_sent() {
    let ports = ["", "0", "65536", "99999", "4294967376", "+80", "080", "-1", "8O", "80:80"]
        .map(|port| format!("https://localhost:{port}"));
    let hosts =
        ["", ":80", "a b", "[::1", "::1", "127.1", "0x7f.1", "[::1%25lo]:80"].map(|host| format!("https://{host}"));
    for url in ports.iter().chain(&hosts) {
        for (args, key) in connecting(url) {
            assert_refused(&mut program(&args), &[key, "must "]);
        }
    }
}

#[test]
fn what_could_be_secret_in_a_url_is_refused_and_not_shown() {
    let urls = [
        "https://me:SECRET@a",
        "https://SECRET@a:1",
        "https://me:x/SECRET@a",
        "https://a/?key=SECRET",
        "https://a/#SECRET",
    ];
    let refused = |command: &mut Command, words: &[&str]| {
        let refused = assert_refused(command, words);
        assert!(!(refused.out + &refused.err).contains("s3cr3t"), "{command:?}: {}", refused.err);
    };
    for url in urls.map(|url| url.replace("SECRET", SECRET)) {
        for (args, key) in connecting(&url) {
            refused(&mut program(&args), &[key]);
        }
    }
    let url = format!("https://me:{SECRET}@a");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.toml");
    for text in [
        format!("[otlp]\nendpoint = \"{url}\"\n"),
        format!("[otlp]\nendpoint = [\"{url}\"]\n"),
        format!("[otlp]\nendpiont = \"{url}\"\n"),
    ] {
        fs::write(&file, text).unwrap();
        refused(bare(&["--check-config"]).arg(format!("--config.file={}", file.display())), &[]);
    }
    refused(bare(&["--check-config"]).env("VRAM_EXPORTER_OTLP_ENDPOINT", &url), &[]);
    // Where no URL is expected.
    for args in [
        &["--check-config"][..],
        &["report", "--job=1"],
        &["advise"],
        &["run", "--rate"],
        &["scenarios"],
        &["--log.level"],
        &["--otlp.endpont"],
    ] {
        refused(program(args).arg(&url), &[]);
    }
}

#[test]
fn no_argument_changes_a_terminal_or_the_direction_of_text() {
    let hostile = "--fo\u{202e}o\u{61c}\u{1b}[31m\u{9b}\u{200b}";
    for args in [&[][..], &["report"], &["advise"], &["run"], &["scenarios"], &["completions"]] {
        let (status, said) = said(program(args).arg(hostile));
        assert_eq!(status, Some(64), "{args:?}: {said}");
        let obeyed = ['\u{202e}', '\u{61c}', '\u{1b}', '\u{9b}', '\u{200b}'];
        assert!(!said.contains(obeyed) && said.contains("\\u{202e}"), "{args:?}: {said:?}");
    }
}

#[test]
fn a_password_in_a_header_is_not_shown_in_any_form_in_which_a_receiver_repeats_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // ada:s3cr3t-t0ken
    let text =
        "no: ada:s3cr3t-t0ken, s3cr3t-t0ken, s3cr3t%2Dt0ken, YWRhOnMzY3IzdC10MGtlbg, czNjcjN0LXQwa2Vu, \u{202e}end";
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // The head and the beginning of the push.
            let _ = stream.read(&mut [0; 1 << 16]);
            let head = format!("HTTP/1.1 401 No\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes()));
            // The rest of the push, so that the answer is not lost with a reset.
            let _ =
                stream.shutdown(std::net::Shutdown::Write).and_then(|()| stream.read_to_end(&mut Vec::new()).map(drop));
        }
    });
    let machine = Machine::built_in("idle-h200");
    let path = machine.folder.path().join("headers");
    fs::write(&path, "Authorization: Basic YWRhOnMzY3IzdC10MGtlbg==\n").unwrap();
    let exporter = machine.export(&[
        &format!("--otlp.endpoint=http://{address}"),
        &format!("--otlp.headers-file={}", path.display()),
        "--otlp.interval=1s",
        "--memory.peak-window=1s",
        "--log.level=trace",
    ]);
    exporter.logged("answered 401");
    let log = exporter.log();
    assert!(log.contains("[redacted]"), "{log}");
    for part in ["s3cr3t", "t0ken", "YWRhOnMz", "czNjcjN0", "\u{202e}"] {
        assert!(!log.contains(part), "{part}: {log}");
    }
}

#[test]
fn a_receiver_that_floods_interim_responses_costs_one_attempt() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, floods) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // A response before its request is none.
            let mut request = Vec::new();
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                let mut bytes = [0; 4096];
                let count = stream.read(&mut bytes).unwrap();
                request.extend_from_slice(&bytes[..count]);
            }
            let interim = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
            let mut written = 0;
            while written < FLOOD && stream.write_all(&interim).is_ok() {
                written += interim.len();
            }
            sender.send(written).unwrap();
        }
    });
    let endpoint = format!("--otlp.endpoint=http://{address}");
    let exporter = Machine::built_in("idle-h200").export(&[&endpoint, "--otlp.interval=1s", "--memory.peak-window=1s"]);
    let written = floods.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    assert!(written < FLOOD, "{written} bytes of interim responses were read");
    exporter.logged("much more than an answer needs");
    exporter.scrape_until("the fault", |s| s.value("vram_exporter_faults_total", &[("source", "otlp")]) > Some(0.0));
    assert!(exporter.terminate().success());
}

#[test]
fn a_server_s_own_certificate_is_trusted_if_it_is_named() {
    let pki = Pki::new();
    // As `openssl req -x509` makes them: each is its own authority.
    pki.self_signed("server", &SERVER);
    pki.self_signed("other", &SERVER);
    let file = pki.config("tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n");
    let flag = format!("--web.config.file={}", file.display());
    let exporter = Exporter::start(bare(&["--nvml.library=/nonexistent/x.so.1", &flag]));
    for (host, ca, status, words) in [
        ("localhost", "server.crt", 2, "no report about job 77"),
        ("localhost", "other.crt", 1, "cannot be asked"),
        ("127.0.0.1", "server.crt", 1, "cannot be asked"),
    ] {
        let url = format!("--url=https://{host}:{}", exporter.address.port());
        fs::write(pki.at("http.yml"), format!("tls_config: {{ca_file: {ca}}}\n")).unwrap();
        let access = format!("--http-config={}", pki.at("http.yml").display());
        let (found, told) = said(&mut tool(&["report", "--job=77", &url, &access]));
        assert!(found == Some(status) && told.contains(words), "{host} {ca}: {told}");
    }
}

#[test]
fn the_check_names_what_would_not_work_on_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fields.csv");
    fs::write(&file, "DCGM_FI_DEV_GPU_TEMP, gauge, t\nDCGM_FI_DEV_UNHEARD_OF, gauge, u\n").unwrap();
    let absent = folder.path().join("absent");
    let absent = absent.display();
    for (flags, words) in [
        (vec![format!("--recorder.path={absent}")], "recorder.path: "),
        (vec![format!("--recorder.reports-path={absent}")], "recorder.reports-path: "),
        (vec![format!("--allocator.socket={absent}/a.sock")], "allocator.socket: "),
        (vec![format!("--web.listen-address=unix:{absent}/w.sock")], "web.listen-address: "),
        (vec![format!("--web.health-address=unix:{absent}/h.sock")], "web.health-address: "),
        (vec![format!("--kubernetes.pod-resources={absent}/k.sock")], "kubernetes.pod-resources: "),
        (
            vec![
                "--kubernetes.node-name=a".to_owned(),
                "--kubernetes.api-server=https://a".to_owned(),
                format!("--kubernetes.ca-file={absent}"),
            ],
            "kubernetes.ca-file: ",
        ),
        (
            vec!["--dcgm.listen-address=:0".to_owned(), format!("--dcgm.collectors-file={}", file.display())],
            "DCGM_FI_DEV_UNHEARD_OF",
        ),
    ] {
        let (status, said) = said(program(&flags).arg("--check-config"));
        assert!(status == Some(0) && said.contains("configuration is valid"), "{flags:?}: {said}");
        assert!(said.contains("warning: ") && said.contains(words), "{flags:?}: {said}");
    }
    let (status, quiet) = said(bare(&["--check-config"]).arg(format!("--recorder.path={}", folder.path().display())));
    assert!(status == Some(0) && !quiet.contains("warning"), "{quiet}");
    for key in ["recorder.path", "recorder.reports-path"] {
        for path in ["/proc/1/mem", "/dev/null", file.to_str().unwrap()] {
            assert_refused(bare(&["--check-config"]).arg(format!("--{key}={path}")), &["is not a folder", key]);
        }
    }
}
