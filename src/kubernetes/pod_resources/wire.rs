//! The fields of a protobuf message, read in place.
//!
//! Invariant: nothing is copied and nothing is built for a field, so reading takes no memory beyond the message itself.
//! Types made by prost take ten to forty times the size of a message that is full of empty entries.

use super::error::Malformed;

/// The fields of a message, in their order. Ends after the first error.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Option<&'a [u8]>), Malformed>;

    /// A field's number, with its bytes where it is a message, a text or bytes.
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Result<(u64, Option<&'a [u8]>), Malformed> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => {
                self.varint()?;
                None
            }
            1 => {
                self.take(8)?;
                None
            }
            2 => {
                let length = self.varint()?;
                Some(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                None
            }
            // Groups, which this version of protobuf does not have, and numbers without a meaning.
            _ => return Err(Malformed::Form),
        };
        match key >> 3 {
            0 => Err(Malformed::Form),
            number => Ok((number, value)),
        }
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        // Ten bytes hold 64 bits.
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed::Cut)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed::Form)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed::Cut)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed::Cut)?;
        self.0 = rest;
        Ok(taken)
    }
}

/// The messages that a repeated field holds.
pub(super) fn messages(message: &[u8], number: u64) -> impl Iterator<Item = Result<&[u8], Malformed>> {
    Fields(message).filter_map(move |field| match field {
        Ok((found, value)) => (found == number).then(|| value.ok_or(Malformed::Form)),
        Err(malformed) => Some(Err(malformed)),
    })
}

/// The texts that a repeated field holds.
pub(super) fn texts(message: &[u8], number: u64) -> impl Iterator<Item = Result<&str, Malformed>> {
    messages(message, number).map(|value| str::from_utf8(value?).map_err(|_| Malformed::Text))
}

/// The text of a single field: the last one counts, and none is an empty one.
pub(super) fn text(message: &[u8], number: u64) -> Result<&str, Malformed> {
    texts(message, number).try_fold("", |_, text| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(message: &[u8], number: u64) -> Result<Vec<&[u8]>, Malformed> {
        messages(message, number).collect()
    }

    #[test]
    fn other_fields_of_every_form_are_skipped() {
        // 3: varint 300; 4: eight bytes; 5: four bytes; 6: bytes; 1: "ab"; a field whose number takes two bytes; 1: "".
        let message = b"\x18\xac\x02\x21xxxxxxxx\x2dxxxx\x32\x03abc\x0a\x02ab\xfa\x01\x01z\x0a\x00";
        assert_eq!(all(message, 1), Ok(vec![&b"ab"[..], &b""[..]]));
        assert_eq!(all(message, 31), Ok(vec![&b"z"[..]]));
        assert_eq!(text(message, 1), Ok(""), "the last one counts");
        assert_eq!(text(message, 9), Ok(""), "none is an empty one");
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for (message, expected) in [
            (&b"\x0a\x05ab"[..], Malformed::Cut),
            (b"\x0a", Malformed::Cut),
            (b"\x80", Malformed::Cut),
            (b"\x21xxx", Malformed::Cut),
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Malformed::Cut),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Malformed::Form),
            (b"\x0b", Malformed::Form),
            (b"\x0e", Malformed::Form),
            (b"\x02\x00", Malformed::Form),
            (b"\x08\x01", Malformed::Form),
        ] {
            assert_eq!(all(message, 1), Err(expected), "{message:02x?}");
        }
        assert_eq!(text(b"\x0a\x01\xff", 1), Err(Malformed::Text));
    }
}
