//! Faults: everything that goes wrong is counted and logged here.
//!
//! Invariant: every fault that is logged is counted, and every fault that is counted is logged unless the same fault
//! was logged recently. The set of (source, reason) pairs is closed, and every pair is counted from the start.
//! `metrics` shows a total for each source, at 0 from the start, so that an alert on an increase fires on the first
//! fault. It shows a pair only after its first fault.
//!
//! A fault that repeats (a missing library, a lost GPU) is counted each time and written to the log when it begins,
//! then once an hour while it lasts.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

/// A fault that has not occurred for this long has ended, so the next occurrence is a new fault.
const ENDED_AFTER: Duration = Duration::from_secs(90);
/// How often an ongoing fault is written to the log.
const REMINDER: Duration = Duration::from_secs(3600);

macro_rules! closed_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $label:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// All variants, in the order of their discriminants.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The value of the label.
            pub fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }
        }
    };
}

closed_enum! {
    /// The part of the exporter in which the fault occurred.
    Source {
        /// Finding, loading and initialising the NVML library.
        Library => "library",
        /// Finding the GPUs and MIG devices.
        Topology => "topology",
        /// The memory lane.
        Memory => "memory",
        /// The process lane.
        Process => "process",
        /// The telemetry readings.
        Telemetry => "telemetry",
        /// `/proc`, cgroups and user names.
        Attribution => "attribution",
        /// The kubelet's pod-resources socket.
        PodResources => "pod_resources",
        /// The Kubernetes API server.
        KubernetesApi => "kubernetes_api",
        /// The folder into which Slurm's prolog writes the allocations of jobs.
        Slurm => "slurm",
        /// The budgets that pods and processes declare.
        Budget => "budget",
        /// The socket on which processes report about their memory allocators.
        Allocator => "allocator",
        /// The recorder and its files.
        Recorder => "recorder",
        /// The receiver to which the exporter pushes its metrics.
        Otlp => "otlp",
        /// The web server.
        Http => "http",
        /// The web-config file and the files that it names.
        WebConfig => "web_config",
    }
}

