//! Every NVML call that the exporter makes, the families that depend on it, and every error code that it can return.

use gpu_readings::lanes::telemetry_numbers;

/// Every code in `nvml.h` except those that mean that the driver itself is out of reach, with the reason under
/// which it is counted.
pub(crate) const CODES: [(&str, &str); 28] = [
    ("INVALID_ARGUMENT", "invalid_argument"),
    ("NOT_SUPPORTED", "not_supported"),
    ("NO_PERMISSION", "no_permission"),
    ("ALREADY_INITIALIZED", "unknown"),
    ("NOT_FOUND", "not_found"),
    ("INSUFFICIENT_SIZE", "insufficient_size"),
    ("INSUFFICIENT_POWER", "unknown"),
    ("TIMEOUT", "timeout"),
    ("IRQ_ISSUE", "irq_issue"),
    ("LIBRARY_NOT_FOUND", "function_not_found"),
    ("FUNCTION_NOT_FOUND", "function_not_found"),
    ("CORRUPTED_INFOROM", "unknown"),
    ("GPU_IS_LOST", "gpu_is_lost"),
    ("RESET_REQUIRED", "reset_required"),
    ("OPERATING_SYSTEM", "no_permission"),
    ("IN_USE", "unknown"),
    ("MEMORY", "unknown"),
    ("NO_DATA", "not_found"),
    ("VGPU_ECC_NOT_SUPPORTED", "unknown"),
    ("INSUFFICIENT_RESOURCES", "unknown"),
    ("FREQ_NOT_SUPPORTED", "unknown"),
    ("ARGUMENT_VERSION_MISMATCH", "argument_version_mismatch"),
    ("DEPRECATED", "unknown"),
    ("NOT_READY", "unknown"),
    ("GPU_NOT_FOUND", "unknown"),
    ("INVALID_STATE", "unknown"),
    ("RESET_TYPE_NOT_SUPPORTED", "unknown"),
    ("UNKNOWN", "unknown"),
];

/// The driver is out of reach: it is opened again.
pub(crate) const OF_THE_DRIVER: [(&str, &str); 3] = [
    ("UNINITIALIZED", "uninitialized"),
    ("DRIVER_NOT_LOADED", "driver_not_loaded"),
    ("LIB_RM_VERSION_MISMATCH", "lib_rm_version_mismatch"),
];

/// Reasons that mean that the GPU does not provide a value: nothing is wrong, and the value's absence need not be
/// counted.
pub(crate) const REFUSED_FOR_GOOD: [&str; 4] =
    ["not_supported", "no_permission", "function_not_found", "argument_version_mismatch"];

/// What a GPU no longer shows when it refuses a call.
#[derive(Clone, Copy)]
pub(crate) enum Costs {
    /// These families and no others.
    Only(&'static [&'static str]),
    /// These families at least.
    AtLeast(&'static [&'static str]),
    /// No family. The refusal is counted, unless the driver refuses the call permanently.
    Nothing,
}

/// A call that is made for a GPU again and again.
pub(crate) struct Repeated {
    /// The call, and the older ones that are made in its place if it is refused for good.
    pub(crate) names: &'static [&'static str],
    /// The source under which its refusals are counted.
    pub(crate) source: &'static str,
    pub(crate) costs: Costs,
    /// Codes that are normal results and not refusals.
    pub(crate) answers: &'static [&'static str],
}

const fn reading(names: &'static [&'static str], tells: &'static [&'static str]) -> Repeated {
    Repeated { names, source: "telemetry", costs: Costs::Only(tells), answers: &[] }
}

const fn layout(names: &'static [&'static str]) -> Repeated {
    Repeated { names, source: "topology", costs: Costs::Nothing, answers: &[] }
}

/// The accounting call: its refusal changes nothing that is shown.
pub(crate) const OF_ACCOUNTING: [Repeated; 1] = [Repeated {
    names: &["nvmlDeviceGetAccountingStats"],
    source: "process",
    costs: Costs::Nothing,
    answers: &["NOT_FOUND", "NO_DATA"],
}];

