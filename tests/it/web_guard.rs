//! The whole exporter with a web-config file: which clients it admits over real connections, and what changes while it
//! runs.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::harness::{Answer, Exporter, Scrape, assert_refused, bare, connect, ended, until};
use crate::web_config::handshakes::client;
use crate::web_config::pki::{self, Pki};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

const TLS: &str = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";
const HEADERS: &str = "http_server_config:\n  headers:\n    X-Frame-Options: deny\n";
const ALICE: &str = "basic_auth_users:\n  alice: '@alice@'\n";
/// alice:wonderland
const ALICES: &str = "Authorization: Basic YWxpY2U6d29uZGVybGFuZA==\r\n";
/// alice:wrong
const WRONG: &str = "Authorization: Basic YWxpY2U6d3Jvbmc=\r\n";
/// bob:builder
const BOBS: &str = "Authorization: Basic Ym9iOmJ1aWxkZXI=\r\n";

fn guarded(pki: &Pki, text: &str, more: &[&str]) -> Exporter {
    let flag = format!("--web.config.file={}", pki.config(text).display());
    Exporter::start(bare(&[&["--nvml.library=/nonexistent/x.so.1", flag.as_str()], more].concat()))
}

fn trust(pki: &Pki, shows: &str) -> Arc<ClientConfig> {
    client(pki, shows).config()
}

/// One response over TLS, or why there is none.
fn get(address: SocketAddr, trust: &Arc<ClientConfig>, path: &str, headers: &str) -> std::io::Result<Answer> {
    let session = ClientConnection::new(trust.clone(), ServerName::try_from("localhost").unwrap()).unwrap();
    Answer::ask(StreamOwned::new(session, connect(address)?), "GET", path, headers)
}

/// How many faults of the web server or of its file a scrape shows.
fn faults(answer: &Answer, source: &str, reason: &str) -> f64 {
    assert_eq!(answer.status, 200, "{}", answer.head);
    crate::faults::faults(&Scrape::parse(&answer.body), source, reason)
}

#[test]
fn a_password_over_tls_opens_every_page_and_health_needs_none() {
    let pki = Pki::new();
    let exporter = guarded(&pki, &format!("{TLS}{ALICE}{HEADERS}"), &[]);
    let trust = trust(&pki, "");
    let ask = |path, headers| get(exporter.address, &trust, path, headers).unwrap();
    for path in ["/metrics", "/", "/nowhere"] {
        let refused = ask(path, "");
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, "Basic"), "{path}");
        assert_eq!(refused.header("x-frame-options"), "deny");
        assert!(!refused.body.contains("vram_exporter_"), "{path} reveals something");
        assert_eq!(ask(path, WRONG).status, 401, "{path}");
    }
    for path in ["/healthz", "/readyz"] {
        assert_ne!(ask(path, "").status, 401, "{path}");
    }
    let scrape = ask("/metrics", ALICES);
    assert_eq!((scrape.status, scrape.header("x-frame-options")), (200, "deny"));
    assert_eq!(faults(&scrape, "http", "no_permission"), 3.0, "three wrong passwords; a missing one is not a fault");
    assert_eq!(faults(&scrape, "http", "handshake"), 0.0);
}

/// Everything that a plain connection receives in response to these bytes, until it is closed.
fn plain(address: SocketAddr, sent: &[u8]) -> String {
    let mut stream = connect(address).unwrap();
    stream.write_all(sent).unwrap();
    let mut answer = Vec::new();
    // Closing a connection with unread bytes resets it.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn http_on_a_tls_port_is_refused_with_a_hint_and_nothing_else() {
    let pki = Pki::new();
    let exporter = guarded(&pki, &format!("{TLS}{ALICE}{HEADERS}"), &[]);
    let trust = trust(&pki, "");
    for path in ["/", "/metrics", "/healthz", "/readyz"] {
        let asked = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{ALICES}\r\n").repeat(2);
        let answer = plain(exporter.address, asked.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.matches("HTTP/1.1 ").count() == 1, "{path}: {answer}");
        assert!(answer.ends_with("\r\n\r\nthis port speaks TLS; use https://\n"), "{path}: {answer}");
        assert!(answer.contains("x-frame-options: deny\r\n") && !answer.contains("vram"), "{path}: {answer}");
    }
    // Bytes that are neither TLS nor HTTP get no HTTP response.
    assert!(!plain(exporter.address, b"get / HTTP/1.1\r\nHost: x\r\n\r\n").contains("HTTP"));
    let count = || faults(&get(exporter.address, &trust, "/metrics", ALICES).unwrap(), "http", "handshake");
    until("all five are counted", || count() == 5.0);
}

