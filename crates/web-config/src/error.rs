//! What can be wrong with a web-config file or with a file that it names.
//!
//! Invariant: a message is one line, names the file and the key, and contains no secret: neither a private key nor a
//! password's hash.

use std::io;
use std::path::Path;

use text_and_sizes::text::{printable, untrusted};

/// Why a web-config file is refused.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct Error {
    file: String,
    problem: Problem,
}

impl Error {
    pub(super) fn new(file: &Path, problem: Problem) -> Self {
        Self { file: display_path(file), problem }
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self.problem {
            Problem::Unreadable(_) | Problem::Unsuitable(_) | Problem::Named { .. } => ErrorKind::Unreadable,
            _ => ErrorKind::Invalid,
        }
    }
}

/// The two kinds of errors, for an exporter that counts them separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The web-config file, or a file that it names, cannot be read.
    Unreadable,
    /// A file was read but is refused.
    Invalid,
}

/// What is wrong. The name of the web-config file is in [`Error`].
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("{0}")]
    Unsuitable(&'static str),
    /// A file that a key names; `why` is an `Unreadable` or an `Unsuitable`.
    #[error("{key}: {file} {why}")]
    Named { key: String, file: String, why: Box<Problem> },
    #[error("{}{why}", position(*.line, .key.as_deref()))]
    Malformed { line: Option<u64>, key: Option<String>, why: String },
    #[error("{key}: {why}")]
    Refused { key: String, why: String },
    #[error("the system provides no random numbers")]
    NoRandomness,
    #[error("{what} cannot be switched {to} while the server runs; restart the exporter to apply the change")]
    Switched { what: &'static str, to: &'static str },
}

impl Problem {
    pub(super) fn refused(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Refused { key: key.into(), why: one_line(&why.into()) }
    }
}

/// A path as one line, whatever characters it contains.
pub(super) fn display_path(path: &Path) -> String {
    printable(&path.display().to_string())
}

/// A library's message as one line of bounded length.
pub(super) fn one_line(message: &str) -> String {
    untrusted(message, 400)
}

fn position(line: Option<u64>, key: Option<&str>) -> String {
    match (line, key) {
        (Some(line), Some(key)) => format!("line {line}, {key}: "),
        (Some(line), None) => format!("line {line}: "),
        (None, _) => String::new(),
    }
}
