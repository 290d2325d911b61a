//! Text from outside as people see it: names of processes, what a server answers, what a user typed.
//!
//! Invariant: what these functions return contains nothing that a terminal obeys and nothing that changes the direction of
//! the text around it, and a message that repeats a text from outside is one line of bounded length without the password of
//! a URL.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// What stands for something that must not be shown.
pub const HIDDEN: &str = "[redacted]";

/// The beginning of a text as a part of a line: at most `most` characters of it, with each run of white space as one space
/// and every character escaped that [`is_plain`] refuses. A text that is cut ends with `…`.
pub fn untrusted(text: &str, most: usize) -> String {
    let text = without_passwords(text);
    let mut words = text.split_whitespace();
    let (mut shown, mut left) = (String::new(), most);
    let mut next = words.next();
    while let Some(word) = next {
        let mut characters = word.chars();
        for c in characters.by_ref().take(left) {
            escape(c, &mut shown);
            left -= 1;
        }
        next = words.next();
        if !characters.as_str().is_empty() || (left <= 1 && next.is_some()) {
            shown.push('…');
            break;
        }
        if next.is_some() {
            shown.push(' ');
            left -= 1;
        }
    }
    shown
}

/// The beginning of a text in quotation marks, with every character escaped that has a meaning for a terminal or a reader
/// of the line: at most `most` characters of the text. `…` follows the marks if it is cut.
pub fn quoted(text: &str, most: usize) -> String {
    let text = without_passwords(text);
    let end = text.char_indices().nth(most).map_or(text.len(), |(at, _)| at);
    let more = if end < text.len() { "…" } else { "" };
    format!("{:?}{more}", &text[..end])
}

/// The whole text without anything that a terminal would interpret: characters that are not printable are shown in escaped
/// form.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    text.chars().for_each(|c| escape(c, &mut shown));
    shown
}

/// Displays a text within the content or a quoted attribute of HTML: every character with a special meaning is escaped, and every
/// one that [`is_plain`] refuses becomes U+FFFD. HTML cannot represent control characters, and a name must not reverse the pid
/// and the owner next to it.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            c => f.write_char(if is_plain(c) { c } else { '\u{FFFD}' }),
        })
    }
}

/// Whether a terminal and a browser show the character and do nothing else: it is neither a control character nor one
/// without a shape of its own, as those that change the direction of text are.
pub fn is_plain(c: char) -> bool {
    // Behind another character, so that a combining mark counts as what it is: printable.
    let mut pair = [b'a'; 5];
    let length = 1 + c.encode_utf8(&mut pair[1..]).len();
    let escaped = str::from_utf8(&pair[..length]).unwrap_or("\0").escape_debug().count() > 2;
    !escaped || matches!(c, '"' | '\'' | '\\')
}

fn escape(c: char, to: &mut String) {
    match c {
        '"' | '\'' => to.push(c),
        '\\' => to.push_str("\\\\"),
        c if is_plain(c) => to.push(c),
        c => to.extend(c.escape_debug()),
    }
}

