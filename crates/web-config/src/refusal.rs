//! Why a request is refused, and the response to it.

use http::{HeaderValue, StatusCode};

/// Why a request is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No name and password, or wrong ones: 401.
    Unauthorized,
    /// More requests than the rate limit allows: 429.
    TooManyRequests,
    /// Too many passwords are waiting to be checked: 503.
    Busy,
}

impl Refusal {
    /// The status of the response.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The value of `WWW-Authenticate`, if the response requests a password.
    pub fn challenge(self) -> Option<HeaderValue> {
        (self == Self::Unauthorized).then(|| HeaderValue::from_static("Basic"))
    }
}
