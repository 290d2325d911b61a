//! What a connection had reported when it ended, for a program that reports on processes after their end. The exporter
//! does not use it.

use std::fmt;
use std::sync::Arc;

use crate::snapshot::ProcessId;

/// What one framework in a process reported about one device on one connection. `None`: the value was not reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The process, as the kernel reports it. Its start time is unknown if it had ended before that could be read.
    pub process: ProcessId,
    /// The UUID of a GPU or MIG device. It may be one that does not exist or that the process does not use.
    pub device: Arc<str>,
    /// The framework's name: 1 to 32 characters from `a-z`, `0-9` and `_`.
    pub framework: Arc<str>,
    /// Bytes: the highest allocated memory since the process started, as far as it is known.
    pub allocated_peak: Option<u64>,
    /// Bytes: the highest reserved memory since the process started, as far as it is known.
    pub reserved_peak: Option<u64>,
    /// The last number of allocations for which cached memory had to be returned to the driver first.
    pub retries: Option<u64>,
    /// The last number of allocations that failed.
    pub out_of_memory: Option<u64>,
}

/// Takes the outcomes of each connection when it ends.
#[derive(Clone)]
pub struct Outcomes(Arc<dyn Fn(Vec<Outcome>) + Send + Sync>);

impl Outcomes {
    /// Wraps the function. It must not wait.
    pub fn new(take: impl Fn(Vec<Outcome>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    pub(super) fn take(&self, outcomes: Vec<Outcome>) {
        (self.0)(outcomes);
    }
}

impl fmt::Debug for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outcomes")
    }
}