closed_enum! {
    /// The reason for a fault. The first group consists of NVML's own return codes, under NVML's names.
    Reason {
        /// `NVML_ERROR_UNINITIALIZED`.
        Uninitialized => "uninitialized",
        /// `NVML_ERROR_INVALID_ARGUMENT`.
        InvalidArgument => "invalid_argument",
        /// `NVML_ERROR_NOT_SUPPORTED` for a value that this GPU never provides, counted only when the refusal begins.
        NotSupported => "not_supported",
        /// `NVML_ERROR_NO_PERMISSION`, a server that rejects the exporter's credentials or denies it access, or a
        /// client whose password is wrong.
        NoPermission => "no_permission",
        /// `NVML_ERROR_NOT_FOUND`, or a socket that does not exist.
        NotFound => "not_found",
        /// `NVML_ERROR_INSUFFICIENT_SIZE`, even after the buffer was enlarged.
        InsufficientSize => "insufficient_size",
        /// `NVML_ERROR_DRIVER_NOT_LOADED`.
        DriverNotLoaded => "driver_not_loaded",
        /// `NVML_ERROR_TIMEOUT`, a server that did not respond in time, or a client that did not send its request or
        /// take its response in time.
        Timeout => "timeout",
        /// `NVML_ERROR_IRQ_ISSUE`.
        IrqIssue => "irq_issue",
        /// `NVML_ERROR_FUNCTION_NOT_FOUND`, or a symbol that the library lacks.
        FunctionNotFound => "function_not_found",
        /// `NVML_ERROR_GPU_IS_LOST`.
        GpuIsLost => "gpu_is_lost",
        /// `NVML_ERROR_RESET_REQUIRED`.
        ResetRequired => "reset_required",
        /// `NVML_ERROR_LIB_RM_VERSION_MISMATCH`: the driver was replaced while the library was running.
        LibRmVersionMismatch => "lib_rm_version_mismatch",
        /// `NVML_ERROR_ARGUMENT_VERSION_MISMATCH`.
        ArgumentVersionMismatch => "argument_version_mismatch",
        /// `NVML_ERROR_UNKNOWN`, or a code that this version does not recognise.
        Unknown => "unknown",
        /// No library in any of the places that were searched.
        LibraryNotFound => "library_not_found",
        /// The driver returned a value that cannot be true (used above total) or is not known.
        Implausible => "implausible",
        /// A driver call, or a read of a process's files, did not return within its limit.
        Stalled => "stalled",
        /// A driver call took so long that its GPU was given a thread of its own; counted once, until the GPU is quick
        /// again.
        Slow => "slow",
        /// A thread, or a task that follows the cluster, panicked and was restarted.
        Panicked => "panicked",
        /// `/proc` of a live process, or a required file, could not be read.
        Unreadable => "unreadable",
        /// A server that accepted a request and rejected parts of its content, or rejected all of it.
        Rejected => "rejected",
        /// A file could not be written.
        Unwritable => "unwritable",
        /// A user name could not be looked up.
        UserUnknown => "user_unknown",
        /// The driver lists processes that `/proc` does not show.
        Invisible => "invisible",
        /// The mounted `/proc` belongs to another pid namespace, in which the driver's pids belong to other processes.
        ForeignProcfs => "foreign_procfs",
        /// A response that cannot be parsed or is too large, a budget that cannot be read, or a file that is rejected.
        Malformed => "malformed",
        /// The exposition could not be built.
        Encoding => "encoding",
        /// A connection or a listener failed.
        Connection => "connection",
        /// A TLS handshake failed: no certificate, a wrong one, or no TLS at all.
        Handshake => "handshake",
        /// A client was rejected because others are using all of a limited resource, or a server that has no capacity for
        /// the exporter's request.
        Overloaded => "overloaded",
        /// A message that is not a JSON object of a known form.
        InvalidMessage => "invalid_message",
        /// A message that is longer than the protocol allows.
        MessageTooLong => "message_too_long",
        /// A client that uses another version of the protocol.
        UnsupportedVersion => "unsupported_version",
        /// More connections than allowed.
        TooManyConnections => "too_many_connections",
        /// More messages in a second than allowed.
        TooManyMessages => "too_many_messages",
        /// More devices, frameworks, measured regions or budgets than allowed.
        TooManyKeys => "too_many_keys",
        /// Values that contradict each other or the driver.
        Inconsistent => "inconsistent",
        /// A process reports about a device on which the driver does not list it.
        ForeignDevice => "foreign_device",
        /// A process that the exporter cannot identify.
        UnknownProcess => "unknown_process",
    }
}

/// The reasons for faults in NVML calls.
const NVML: &[Reason] = &[
    Reason::Uninitialized,
    Reason::InvalidArgument,
    Reason::NotSupported,
    Reason::NoPermission,
    Reason::NotFound,
    Reason::InsufficientSize,
    Reason::DriverNotLoaded,
    Reason::Timeout,
    Reason::IrqIssue,
    Reason::FunctionNotFound,
    Reason::GpuIsLost,
    Reason::ResetRequired,
    Reason::LibRmVersionMismatch,
    Reason::ArgumentVersionMismatch,
    Reason::Unknown,
    Reason::Stalled,
    Reason::Panicked,
];

/// The reasons for faults of the servers that the exporter queries.
const PEER: &[Reason] =
    &[Reason::Connection, Reason::Timeout, Reason::NoPermission, Reason::NotFound, Reason::Malformed, Reason::Unknown];

/// The reasons for faults that occur while processes are being attributed to their owners.
const ATTRIBUTION: &[Reason] = &[
    Reason::Unreadable,
    Reason::UserUnknown,
    Reason::Invisible,
    Reason::ForeignProcfs,
    Reason::Stalled,
    Reason::Panicked,
];

/// The reasons for faults of the processes that report about their allocators.
const ALLOCATOR: &[Reason] = &[
    Reason::InvalidMessage,
    Reason::MessageTooLong,
    Reason::UnsupportedVersion,
    Reason::TooManyConnections,
    Reason::TooManyMessages,
    Reason::TooManyKeys,
    Reason::Inconsistent,
    Reason::ForeignDevice,
    Reason::UnknownProcess,
    Reason::Connection,
    Reason::Panicked,
];

