//! The causes of a failed connection.

use std::error::Error as StdError;
use std::io;

use text_and_sizes::text::untrusted;

use super::QUOTED;

/// The error and its causes, the outermost first. The source of an I/O error that wraps another error is that error's
/// source, so the wrapped error itself would be missed: the failure of a TLS handshake is wrapped in this way.
fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    })
}

/// Whether a cause is an I/O error of one of these kinds.
pub fn is_io(error: &(dyn StdError + 'static), kinds: &[io::ErrorKind]) -> bool {
    causes(error).any(|error| error.downcast_ref::<io::Error>().is_some_and(|error| kinds.contains(&error.kind())))
}

/// The innermost cause, in one line.
pub fn innermost(error: &(dyn StdError + 'static)) -> String {
    let text = causes(error).last().map(ToString::to_string).unwrap_or_default();
    untrusted(if text.is_empty() { "the connection failed" } else { &text }, QUOTED)
}
