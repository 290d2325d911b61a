//! TLS versions, cipher suites and curves, by the names that Go gives them.
//!
//! Invariant: a list is never shortened silently: a note names what is left out. A list with nothing left is
//! refused, and so is a name that Go does not define.

use rustls::crypto::{CryptoProvider, SupportedKxGroup, ring};
use rustls::version::{TLS12, TLS13};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

use super::document::Tls;
use super::error::Problem;
use ring::kx_group as group;

/// Go's names of suites that rustls does not have: CBC suites and suites without forward secrecy.
const ONLY_GO: [&str; 8] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
];

/// HTTP/2 requires one of these two: the suite that RFC 9113, section 9.2.2, names, or its ECDSA counterpart.
const HTTP2_ECDSA: &str = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
const HTTP2_RSA: &str = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";

/// Go's names of the groups that rustls has with ring. Go also has CurveP521.
const CURVES: [(&str, &dyn SupportedKxGroup); 3] =
    [("CurveP256", group::SECP256R1), ("CurveP384", group::SECP384R1), ("X25519", group::X25519)];

/// The versions from `min_version` to `max_version`, newest first.
pub(super) fn versions(tls: &Tls) -> Result<Vec<&'static SupportedProtocolVersion>, Problem> {
    let oldest = version("tls_server_config.min_version", tls.min_version.as_deref().unwrap_or("TLS12"))?;
    let newest = version("tls_server_config.max_version", tls.max_version.as_deref().unwrap_or("TLS13"))?;
    let between = |v: &&SupportedProtocolVersion| (oldest..=newest).contains(&u16::from(v.version));
    let versions: Vec<_> = [&TLS13, &TLS12].into_iter().filter(between).collect();
    if versions.is_empty() {
        return Err(Problem::refused("tls_server_config.min_version", "is above max_version"));
    }
    Ok(versions)
}

fn version(key: &str, name: &str) -> Result<u16, Problem> {
    match name {
        "TLS12" => Ok(TLS12.version.into()),
        "TLS13" => Ok(TLS13.version.into()),
        "TLS10" | "TLS11" => {
            Err(Problem::refused(key, format!("{name} is not supported, as RFC 8996 requires; set TLS12 or TLS13")))
        }
        _ => Err(Problem::refused(key, format!("unknown TLS version {name:?}; set TLS12 or TLS13"))),
    }
}

/// The provider with the configured suites and curves, in the configured order. What was left out is added to `notes`.
pub(super) fn provider(tls: &Tls, http2: bool, notes: &mut Vec<String>) -> Result<CryptoProvider, Problem> {
    let mut provider = ring::default_provider();
    if let Some(names) = tls.cipher_suites.as_deref().filter(|names| !names.is_empty()) {
        // Go's names of the suites of TLS 1.3 begin like those of the others.
        let go_name = |suite: &SupportedCipherSuite| Some(suite.suite().as_str()?.replacen("TLS13_", "TLS_", 1));
        let known: Vec<_> = provider.cipher_suites.iter().filter_map(|suite| Some((go_name(suite)?, *suite))).collect();
        let chosen = chosen("cipher_suites", "cipher suite", names, &known, &ONLY_GO, notes)?;
        let has = |name: &str| names.iter().any(|n| n == name);
        let speaks_tls12 = versions(tls)?.contains(&&TLS12);
        if http2 && tls.min_version.as_deref() != Some("TLS13") && !has(HTTP2_ECDSA) && !has(HTTP2_RSA) {
            let why =
                format!("HTTP/2 needs {HTTP2_RSA} or {HTTP2_ECDSA}: add one, or set http_server_config.http2: false");
            return Err(Problem::refused("tls_server_config.cipher_suites", why));
        }
        // As in Go, the list applies to TLS 1.2. All TLS 1.3 suites stay unless the list names some of them.
        let (newer, older): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|suite| suite.tls13().is_some());
        if !speaks_tls12 && newer.is_empty() {
            notes.push("tls_server_config.cipher_suites names no suite of TLS 1.3 and has no effect".to_owned());
        }
        provider.cipher_suites.retain(|suite| newer.is_empty() && suite.tls13().is_some());
        provider.cipher_suites.extend(newer);
        provider.cipher_suites.extend(older);
    }
    if let Some(names) = tls.curve_preferences.as_deref().filter(|names| !names.is_empty()) {
        provider.kx_groups = chosen("curve_preferences", "curve", names, &CURVES, &["CurveP521"], notes)?;
    }
    Ok(provider)
}

