//! Limits on the resources of the exporter that clients may use.

use std::time::Duration;

/// The limits of a server, for all of its listeners together.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Requests that are answered at the same time, from the first byte of the request until the last byte of the
    /// response has been sent. Health probes are not counted.
    pub max_requests: usize,
    /// Connections that are open at the same time.
    pub max_connections: usize,
    /// How long a client may take from connecting, or from a request's first byte, to the request's last header.
    pub read_timeout: Duration,
    /// How long sending a response may take.
    pub write_timeout: Duration,
    /// How long a connection may be idle between two requests.
    pub idle_timeout: Duration,
}

impl Limits {
    /// The shortest of the timeouts.
    pub(super) fn shortest_timeout(&self) -> Duration {
        self.read_timeout.min(self.write_timeout).min(self.idle_timeout)
    }
}
