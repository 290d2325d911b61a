//! A configuration in YAML, mostly according to version 1.2: for example, `yes` is a string. The parser also reads
//! `1_000` and `0b11` as numbers, and `<<` as a merge.
//!
//! Anchors, aliases and deep nesting are rejected before parsing: a parser copies an alias's target and recurses at
//! every level, so a small file could use up the memory or the stack. The check is coarse: it may reject an unusual
//! file that is harmless, but never accepts a harmful one.

use ::config::{Map, Value};
use serde_saphyr::{MessageFormatter as _, UserMessageFormatter};

/// A configuration needs at most one bracket for each section and each address.
const MAX_BRACKETS: usize = 256;
/// Columns of indentation, or of markers such as `- - -`: each column can be a level. The keys are two levels deep.
const MAX_INDENT: usize = 128;

/// Reads the text of a file; a file without keys results in an empty table.
///
/// # Errors
/// The problem with its line number, as one or more lines of text.
pub(super) fn parse(text: &str) -> Result<Map<String, Value>, String> {
    check_shape(text)?;
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let read: Result<Option<_>, _> = serde_saphyr::from_str_with_options(text, options);
    read.map(Option::unwrap_or_default).map_err(|error| {
        let line = error.location().map(|location| format!("line {}: ", location.line())).unwrap_or_default();
        format!("cannot be parsed: {line}{}", UserMessageFormatter.format_message(&error))
    })
}

/// Rejects anchors, aliases and deep nesting.
fn check_shape(text: &str) -> Result<(), String> {
    // Closing brackets are not counted, because inside a quoted string they close nothing.
    let mut brackets = 0_usize;
    // A lone carriage return ends a line in YAML too.
    for (index, line) in text.replace("\r\n", "\n").split(['\n', '\r']).enumerate() {
        let number = index + 1;
        let line = without_comment(line).as_bytes();
        for (at, byte) in line.iter().enumerate() {
            let starts_token = at == 0 || b" \t[{,:".contains(&line[at - 1]);
            let named = line.get(at + 1).is_some_and(|next| !next.is_ascii_whitespace());
            if b"&*".contains(byte) && starts_token && named {
                return Err(format!("line {number}: anchors and aliases are not allowed in a configuration"));
            }
            brackets += usize::from(b"[{".contains(byte));
        }
        let indent = line.iter().take_while(|byte| b" \t-?:".contains(byte)).count();
        if brackets > MAX_BRACKETS || indent > MAX_INDENT {
            return Err(format!("line {number}: is nested too deeply for a configuration"));
        }
    }
    Ok(())
}

/// The line without its comment. A `#` before a quote may be part of a quoted string that spans lines, so it is kept.
fn without_comment(line: &str) -> &str {
    let comment = line.char_indices().find(|(at, c)| {
        *c == '#' && (*at == 0 || line.as_bytes()[at - 1] == b' ') && !line[*at..].contains(['"', '\''])
    });
    comment.map_or(line, |(at, _)| &line[..at])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use ::config::ValueKind;

    use super::*;

    #[test]
    fn plain_values_have_the_types_of_version_1_2() {
        let text = "a: yes\nb: true\nc: 5\nd: 5.0\ne: \"5\"\nf: ~\ng: 5s\nh: :9836\ni: -1\n";
        let read = parse(text).unwrap();
        let text = |text: &str| ValueKind::from(text);
        for (key, value) in [
            ("a", text("yes")),
            ("b", true.into()),
            ("c", 5_i64.into()),
            ("d", 5.0.into()),
            ("e", text("5")),
            ("f", ValueKind::Nil),
            ("g", text("5s")),
            ("h", text(":9836")),
            ("i", (-1_i64).into()),
        ] {
            assert_eq!(read[key].kind, value, "{key}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let why = parse("memory:\n  rate: 1\n  rate: 2\n").unwrap_err();
        assert!(why.contains("line 3") && why.contains("rate"), "{why}");
        assert_eq!(parse("").unwrap().len() + parse("---\n# nothing\n").unwrap().len(), 0);
    }

    #[test]
    fn plain_files_pass_and_traps_do_not() {
        for good in [
            "memory:\n  rate: 100 # Tom & Jerry *stars* [[[\n",
            "log:\r\n  level: \"info,vram_exporter=debug\" # &\r\n",
            "web:\n  listen-address: [\":1\", '[::1]:2']\n",
            "path:\n  procfs: /a*b&c\n",
        ] {
            assert_eq!(check_shape(good), Ok(()), "{good}");
        }
        let deep_block: String = (0..1000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        for bad in [
            "a: &x [1]",
            "a: *x",
            "a: [*x,*x]",
            "a: [\" #\", *x]",
            "a: [\"\n #\", *x]",
            "# \r*x",
            &"[".repeat(100_000),
            &"[\"]\",".repeat(100_000),
            &"- ".repeat(100_000),
            &deep_block,
        ] {
            assert!(check_shape(bad).is_err(), "{}", &bad[..bad.len().min(80)]);
        }
    }
}
