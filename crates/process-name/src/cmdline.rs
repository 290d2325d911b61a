//! The arguments of a process, from its `cmdline`.

/// The longest string that [`command`] returns, in bytes.
pub const COMMAND_LIMIT: usize = 4096;

/// The arguments without the empty ones at the end, which are the padding after a title.
pub fn arguments(cmdline: &[u8]) -> Vec<&[u8]> {
    let end = cmdline.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
    if end == 0 { Vec::new() } else { cmdline[..end].split(|&b| b == 0).collect() }
}

/// The arguments separated by spaces, at most [`COMMAND_LIMIT`] bytes; `None` if there are none.
pub fn command(cmdline: &[u8]) -> Option<String> {
    let joined = arguments(cmdline).join(&b' ');
    let mut text = String::from_utf8_lossy(&joined).into_owned();
    let mut end = text.len().min(COMMAND_LIMIT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_of_a_title_is_no_argument() {
        assert_eq!(arguments(b"ray::IDLE\0\0\0"), [b"ray::IDLE"]);
        assert_eq!(arguments(b"a\0\0b\0"), [&b"a"[..], b"", b"b"]);
        assert!(arguments(b"\0\0").is_empty());
        assert!(arguments(b"").is_empty());
    }

    #[test]
    fn a_long_command_is_cut_between_characters() {
        assert_eq!(command(b"python\0-u\0train.py\0").as_deref(), Some("python -u train.py"));
        assert_eq!(command(b"\0"), None);
        let long = "\u{20ac}".repeat(COMMAND_LIMIT);
        let cut = command(long.as_bytes()).map(|text| (text.len(), text.chars().all(|c| c == '\u{20ac}')));
        assert_eq!(cut, Some((COMMAND_LIMIT - COMMAND_LIMIT % 3, true)));
    }
}