fn chosen<T: Copy>(
    key: &str,
    kind: &str,
    names: &[String],
    known: &[(impl AsRef<str>, T)],
    only_go: &[&str],
    notes: &mut Vec<String>,
) -> Result<Vec<T>, Problem> {
    let key = format!("tls_server_config.{key}");
    let (mut usable, mut left_out) = (Vec::new(), Vec::new());
    for name in names {
        match known.iter().find(|(known, _)| known.as_ref() == name) {
            Some((_, value)) => usable.push(*value),
            None if only_go.contains(&name.as_str()) => left_out.push(name.as_str()),
            None => return Err(Problem::refused(key, format!("unknown {kind} {name:?}"))),
        }
    }
    let left_out = left_out.join(", ");
    if usable.is_empty() {
        let mut supported: Vec<_> = known.iter().map(|(name, _)| name.as_ref()).collect();
        supported.sort_unstable();
        let why = format!("{left_out}: only Go supports this {kind}; add one of {}", supported.join(", "));
        return Err(Problem::refused(key, why));
    }
    if !left_out.is_empty() {
        notes.push(format!("{key}: left out, because only Go supports them: {left_out}"));
    }
    Ok(usable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(suites: &[&str], curves: &[&str], versions: (&str, &str)) -> Tls {
        let list = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
        let (min, max) = versions;
        let (min_version, max_version) = (Some(min.to_owned()), Some(max.to_owned()));
        Tls { cipher_suites: list(suites), curve_preferences: list(curves), min_version, max_version, ..Tls::default() }
    }

    fn checked(tls: &Tls, http2: bool) -> Result<(usize, usize, usize), String> {
        let mut notes = Vec::new();
        versions(tls).map_err(|problem| problem.to_string())?;
        let provider = provider(tls, http2, &mut notes).map_err(|problem| problem.to_string())?;
        Ok((provider.cipher_suites.len(), provider.kx_groups.len(), notes.len()))
    }

    #[test]
    fn a_list_selects_and_notes_what_is_left_out() {
        let both = ("TLS12", "TLS13");
        assert_eq!(checked(&named(&[], &[], both), true), Ok((9, 3, 0)));
        assert_eq!(checked(&named(&[HTTP2_RSA], &["X25519"], both), true), Ok((4, 1, 0)), "TLS 1.3 keeps its three");
        assert_eq!(checked(&named(&[HTTP2_RSA, "TLS_AES_256_GCM_SHA384"], &[], both), true), Ok((2, 3, 0)));
        let some = named(&[HTTP2_RSA, "TLS_RSA_WITH_AES_128_CBC_SHA"], &["CurveP521", "CurveP256"], both);
        assert_eq!(checked(&some, true), Ok((4, 1, 2)));
        assert_eq!(checked(&named(&[HTTP2_RSA], &[], ("TLS13", "TLS13")), true), Ok((4, 3, 1)), "no effect");
    }

    #[test]
    fn a_list_with_nothing_left_is_refused() {
        let both = ("TLS12", "TLS13");
        let refused = [
            (named(&["TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"], &[], both), "only Go"),
            (
                named(&[], &["CurveP521"], both),
                "CurveP521: only Go supports this curve; add one of CurveP256, CurveP384, X25519",
            ),
            (named(&["TLS_ECDHE_RSA_WITH_AES_1_GCM_SHA1"], &[], both), "unknown cipher suite"),
            (named(&[], &["CurveP257"], both), "unknown curve"),
            (named(&[], &[], ("TLS10", "TLS13")), "min_version: TLS10 is not supported"),
            (named(&[], &[], ("TLS12", "TLS11")), "max_version: TLS11 is not supported"),
            (named(&[], &[], ("TLS111", "TLS13")), "unknown TLS version"),
            (named(&[], &[], ("TLS13", "TLS12")), "is above max_version"),
            (named(&["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"], &[], both), "HTTP/2 needs"),
        ];
        for (tls, message) in refused {
            let why = checked(&tls, true).unwrap_err();
            assert!(why.contains(message), "{why}");
        }
        assert!(checked(&named(&["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"], &[], both), false).is_ok());
    }
}