/// The call for the limits of cgroups, which only new drivers have: its refusal costs limits that these GPUs do not have.
pub(crate) const OF_CGROUPS: [Repeated; 1] = [Repeated {
    names: &["nvmlDeviceGetMemoryLimits_v1"],
    source: "process",
    costs: Costs::Nothing,
    answers: &["NOT_FOUND"],
}];

/// The calls for the guests of a vGPU host. Two of them are made for a vGPU, which may end at any time. Without an answer,
/// what the guests use is unknown.
pub(crate) const OF_GUESTS: [Repeated; 3] = [
    of_guests(&["nvmlDeviceGetActiveVgpus"], &[]),
    of_guests(&["nvmlVgpuInstanceGetVmID"], &["NOT_FOUND", "NO_DATA"]),
    of_guests(&["nvmlVgpuInstanceGetFbUsage"], &["NOT_FOUND", "NO_DATA"]),
];

const fn of_guests(names: &'static [&'static str], answers: &'static [&'static str]) -> Repeated {
    Repeated { names, source: "process", costs: Costs::AtLeast(&["gpu_memory_unattributed_bytes"]), answers }
}

pub(crate) const OF_LISTS: [Repeated; 3] = [
    Repeated {
        names: &[
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetComputeRunningProcesses_v2",
            "nvmlDeviceGetComputeRunningProcesses",
        ],
        source: "process",
        costs: Costs::AtLeast(&["gpu_process_memory_used_bytes"]),
        answers: &[],
    },
    // A GPU model without support for graphics or MPS has none of these processes.
    Repeated {
        names: &[
            "nvmlDeviceGetGraphicsRunningProcesses_v3",
            "nvmlDeviceGetGraphicsRunningProcesses_v2",
            "nvmlDeviceGetGraphicsRunningProcesses",
        ],
        source: "process",
        costs: Costs::Nothing,
        answers: NO_LIST,
    },
    Repeated {
        names: &[
            "nvmlDeviceGetMPSComputeRunningProcesses_v3",
            "nvmlDeviceGetMPSComputeRunningProcesses_v2",
            "nvmlDeviceGetMPSComputeRunningProcesses",
        ],
        source: "process",
        costs: Costs::Nothing,
        answers: NO_LIST,
    },
];

const NO_LIST: &[&str] = &[
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "OPERATING_SYSTEM",
    "LIBRARY_NOT_FOUND",
    "FUNCTION_NOT_FOUND",
    "ARGUMENT_VERSION_MISMATCH",
];

/// The calls that read memory. If the second version is refused for good, the first one reports everything except
/// reserved memory.
pub(crate) const OF_MEMORY: [Repeated; 2] = [
    Repeated {
        names: &["nvmlDeviceGetMemoryInfo_v2"],
        source: "memory",
        costs: Costs::AtLeast(&["gpu_memory_reserved_bytes"]),
        answers: &[],
    },
    reading(&["nvmlDeviceGetBAR1MemoryInfo"], &["gpu_bar1_memory_total_bytes", "gpu_bar1_memory_used_bytes"]),
];

