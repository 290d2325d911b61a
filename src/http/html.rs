//! Text that is safe within HTML.

use std::fmt;

/// Displays the text with everything escaped that means something in HTML, in content and in quoted attributes. Control
/// characters become U+FFFD: HTML has no way to write them.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if c.is_control() => f.write_char('\u{FFFD}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Displays bytes in the largest binary unit that they fill.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: f64 = 1_048_576.0;
        let mib = self.0 as f64 / MIB;
        if mib >= 1024.0 { write!(f, "{:.1} GiB", mib / 1024.0) } else { write!(f, "{mib:.0} MiB") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_active_survives() {
        let hostile = "<script>alert('x')</script>&\"\u{1b}[2J\n";
        assert_eq!(
            Escaped(hostile).to_string(),
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;\u{FFFD}[2J\u{FFFD}"
        );
    }

    #[test]
    fn bytes_read_well() {
        assert_eq!(Bytes(0).to_string(), "0 MiB");
        assert_eq!(Bytes(528 << 20).to_string(), "528 MiB");
        assert_eq!(Bytes(10 << 30).to_string(), "10.0 GiB");
    }
}
