//! The headers that a web-config file may add to every response: five names, in this exact spelling.

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue};

use super::error::Problem;

/// The name, and the allowed values if not every value is allowed.
const ALLOWED: [(&str, &[&str]); 5] = [
    ("Content-Security-Policy", &[]),
    ("Strict-Transport-Security", &[]),
    ("X-Content-Type-Options", &["nosniff"]),
    ("X-Frame-Options", &["deny", "sameorigin"]),
    ("X-XSS-Protection", &[]),
];

/// The headers for every response. A header with an empty value is omitted.
pub(super) fn headers(written: &BTreeMap<String, String>) -> Result<Vec<(HeaderName, HeaderValue)>, Problem> {
    let mut pairs = Vec::new();
    for (name, value) in written {
        let key = || format!("http_server_config.headers.{}", name.escape_default());
        let Some((_, values)) = ALLOWED.into_iter().find(|(allowed, _)| allowed == name) else {
            let names: Vec<&str> = ALLOWED.into_iter().map(|(name, _)| name).collect();
            return Err(Problem::refused(key(), format!("this header cannot be set, only {}", names.join(", "))));
        };
        if !values.is_empty() && !values.contains(&value.as_str()) {
            return Err(Problem::refused(key(), format!("the value must be {}", values.join(" or "))));
        }
        if value.is_empty() {
            continue;
        }
        if !value.chars().all(|c| c.is_ascii_graphic() || c == ' ') {
            return Err(Problem::refused(key(), "the value must be one line of printable ASCII"));
        }
        let refused = |_| Problem::refused(key(), "is not a header");
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refused(()))?;
        pairs.push((name, HeaderValue::from_str(value).map_err(|_| refused(()))?));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(name: &str, value: &str) -> Result<usize, String> {
        let written = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        headers(&written).map(|pairs| pairs.len()).map_err(|problem| problem.to_string())
    }

    #[test]
    fn five_names_and_their_values_are_allowed() {
        assert_eq!(checked("X-Frame-Options", "sameorigin"), Ok(1));
        assert_eq!(checked("X-Content-Type-Options", "nosniff"), Ok(1));
        assert_eq!(checked("Content-Security-Policy", "default-src 'self'"), Ok(1));
        assert_eq!(checked("Strict-Transport-Security", ""), Ok(0));
        for (name, value) in [
            ("x-frame-options", "deny"),
            ("X-Frame-Options", "DENY"),
            ("X-Frame-Options", ""),
            ("X-Content-Type-Options", "sniff"),
            ("Content-Type", "foo"),
            ("Content-Security-Policy", "a\r\nSet-Cookie: b"),
            ("Content-Security-Policy", "na\u{ef}ve"),
            ("evil\nname", "x"),
        ] {
            let why = checked(name, value).unwrap_err();
            assert!(why.starts_with("http_server_config.headers.") && why.lines().count() == 1, "{why}");
        }
    }
}
