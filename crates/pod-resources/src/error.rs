//! Why there is no answer from the kubelet, and what to do about it.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::{Code, Status};

/// How much of a server's message an error repeats, in characters.
const LONGEST_MESSAGE: usize = 200;

/// The beginning of prost's error for bytes that are not a message of the expected type.
const UNDECODABLE: &str = "failed to decode Protobuf message";

/// Why there is no answer. The text says what to do; the cause is in [`source`](StdError::source) and not in the text.
///
/// Each kind begins with the path of the socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path does not exist.
    #[error("there is no socket at {}: mount the host's folder there; a machine without a kubelet has none", .0.display())]
    Absent(PathBuf, #[source] io::Error),
    /// The operating system does not let this process connect.
    #[error(
        "no permission to connect to {}: the kubelet lets only root connect, so run as user 0, without capabilities",
        .0.display()
    )]
    Forbidden(PathBuf, #[source] io::Error),
    /// No process is listening.
    #[error("cannot connect to {}: is the kubelet running?", .0.display())]
    Closed(PathBuf, #[source] io::Error),
    /// The connection ended before the answer arrived, or the peer is not a gRPC server.
    #[error("the connection to {} broke: is the kubelet listening there, or another program?", .0.display())]
    Broken(PathBuf, #[source] Lost),
    /// No answer within this time.
    #[error("no answer from {} within {limit:?}: is the kubelet busy, or the limit too short?", .0.display(), limit = .1)]
    Late(PathBuf, Duration),
    /// An answer that does not have the expected form.
    #[error("the answer from {} cannot be understood", .0.display())]
    Malformed(PathBuf, #[source] Malformed),
    /// An answer with an error status.
    #[error("the server at {} answers {code} ({message}): is it a kubelet of version 1.20 or newer?", socket.display())]
    Refused {
        /// The path.
        socket: PathBuf,
        /// The name of the gRPC status code, such as `Unimplemented`.
        code: String,
        /// The server's message, truncated to 200 characters.
        message: String,
    },
}

/// What is wrong with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not protobuf, a truncated message, text that is not UTF-8, or a field of the wrong type.
    #[error("it is not a message of the pod-resources service")]
    Form,
    /// Longer than the limit.
    #[error("it is longer than 4 MiB")]
    Long,
    /// The gRPC library panicked on it.
    #[error("its headers are not gRPC")]
    Headers,
}

/// An HTTP/2 failure. Only its causes are shown: the text around them adds no information.
#[derive(Debug)]
pub struct Lost(Box<dyn StdError + Send + Sync>);

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
    /// The operating system could not connect.
    pub(super) fn connecting(socket: &Path, source: io::Error) -> Self {
        let socket = socket.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Self::Absent(socket, source),
            io::ErrorKind::PermissionDenied => Self::Forbidden(socket, source),
            _ => Self::Closed(socket, source),
        }
    }

    /// The HTTP/2 handshake failed.
    pub(super) fn handshake(socket: &Path, source: tonic::transport::Error) -> Self {
        Self::Broken(socket.to_owned(), Lost(Box::new(source)))
    }

    /// The connection ended, and the request neither succeeded nor failed.
    pub(super) fn lost(socket: &Path) -> Self {
        Self::Broken(socket.to_owned(), Lost(Box::new(Status::unavailable("the connection ended"))))
    }

    /// A request failed. `unsent` means that tonic had no connection to send it over.
    pub(super) fn asking(socket: &Path, status: Status, unsent: bool) -> Self {
        let socket = socket.to_owned();
        // tonic gives a cause to local errors, but not to errors from the server, nor to the error of a request that it
        // did not send.
        if unsent || status.source().is_some() {
            return Self::Broken(socket, Lost(Box::new(status)));
        }
        match status.code() {
            // prost's text for bytes that are not a message of the expected type; tonic passes it on without its cause.
            Code::Internal if status.message().starts_with(UNDECODABLE) => Self::Malformed(socket, Malformed::Form),
            // tonic's code for a message beyond the limit.
            Code::OutOfRange => Self::Malformed(socket, Malformed::Long),
            code => {
                let message = status.message().chars().take(LONGEST_MESSAGE).collect();
                Self::Refused { socket, code: format!("{code:?}"), message }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error's text, followed by those of its causes.
    fn chain(error: &dyn StdError) -> String {
        let causes = std::iter::successors(Some(error), |&error| error.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }

    #[test]
    fn a_refused_connection_names_its_cause_and_the_way_out() {
        let socket = Path::new("/pods/kubelet.sock");
        for (errno, way_out) in [
            (2, "mount the host's folder"),
            (13, "run as user 0, without capabilities"),
            (1, "run as user 0, without capabilities"),
            (111, "is the kubelet running?"),
        ] {
            let source = io::Error::from_raw_os_error(errno);
            let cause = source.to_string();
            let error = Error::connecting(socket, source);
            let fits = match errno {
                2 => matches!(error, Error::Absent { .. }),
                111 => matches!(error, Error::Closed { .. }),
                _ => matches!(error, Error::Forbidden { .. }),
            };
            assert!(fits, "{error:?}");
            let line = chain(&error);
            assert!(line.contains("/pods/kubelet.sock") && line.contains(way_out), "{line}");
            assert_eq!(line.matches(&cause).count(), 1, "the cause appears once: {line}");
        }
    }

    #[test]
    fn a_request_that_was_not_sent_is_no_refusal() {
        let status = || Status::unknown("Service was not ready");
        assert!(matches!(Error::asking(Path::new("/s"), status(), true), Error::Broken { .. }));
        assert!(matches!(Error::asking(Path::new("/s"), status(), false), Error::Refused { .. }));
    }

    #[test]
    fn a_long_message_of_the_server_is_cut() {
        let error = Error::asking(Path::new("/s"), Status::unknown("\u{e4}".repeat(9999)), false);
        assert!(matches!(error, Error::Refused { .. }));
        assert!(error.to_string().chars().count() < 400, "{error}");
        let error = Error::asking(Path::new("/s"), Status::out_of_range("too long"), false);
        assert_eq!(chain(&error), "the answer from /s cannot be understood: it is longer than 4 MiB");
    }
}