/// The reasons for faults of the recorder.
const RECORDER: &[Reason] =
    &[Reason::Unwritable, Reason::Unreadable, Reason::Malformed, Reason::Overloaded, Reason::Panicked];

/// The reasons for faults of clients and of the responses to them.
const HTTP: &[Reason] = &[
    Reason::Encoding,
    Reason::Connection,
    Reason::Handshake,
    Reason::NoPermission,
    Reason::Overloaded,
    Reason::Timeout,
    Reason::Panicked,
];

impl Source {
    /// The reasons that this source can have: the closed set of `vram_exporter_faults_by_reason_total`.
    pub fn reasons(self) -> impl Iterator<Item = Reason> {
        let (shared, own): (&[Reason], &[Reason]) = match self {
            Self::Library => (NVML, &[Reason::LibraryNotFound]),
            Self::Memory | Self::Process => (NVML, &[Reason::Implausible, Reason::Slow]),
            Self::Topology | Self::Telemetry => (NVML, &[Reason::Implausible]),
            Self::Attribution => (&[], ATTRIBUTION),
            Self::PodResources | Self::KubernetesApi => (PEER, &[Reason::Panicked]),
            Self::Budget => (&[], &[Reason::Malformed, Reason::TooManyKeys]),
            Self::Allocator => (&[], ALLOCATOR),
            Self::Otlp => (PEER, &[Reason::Rejected, Reason::Overloaded, Reason::Panicked]),
            Self::Recorder => (&[], RECORDER),
            Self::Http => (&[], HTTP),
            Self::WebConfig | Self::Slurm => (&[], &[Reason::Unreadable, Reason::Malformed, Reason::Panicked]),
        };
        shared.iter().chain(own).copied()
    }
}

/// Hears of every fault, also of those that are not logged again.
pub trait Listener: std::fmt::Debug + Send + Sync {
    /// [`Faults::raise`] was called. The caller waits.
    fn raised(&self, source: Source, reason: Reason, gpu: Option<u32>, error: &dyn Error);
}

/// The counters of all faults since the exporter started. Every part of the exporter shares them; `metrics` reads them.
#[derive(Debug)]
pub struct Faults {
    /// When nothing had been counted yet.
    since: SystemTime,
    counts: Vec<AtomicU64>,
    throttles: Mutex<HashMap<Kind, LogThrottle>>,
    listener: Option<Arc<dyn Listener>>,
}

/// Faults with the same source, reason and GPU are the same fault.
type Kind = (Source, Reason, Option<u32>);

/// When a fault was last logged, when it last occurred, and how many times it occurred in between.
#[derive(Debug)]
struct LogThrottle {
    at: Instant,
    seen: Instant,
    held_back: u64,
}

impl LogThrottle {
    fn now(now: Instant) -> Self {
        Self { at: now, seen: now, held_back: 0 }
    }

    /// Records that the fault occurred again. If it must be logged now, returns how many occurrences were held back
    /// since it was last logged; otherwise `None`.
    fn again(&mut self, now: Instant) -> Option<u64> {
        let lasts = now.saturating_duration_since(self.seen) < ENDED_AFTER;
        if lasts && now.saturating_duration_since(self.at) < REMINDER {
            self.seen = now;
            self.held_back += 1;
            return None;
        }
        Some(std::mem::replace(self, Self::now(now)).held_back)
    }
}

impl Default for Faults {
    fn default() -> Self {
        let pairs = Source::ALL.len() * Reason::ALL.len();
        let counts = (0..pairs).map(|_| AtomicU64::new(0)).collect();
        Self { since: SystemTime::now(), counts, throttles: Mutex::default(), listener: None }
    }
}

impl Faults {
    /// Counters without a fault. The listener hears of each one.
    pub fn heard_by(listener: Arc<dyn Listener>) -> Self {
        Self { listener: Some(listener), ..Self::default() }
    }

    /// When nothing had been counted yet.
    pub fn since(&self) -> SystemTime {
        self.since
    }

