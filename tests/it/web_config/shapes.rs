//! Every shape of the file, one row each: whether it is accepted and, if not, the message with which it is
//! refused.

use std::collections::BTreeSet;
use std::fs;

use web_config::{ClientAuth, Guard};

use super::pki::{Pki, fixtures};

/// Fixtures, and the text that their refusal contains in addition to the name of the file.
const REFUSED: [(&str, &str); 40] = [
    ("junk", "line 1"),
    ("unknown_key", "line 2, cert_fille"),
    ("duplicate_key", "line 4, key_file"),
    ("wrong_type", "line 2, http2"),
    ("aliases_too_many", "line 38, cipher_suites: YAML document too large or too complex"),
    ("cert_file_empty", "one of cert and cert_file is missing"),
    ("cert_empty", "one of cert and cert_file is missing"),
    ("key_file_empty", "one of key and key_file is missing"),
    ("key_empty", "one of key and key_file is missing"),
    ("both_empty", "one of cert and cert_file is missing"),
    ("versions_without_cert", "one of cert and cert_file is missing"),
    ("cert_file_absent", "tls_server_config.cert_file: "),
    ("key_file_absent", "tls_server_config.key_file: "),
    ("both_absent", "absent.crt cannot be read: No such file"),
    ("cert_twice", "tls_server_config.cert: is given together with tls_server_config.cert_file"),
    ("key_of_another", "tls_server_config.key_file: is not the key of the certificate"),
    ("client_sans_unverified", "client_allowed_sans: needs client_auth_type RequireAndVerifyClientCert"),
    ("client_sans_if_given", "client_allowed_sans: needs client_auth_type RequireAndVerifyClientCert"),
    ("client_unknown_policy", "client_auth_type: unknown policy \"RequireNiceClientCert\""),
    ("client_ca_absent", "absent.crt cannot be read: No such file"),
    ("client_ca_without_policy", "client_auth_type: is missing although there are CAs for clients"),
    ("client_ca_missing", "only Go falls back to the system's CAs"),
    ("client_ca_without_certificate", "client_ca_file: contains no certificate in PEM"),
    ("ciphers_invented", "unknown cipher suite \"TLS_ECDHE_ECDSA_WITH_AES_512_GCM_SHA512\""),
    ("ciphers_go_alone", "only Go supports this cipher suite; add one of TLS_AES_128_GCM_SHA256"),
    ("ciphers_no_http2", "add one, or set http_server_config.http2: false"),
    ("curves_go_alone", "CurveP521: only Go supports this curve; add one of CurveP256, CurveP384, X25519"),
    ("curves_invented", "unknown curve \"CurveP42\""),
    ("version_invented", "unknown TLS version \"TLS121\""),
    ("version_old", "min_version: TLS10 is not supported, as RFC 8996 requires; set TLS12 or TLS13"),
    ("version_old_at_most", "max_version: TLS11 is not supported, as RFC 8996 requires; set TLS12 or TLS13"),
    ("version_order", "min_version: is above max_version"),
    ("headers_other", "headers.Server: this header cannot be set, only Content-Security-Policy"),
    ("headers_frame", "headers.X-Frame-Options: the value must be deny or sameorigin"),
    ("headers_sniff", "headers.X-Content-Type-Options: the value must be nosniff"),
    ("headers_two_lines", "headers.X-XSS-Protection: the value must be one line of printable ASCII"),
    ("users_plain_password", "basic_auth_users.alice: is not a bcrypt hash"),
    ("users_cost", "basic_auth_users.alice: the cost 31 is not between 4 and 18"),
    ("rate_negative", "line 2, interval"),
    ("rate_unitless", "line 2, interval"),
];