#[test]
fn an_emptied_or_cut_off_file_admits_no_client_until_a_restart() {
    let pki = Pki::new();
    let text = format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n{ALICE}");
    let exporter = guarded(&pki, &text, &[]);
    let (known, stranger) = (trust(&pki, "client"), trust(&pki, ""));
    let ask = |headers| get(exporter.address, &known, "/metrics", headers).unwrap();
    for (cut, counted) in [("", 1.0), (TLS, 2.0)] {
        pki.config(cut);
        until("the cut-off file is refused", || faults(&ask(ALICES), "web_config", "malformed") == counted);
        assert_eq!(ask("").status, 401, "{cut:?}");
        assert!(get(exporter.address, &stranger, "/metrics", ALICES).is_err(), "{cut:?}");
    }
    exporter.logged("cannot be switched off while the server runs");
    assert!(exporter.terminate().success());

    let exporter = guarded(&pki, TLS, &[]);
    assert_eq!(get(exporter.address, &stranger, "/metrics", "").unwrap().status, 200, "a restart accepts it");
}

#[test]
fn under_client_certificates_probes_have_a_listener_of_their_own() {
    let pki = Pki::new();
    let mutual = format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n");
    let exporter = guarded(&pki, &mutual, &["--web.health-address=127.0.0.1:0"]);
    let with = |shows| get(exporter.address, &trust(&pki, shows), "/metrics", "");
    assert_eq!(with("client").unwrap().status, 200);
    for stranger in ["", "stranger", "expired"] {
        assert!(with(stranger).is_err(), "{stranger:?}");
    }
    assert_eq!(Answer::get(exporter.listener("for probes"), "/healthz").unwrap().status, 200);
}

#[test]
fn a_valid_file_applies_without_a_restart_and_an_invalid_one_never() {
    let pki = Pki::new();
    let exporter = guarded(&pki, &format!("{TLS}{ALICE}"), &[]);
    let old = trust(&pki, "");
    let ask = |trust: &Arc<ClientConfig>, headers| get(exporter.address, trust, "/metrics", headers);
    let status = |headers| ask(&old, headers).unwrap().status;
    assert_eq!([ALICES, BOBS].map(status), [200, 401]);

    fs::write(pki.at("web.yml"), "basic_auth_users: [").unwrap();
    until("the invalid file is counted", || faults(&ask(&old, ALICES).unwrap(), "web_config", "malformed") >= 1.0);
    exporter.logged("web.yml");

    pki.config(&format!("{TLS}basic_auth_users:\n  bob: '@bob@'\n"));
    until("bob is admitted", || status(BOBS) == 200);
    assert_eq!(status(ALICES), 401);

    exporter.signal(nix::sys::signal::Signal::SIGHUP);
    exporter.logged("signal=SIGHUP");

    let another = pki::ca("another CA");
    pki.leaf(&another, "server", &pki::SERVER);
    until("the new certificate is in use", || ask(&old, BOBS).is_err());
    fs::write(pki.at("ca.crt"), another.pem()).unwrap();
    assert_eq!(ask(&trust(&pki, ""), BOBS).unwrap().status, 200);
    assert!(exporter.terminate().success());
}

#[test]
fn an_invalid_file_ends_the_start_with_the_usage_exit_code() {
    let pki = Pki::new();
    for (text, why) in
        [("tls_server_config:\n  cert_file: server.crt\n", "key"), ("basic_auth_users: 7\n", "basic_auth_users")]
    {
        let flag = format!("--web.config-file={}", pki.config(text).display());
        for action in [&[][..], &["--check-config"], &["--once"]] {
            assert_refused(bare(&[&flag]).args(action), &["web.yml", why]);
        }
    }
    let good = format!("--web.config-file={}", pki.config(&format!("{TLS}{ALICE}")).display());
    let checked = ended(&mut bare(&[&good, "--check-config"]));
    assert!(checked.status == Some(0) && checked.out.contains("web-config"), "{checked:?}");
}