    /// Counts a fault and logs it with its whole chain of causes, unless the same fault was logged recently. `gpu` is
    /// the NVML index of the GPU to which the fault belongs, if any.
    pub fn raise(&self, source: Source, reason: Reason, gpu: Option<u32>, error: &dyn Error) {
        debug_assert!(source.reasons().any(|r| r == reason), "{source:?} never has {reason:?}");
        self.cell(source, reason).fetch_add(1, Ordering::Relaxed);
        if let Some(listener) = &self.listener {
            listener.raised(source, reason, gpu, error);
        }
        let now = Instant::now();
        let mut throttles = self.throttles.lock();
        let known = throttles.get_mut(&(source, reason, gpu));
        let Some(held_back) = known.map_or(Some(0), |known| known.again(now)) else { return };
        throttles.entry((source, reason, gpu)).or_insert_with(|| LogThrottle::now(now));
        drop(throttles);
        let error = chain(error);
        let (source, reason) = (source.label(), reason.label());
        tracing::warn!(source, reason, gpu, held_back, error, "fault");
    }

    /// How many times the pair has been raised.
    pub fn count(&self, source: Source, reason: Reason) -> u64 {
        self.cell(source, reason).load(Ordering::Relaxed)
    }

    /// Every pair of the closed set with its count.
    pub fn counts(&self) -> impl Iterator<Item = (Source, Reason, u64)> + '_ {
        Source::ALL
            .iter()
            .flat_map(move |&source| source.reasons().map(move |reason| (source, reason, self.count(source, reason))))
    }

    fn cell(&self, source: Source, reason: Reason) -> &AtomicU64 {
        &self.counts[source as usize * Reason::ALL.len() + reason as usize]
    }
}

/// The error and all its causes in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let _ = write!(line, ": {next}");
        cause = next.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_exists_from_the_start_and_once() {
        let faults = Faults::default();
        let pairs: Vec<_> = faults.counts().collect();
        assert!(pairs.len() > 60);
        assert!(pairs.iter().all(|&(_, _, n)| n == 0));
        let distinct: std::collections::HashSet<_> = pairs.iter().map(|&(s, r, _)| (s, r)).collect();
        assert_eq!(distinct.len(), pairs.len());
    }

    #[test]
    fn a_repeated_fault_is_counted_each_time() {
        let faults = Faults::default();
        let error = std::io::Error::other("gone");
        for _ in 0..3 {
            faults.raise(Source::Memory, Reason::GpuIsLost, Some(1), &error);
        }
        assert_eq!(faults.count(Source::Memory, Reason::GpuIsLost), 3);
        assert_eq!(faults.count(Source::Process, Reason::GpuIsLost), 0);
    }

    #[test]
    fn a_lasting_fault_is_written_when_it_begins_and_once_an_hour() {
        let begin = Instant::now();
        let mut throttle = LogThrottle::now(begin);
        let at = |seconds| begin + Duration::from_secs(seconds);
        let written: Vec<_> = (1..=240).filter_map(|n| throttle.again(at(n * 30))).collect();
        assert_eq!(written, [119, 119]);
        assert_eq!(throttle.again(at(240 * 30 + 600)), Some(0), "after a pause it is a new fault");
    }

    #[test]
    fn the_chain_holds_every_cause() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] std::io::Error);
        assert_eq!(chain(&Outer(std::io::Error::other("inner"))), "outer: inner");
    }

    #[test]
    fn a_listener_hears_of_every_fault_although_it_is_logged_once() {
        #[derive(Debug, Default)]
        struct Heard(Mutex<Vec<String>>);
        impl Listener for Heard {
            fn raised(&self, source: Source, reason: Reason, gpu: Option<u32>, error: &dyn Error) {
                self.0.lock().push(format!("{source:?} {reason:?} {gpu:?} {error}"));
            }
        }
        let heard = Arc::new(Heard::default());
        let faults = Faults::heard_by(heard.clone());
        let error = std::io::Error::other("lost");
        (0..2).for_each(|_| faults.raise(Source::Memory, Reason::GpuIsLost, Some(3), &error));
        assert_eq!(*heard.0.lock(), ["Memory GpuIsLost Some(3) lost"; 2]);
        assert_eq!(faults.count(Source::Memory, Reason::GpuIsLost), 2);
    }
}
