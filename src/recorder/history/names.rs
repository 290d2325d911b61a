//! Names of processes and their owners in sentences.
//!
//! Invariant: no name can send control characters to a terminal or reverse the direction of the text around it.

use crate::text::printable;

/// Names are cut to this many characters.
const LONGEST_NAME: usize = 80;

/// A name that can be written to a terminal, cut to a readable length.
pub(crate) fn name(name: &str) -> String {
    let mut shown: String = name.chars().take(LONGEST_NAME + 1).collect();
    if let Some((cut, _)) = shown.char_indices().nth(LONGEST_NAME) {
        shown.truncate(cut);
        shown.push('…');
    }
    printable(&shown)
}

/// `train.py (pid 4711, slurm:77)`, or `train.py, slurm:77` without a pid.
pub(crate) fn process(process: Option<&str>, pid: Option<u32>, owner: Option<&str>) -> String {
    let shown = process.map_or_else(|| "a process".to_owned(), name);
    match (pid, owner) {
        (Some(pid), Some(owner)) => format!("{shown} (pid {pid}, {})", name(owner)),
        (Some(pid), None) => format!("{shown} (pid {pid})"),
        (None, Some(owner)) => format!("{shown}, {}", name(owner)),
        (None, None) => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printed_without_control_characters_and_not_too_long() {
        let shown = process(Some("a\nb\u{202E}c"), Some(7), Some("al\u{1b}ice"));
        assert_eq!(shown, "a\\nb\\u{202e}c (pid 7, al\\u{1b}ice)");
        let long = process(Some(&"ü".repeat(1000)), Some(7), None);
        assert_eq!(long, format!("{}… (pid 7)", "ü".repeat(LONGEST_NAME)));
        assert_eq!(process(None, Some(3), None), "a process (pid 3)");
        assert_eq!(process(Some("a\nb"), None, Some("al")), "a\\nb, al");
    }
}
