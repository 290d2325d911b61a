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
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((&first, after)) = rest.split_first() {
            match escaped(rest) {
                Some(byte) => {
                    bytes.push(byte);
                    rest = &rest[4..];
                }
                None => {
                    bytes.push(first);
                    rest = after;
                }
            }
        }
        Self(bytes)
    }
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
        let mut bytes = Vec::with_capacity(self.0.len());
        let mut rest = &self.0[..];
        while !rest.is_empty() {
            match rest.strip_prefix(PLACE) {
                Some(after) => {
                    bytes.extend_from_slice(number.to_string().as_bytes());
                    rest = after;
                }
                None => {
                    bytes.push(rest[0]);
                    rest = &rest[1..];
                }
            }
        }
        bytes
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