pub(crate) const READINGS: [Repeated; 18] = [
    reading(&["nvmlDeviceGetUtilizationRates"], &["gpu_utilization_ratio", "gpu_memory_bandwidth_utilization_ratio"]),
    reading(&["nvmlDeviceGetEncoderUtilization"], &["gpu_encoder_utilization_ratio"]),
    reading(&["nvmlDeviceGetDecoderUtilization"], &["gpu_decoder_utilization_ratio"]),
    reading(&["nvmlDeviceGetTemperature"], &["gpu_temperature_celsius"]),
    reading(
        &["nvmlDeviceGetFieldValues"],
        &["gpu_memory_temperature_celsius", "gpu_recovery_action", "gpu_clock_limited_seconds_total"],
    ),
    reading(&["nvmlDeviceGetClockInfo"], &["gpu_clock_hertz"]),
    reading(&["nvmlDeviceGetCurrentClocksThrottleReasons"], &["gpu_throttle_active"]),
    reading(&["nvmlDeviceGetTotalEccErrors"], &["gpu_ecc_errors_total"]),
    reading(&["nvmlDeviceGetRemappedRows"], &["gpu_remapped_rows", "gpu_row_remap_pending", "gpu_row_remap_failed"]),
    Repeated {
        // The first code means that there is no sample; with the second, the call reports the length of its list, which
        // is 0 here.
        answers: &["NOT_FOUND", "INSUFFICIENT_SIZE"],
        ..reading(&["nvmlDeviceGetProcessUtilization"], &["gpu_process_idle_seconds"])
    },
    reading(&["nvmlDeviceGetTemperatureThreshold"], &["gpu_temperature_threshold_celsius"]),
    reading(
        &["nvmlDeviceGetPowerManagementLimitConstraints"],
        &["gpu_power_limit_min_watts", "gpu_power_limit_max_watts"],
    ),
    reading(&["nvmlDeviceGetPerformanceState"], &["gpu_performance_state"]),
    reading(&["nvmlDeviceGetRowRemapperHistogram"], &["gpu_row_remap_banks"]),
    reading(&["nvmlDeviceGetCurrPcieLinkGeneration"], &["gpu_pcie_link_generation"]),
    reading(&["nvmlDeviceGetMaxPcieLinkGeneration"], &["gpu_pcie_link_generation_max"]),
    reading(&["nvmlDeviceGetCurrPcieLinkWidth"], &["gpu_pcie_link_width"]),
    reading(&["nvmlDeviceGetMaxPcieLinkWidth"], &["gpu_pcie_link_width_max"]),
];

/// The readings of one number, which the exporter declares in a table of its own.
pub(crate) fn numbers() -> impl Iterator<Item = Repeated> {
    let shown = |family: &&'static str| !NOT_SHOWN.contains(family);
    let all = telemetry_numbers().into_iter().flatten();
    all.map(move |(call, families)| {
        reading(Vec::leak(vec![call]), Vec::leak(families.iter().copied().filter(shown).collect()))
    })
}

/// The call for GPU models that retire pages; these do not remap rows.
pub(crate) const OF_RETIRED_PAGES: [Repeated; 1] = [reading(&["nvmlDeviceGetRetiredPages"], &["gpu_retired_pages"])];

/// The calls for GPU models that have fans.
pub(crate) const OF_FANS: [Repeated; 2] = [
    reading(&["nvmlDeviceGetNumFans"], &["gpu_fan_speed_ratio"]),
    reading(&["nvmlDeviceGetFanSpeed_v2"], &["gpu_fan_speed_ratio"]),
];

/// The calls for GPU models that have links to others.
pub(crate) const OF_LINKS: [Repeated; 2] = [
    reading(&["nvmlDeviceGetNvLinkState"], &["gpu_nvlink_links_down"]),
    reading(&["nvmlDeviceGetGpuFabricInfoV"], &["gpu_fabric_state", "gpu_fabric_problem_active"]),
];

pub(crate) const OF_LAYOUT: [Repeated; 1] = [layout(&["nvmlDeviceGetMigMode"])];

/// The calls for GPUs with MIG devices.
pub(crate) const OF_SLICES: [Repeated; 3] = [
    layout(&["nvmlDeviceGetMaxMigDeviceCount"]),
    layout(&["nvmlDeviceGetMigDeviceHandleByIndex"]),
    layout(&["nvmlDeviceGetGpuInstanceId"]),
];

