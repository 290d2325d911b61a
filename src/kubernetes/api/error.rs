//! What can go wrong between the exporter and the API server, in words that say what to do.
//!
//! kube's errors repeat their causes in their own text, and may quote a whole answer; here each is said once and cut.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::core::Status;
use kube::runtime::watcher;

use crate::faults::Reason;

/// The longest text that is taken over from an answer.
const LONGEST_TEXT: usize = 300;
/// How a connection ends that is refused, or accepted by a proxy that has no server.
const HUNG_UP: &[io::ErrorKind] = &[
    io::ErrorKind::ConnectionRefused,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::ConnectionAborted,
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::UnexpectedEof,
    io::ErrorKind::HostUnreachable,
    io::ErrorKind::NetworkUnreachable,
];

/// Why there is no answer that can be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// What kube needs in a pod is not there.
    #[error(
        "this is no pod with a service account ({0}): set automountServiceAccountToken, or a URL as kubernetes.api-server"
    )]
    NoServiceAccount(String),
    /// The address is none.
    #[error("kubernetes.api-server is no URL ({0})")]
    Url(String),
    /// A file that is needed cannot be used. Tried again: it may come later.
    #[error("{path}, needed as {purpose}: {text}")]
    File { path: PathBuf, purpose: &'static str, kind: io::ErrorKind, text: String },
    /// No TLS without anybody to trust.
    #[error("no certificates to trust, set kubernetes.ca-file ({0})")]
    NoTrust(String),
    /// 401.
    #[error("the API server does not accept the token, or there is none (401): {0}")]
    Unauthorized(String),
    /// 403, for less time than a server takes to start.
    #[error(
        "the API server does not let the exporter list and watch pods (403): a starting server answers so; if it \
         lasts, a ClusterRole with these two verbs or its binding is missing: {0}"
    )]
    NotYetAllowed(String),
    /// 403 for longer than a server takes to start.
    #[error(
        "the exporter may not list and watch pods, which needs a ClusterRole with these two verbs and a binding (403): {0}"
    )]
    Forbidden(String),
    /// 410: the watch cannot be resumed. A fault only where it goes on.
    #[error(
        "the API server keeps no history that reaches back to the last event or list (410): all pods are listed again"
    )]
    Gone,
    /// Another answer that is no success.
    #[error("the API server answered {code}: {text}")]
    Refused { code: u16, text: String },
    /// An answer with Retry-After.
    #[error("the API server answered {code} and asks to wait {after:?}")]
    Busy { code: u16, after: Duration },
    /// A watch ended soon after it began, as so many in a `row` did. A fault only where it goes on.
    #[error(
        "the API server, or a proxy before it, ends each watch soon after it began: the next one begins in {after:?}"
    )]
    Brief { row: u32, after: Duration },
    /// Too late.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// An answer, or a line of a watch, beyond what is taken.
    #[error("the API server sent more than {0} bytes in one piece")]
    TooLong(usize),
    /// More containers than a node can have.
    #[error("the API server told of more than {0} containers on this node")]
    TooMany(usize),
    /// Not what was asked for.
    #[error("the API server's answer cannot be understood: {0}")]
    Malformed(String),
    /// No TLS, or an end in the middle of an answer.
    #[error("no connection to the API server: {0}")]
    Connection(String),
    /// No process listens, or the one that does closes the connection at once.
    #[error("no connection to the API server: {0}")]
    Unreachable(String),
}

impl Error {
    /// A file that cannot be read.
    pub(super) fn file(path: &Path, purpose: &'static str, error: &io::Error) -> Self {
        Self::File { path: path.to_owned(), purpose, kind: error.kind(), text: error.to_string() }
    }

    /// What it counts as.
    pub(super) fn reason(&self) -> Reason {
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

    /// Whether the watch can go on from where it was once the server answers again. Otherwise, since an event may be
    /// lost, all pods are listed anew.
    pub(super) fn leaves_the_watch(&self) -> bool {
        !matches!(self, Self::Gone | Self::TooLong(_) | Self::TooMany(_) | Self::Malformed(_))
    }
}

impl From<watcher::Error> for Error {
    fn from(error: watcher::Error) -> Self {
        match error {
            watcher::Error::NoResourceVersion => Self::Malformed("an object without a resourceVersion".to_owned()),
            watcher::Error::WatchError(status) => status.as_ref().into(),
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error.into(),
        }
    }
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        if let Some(ours) = causes(&error).find_map(|error| error.downcast_ref::<Self>()) {
            return ours.clone();
        }
        match &error {
            kube::Error::Api(status) => status.as_ref().into(),
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) | kube::Error::LinesCodecMaxLineLengthExceeded => {
                Self::Malformed(innermost(&error))
            }
            // A line that is no UTF-8.
            kube::Error::ReadEvents(_) if is_io(&error, &[io::ErrorKind::InvalidData]) => {
                Self::Malformed(innermost(&error))
            }
            _ if is_io(&error, HUNG_UP) => Self::Unreachable(innermost(&error)),
            _ => Self::Connection(innermost(&error)),
        }
    }
}

impl From<&Status> for Error {
    fn from(status: &Status) -> Self {
        let text = if status.message.is_empty() { &status.reason } else { &status.message };
        match status.code {
            401 => Self::Unauthorized(cut(text)),
            403 => Self::NotYetAllowed(cut(text)),
            410 => Self::Gone,
            // kube takes an event that it cannot decode for a status, of which every field may be missing.
            0 => Self::Malformed("an event that is none".to_owned()),
            code => Self::Refused { code, text: cut(text) },
        }
    }
}

/// The error and its causes, the outermost first.
fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Whether a cause is an input or output error of one of these kinds.
fn is_io(error: &(dyn StdError + 'static), kinds: &[io::ErrorKind]) -> bool {
    causes(error).any(|error| error.downcast_ref::<io::Error>().is_some_and(|error| kinds.contains(&error.kind())))
}

/// The last of the causes, in its own words.
pub(super) fn innermost(error: &(dyn StdError + 'static)) -> String {
    causes(error).last().map_or_else(String::new, |last| cut(&last.to_string()))
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST_TEXT).collect()
}
