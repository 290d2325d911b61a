//! A PromQL expression split into tokens.

use std::ops::Range;

/// The tokens: ranges of words, numbers, durations, strings and symbols. White space and comments are left out.
pub(crate) fn tokens(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let run = |inside: fn(char) -> bool| rest.find(|c| !inside(c)).unwrap_or(rest.len());
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_:.".contains(c);
        let length = match bytes[at] {
            b if b.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'#' => {
                at += run(|c| c != '\n');
                continue;
            }
            quote @ (b'"' | b'\'' | b'`') => {
                let mut escaped = false;
                let end = rest.bytes().skip(1).position(|b| {
                    let ends = b == quote && !escaped;
                    escaped = b == b'\\' && !escaped && quote != b'`';
                    ends
                });
                end.unwrap_or_else(|| panic!("a string without an end in {text}")) + 2
            }
            // `[1h:5m]`: the colon of a subquery is not part of a number.
            b'0'..=b'9' | b'.' => run(|c| c.is_ascii_alphanumeric() || c == '.'),
            b if is_word(b.into()) && b != b':' => run(|c| c.is_ascii_alphanumeric() || "_:".contains(c)),
            b'=' | b'!' | b'>' | b'<' if rest[1..].starts_with(['=', '~']) => 2,
            _ => 1,
        };
        found.push(at..at + length);
        at += length;
    }
    found
}
