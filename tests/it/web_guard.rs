//! The whole exporter with a web-config file: which clients it admits over real connections, and what changes while it
//! runs.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::Arc;

use crate::harness::{Exporter, PATIENCE, bare, eventually};
use crate::web_config::pki::{self, Pki};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const TLS: &str = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";
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

fn trust(pki: &Pki, shows: Option<&str>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pki.at("ca.crt")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    Arc::new(match shows {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let chain = vec![CertificateDer::from_pem_file(pki.at(&format!("{name}.crt"))).unwrap()];
            let key = PrivateKeyDer::from_pem_file(pki.at(&format!("{name}.key"))).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    })
}

/// One response over TLS, or why there is none.
fn get(address: SocketAddr, trust: &Arc<ClientConfig>, path: &str, headers: &str) -> std::io::Result<String> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let session = ClientConnection::new(trust.clone(), ServerName::try_from("localhost").unwrap()).unwrap();
    let mut stream = StreamOwned::new(session, stream);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

fn faults(scrape: &str, source: &str, reason: &str) -> u64 {
    let series = format!("vram_exporter_faults_by_reason_total{{source=\"{source}\",reason=\"{reason}\"}} ");
    scrape.lines().find_map(|line| line.strip_prefix(&series)).map_or(0, |count| count.parse().unwrap())
}

#[test]
fn a_password_over_tls_opens_every_page_and_health_needs_none() {
    let pki = Pki::new();
    let headers = "http_server_config:\n  headers:\n    X-Frame-Options: deny\n";
    let exporter = guarded(&pki, &format!("{TLS}{ALICE}{headers}"), &[]);
    let trust = trust(&pki, None);
    let ask = |path, headers| get(exporter.address, &trust, path, headers).unwrap();
    for path in ["/metrics", "/", "/nowhere"] {
        let refused = ask(path, "");
        assert_eq!(status(&refused), 401, "{path}");
        assert!(refused.contains("www-authenticate: Basic\r\n") && refused.contains("x-frame-options: deny\r\n"));
        assert!(!refused.contains("vram_exporter_"), "{path} reveals something");
        assert_eq!(status(&ask(path, WRONG)), 401, "{path}");
    }
    for path in ["/healthz", "/readyz"] {
        assert_ne!(status(&ask(path, "")), 401, "{path}");
    }
    let scrape = ask("/metrics", ALICES);
    assert_eq!(status(&scrape), 200);
    assert!(scrape.contains("x-frame-options: deny\r\n"));
    assert_eq!(faults(&scrape, "http", "no_permission"), 3, "three wrong passwords; a missing one is not a fault");
    assert_eq!(faults(&scrape, "http", "handshake"), 0);

    let plain = exporter.get("/metrics").unwrap();
    assert_eq!((plain.status, plain.body.as_str()), (400, "this port speaks TLS; use https://\n"));
    let scrape = eventually("the handshake is counted", || {
        Some(ask("/metrics", ALICES)).filter(|scrape| faults(scrape, "http", "handshake") == 1)
    });
    assert_eq!(status(&scrape), 200);
}

/// Everything that a plain connection receives in response to these bytes, until it is closed.
fn plain(address: SocketAddr, sent: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(sent).unwrap();
    let mut answer = Vec::new();
    // Closing a connection with unread bytes resets it.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn http_on_a_tls_port_is_refused_with_a_hint_and_nothing_else() {
    let pki = Pki::new();
    let headers = "http_server_config:\n  headers:\n    X-Frame-Options: deny\n";
    let exporter = guarded(&pki, &format!("{TLS}{ALICE}{headers}"), &[]);
    let trust = trust(&pki, None);
    for path in ["/", "/metrics", "/healthz", "/readyz"] {
        let asked = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{ALICES}\r\n").repeat(2);
        let answer = plain(exporter.address, asked.as_bytes());
        assert_eq!((status(&answer), answer.matches("HTTP/1.1 ").count()), (400, 1), "{path}: {answer}");
        assert!(answer.contains("https://") && answer.contains("x-frame-options: deny\r\n"), "{answer}");
        assert!(!answer.contains("vram"), "{path}: {answer}");
    }
    // Bytes that are neither TLS nor HTTP get no HTTP response.
    assert!(!plain(exporter.address, b"get / HTTP/1.1\r\nHost: x\r\n\r\n").contains("HTTP"));
    eventually("all five are counted", || {
        let scrape = get(exporter.address, &trust, "/metrics", ALICES).unwrap();
        (faults(&scrape, "http", "handshake") == 5).then_some(())
    });
}

