//! The web-config file as it is written: exporter-toolkit's keys, of which only the types have been checked.
//!
//! Invariant: a key that the format does not have, a duplicate key and a value of the wrong type are refused with a
//! message that names the line and the key. The file is not trusted: parsing is bounded in depth, nodes and aliases.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_saphyr::{MessageFormatter as _, UserMessageFormatter};

use super::error::{Problem, one_line};
use super::interval::Interval;

/// The whole file. It contains secrets, so it has no `Debug`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    pub(super) tls_server_config: Option<Tls>,
    pub(super) http_server_config: Option<Http>,
    pub(super) basic_auth_users: Option<BTreeMap<String, String>>,
    pub(super) rate_limit: Option<RateLimit>,
}

#[derive(Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
    pub(super) client_ca: Option<String>,
    pub(super) cert_file: Option<String>,
    pub(super) key_file: Option<String>,
    pub(super) client_ca_file: Option<String>,
    pub(super) client_auth_type: Option<String>,
    pub(super) client_allowed_sans: Option<Vec<String>>,
    pub(super) min_version: Option<String>,
    pub(super) max_version: Option<String>,
    pub(super) cipher_suites: Option<Vec<String>>,
    pub(super) prefer_server_cipher_suites: Option<bool>,
    pub(super) curve_preferences: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Http {
    pub(super) http2: Option<bool>,
    pub(super) headers: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateLimit {
    pub(super) interval: Option<Interval>,
    pub(super) burst: Option<i64>,
}

impl Document {
    /// Parses the text of the file. Empty text is a document without any keys.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Problem> {
        let text = std::str::from_utf8(bytes).map_err(|_| Problem::Unsuitable("is not UTF-8 text"))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let parsed: Result<Option<Self>, _> = serde_saphyr::from_str_with_options(text, options());
        Ok(parsed.map_err(|error| malformed(text, &error))?.unwrap_or_default())
    }
}

/// Limits that are far above the needs of a file with a thousand users, but that an alias bomb exceeds.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 16,
            flow_nesting_limit: 16,
            max_nodes: 20_000,
            max_events: 60_000,
            max_aliases: 32,
            max_anchors: 32,
            max_total_scalar_bytes: 2 << 20,
            max_merge_keys: 16,
            max_documents: 1,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 20_000,
            max_replay_stack_depth: 8,
        },
        // The lines around an error could show a key or a hash.
        with_snippet: false,
    }
}

fn malformed(text: &str, error: &serde_saphyr::Error) -> Problem {
    let line = error.location().map(|location| location.line()).filter(|&line| line > 0);
    let key = line.and_then(|line| key_at(text, usize::try_from(line).ok()?));
    let why = one_line(&UserMessageFormatter.format_message(error));
    Problem::Malformed { line, key, why }
}

/// The key that a value on this line belongs to: the one on the same line, or the last one that opened a block.
fn key_at(text: &str, line: usize) -> Option<String> {
    let lines: Vec<&str> = text.lines().take(line).collect();
    let (last, before) = lines.split_last()?;
    let own = last.split_once(": ").map(|(key, _)| key).or_else(|| last.trim_end().strip_suffix(':'));
    let opened = || before.iter().rev().find_map(|line| line.trim_end().strip_suffix(':'));
    let key = own.or_else(opened)?.trim().trim_start_matches("- ").trim_matches(['"', '\'']);
    let is_name = !key.is_empty() && key.len() <= 64 && key.chars().all(|c| c.is_alphanumeric() || "_-.@".contains(c));
    is_name.then(|| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        Document::parse(text.as_bytes()).err().map(|problem| problem.to_string()).unwrap_or_default()
    }

    #[test]
    fn an_empty_file_is_a_document() {
        for text in ["", "\n\n", "# a comment\n", "---\n", "null\n", "\u{feff}", "{}", "tls_server_config:\n"] {
            assert_eq!(refusal(text), "", "{text:?}");
        }
    }

    #[test]
    fn an_error_names_line_and_key() {
        let cases = [
            ("http_server_config:\n  http3: true\n", "line 2", "http3"),
            ("http_server_config:\n  http2: perhaps\n", "line 2", "http2"),
            ("tls_server_config:\n  cipher_suites: 7\n", "line 2", "cipher_suites"),
            ("rate_limit:\n  interval: 1s\n  burst: many\n", "line 3", "burst"),
            ("rate_limit:\n  interval: soon\n", "line 2", "interval"),
            ("rate_limit:\n  burst: 1\n  burst: 2\n", "line 3", "burst"),
            ("basic_auth_users:\n  a: x\n  a: y\n", "line 3", "a"),
            ("basic_auth_users:\n  - a\n", "line 2", "basic_auth_users"),
        ];
        for (text, line, key) in cases {
            let why = refusal(text);
            assert!(why.contains(line) && why.contains(key), "{text:?}: {why}");
            assert_eq!(why.lines().count(), 1, "{why:?}");
        }
    }

    #[test]
    fn a_number_is_accepted_as_text() {
        let text = "http_server_config:\n  headers:\n    X-XSS-Protection: 1\n";
        let document = Document::parse(text.as_bytes()).ok().unwrap();
        let headers = document.http_server_config.and_then(|http| http.headers).unwrap();
        assert_eq!(headers["X-XSS-Protection"], "1");
    }

    #[test]
    fn hostile_files_are_refused() {
        let mut bomb = String::from("a: &a [x, x, x, x, x, x, x, x, x, x]\n");
        for (last, next) in "abcdefgh".chars().zip("bcdefghi".chars()) {
            let aliases = vec![format!("*{last}"); 10].join(", ");
            bomb += &format!("{next}: &{next} [{aliases}]\n");
        }
        let deep = "[".repeat(100_000);
        let deep_blocks: String = (0..2000).map(|n| " ".repeat(n) + "a:\n").collect();
        let long = format!("basic_auth_users:\n{}", "  ? x\n".repeat(100_000));
        // An alias is replayed where text is expected, so these would expand to 900 MiB of text.
        let names = format!("&a \"{}\"{}", "x".repeat(900_000), ", *a".repeat(1000));
        let aliased = format!("tls_server_config:\n  cipher_suites: [{names}]\n");
        let documents = "--- {}\n--- {}\n".to_owned();
        for text in [bomb, deep, deep_blocks, long, aliased, documents, "\0".to_owned()] {
            let why = refusal(&text);
            assert!(!why.is_empty() && why.len() < 600, "{why:?}");
        }
        assert_eq!(Document::parse(b"\xff").err().unwrap().to_string(), "is not UTF-8 text");
    }
}
