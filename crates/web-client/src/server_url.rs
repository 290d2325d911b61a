//! The URLs of the servers that the exporter and its commands ask, read in one way.
//!
//! Invariant: a [`ServerUrl`] names one TCP port of one host, and nothing in it is secret: a text that could be understood
//! in two ways, or that contains a user, a password, a query or a fragment, is refused before anything is sent.

#[doc(hidden)]
pub mod samples;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use hyper::Uri;
use text_and_sizes::text::HIDDEN;

/// The longest name of a host, in bytes, as DNS defines it.
const LONGEST_NAME: usize = 253;
/// The longest label of a name, in bytes.
const LONGEST_LABEL: usize = 63;

/// `http://` or `https://`, a host, possibly a port, and possibly a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl(Uri);

impl ServerUrl {
    /// Reads a URL. `example` is a valid one, and `secrets` is where a password belongs, both for the message.
    ///
    /// # Errors
    /// What is wrong, for a message that begins with the key or flag. The text itself is not repeated.
    pub fn parse(text: &str, example: &str, secrets: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        let rest =
            rest.ok_or_else(|| format!("must be a URL that begins with http:// or https://, such as \"{example}\""))?;
        if rest.contains('@') {
            return Err(format!("must have no user or password, which other users could see; use {secrets}"));
        }
        if rest.contains(['?', '#']) {
            return Err(format!("must have no query and no fragment; use {secrets} for a token"));
        }
        let authority = rest.split('/').next().unwrap_or_default();
        let (host, port) = split(authority).ok_or_else(|| not_a_host(example))?;
        if !is_host(host) {
            return Err(not_a_host(example));
        }
        if !port.is_none_or(is_port) {
            return Err(format!("must have a port from 1 to 65535, or none, such as \"{example}\""));
        }
        let whole = || format!("must be a URL, such as \"{example}\"");
        // The parser accepts letters of other alphabets in a path, and sends them as they are.
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(whole());
        }
        text.parse().map(Self).map_err(|_| whole())
    }

    /// The URL with `path` appended to its own path, without a slash between them that is there twice; as it is if its
    /// path ends with `path`.
    ///
    /// # Errors
    /// When the result is too long for a URL.
    pub fn below(&self, path: &str) -> Result<Self, hyper::http::Error> {
        let base = self.0.path().trim_end_matches('/');
        let path = if base.ends_with(path) { base.to_owned() } else { format!("{base}{path}") };
        let mut parts = self.0.clone().into_parts();
        parts.path_and_query = Some(path.parse()?);
        Ok(Self(Uri::from_parts(parts)?))
    }

    /// The whole URL.
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    /// Whether connections use TLS.
    pub fn is_https(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }

    /// The host, an IPv6 address without its brackets.
    pub fn host(&self) -> &str {
        self.0.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
    }

    /// The host and the port as written, for the header `Host`.
    pub fn authority(&self) -> &str {
        self.0.authority().map_or("", |authority| authority.as_str())
    }

    /// The path; `/` if there is none.
    pub fn path(&self) -> &str {
        self.0.path()
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

fn not_a_host(example: &str) -> String {
    format!("must have the name or the address of a host after http:// or https://, such as \"{example}\"")
}

/// The host, with the brackets of an IPv6 address, and the text behind the colon; `None` if there are too many colons.
fn split(authority: &str) -> Option<(&str, Option<&str>)> {
    let end = if authority.starts_with('[') {
        authority.find(']')? + 1
    } else {
        authority.find(':').unwrap_or(authority.len())
    };
    let (host, rest) = authority.split_at(end);
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Some((host, None)),
        Some(port) if !port.contains(':') => Some((host, Some(port))),
        _ => None,
    }
}

/// A name, or an address in the one form that every library reads alike: `0177.1` and `127.1` are addresses too for some.
fn is_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return address.parse::<Ipv6Addr>().is_ok();
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let is_label = |label: &str| !label.is_empty() && label.len() <= LONGEST_LABEL && label.chars().all(plain);
    let last = name.rsplit('.').next().unwrap_or_default();
    let number = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let is_numeric = last.bytes().all(|byte| byte.is_ascii_digit())
        || number.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if is_numeric {
        return host.parse::<Ipv4Addr>().is_ok();
    }
    name.len() <= LONGEST_NAME && name.split('.').all(is_label)
}