#[test]
fn an_emptied_or_cut_off_file_admits_no_client_until_a_restart() {
    let pki = Pki::new();
    let text = format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n{ALICE}");
    let exporter = guarded(&pki, &text, &[]);
    let (known, stranger) = (trust(&pki, Some("client")), trust(&pki, None));
    let ask = |headers| get(exporter.address, &known, "/metrics", headers).unwrap();
    for (cut, counted) in [("", 1), (TLS, 2)] {
        pki.config(cut);
        eventually("the cut-off file is refused", || {
            (faults(&ask(ALICES), "web_config", "malformed") == counted).then_some(())
        });
        assert_eq!(status(&ask("")), 401, "{cut:?}");
        assert!(get(exporter.address, &stranger, "/metrics", ALICES).is_err(), "{cut:?}");
    }
    exporter.logged("cannot be switched off while the server runs");
    assert!(exporter.terminate().success());

    let exporter = guarded(&pki, TLS, &[]);
    assert_eq!(status(&get(exporter.address, &stranger, "/metrics", "").unwrap()), 200, "a restart accepts it");
}

#[test]
fn passwords_stay_when_the_file_is_emptied() {
    let pki = Pki::new();
    let exporter = guarded(&pki, ALICE, &[]);
    let ask = |headers: &str| {
        plain(
            exporter.address,
            format!("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n").as_bytes(),
        )
    };
    assert_eq!(status(&ask("")), 401);
    pki.config("");
    eventually("the empty file is refused", || (faults(&ask(ALICES), "web_config", "malformed") == 1).then_some(()));
    assert_eq!(status(&ask("")), 401);
    pki.config("basic_auth_users:\n  bob: '@bob@'\n");
    eventually("the next file is accepted", || (status(&ask(BOBS)) == 200).then_some(()));
    assert_eq!(status(&ask(ALICES)), 401);
}

#[test]
fn under_client_certificates_probes_have_a_listener_of_their_own() {
    let pki = Pki::new();
    let mutual = format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n");
    let exporter = guarded(&pki, &mutual, &["--web.health-address=127.0.0.1:0"]);
    let with = |shows| get(exporter.address, &trust(&pki, shows), "/metrics", "");
    assert_eq!(status(&with(Some("client")).unwrap()), 200);
    for stranger in [None, Some("stranger"), Some("expired")] {
        assert!(with(stranger).is_err(), "{stranger:?}");
    }
    let probes: SocketAddr = eventually("the log names it", || {
        let log = exporter.log();
        let line = log.lines().find(|line| line.contains("for probes"))?;
        line.split("address=").nth(1)?.split_whitespace().next()?.trim_matches('"').parse().ok()
    });
    let mut plain = TcpStream::connect(probes).unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    plain.read_to_string(&mut text).unwrap();
    assert_eq!(status(&text), 200);
}

#[test]
fn a_valid_file_applies_without_a_restart_and_an_invalid_one_never() {
    let pki = Pki::new();
    let exporter = guarded(&pki, &format!("{TLS}{ALICE}"), &[]);
    let old = trust(&pki, None);
    let ask = |trust: &Arc<ClientConfig>, headers| get(exporter.address, trust, "/metrics", headers);
    assert_eq!(status(&ask(&old, ALICES).unwrap()), 200);
    assert_eq!(status(&ask(&old, BOBS).unwrap()), 401);

    fs::write(pki.at("web.yml"), "basic_auth_users: [").unwrap();
    let scrape = eventually("the invalid file is counted", || {
        Some(ask(&old, ALICES).unwrap()).filter(|scrape| faults(scrape, "web_config", "malformed") >= 1)
    });
    assert_eq!(status(&scrape), 200);
    exporter.logged("web.yml");

    pki.config(&format!("{TLS}basic_auth_users:\n  bob: '@bob@'\n"));
    eventually("bob is admitted", || (status(&ask(&old, BOBS).unwrap()) == 200).then_some(()));
    assert_eq!(status(&ask(&old, ALICES).unwrap()), 401);

    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(exporter.pid().try_into().unwrap()),
        nix::sys::signal::Signal::SIGHUP,
    )
    .unwrap();
    eventually("SIGHUP is followed", || exporter.log().contains("signal=SIGHUP").then_some(()));

    let another = pki::ca("another CA");
    pki.leaf(&another, "server", &pki::SERVER);
    eventually("the new certificate is in use", || ask(&old, BOBS).is_err().then_some(()));
    fs::write(pki.at("ca.crt"), another.pem()).unwrap();
    assert_eq!(status(&ask(&trust(&pki, None), BOBS).unwrap()), 200);
    assert!(exporter.terminate().success());
}

#[test]
fn an_invalid_file_ends_the_start_with_the_usage_exit_code() {
    let pki = Pki::new();
    for (text, why) in
        [("tls_server_config:\n  cert_file: server.crt\n", "key"), ("basic_auth_users: 7\n", "basic_auth_users")]
    {
        let flag = format!("--web.config-file={}", pki.config(text).display());
        for action in [None, Some("--check-config"), Some("--once")] {
            let flags: Vec<&str> = [flag.as_str()].into_iter().chain(action).collect();
            let output = bare(&flags).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
            let output_text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(64), "{action:?}: {output_text}");
            assert!(output_text.contains("web.yml") && output_text.contains(why), "{output_text}");
        }
    }
    let good = format!("--web.config-file={}", pki.config(&format!("{TLS}{ALICE}")).display());
    let output = bare(&[&good, "--check-config"]).stdout(Stdio::piped()).output().unwrap();
    let output_text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output_text.contains("web-config"), "{output_text}");
}
