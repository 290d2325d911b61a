//! Why a push failed, in words that name the receiver and a way out.

use std::error::Error as StdError;
use std::time::Duration;

use crate::client;
use crate::faults::Reason;

/// Why a push failed, or why the configuration of the pushes is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The headers cannot be read.
    #[error("the headers for the OTLP receiver ({from}): {text}")]
    Headers {
        /// The file or the variable.
        from: String,
        /// What is wrong, without the header itself.
        text: String,
    },
    /// The attributes of the resource cannot be read.
    #[error("the attributes for the OTLP receiver ({from}): {text}")]
    Attributes {
        /// The variable.
        from: String,
        /// What is wrong.
        text: String,
    },
    /// A variable cannot be read.
    #[error("the variable {0} is not UTF-8; unset it or correct it")]
    Variable(&'static str),
    /// The files could not be read in time.
    #[error("the headers and certificates for the OTLP receiver (otlp.headers-file, otlp.ca-file): {0}")]
    Unread(std::io::Error),
    /// There are no certificates to trust.
    #[error("no certificates to trust for the OTLP receiver; set otlp.ca-file ({0})")]
    NoTrust(String),
    /// The endpoint cannot be used.
    #[error("otlp.endpoint {0}")]
    Url(String),
    /// The push could not be put together.
    #[error("the push could not be encoded")]
    Encoding(#[source] std::io::Error),
    /// There is no connection, or it was closed too early.
    #[error("no connection to the OTLP receiver at {endpoint}: {text}{hint}")]
    Connection {
        /// The URL.
        endpoint: String,
        /// What went wrong.
        text: String,
        /// What may help; empty if nothing specific is known.
        hint: &'static str,
    },
    /// An attempt took too long.
    #[error("the OTLP receiver at {endpoint} did not answer within {after:?} (otlp.timeout)")]
    Timeout {
        /// The URL.
        endpoint: String,
        /// The limit.
        after: Duration,
    },
    /// The receiver answered with another status than success.
    #[error("the OTLP receiver at {endpoint} answered {code}: {}{text}", advice(*code))]
    Answer {
        /// The URL.
        endpoint: String,
        /// The status.
        code: u16,
        /// What the receiver says.
        text: String,
        /// How long it asks to wait.
        after: Option<Duration>,
    },
    /// The receiver answered with success, and with a body that is not an OTLP response.
    #[error(
        "the OTLP receiver at {endpoint} answered {code} with something other than an OTLP response: otlp.endpoint may lead \
         to another server or a login page"
    )]
    NotOtlp {
        /// The URL.
        endpoint: String,
        /// The status.
        code: u16,
    },
    /// The receiver accepted the push without some of its points.
    #[error("the OTLP receiver at {endpoint} rejected {points} data points of a push that it accepted: {text}")]
    Partial {
        /// The URL.
        endpoint: String,
        /// How many.
        points: u64,
        /// What the receiver says.
        text: String,
    },
}

/// What may help against a status.
fn advice(code: u16) -> &'static str {
    match code {
        300..=399 => "redirects are not followed; set otlp.endpoint to the URL to which it leads",
        400 => "it does not accept the content of the push; its log may say why. ",
        401 | 403 => "check the credentials in otlp.headers-file. ",
        404 | 405 => {
            "check the path of otlp.endpoint, and whether OTLP is switched on there (Prometheus: \
             --web.enable-otlp-receiver and /api/v1/otlp). "
        }
        413 => "the push is too large for it; process.series=false makes it smaller. ",
        415 => "it does not take protobuf, or no gzip (otlp.compression). ",
        _ => "",
    }
}

