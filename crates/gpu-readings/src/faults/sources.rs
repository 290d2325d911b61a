//! Which faults there are: each source with its reasons.
//!
//! Invariant: the set of pairs is closed, so that all of them can be counted from the start.

use crate::closed_enum::closed_enum;

closed_enum! {
    /// The part of the exporter in which the fault occurred.
    pub enum Source {
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
        /// The claims that the kubelet lists, and the ResourceSlices that name their GPUs.
        ResourceClaims => "resource_claims",
        /// The Kubernetes API server.
        KubernetesApi => "kubernetes_api",
        /// The folder into which Slurm's prolog writes the allocations of jobs.
        Slurm => "slurm",
        /// The budgets that pods and processes declare.
        Budget => "budget",
        /// The socket on which processes report about their memory allocators.
        Allocator => "allocator",
        /// The probes on the driver's memory calls.
        Probes => "probes",
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
    pub enum Reason {
        /// `NVML_ERROR_UNINITIALIZED`.
        Uninitialized => "uninitialized",
        /// `NVML_ERROR_INVALID_ARGUMENT`.
        InvalidArgument => "invalid_argument",
        /// `NVML_ERROR_NOT_SUPPORTED` for a value that this GPU never provides, counted only when the refusal begins, or a
        /// kernel on which probes cannot be used.
        NotSupported => "not_supported",
        /// `NVML_ERROR_NO_PERMISSION`, a right that probes need, a server that rejects the exporter's credentials or denies it access, or a
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
        /// The mounted `/proc` belongs to another pid namespace, in which the driver's pids belong to other processes, or the
        /// exporter is not in the machine's pid namespace, which probes need.
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

/// The reasons for which the driver's memory calls are not seen.
const PROBES: &[Reason] = &[
    Reason::NoPermission,
    Reason::NotSupported,
    Reason::ForeignProcfs,
    Reason::Unreadable,
    Reason::Unknown,
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
            Self::Memory => (NVML, &[Reason::Implausible, Reason::Slow, Reason::Unreadable]),
            Self::Process => (NVML, &[Reason::Implausible, Reason::Slow]),
            Self::Topology | Self::Telemetry => (NVML, &[Reason::Implausible]),
            Self::Attribution => (&[], ATTRIBUTION),
            Self::PodResources | Self::KubernetesApi => (PEER, &[Reason::Panicked]),
            Self::ResourceClaims => (PEER, &[Reason::Inconsistent, Reason::Panicked]),
            Self::Budget => (&[], &[Reason::Malformed, Reason::TooManyKeys]),
            Self::Allocator => (&[], ALLOCATOR),
            Self::Otlp => (PEER, &[Reason::Rejected, Reason::Overloaded, Reason::Panicked]),
            Self::Probes => (&[], PROBES),
            Self::Recorder => (&[], RECORDER),
            Self::Http => (&[], HTTP),
            Self::WebConfig | Self::Slurm => (&[], &[Reason::Unreadable, Reason::Malformed, Reason::Panicked]),
        };
        shared.iter().chain(own).copied()
    }
}
