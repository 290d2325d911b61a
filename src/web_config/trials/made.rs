//! Web-config files made of the format's own keys: most of a file is right, so that what is wrong with it is looked at.

use super::SECRET;
use crate::trials::Pieces;

/// Values that mean something to YAML or to the format.
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
const INTERVALS: [&str; 14] = [
    "1s",
    "100ms",
    "0",
    "0s",
    "1m30s",
    "1.5h",
    "7",
    "-1s",
    "1d",
    ".s",
    "9223372036854775807ns",
    "2562048h",
    "1\u{b5}s",
    "+5s",
];
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

pub(super) fn file(pieces: &mut Pieces<'_>) -> Vec<u8> {
    let mut text = pieces.pick(&["", "---\n", "# x\n", "\u{feff}", "%YAML 1.2\n---\n", "a: &a b\n"]).to_owned();
    for part in [users, limit, headers, tls] {
        if pieces.once_in(2) {
            part(&mut text, pieces);
        }
    }
    if pieces.once_in(8) {
        text += &pieces.text(60);
    }
    text.into_bytes()
}

/// The value, or now and then another one.
fn value(pieces: &mut Pieces<'_>, value: &str) -> String {
    match pieces.below(24) {
        1 => pieces.pick(&MEANING).to_owned(),
        2 => pieces.text(40),
        3 => format!("{:?}", pieces.text(200)),
        _ => value.to_owned(),
    }
}

fn users(text: &mut String, pieces: &mut Pieces<'_>) {
    *text += "basic_auth_users:\n";
    for _ in 0..pieces.below(4) {
        let name =
            if pieces.once_in(4) { format!("{:?}", pieces.text(40)) } else { pieces.pick(&["a", "b"]).to_owned() };
        let hash = hash(pieces);
        *text += &format!("  {name}: {}\n", value(pieces, &hash));
    }
}

fn hash(pieces: &mut Pieces<'_>) -> String {
    let kind = pieces.pick(&["2b", "2a", "2y", "2x", "1", ""]);
    let cost = if pieces.once_in(2) { pieces.pick(&["10", "04", "12", "18", "4"]).to_owned() } else { line(pieces, 3) };
    // A salt of 22 characters; one of more bytes may lie across the place where the hash begins.
    let salt = match pieces.below(4) {
        0 => format!("{}\u{e9}{}", "a".repeat(pieces.below(22)), "b".repeat(pieces.below(24))),
        1 => line(pieces, 30),
        _ => "N9qo8uLOickgx2ZMRZoMye".to_owned(),
    };
    let end = if pieces.once_in(8) { &SECRET[1..] } else { SECRET };
    let quote = pieces.pick(&["", "\"", "'"]);
    format!("{quote}${kind}${cost}${salt}{end}{quote}")
}

/// A text that stays within its line, so that what follows it stays a value.
fn line(pieces: &mut Pieces<'_>, most: usize) -> String {
    pieces.text(most).replace(|c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}'), " ")
}

fn limit(text: &mut String, pieces: &mut Pieces<'_>) {
    let interval = pieces.pick(&INTERVALS);
    let burst = if pieces.once_in(3) { pieces.number().to_string() } else { pieces.byte().to_string() };
    *text += &format!("rate_limit:\n  interval: {}\n  burst: {}\n", value(pieces, interval), value(pieces, &burst));
}

fn headers(text: &mut String, pieces: &mut Pieces<'_>) {
    *text += "http_server_config:\n";
    if pieces.once_in(2) {
        *text += &format!("  http2: {}\n", value(pieces, "false"));
    }
    *text += "  headers:\n";
    for _ in 0..pieces.below(4) {
        let header = pieces.pick(&HEADERS);
        *text += &format!("    {}\n", value(pieces, header));
    }
}

fn tls(text: &mut String, pieces: &mut Pieces<'_>) {
    *text += "tls_server_config:\n";
    for key in ["cert_file", "key_file", "client_ca_file", "cert", "key", "client_ca"] {
        if pieces.once_in(4) {
            let pem = format!(
                "\"-----BEGIN CERTIFICATE-----\\n{}\\n-----END CERTIFICATE-----\\n\"",
                base64(pieces.bytes(60))
            );
            let file = pieces.pick(&["web.yml", "nowhere.pem", "..", "/dev/null", "\"a\\nb\""]);
            let given = if key.ends_with("file") { file } else { &pem };
            *text += &format!("  {key}: {}\n", value(pieces, given));
        }
    }
    for (key, words) in [
        ("client_auth_type", &AUTHS[..]),
        ("min_version", &VERSIONS),
        ("max_version", &VERSIONS),
        ("prefer_server_cipher_suites", &["true"]),
    ] {
        if pieces.once_in(4) {
            let word = pieces.pick(words);
            *text += &format!("  {key}: {}\n", value(pieces, word));
        }
    }
    for (key, words) in [
        ("cipher_suites", &SUITES[..]),
        ("curve_preferences", &CURVES),
        ("client_allowed_sans", &["a.example", "127.0.0.1"]),
    ] {
        if pieces.once_in(4) {
            let list: Vec<_> = (0..pieces.below(4)).map(|_| pieces.pick(words)).collect();
            *text += &format!("  {key}: {}\n", value(pieces, &format!("[{}]", list.join(", "))));
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
