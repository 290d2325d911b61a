//! Why there is no answer from the kubelet, and the way out.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::{Code, Status};

use crate::faults::Reason;

/// How much of a server's own words is repeated, in characters.
const MOST_WORDS: usize = 200;

/// How prost begins to tell that bytes are no message of a type.
const UNDECODABLE: &str = "failed to decode Protobuf message";

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Nothing is at the path.
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
    /// Nobody listens.
    #[error("cannot connect to {}: is the kubelet running?", socket.display())]
    Closed { socket: PathBuf, source: io::Error },
    /// The connection ended before the answer, or is not one to a gRPC server.
    #[error("the connection to {} broke: is it the kubelet that listens there?", socket.display())]
    Broken { socket: PathBuf, source: Lost },
    /// No answer in time.
    #[error("no answer from {} within {limit:?}: is the kubelet busy, or kubernetes.timeout too short?", socket.display())]
    Late { socket: PathBuf, limit: Duration },
    /// An answer that is not in the form that it should have.
    #[error("the answer from {} cannot be understood", socket.display())]
    Malformed { socket: PathBuf, source: Malformed },
    /// The server says no.
    #[error("the server at {} answers {code:?} ({words}): is it a kubelet of version 1.20 or newer?", socket.display())]
    Refused { socket: PathBuf, code: Code, words: String },
}

/// What is wrong with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    /// No protobuf, cut short, a text that is not UTF-8, or another type than a field has.
    #[error("it is no message of the pod-resources service")]
    Form,
    /// Longer than what is read.
    #[error("it is longer than 4 MiB")]
    Long,
    /// The gRPC library gave up on it.
    #[error("its headers are no gRPC")]
    Headers,
}

/// What HTTP/2 met, by its causes alone: what stands around them says nothing.
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
    /// What the operating system said to a connection.
    pub(super) fn connecting(socket: &Path, source: io::Error) -> Self {
        let socket = socket.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Self::Absent { socket, source },
            io::ErrorKind::PermissionDenied => Self::Forbidden { socket, source },
            _ => Self::Closed { socket, source },
        }
    }

    /// What HTTP/2 said to a connection.
    pub(super) fn shaking_hands(socket: &Path, source: tonic::transport::Error) -> Self {
        Self::Broken { socket: socket.to_owned(), source: Lost(Box::new(source)) }
    }

    /// The connection ended, and the question with it was not given back.
    pub(super) fn lost(socket: &Path) -> Self {
        Self::Broken { socket: socket.to_owned(), source: Lost(Box::new(Status::unavailable("the connection ended"))) }
    }

    /// What came instead of an answer, and whether the connection is gone.
    pub(super) fn asking(socket: &Path, status: Status, gone: bool) -> Self {
        let socket = socket.to_owned();
        // tonic gives a cause to what happened on this side, and none to what a server says. But it has no cause either for
        // a question that it did not send.
        if gone || status.source().is_some() {
            return Self::Broken { socket, source: Lost(Box::new(status)) };
        }
        match status.code() {
            // prost's words for bytes that are no such message; tonic gives them without their cause.
            Code::Internal if status.message().starts_with(UNDECODABLE) => {
                Self::Malformed { socket, source: Malformed::Form }
            }
            // tonic's word for a message beyond the limit.
            Code::OutOfRange => Self::Malformed { socket, source: Malformed::Long },
            code => Self::Refused { socket, code, words: status.message().chars().take(MOST_WORDS).collect() },
        }
    }

    /// Which fault it is.
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
    fn a_refused_connection_is_told_by_its_cause_and_names_the_way_out() {
        let socket = Path::new("/pods/kubelet.sock");
        for (errno, reason, way_out) in [
            (2, Reason::NotFound, "mount the host's folder"),
            (13, Reason::NoPermission, "run as user 0, without capabilities"),
            (1, Reason::NoPermission, "run as user 0, without capabilities"),
            (111, Reason::Connection, "is the kubelet running?"),
        ] {
            let source = io::Error::from_raw_os_error(errno);
            let words = source.to_string();
            let error = Error::connecting(socket, source);
            assert_eq!(error.reason(), reason);
            let line = chain(&error);
            assert!(line.contains("/pods/kubelet.sock") && line.contains(way_out), "{line}");
            assert_eq!(line.matches(&words).count(), 1, "the cause is said once: {line}");
        }
    }

    #[test]
    fn a_question_that_was_not_sent_is_no_refusal() {
        let unsent = || Status::unknown("Service was not ready");
        assert_eq!(Error::asking(Path::new("/s"), unsent(), true).reason(), Reason::Connection);
        assert_eq!(Error::asking(Path::new("/s"), unsent(), false).reason(), Reason::Unknown);
    }

    #[test]
    fn a_server_s_words_are_cut() {
        let error = Error::asking(Path::new("/s"), Status::unknown("\u{e4}".repeat(9999)), false);
        assert_eq!(error.reason(), Reason::Unknown);
        assert!(error.to_string().chars().count() < 400, "{error}");
        let error = Error::asking(Path::new("/s"), Status::out_of_range("too long"), false);
        assert_eq!(chain(&error), "the answer from /s cannot be understood: it is longer than 4 MiB");
    }
}