/// Fixtures that are accepted: the requirement for clients (`None`: plain HTTP), users, headers, limit, notes.
type Accepted = (Option<ClientAuth>, usize, usize, bool, usize);
const TLS: Option<ClientAuth> = Some(ClientAuth::NoClientCert);
const VERIFY: Option<ClientAuth> = Some(ClientAuth::RequireAndVerifyClientCert);
const ACCEPTED: [(&str, Accepted); 27] = [
    ("empty", (None, 0, 0, false, 0)),
    ("comment", (None, 0, 0, false, 0)),
    ("tls", (TLS, 0, 0, false, 0)),
    ("tls_inline", (TLS, 0, 0, false, 0)),
    ("tls_key_inline", (Some(ClientAuth::RequireAnyClientCert), 0, 0, false, 0)),
    ("client_any", (Some(ClientAuth::RequireAnyClientCert), 0, 0, false, 0)),
    ("client_any_old_name", (Some(ClientAuth::RequireAnyClientCert), 0, 0, false, 0)),
    ("client_request", (Some(ClientAuth::RequestClientCert), 0, 0, false, 0)),
    ("client_verify", (VERIFY, 0, 0, false, 0)),
    ("client_verify_inline", (VERIFY, 0, 0, false, 0)),
    ("client_verify_self_signed", (VERIFY, 0, 0, false, 0)),
    ("client_if_given", (Some(ClientAuth::VerifyClientCertIfGiven), 0, 0, false, 0)),
    ("client_if_given_no_ca", (Some(ClientAuth::VerifyClientCertIfGiven), 0, 0, false, 1)),
    ("client_sans", (VERIFY, 0, 0, false, 0)),
    ("ciphers_all", (TLS, 0, 0, false, 1)),
    ("ciphers_some", (TLS, 0, 0, false, 0)),
    ("ciphers_some_client_order", (TLS, 0, 0, false, 0)),
    ("ciphers_http2_off", (TLS, 0, 0, false, 0)),
    ("curves_all", (TLS, 0, 0, false, 1)),
    ("curves_some", (TLS, 0, 0, false, 0)),
    ("version_13", (TLS, 0, 0, false, 0)),
    ("headers", (None, 0, 5, false, 0)),
    ("users", (None, 2, 0, false, 1)),
    ("users_tls", (TLS, 1, 0, false, 0)),
    ("rate_none", (None, 0, 0, false, 0)),
    ("rate_nothing", (None, 0, 0, true, 1)),
    ("rate_nanoseconds", (None, 0, 0, true, 0)),
];

#[test]
fn an_invalid_file_is_refused_with_a_helpful_message() {
    let pki = Pki::new();
    for (shape, message) in REFUSED {
        let file = pki.fixture(&format!("{shape}.bad.yml"));
        let Err(error) = Guard::check(&file) else { panic!("{shape} was accepted") };
        let error = error.to_string();
        assert!(error.contains(message), "{shape}: {error}");
        assert!(error.starts_with(file.to_str().unwrap()), "{shape}: {error}");
        assert!(error.lines().count() == 1 && !error.contains("PRIVATE"), "{shape}: {error}");
    }
}

#[test]
fn a_valid_file_is_accepted_as_intended() {
    let pki = Pki::new();
    for (shape, (client_auth, users, headers, rate_limit, notes)) in ACCEPTED {
        let summary = Guard::check(&pki.fixture(&format!("{shape}.good.yml"))).unwrap();
        let accepted = (summary.client_auth, summary.users, summary.headers, summary.rate_limit, summary.notes.len());
        assert_eq!(accepted, (client_auth, users, headers, rate_limit, notes), "{shape}: {:?}", summary.notes);
    }
}

#[test]
fn every_fixture_has_its_row() {
    let rows: BTreeSet<String> = ACCEPTED
        .iter()
        .map(|(shape, _)| format!("{shape}.good.yml"))
        .chain(REFUSED.iter().map(|(shape, _)| format!("{shape}.bad.yml")))
        .collect();
    let files: BTreeSet<String> =
        fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(files, rows);
}

#[test]
fn the_headers_are_those_of_the_file() {
    let pki = Pki::new();
    let guard = super::pki::open(&pki.fixture("headers.good.yml")).unwrap();
    let headers: Vec<_> =
        guard.headers().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    let expected = [
        "content-security-policy: default-src 'none'",
        "strict-transport-security: max-age=600",
        "x-content-type-options: nosniff",
        "x-frame-options: sameorigin",
        "x-xss-protection: 0",
    ];
    assert_eq!(headers, expected);
}

#[test]
fn without_a_file_there_is_no_guard() {
    let guard = Guard::open(None, |_| ()).unwrap();
    assert!(guard.tls().is_none() && guard.headers().is_empty());
    assert!(!guard.reload().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(guard.admit(&axum::http::HeaderMap::new())), Ok(()));
    let absent = std::path::Path::new("/nowhere/web.yml");
    assert!(Guard::check(absent).unwrap_err().to_string().contains("/nowhere/web.yml: cannot be read: No such file"));
}
