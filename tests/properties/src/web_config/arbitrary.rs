//! Web-config files built from the format's own keys. Most of each file is valid, so that parsing gets to the invalid
//! part.

use super::SECRET;
use crate::choices::{Choose, Unstructured};

/// Values with a special meaning in YAML or in the format.
const MEANING: [&str; 24] = [
    "",
    "~",
    "null",
    "true",
    "no",
    "7",
    "-7",
    "1.5",
    "0x1f",
    "18446744073709551616",
    "\"\"",
    "\"\\n\"",
    "\"\\0\"",
    "[]",
    "{}",
    "[a, [b]]",
    "{a: b}",
    "&a x",
    "*a",
    "<<: *a",
    "!!binary aGk=",
    "|\n    x\n    y",
    ">-\n    x",
    "'\u{85}\u{2028}\u{202e}'",
];
const INTERVALS: &str = "1s 100ms 0 0s 1m30s 1.5h 7 -1s 1d .s 9223372036854775807ns 2562048h 1\u{b5}s +5s";
const VERSIONS: [&str; 7] = ["TLS12", "TLS13", "TLS12", "TLS10", "TLS11", "TLS14", "1.2"];
const SUITES: [&str; 6] = [
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "x",
    "",
];
const CURVES: [&str; 5] = ["CurveP256", "X25519", "CurveP384", "CurveP521", "x"];
const AUTHS: [&str; 8] = [
    "NoClientCert",
    "RequestClientCert",
    "RequireAnyClientCert",
    "RequireClientCert",
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
    "x",
    "",
];
const HEADERS: [&str; 7] = [
    "X-Frame-Options: deny",
    "X-Content-Type-Options: nosniff",
    "X-XSS-Protection: 1",
    "Strict-Transport-Security: max-age=31536000",
    "Content-Security-Policy: \"default-src 'self'\"",
    "X-Frame-Options: allow",
    "Server: x",
];

pub(super) fn file(u: &mut Unstructured<'_>) -> Vec<u8> {
    let mut text = u.pick(&["", "---\n", "# x\n", "\u{feff}", "%YAML 1.2\n---\n", "a: &a b\n"]).to_owned();
    for part in [users, limit, headers, tls] {
        if u.once_in(2) {
            part(&mut text, u);
        }
    }
    if u.once_in(8) {
        text += &u.text(60);
    }
    text.into_bytes()
}

/// The value, or sometimes a different one.
fn value(u: &mut Unstructured<'_>, value: &str) -> String {
    match u.below(24) {
        1 => u.pick(&MEANING).to_owned(),
        2 => u.text(40),
        3 => format!("{:?}", u.text(200)),
        _ => value.to_owned(),
    }
}

fn users(text: &mut String, u: &mut Unstructured<'_>) {
    *text += "basic_auth_users:\n";
    for _ in 0..u.below(4) {
        let name = if u.once_in(4) { format!("{:?}", u.text(40)) } else { u.pick(&["a", "b"]).to_owned() };
        let hash = hash(u);
        *text += &format!("  {name}: {}\n", value(u, &hash));
    }
}

fn hash(u: &mut Unstructured<'_>) -> String {
    let kind = u.pick(&["2b", "2a", "2y", "2x", "1", ""]);
    let cost = if u.once_in(2) { u.pick(&["10", "04", "12", "18", "4"]).to_owned() } else { line(u, 3) };
    // A salt of 22 characters; a multi-byte character may straddle the position where the hash begins.
    let salt = match u.below(4) {
        0 => format!("{}\u{e9}{}", "a".repeat(u.below(22)), "b".repeat(u.below(24))),
        1 => line(u, 30),
        _ => "N9qo8uLOickgx2ZMRZoMye".to_owned(),
    };
    let end = if u.once_in(8) { &SECRET[1..] } else { SECRET };
    let quote = u.pick(&["", "\"", "'"]);
    format!("{quote}${kind}${cost}${salt}{end}{quote}")
}

/// A string without line breaks, so that the rest of the line stays a value.
fn line(u: &mut Unstructured<'_>, most: usize) -> String {
    u.text(most).replace(|c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}'), " ")
}

fn limit(text: &mut String, u: &mut Unstructured<'_>) {
    let interval = u.word(INTERVALS);
    let burst = if u.once_in(3) { u.number().to_string() } else { u.byte().to_string() };
    *text += &format!("rate_limit:\n  interval: {}\n  burst: {}\n", value(u, interval), value(u, &burst));
}

fn headers(text: &mut String, u: &mut Unstructured<'_>) {
    *text += "http_server_config:\n";
    if u.once_in(2) {
        *text += &format!("  http2: {}\n", value(u, "false"));
    }
    *text += "  headers:\n";
    for _ in 0..u.below(4) {
        let header = u.pick(&HEADERS);
        *text += &format!("    {}\n", value(u, header));
    }
}

fn tls(text: &mut String, u: &mut Unstructured<'_>) {
    *text += "tls_server_config:\n";
    for key in ["cert_file", "key_file", "client_ca_file", "cert", "key", "client_ca"] {
        if u.once_in(4) {
            let pem =
                format!("\"-----BEGIN CERTIFICATE-----\\n{}\\n-----END CERTIFICATE-----\\n\"", base64(u.up_to(60)));
            let file = u.pick(&["web.yml", "nowhere.pem", "..", "/dev/null", "\"a\\nb\""]);
            let given = if key.ends_with("file") { file } else { &pem };
            *text += &format!("  {key}: {}\n", value(u, given));
        }
    }
    for (key, words) in [
        ("client_auth_type", &AUTHS[..]),
        ("min_version", &VERSIONS),
        ("max_version", &VERSIONS),
        ("prefer_server_cipher_suites", &["true"]),
    ] {
        if u.once_in(4) {
            let word = u.pick(words);
            *text += &format!("  {key}: {}\n", value(u, word));
        }
    }
    for (key, words) in [
        ("cipher_suites", &SUITES[..]),
        ("curve_preferences", &CURVES),
        ("client_allowed_sans", &["a.example", "127.0.0.1"]),
    ] {
        if u.once_in(4) {
            let list: Vec<_> = (0..u.below(4)).map(|_| u.pick(words)).collect();
            *text += &format!("  {key}: {}\n", value(u, &format!("[{}]", list.join(", "))));
        }
    }
}

/// RFC 4648, section 4.
pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let number = (0..3).fold(0, |number, at| number << 8 | usize::from(group.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let digit = DIGITS[number >> (18 - 6 * at) & 63];
            text.push(if at <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}
