//! Why there is no answer from the kubelet, and the way out.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::{Code, Status};

use crate::faults::Reason;

/// The longest message of a server that is repeated, in characters.
const LONGEST_MESSAGE: usize = 200;

/// How prost's error for bytes that are no message of a type begins.
const UNDECODABLE: &str = "failed to decode Protobuf message";

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The path does not exist.
    #[error(
        "there is no socket at {}: mount the host's folder there, or leave kubernetes.pod-resources unset",
        socket.display()
    )]
    Absent { socket: PathBuf, source: io::Error },
    /// The operating system does not let the exporter connect.
    #[error(
        "no permission to connect to {}: the kubelet lets only root connect, so run as user 0, without capabilities",
        socket.display()
    )]
    Forbidden { socket: PathBuf, source: io::Error },
    /// No process listens.
    #[error("cannot connect to {}: is the kubelet running?", socket.display())]
    Closed { socket: PathBuf, source: io::Error },
    /// The connection ended before the answer, or the peer is not a gRPC server.
    #[error("the connection to {} broke: is it the kubelet that listens there?", socket.display())]
    Broken { socket: PathBuf, source: Lost },
    /// No answer in time.
    #[error("no answer from {} within {limit:?}: is the kubelet busy, or kubernetes.timeout too short?", socket.display())]
    Late { socket: PathBuf, limit: Duration },
    /// An answer of another form than expected.
    #[error("the answer from {} cannot be understood", socket.display())]
    Malformed { socket: PathBuf, source: Malformed },
    /// An answer with an error status.
    #[error("the server at {} answers {code:?} ({message}): is it a kubelet of version 1.20 or newer?", socket.display())]
    Refused { socket: PathBuf, code: Code, message: String },
}

/// What is wrong with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    /// No protobuf, a truncated message, a text that is not UTF-8, or a field of another type.
    #[error("it is no message of the pod-resources service")]
    Form,
    /// Longer than what is read.
    #[error("it is longer than 4 MiB")]
    Long,
    /// The gRPC library panicked on it.
    #[error("its headers are no gRPC")]
    Headers,
}

/// A failure of HTTP/2. Only its causes are shown: the texts around them say nothing.
#[derive(Debug)]
pub(super) struct Lost(Box<dyn StdError + Send + Sync>);

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HTTP/2 failed")
    }
}

impl StdError for Lost {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

impl Error {
    /// The operating system refused to connect.
    pub(super) fn connecting(socket: &Path, source: io::Error) -> Self {
        let socket = socket.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Self::Absent { socket, source },
            io::ErrorKind::PermissionDenied => Self::Forbidden { socket, source },
            _ => Self::Closed { socket, source },
        }
    }

    /// The HTTP/2 handshake failed.
    pub(super) fn handshake(socket: &Path, source: tonic::transport::Error) -> Self {
        Self::Broken { socket: socket.to_owned(), source: Lost(Box::new(source)) }
    }

    /// The connection ended, and the request neither succeeded nor failed.
    pub(super) fn lost(socket: &Path) -> Self {
        Self::Broken { socket: socket.to_owned(), source: Lost(Box::new(Status::unavailable("the connection ended"))) }
    }

    /// A request failed. `unsent` says that tonic had no connection to send it over.
    pub(super) fn asking(socket: &Path, status: Status, unsent: bool) -> Self {
        let socket = socket.to_owned();
        // tonic gives a cause to errors of this side, and none to errors from the server; nor to a request that it did not
        // send.
        if unsent || status.source().is_some() {
            return Self::Broken { socket, source: Lost(Box::new(status)) };
        }
        match status.code() {
            // prost's text for bytes that are no such message; tonic passes it on without its cause.
            Code::Internal if status.message().starts_with(UNDECODABLE) => {
                Self::Malformed { socket, source: Malformed::Form }
            }
            // tonic's code for a message beyond the limit.
            Code::OutOfRange => Self::Malformed { socket, source: Malformed::Long },
            code => {
                let message = status.message().chars().take(LONGEST_MESSAGE).collect();
                Self::Refused { socket, code, message }
            }
        }
    }

    /// The fault that it counts as.
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::Absent { .. } => Reason::NotFound,
            Self::Forbidden { .. } => Reason::NoPermission,
            Self::Closed { .. } | Self::Broken { .. } => Reason::Connection,
            Self::Late { .. } => Reason::Timeout,
            Self::Malformed { .. } => Reason::Malformed,
            Self::Refused { .. } => Reason::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::chain;

    #[test]
    fn a_refused_connection_names_its_cause_and_the_way_out() {
        let socket = Path::new("/pods/kubelet.sock");
        for (errno, reason, way_out) in [
            (2, Reason::NotFound, "mount the host's folder"),
            (13, Reason::NoPermission, "run as user 0, without capabilities"),
            (1, Reason::NoPermission, "run as user 0, without capabilities"),
            (111, Reason::Connection, "is the kubelet running?"),
        ] {
            let source = io::Error::from_raw_os_error(errno);
            let cause = source.to_string();
            let error = Error::connecting(socket, source);
            assert_eq!(error.reason(), reason);
            let line = chain(&error);
            assert!(line.contains("/pods/kubelet.sock") && line.contains(way_out), "{line}");
            assert_eq!(line.matches(&cause).count(), 1, "the cause is said once: {line}");
        }
    }

    #[test]
    fn a_request_that_was_not_sent_is_no_refusal() {
        let status = || Status::unknown("Service was not ready");
        assert_eq!(Error::asking(Path::new("/s"), status(), true).reason(), Reason::Connection);
        assert_eq!(Error::asking(Path::new("/s"), status(), false).reason(), Reason::Unknown);
    }

    #[test]
    fn a_long_message_of_the_server_is_cut() {
        let error = Error::asking(Path::new("/s"), Status::unknown("\u{e4}".repeat(9999)), false);
        assert_eq!(error.reason(), Reason::Unknown);
        assert!(error.to_string().chars().count() < 400, "{error}");
        let error = Error::asking(Path::new("/s"), Status::out_of_range("too long"), false);
        assert_eq!(chain(&error), "the answer from /s cannot be understood: it is longer than 4 MiB");
    }
}
