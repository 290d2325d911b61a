//! Text that can represent any bytes: `\xff` in it is one byte, and everything else is taken literally.
//!
//! TOML is UTF-8, but a process name need not be. Such text is written as TOML literal strings (`'caf\xe9'`),
//! because TOML leaves their backslashes alone.

use serde::Deserialize;

/// Bytes as they are written in a scenario.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl From<String> for Bytes {
    fn from(text: String) -> Self {
        Self(replaced(text.as_bytes(), |rest| Some((vec![escaped(rest)?], 4))))
    }
}

/// The bytes with some parts replaced. `part` returns what replaces a part at the beginning, and the part's length.
fn replaced(mut text: &[u8], part: impl Fn(&[u8]) -> Option<(Vec<u8>, usize)>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    while let Some(first) = text.first() {
        let (instead, length) = part(text).unwrap_or_else(|| (vec![*first], 1));
        bytes.extend(instead);
        text = &text[length..];
    }
    bytes
}

fn escaped(text: &[u8]) -> Option<u8> {
    let [b'\\', b'x', high, low, ..] = *text else { return None };
    let digit = |c: u8| char::from(c).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

impl Bytes {
    /// The bytes with `{n}` replaced by a number, which distinguishes the processes of one entry.
    pub(crate) fn numbered(&self, number: u32) -> Vec<u8> {
        const PLACE: &[u8] = b"{n}";
        let instead = |rest: &[u8]| rest.starts_with(PLACE).then(|| (number.to_string().into_bytes(), PLACE.len()));
        replaced(&self.0, instead)
    }
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn only_a_whole_escape_is_one() {
        let bytes = |text: &str| Bytes::from(text.to_owned()).0;
        assert_eq!(bytes(r"caf\xe9"), b"caf\xe9");
        assert_eq!(bytes(r"\xFF\x00"), b"\xff\x00");
        assert_eq!(bytes(r"\x4 \y \"), br"\x4 \y \");
        assert_eq!(bytes("naïve"), "naïve".as_bytes());
    }

    #[test]
    fn a_number_takes_its_place() {
        assert_eq!(Bytes::from("--rank={n} of {n}".to_owned()).numbered(3), b"--rank=3 of 3");
    }
}
