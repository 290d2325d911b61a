//! The name and password from an `Authorization: Basic` header.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use http::{HeaderMap, header};

/// A client's name and password. Names are bytes: a name that is not UTF-8 belongs to no user, and is not converted.
pub struct Credentials {
    /// The user name, without a colon.
    pub user: Vec<u8>,
    /// The password.
    pub password: Vec<u8>,
}

impl Credentials {
    /// `None` if there is no such header, or it is malformed.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let value = headers.get(header::AUTHORIZATION)?.as_bytes();
        let (scheme, encoded) = value.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"Basic ") {
            return None;
        }
        let mut user = decode(encoded)?;
        let colon = user.iter().position(|&byte| byte == b':')?;
        let password = user.split_off(colon + 1);
        user.truncate(colon);
        Some(Self { user, password })
    }
}

/// Base64 as in RFC 4648, section 4, with padding and without other characters. As in Go, the unused bits of the last
/// digit need not be zero.
fn decode(encoded: &[u8]) -> Option<Vec<u8>> {
    const CONFIG: GeneralPurposeConfig = GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(&STANDARD, CONFIG).decode(encoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Option<(String, String)> {
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        let Credentials { user, password } = Credentials::from_headers(&headers)?;
        Some((String::from_utf8(user).unwrap(), String::from_utf8(password).unwrap()))
    }

    #[test]
    fn name_and_password_are_split_at_the_first_colon() {
        let some = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(read("Basic YWxpY2U6YTpi"), some("alice", "a:b"));
        assert_eq!(read("bASIC YWxpY2U6YTo="), some("alice", "a:"));
        assert_eq!(read("Basic YTo="), some("a", ""));
        assert_eq!(read("Basic Og=="), some("", ""));
        for value in
            ["Basic", "Basic ", "Bearer YTpi", "Basic YTpi=", "Basic YQ==", "Basic Y=Q=", "Basic ====", "Basic YT\tpi"]
        {
            assert_eq!(read(value), None, "{value}");
        }
    }

    #[test]
    fn every_byte_is_decoded() {
        assert_eq!(decode(b"AAECA/z9/v8="), Some(vec![0, 1, 2, 3, 252, 253, 254, 255]));
    }
}
