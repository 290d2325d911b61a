//! What a YAML configuration may not hold, looked for before the parser sees it: the parser copies what an alias names
//! and calls itself for every level, so that a small file could take all memory or the whole stack.
//! The look is coarse: it may refuse an odd file that is harmless, never let a harmful one pass.

/// A configuration needs a bracket for each section and each address at most.
const MAX_BRACKETS: usize = 256;
/// Columns of indentation, or of markers such as `- - -`: each can be a level. The keys lie two levels deep.
const MAX_INDENT: usize = 128;

/// Refuses anchors, aliases and whatever could nest deeply.
pub(super) fn check_shape(text: &str) -> Result<(), String> {
    // Closing brackets are not counted, since in a quoted text they close nothing.
    let mut brackets = 0_usize;
    // A lone carriage return ends a line of YAML too.
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

/// The line up to its comment. A `#` before a quote may lie in a quoted text of several lines, so it is kept.
fn without_comment(line: &str) -> &str {
    let comment = line.char_indices().find(|(at, c)| {
        *c == '#' && (*at == 0 || line.as_bytes()[at - 1] == b' ') && !line[*at..].contains(['"', '\''])
    });
    comment.map_or(line, |(at, _)| &line[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

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
