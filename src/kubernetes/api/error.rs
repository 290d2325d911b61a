//! What can go wrong between the exporter and the API server, with messages that state what to do.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::client::{self, QUOTED, Secrets, innermost, is_io};
use crate::faults::Reason;
use crate::text::untrusted;

/// The errors from a connection that is refused, or that a proxy accepts although there is no server behind it.
const HUNG_UP: &[io::ErrorKind] = &[
    io::ErrorKind::ConnectionRefused,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::ConnectionAborted,
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::UnexpectedEof,
    io::ErrorKind::HostUnreachable,
    io::ErrorKind::NetworkUnreachable,
];

/// Why there is no usable response.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A variable or file of a pod's service account is missing.
    #[error(
        "this is not a pod with a service account ({0}): set automountServiceAccountToken, or a URL as \
         kubernetes.api-server"
    )]
    NoServiceAccount(String),
    #[error("kubernetes.api-server {0}")]
    Url(String),
    /// A file that is needed cannot be used. Reading it is retried, because it may appear later.
    #[error("{path}, needed as {purpose}: {text}")]
    File { path: PathBuf, purpose: &'static str, kind: io::ErrorKind, text: String },
    /// TLS needs a certificate to trust.
    #[error("no certificates to trust; set kubernetes.ca-file ({0})")]
    NoTrust(String),
    /// 401.
    #[error("the API server does not accept the token, or there is none (401): {0}")]
    Unauthorized(String),
    /// 403, for less time than a server takes to start.
    #[error(
        "the API server does not allow the exporter's request (403): this is normal while a server starts; if it \
         persists, a ClusterRole that allows the request, or its binding, is missing: {0}"
    )]
    NotYetAllowed(String),
    /// 403, for longer than a server takes to start.
    #[error(
        "the exporter is not allowed to make this request (403); it needs a ClusterRole that allows the request, and a \
         binding: {0}"
    )]
    Forbidden(String),
    /// 410: the watch cannot be resumed. A fault only if it happens repeatedly.
    #[error(
        "the API server keeps no history that reaches back to the last event or list (410): all objects are listed again"
    )]
    Gone,
    /// Any other response that is not a success.
    #[error("the API server answered {code}: {text}")]
    Refused { code: u16, text: String },
    /// A response with Retry-After.
    #[error("the API server answered {code} and asks to wait {after:?}")]
    Busy { code: u16, after: Duration },
    /// A watch ended soon after it began, for the `row`-th time in a row. A fault only if it happens repeatedly.
    #[error(
        "the API server, or a proxy in front of it, ends each watch soon after its start: the next one begins in \
         {after:?}"
    )]
    Brief { row: u32, after: Duration },
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// A body, or a line of a watch, that exceeds the limit.
    #[error("the API server sent more than {0} bytes in one list, watch or event")]
    TooLong(usize),
    /// More objects than a node can have.
    #[error("the API server listed more than {0} objects of this node, counting their containers or devices")]
    TooMany(usize),
    #[error("the API server's answer cannot be understood: {0}")]
    Malformed(String),
    /// TLS failed, or a response was cut off.
    #[error("no connection to the API server: {0}")]
    Connection(String),
    /// No process is listening, or the process that is listening closes the connection at once.
    #[error("no connection to the API server: {0}")]
    Unreachable(String),
}

/// What the API server reports about a failure.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    code: u16,
    message: String,
    reason: String,
}

impl Error {
    /// A file that cannot be read.
    pub(super) fn file(path: &Path, purpose: &'static str, error: &io::Error) -> Self {
        Self::File { path: path.to_owned(), purpose, kind: error.kind(), text: error.to_string() }
    }

    /// A response with a status other than success, without the secrets of its request. `body` is JSON from the API server, or
    /// any text from a proxy.
    pub(super) fn refused(code: u16, body: &[u8], secrets: &Secrets) -> Self {
        let from_proxy = |_| Status { message: String::from_utf8_lossy(body).into_owned(), ..Status::default() };
        let status = serde_json::from_slice(body).unwrap_or_else(from_proxy);
        let [message, reason] = [&status.message, &status.reason].map(|text| secrets.redact(text));
        Status { code, message, reason }.into()
    }

    /// A TCP, TLS or HTTP failure before the answer.
    pub(super) fn transport(error: &(dyn StdError + 'static)) -> Self {
        let text = innermost(error);
        if is_io(error, HUNG_UP) { Self::Unreachable(text) } else { Self::Connection(text) }
    }

    /// A failure while the answer was read. Never `Unreachable`: the server has done work for this response, and
    /// `Unreachable` has shorter pauses.
    pub(super) fn reading(error: &client::Error) -> Self {
        match error {
            client::Error::TooLong(limit) => Self::TooLong(*limit),
            error => Self::Connection(innermost(error)),
        }
    }

    /// The error for a page of a list, whose limit is what its earlier pages left of `limit`.
    pub(super) fn of_a_list(self, limit: usize) -> Self {
        if let Self::TooLong(_) = self { Self::TooLong(limit) } else { self }
    }

    /// The reason under which it is counted as a fault.
    pub fn reason(&self) -> Reason {
        match self {
            Self::File { kind: io::ErrorKind::TimedOut, .. } => Reason::Timeout,
            Self::Unauthorized(_) | Self::Forbidden(_) => Reason::NoPermission,
            Self::File { kind: io::ErrorKind::PermissionDenied, .. } => Reason::NoPermission,
            Self::File { kind: io::ErrorKind::NotFound, .. } | Self::NoServiceAccount(_) => Reason::NotFound,
            Self::Refused { code: 404, .. } => Reason::NotFound,
            Self::Timeout(_) | Self::Refused { code: 408 | 504, .. } | Self::Busy { code: 504, .. } => Reason::Timeout,
            Self::TooLong(_) | Self::TooMany(_) | Self::Malformed(_) | Self::Url(_) => Reason::Malformed,
            Self::File { kind: io::ErrorKind::InvalidData, .. } => Reason::Malformed,
            Self::Connection(_) | Self::Unreachable(_) | Self::Brief { .. } | Self::NoTrust(_) => Reason::Connection,
            Self::NotYetAllowed(_) | Self::Gone | Self::Refused { .. } | Self::Busy { .. } | Self::File { .. } => {
                Reason::Unknown
            }
        }
    }

    /// Whether the watch can continue where it stopped once the server answers again. Otherwise an event may have been
    /// lost, and all objects are listed again.
    pub(super) fn leaves_the_watch(&self) -> bool {
        !matches!(self, Self::Gone | Self::TooLong(_) | Self::TooMany(_) | Self::Malformed(_))
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let text = untrusted(if status.message.is_empty() { &status.reason } else { &status.message }, QUOTED);
        match status.code {
            401 => Self::Unauthorized(text),
            403 => Self::NotYetAllowed(text),
            410 => Self::Gone,
            0 => Self::Malformed("an error event without a code".to_owned()),
            code => Self::Refused { code, text },
        }
    }
}
