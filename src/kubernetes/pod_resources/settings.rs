//! Which socket to ask, and how often.

use std::path::PathBuf;
use std::time::Duration;

/// What to follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The kubelet's socket, such as `/var/lib/kubelet/pod-resources/kubelet.sock`.
    pub socket: PathBuf,
    /// The time between two requests.
    pub interval: Duration,
    /// The time limit for connecting, and for an answer.
    pub timeout: Duration,
}