impl Error {
    /// A TCP, TLS or HTTP failure.
    pub(super) fn transport(endpoint: &str, error: &(dyn StdError + 'static)) -> Self {
        let text = client::innermost(error);
        // The usual port of OTLP over gRPC.
        let grpc = endpoint.contains(":4317");
        let hint = if grpc { "; port 4317 is usually for gRPC, and OTLP over HTTP uses 4318" } else { "" };
        Self::Connection { endpoint: endpoint.to_owned(), text, hint }
    }

    /// The reason under which it is counted as a fault.
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::Headers { .. } | Self::Attributes { .. } | Self::Variable(_) | Self::Url(_) => Reason::Malformed,
            Self::Encoding(_) | Self::NotOtlp { .. } => Reason::Malformed,
            Self::Connection { .. } | Self::NoTrust(_) => Reason::Connection,
            Self::Unread(error) if error.kind() != std::io::ErrorKind::TimedOut => Reason::Unknown,
            Self::Unread(_) | Self::Timeout { .. } | Self::Answer { code: 408 | 504, .. } => Reason::Timeout,
            Self::Answer { code: 401 | 403 | 407, .. } => Reason::NoPermission,
            Self::Answer { code: 404 | 405 | 410, .. } => Reason::NotFound,
            Self::Answer { code: 429 | 502 | 503, .. } => Reason::Overloaded,
            Self::Answer { code: 400 | 413 | 415, .. } | Self::Partial { .. } => Reason::Rejected,
            Self::Answer { .. } => Reason::Unknown,
        }
    }

    /// Whether the same push may be accepted later, as the protocol's specification defines it.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Connection { .. } | Self::Timeout { .. } => true,
            // The files may be about to change.
            Self::Headers { .. } | Self::Unread(_) | Self::NoTrust(_) => true,
            Self::Answer { code, .. } => is_retryable(*code),
            _ => false,
        }
    }

    /// Whether the receiver may have accepted a request that was sent and then failed like this.
    pub(super) fn leaves_delivery_open(&self) -> bool {
        // A gateway may answer like this after it has passed the request on.
        matches!(self, Self::Connection { .. } | Self::Timeout { .. } | Self::Answer { code: 408 | 502 | 504, .. })
    }

    /// How long the receiver asks to wait before the next request.
    pub(super) fn asked_to_wait(&self) -> Option<Duration> {
        match self {
            Self::Answer { after, code, .. } if is_retryable(*code) => *after,
            _ => None,
        }
    }
}

fn is_retryable(code: u16) -> bool {
    matches!(code, 429 | 502 | 503 | 504)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16) -> Error {
        let after = Some(Duration::from_secs(7));
        Error::Answer { endpoint: "http://a/v1/metrics".to_owned(), code, text: "no".to_owned(), after }
    }

    #[test]
    fn only_the_statuses_that_the_specification_names_are_tried_again() {
        let transient: Vec<_> = (300..600).filter(|code| answer(*code).is_transient()).collect();
        assert_eq!(transient, [429, 502, 503, 504]);
        assert_eq!((answer(400).asked_to_wait(), answer(429).asked_to_wait()), (None, Some(Duration::from_secs(7))));
    }

    #[test]
    fn a_refusal_is_certain_and_silence_is_not() {
        let open: Vec<_> = (300..600).filter(|code| answer(*code).leaves_delivery_open()).collect();
        assert_eq!(open, [408, 502, 504]);
        let silence = Error::Timeout { endpoint: String::new(), after: Duration::ZERO };
        let closed = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(silence.leaves_delivery_open() && Error::transport("", &closed).leaves_delivery_open());
        assert!(!Error::Url(String::new()).leaves_delivery_open());
    }

    #[test]
    fn a_message_names_the_endpoint_the_status_and_a_way_out() {
        for (code, words) in [(401, "otlp.headers-file"), (404, "otlp.endpoint"), (307, "not followed"), (413, "large")]
        {
            let text = answer(code).to_string();
            assert!(text.contains("http://a/v1/metrics answered") && text.contains(&code.to_string()), "{text}");
            assert!(text.contains(words), "{text}");
        }
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert!(Error::transport("http://a:4317/v1/metrics", &refused).to_string().contains("4318"));
        assert!(!Error::transport("http://a:4318/v1/metrics", &refused).to_string().contains("gRPC"));
    }
}