/// The text with `[redacted]` instead of the user and the password of each URL in it.
fn without_passwords(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, behind) = rest.split_at(at + 3);
        let end = behind.find(|c: char| c.is_whitespace() || matches!(c, '"' | '<' | '>')).unwrap_or(behind.len());
        // A password may contain any character, so the last one counts. `%40` is an escaped `@`.
        let user = behind[..end].rfind('@').max(behind[..end].rfind("%40"));
        out.push_str(before);
        rest = match user {
            Some(user) => {
                out.push_str(HIDDEN);
                &behind[user..]
            }
            None => behind,
        };
    }
    if out.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(out + rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Characters that a terminal obeys, that change the direction of text, or that cannot be seen.
    const OBEYED: [char; 18] = [
        '\u{0}', '\u{7}', '\u{8}', '\u{1b}', '\u{7f}', '\u{85}', '\u{9b}', '\u{ad}', '\u{61c}', '\u{200b}', '\u{200e}',
        '\u{200f}', '\u{202a}', '\u{202e}', '\u{2028}', '\u{2066}', '\u{2069}', '\u{feff}',
    ];

    #[test]
    fn nothing_that_a_terminal_obeys_is_shown() {
        for c in OBEYED {
            let text = format!("a{c}b");
            for shown in [untrusted(&text, 99), quoted(&text, 99), printable(&text)] {
                assert!(!shown.contains(c) && shown.chars().all(|c| c == ' ' || is_plain(c)), "{c:?}: {shown:?}");
            }
            assert!(!is_plain(c), "{c:?}");
        }
        for c in ['a', ' ', 'é', '\u{301}', '漢', '"', '\'', '\\', '😀'] {
            assert!(is_plain(c), "{c:?}");
        }
    }

    #[test]
    fn an_untrusted_text_is_one_short_line() {
        for (text, most, shown) in [
            (" a\n\u{1b}[31m b\u{202e}\t c ", 99, "a \\u{1b}[31m b\\u{202e} c"),
            ("abc", 3, "abc"),
            ("abcd", 3, "abc…"),
            ("ab cd", 3, "ab…"),
            ("ab cd", 4, "ab c…"),
            ("a b c", 5, "a b c"),
            ("", 3, ""),
            (" \n ", 3, ""),
            ("a\\n\"'", 9, "a\\\\n\"'"),
        ] {
            assert_eq!(untrusted(text, most), shown, "{text:?}");
        }
        assert_eq!(untrusted(&"é".repeat(1 << 20), 300).chars().count(), 301);
    }

    #[test]
    fn a_quoted_text_shows_its_bounds() {
        for (text, most, shown) in
            [("abc", 3, "\"abc\""), ("abcd", 3, "\"abc\"…"), ("a\"b\n", 9, "\"a\\\"b\\n\""), ("", 3, "\"\"")]
        {
            assert_eq!(quoted(text, most), shown);
        }
    }

    #[test]
    fn no_control_character_of_a_name_reaches_a_terminal() {
        let shown = printable("a\u{1b}[31m\n\u{202e}\u{9b}é\"'\\");
        assert_eq!(shown, "a\\u{1b}[31m\\n\\u{202e}\\u{9b}é\"'\\\\");
    }

    #[test]
    fn markup_and_control_characters_do_not_survive() {
        let hostile = "<script>alert('x')</script>&\"\u{1b}[2J\n";
        assert_eq!(
            Escaped(hostile).to_string(),
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;\u{FFFD}[2J\u{FFFD}"
        );
    }

    #[test]
    fn no_name_changes_the_direction_of_the_text_beside_it() {
        let turned = "\u{202E}yp.niart 7 fo \u{2067}a\u{2069}\u{200F}\u{61C}";
        assert_eq!(Escaped(turned).to_string(), "\u{FFFD}yp.niart 7 fo \u{FFFD}a\u{FFFD}\u{FFFD}\u{FFFD}");
        let named = "\u{5E9}\u{5DC}\u{5D5}\u{5DD} \u{e9}\u{301}";
        assert_eq!(Escaped(named).to_string(), named, "letters are left as they are");
    }

    #[test]
    fn the_password_of_a_url_is_not_shown() {
        for (text, shown) in [
            ("unexpected 'https://me:p@ss@host/x' found", "unexpected 'https://[redacted]@host/x' found"),
            ("http://a http://me@b \"c://d:e%40f\"", "http://a http://[redacted]@b \"c://[redacted]%40f\""),
            ("a://", "a://"),
            ("me@host", "me@host"),
        ] {
            assert_eq!(untrusted(text, 99), shown);
        }
        // A password that reaches beyond the cut is hidden too.
        let long = format!("https://me:{}@host", "p".repeat(5000));
        assert_eq!(untrusted(&long, 30), "https://[redacted]@host");
        assert!(!quoted(&long, 30).contains("pp"));
    }
}