/// 1 to 65535 in plain digits. The parser of URLs accepts others and then connects to the scheme's own port.
fn is_port(text: &str) -> bool {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    plain && text.parse::<u16>().is_ok()
}

/// A text that should be a URL, for a message that refuses it: without what could be a user, a password or a key.
pub fn without_secrets(text: &str) -> String {
    let start = text.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = text.split_at(start);
    // `%40` is an escaped `@`. A password may contain any character, so the last one counts.
    let user = rest.rfind('@').max(rest.rfind("%40"));
    let (hidden, rest) = user.map_or(("", rest), |at| (HIDDEN, &rest[at..]));
    match rest.find(['?', '#']) {
        Some(at) => format!("{scheme}{hidden}{}{HIDDEN}", &rest[..=at]),
        None => format!("{scheme}{hidden}{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{REFUSED, SECRET};
    use super::*;

    const EXAMPLE: &str = "http://localhost:4318";

    #[test]
    fn a_port_of_a_host_is_read_as_it_is_written() {
        for (text, host, authority, path) in [
            ("http://localhost:4318", "localhost", "localhost:4318", "/"),
            ("https://a.example/otlp/", "a.example", "a.example", "/otlp/"),
            ("https://a.example.:65535", "a.example.", "a.example.:65535", "/"),
            ("http://[::1]:1/p", "::1", "[::1]:1", "/p"),
            ("https://[fd00::1]", "fd00::1", "[fd00::1]", "/"),
            ("http://127.0.0.1:80", "127.0.0.1", "127.0.0.1:80", "/"),
            ("http://my_host-1:9090", "my_host-1", "my_host-1:9090", "/"),
        ] {
            let url = ServerUrl::parse(text, EXAMPLE, "a file").unwrap();
            assert_eq!((url.host(), url.authority(), url.path()), (host, authority, path), "{text}");
            let port = authority
                .rsplit_once("]:")
                .or_else(|| authority.rsplit_once(':').filter(|_| !authority.ends_with(']')));
            assert_eq!(url.uri().port_u16(), port.and_then(|(_, port)| port.parse().ok()), "{text}");
            assert_eq!(url.is_https(), text.starts_with("https"));
        }
    }

    #[test]
    fn everything_else_is_refused_with_a_way_out_and_without_its_secrets() {
        for text in REFUSED {
            let why = ServerUrl::parse(text, EXAMPLE, "a file").unwrap_err();
            assert!(why.starts_with("must ") && why.contains(EXAMPLE), "{text:?}: {why}");
        }
        for text in SECRET {
            let why = ServerUrl::parse(text, EXAMPLE, "a file").unwrap_err();
            assert!(why.contains("a file") || text.contains("%40"), "{text:?}: {why}");
            assert!(!why.contains("s3") && !without_secrets(text).contains("s3"), "{text:?}: {why}");
        }
    }

    #[test]
    fn a_refused_text_is_shown_as_far_as_it_is_no_secret() {
        for (text, shown) in [
            ("localhost:4318", "localhost:4318"),
            ("https://me:p@ss@host:1/p", "https://[redacted]@host:1/p"),
            ("me:pw@host", "[redacted]@host"),
            ("https://a/?key=1", "https://a/?[redacted]"),
            ("https://me%3apw%40host", "https://[redacted]%40host"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(text), shown);
        }
    }

    #[test]
    fn a_path_is_appended_once() {
        for (text, expected) in [
            ("http://localhost:4318", "http://localhost:4318/v1/metrics"),
            ("http://localhost:4318/", "http://localhost:4318/v1/metrics"),
            ("https://a/api/v1/otlp/", "https://a/api/v1/otlp/v1/metrics"),
            ("https://a/otlp/v1/metrics", "https://a/otlp/v1/metrics"),
            ("http://[::1]:9090/v1/metrics/", "http://[::1]:9090/v1/metrics"),
        ] {
            let url = ServerUrl::parse(text, EXAMPLE, "a file").unwrap();
            assert_eq!(url.below("/v1/metrics").unwrap().to_string(), expected);
        }
    }
}
