//! What a YAML configuration may not hold, looked for before the parser sees it: the parser copies what an alias names
//! and calls itself for every level, so that a small file could take all memory or the whole stack.

/// The keys lie two levels deep and addresses are a list of one level.
const MAX_DEPTH: usize = 16;

/// Refuses anchors, aliases and deep nesting.
pub(super) fn check_shape(text: &str) -> Result<(), String> {
    let mut open = 0_usize;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let bytes = line.as_bytes();
        for (at, byte) in bytes.iter().enumerate() {
            let starts_token = at == 0 || matches!(bytes[at - 1], b' ' | b'\t' | b'[' | b'{' | b',' | b':');
            let named = bytes.get(at + 1).is_some_and(|next| !next.is_ascii_whitespace());
            match byte {
                b'#' if at == 0 || matches!(bytes[at - 1], b' ' | b'\t') => break,
                b'&' | b'*' if starts_token && named => {
                    return Err(format!("line {number}: anchors and aliases are not allowed in a configuration"));
                }
                b'[' | b'{' => open += 1,
                b']' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
            if open > MAX_DEPTH {
                return Err(too_deep(number));
            }
        }
        let indent = bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let markers = bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'-' | b'?' | b':')).count();
        // One level of a block is at least one column; a ruler of dashes is no nesting but no configuration either.
        if indent.max(markers) > 8 * MAX_DEPTH {
            return Err(too_deep(number));
        }
    }
    Ok(())
}

fn too_deep(line: usize) -> String {
    format!("line {line}: is nested too deeply for a configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_files_pass_and_traps_do_not() {
        for good in [
            "memory:\n  rate: 100 # Tom & Jerry *stars*\n",
            "log:\n  level: \"info,vram_exporter=debug\"\n",
            "web:\n  listen-address: [\":1\", '[::1]:2']\n",
            "path:\n  procfs: /a*b&c\n",
        ] {
            assert_eq!(check_shape(good), Ok(()), "{good}");
        }
        let deep_block: String = (0..1000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        for bad in ["a: &x [1]", "a: *x", "a: [*x,*x]", &"[".repeat(100_000), &"- ".repeat(100_000), &deep_block] {
            assert!(check_shape(bad).is_err());
        }
    }
}
