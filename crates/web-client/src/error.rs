//! Why there is no whole answer.

use std::error::Error as StdError;

/// Why there is no whole answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server cannot be asked, or the connection failed.
    #[error("the connection failed")]
    Transport(#[source] Box<dyn StdError + Send + Sync>),
    /// The body is longer than this number of bytes.
    #[error("more than {0} bytes")]
    TooLong(usize),
}

impl Error {
    pub(super) fn transport(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Transport(error.into())
    }
}