/// A call that is made for a GPU or a MIG device when the driver is opened.
pub(crate) struct AtOpening {
    pub(crate) name: &'static str,
    /// The label of `gpu_info` that it fills.
    pub(crate) label: Option<&'static str>,
    /// Which refusals may leave no trace.
    pub(crate) silent: Silent,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silent {
    No,
    /// Permanent refusals: they mean that there is nothing to read.
    ForGood,
}

const fn at_opening(name: &'static str, label: Option<&'static str>, silent: Silent) -> AtOpening {
    AtOpening { name, label, silent }
}

/// A GPU that refuses one of these keeps what it reported when the driver was opened earlier.
pub(crate) const AT_OPENING: [AtOpening; 16] = [
    at_opening("nvmlDeviceGetHandleByIndex_v2", None, Silent::No),
    at_opening("nvmlDeviceGetUUID", Some("uuid"), Silent::No),
    at_opening("nvmlDeviceGetMinorNumber", Some("minor_number"), Silent::ForGood),
    at_opening("nvmlDeviceGetName", Some("name"), Silent::ForGood),
    at_opening("nvmlDeviceGetPciInfo_v3", Some("pci_bus_id"), Silent::No),
    at_opening("nvmlDeviceGetBrand", None, Silent::ForGood),
    at_opening("nvmlDeviceGetSerial", None, Silent::ForGood),
    at_opening("nvmlDeviceGetArchitecture", Some("architecture"), Silent::ForGood),
    at_opening("nvmlDeviceGetVbiosVersion", Some("vbios"), Silent::ForGood),
    at_opening("nvmlDeviceGetCudaComputeCapability", Some("compute_capability"), Silent::ForGood),
    at_opening("nvmlDeviceGetAddressingMode", Some("addressing_mode"), Silent::ForGood),
    at_opening("nvmlDeviceGetModuleId", Some("module_id"), Silent::ForGood),
    at_opening("nvmlDeviceGetSupportedEventTypes", None, Silent::ForGood),
    at_opening("nvmlDeviceRegisterEvents", None, Silent::ForGood),
    at_opening("nvmlDeviceGetAccountingMode", None, Silent::ForGood),
    at_opening("nvmlDeviceGetMigMode", Some("mig_mode"), Silent::No),
];

pub(crate) const OF_SLICES_AT_OPENING: [AtOpening; 2] = [
    at_opening("nvmlDeviceGetMigMode", Some("mig_mode"), Silent::No),
    at_opening("nvmlDeviceGetComputeInstanceId", None, Silent::No),
];

/// Calls about the driver and not about a GPU, with the label of `nvidia_driver_info` that each fills.
pub(crate) const OF_NO_GPU: [(&str, Option<&str>); 7] = [
    ("nvmlInit_v2", None),
    ("nvmlDeviceGetCount_v2", None),
    ("nvmlSystemGetDriverVersion", Some("driver_version")),
    ("nvmlSystemGetNVMLVersion", Some("nvml_version")),
    ("nvmlSystemGetCudaDriverVersion_v2", Some("cuda_version")),
    ("nvmlEventSetCreate", None),
    ("nvmlEventSetWait_v2", None),
];

/// The calls for the profiling counters. `tests/it/profiling.rs` tests their failures.
const OF_PROFILING: [&str; 6] = [
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleGet",
    "nvmlGpmMigSampleGet",
    "nvmlGpmMetricsGet",
    "nvmlGpmSampleFree",
];

/// Called only if the library lacks the newer call.
const FALLBACKS: [&str; 2] = ["nvmlDeviceGetMemoryInfo", "nvmlSystemGetCudaDriverVersion"];

/// Made only with a key of the configuration: `tests/it/nvlink.rs` has the refusals of the first one, and `tests/it/dcgm/files.rs`
/// those of the others.
const ON_REQUEST: [&str; 4] = [
    "nvmlDeviceGetNvLinkErrorCounter",
    "nvmlDeviceGetFanSpeed",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetPowerManagementLimit",
];

/// The families of a key that the tests of the calls do not set: `tests/it/health.rs` and the tests of the process lane have them.
const NOT_SHOWN: [&str; 2] = ["gpu_workload_energy_joules_total", "gpu_idle_energy_joules_total"];

/// All the calls in the tables.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let repeated = OF_ACCOUNTING
        .iter()
        .chain(&OF_CGROUPS)
        .chain(&OF_GUESTS)
        .chain(&OF_LISTS)
        .chain(&OF_MEMORY)
        .chain(&READINGS)
        .chain(&OF_FANS)
        .chain(&OF_LINKS)
        .chain(&OF_RETIRED_PAGES);
    let repeated = repeated.chain(&OF_LAYOUT).chain(&OF_SLICES).flat_map(|call| call.names).copied();
    let repeated = repeated.chain(numbers().flat_map(|call| call.names).copied());
    let at_opening = AT_OPENING.iter().chain(&OF_SLICES_AT_OPENING).map(|call| call.name);
    let others = OF_NO_GPU.map(|(call, _)| call).into_iter().chain(FALLBACKS).chain(ON_REQUEST).chain(OF_PROFILING);
    repeated.chain(at_opening).chain(others)
}
