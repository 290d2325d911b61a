//! Old drivers: the version with which each call began, what is shown without it, and the table about it in
//! docs/install.md.
//!
//! The versions are those of the first `nvml.h` that declares the call, in the CUDA toolkits 11.0 (driver 450), 11.1 (455),
//! 11.2 (460), 11.3 (465), 11.4 (470), 11.5 (495), 11.6 (510), 11.7 (515), 11.8 (520), 12.0 (525) and so on to 13.3 (610).

use std::collections::BTreeSet;

use crate::declared_once::assert_part;
use crate::faults::faults_but_slow;
use crate::faults::table::names;
use crate::harness::{Machine, Scrape};

/// What begins with a driver.
struct Row {
    /// The driver; `None` if it is not known.
    driver: Option<u32>,
    /// The calls; none if older drivers have the call and not what is asked of it.
    calls: &'static [&'static str],
    what: &'static str,
    before: &'static str,
}

const ROWS: [Row; 12] = [
    Row {
        driver: Some(455),
        calls: &["nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses_v2"],
        what: "the MIG device of each process in the lists of the GPU",
        before: "the lists of the MIG devices are read too, so each process has its MIG device all the same",
    },
    Row {
        driver: Some(455),
        calls: &["nvmlDeviceGetRowRemapperHistogram"],
        what: "`gpu_row_remap_banks`",
        before: "absent",
    },
    Row {
        driver: Some(470),
        calls: &["nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses_v2"],
        what: "the list of the clients of MPS",
        before: "only processes in the lists for compute and graphics are shown; no process has the type `mps`",
    },
    Row {
        driver: Some(510),
        calls: &["nvmlDeviceGetMemoryInfo_v2"],
        what: "`gpu_memory_reserved_bytes`, `gpu_mig_memory_reserved_bytes`, `gpu_memory_unattributed_bytes`",
        before: "absent; used memory includes reserved memory",
    },
    Row { driver: Some(510), calls: &["nvmlDeviceGetNumFans"], what: "`gpu_fan_speed_ratio`", before: "absent" },
    Row {
        driver: Some(520),
        calls: &[
            "nvmlGpmQueryDeviceSupport",
            "nvmlGpmSampleAlloc",
            "nvmlGpmSampleFree",
            "nvmlGpmSampleGet",
            "nvmlGpmMetricsGet",
        ],
        what: "profiling counters; those of MIG devices with 525",
        before: "absent",
    },
    Row {
        driver: Some(535),
        calls: &["nvmlDeviceGetModuleId"],
        what: "`gpu_info{module_id}`",
        before: "without the label",
    },
    Row { driver: Some(535), calls: &[], what: "`gpu_c2c_links`, `gpu_c2c_links_down`", before: "absent" },
    Row {
        driver: Some(550),
        calls: &["nvmlDeviceGetGpuFabricInfoV"],
        what: "`gpu_fabric_state`, `gpu_fabric_problem_active`",
        before: "absent",
    },
    Row { driver: Some(565), calls: &[], what: "`gpu_recovery_action`", before: "absent" },
    Row {
        driver: Some(580),
        calls: &["nvmlDeviceGetAddressingMode"],
        what: "`gpu_info{addressing_mode}`; unified memory of GPUs other than Thor and Jetson",
        before: "without the label; such a GPU has no memory",
    },
    Row {
        driver: None,
        calls: &["nvmlDeviceGetMemoryLimits_v1"],
        what: "the driver's limits for cgroups (NVML 13.5)",
        before: "no `gpu_workload_memory_limit_bytes{source=\"driver\"}`",
    },
];

/// Calls that are newer than 450 and change nothing that is shown: an older call is made in their place, or they are part of a row.
const NO_ROW: [&str; 4] = [
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlGpmMigSampleGet",
];

/// Calls that `nvml.h` of CUDA 11.0 declares. Drivers before 450 may have them too.
#[rustfmt::skip]
const IN_450: [&str; 65] = [
    "nvmlDeviceGetAccountingMode", "nvmlDeviceGetAccountingStats", "nvmlDeviceGetActiveVgpus", "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetClockInfo", "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetCount_v2", "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetDecoderUtilization", "nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetFanSpeed_v2", "nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetMigMode", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetPowerManagementDefaultLimit", "nvmlDeviceGetPowerManagementLimitConstraints", "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetRetiredPages",
    "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetUUID",
    "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetVbiosVersion", "nvmlDeviceRegisterEvents", "nvmlEventSetCreate",
    "nvmlEventSetWait_v2", "nvmlInit_v2", "nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlVgpuInstanceGetFbUsage", "nvmlVgpuInstanceGetVmID",
    "nvmlShutdown", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkErrorCounter",
    "nvmlDeviceGetBrand", "nvmlDeviceGetSerial", "nvmlDeviceGetFanSpeed", "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetPowerManagementLimit",
];

/// The calls that a driver of version 450 lacks.
fn missing_in_450() -> impl Iterator<Item = &'static str> {
    ROWS.iter().flat_map(|row| row.calls).copied().chain(NO_ROW)
}

#[test]
fn it_is_known_of_every_call_with_which_driver_it_began() {
    let dated: BTreeSet<_> = missing_in_450().chain(IN_450).collect();
    assert_eq!(dated.len(), missing_in_450().count() + IN_450.len(), "a call is dated twice");
    let undated: Vec<_> = names().filter(|name| !dated.contains(name)).collect();
    assert_eq!(undated, [""; 0], "look in nvml.h for the driver with which they began");
}

#[test]
fn the_page_has_the_driver_for_each_feature() {
    let row = |row: &Row| {
        let driver = row.driver.map_or("not known".to_owned(), |driver| driver.to_string());
        format!("| {driver} | {} | {} |\n", row.what, row.before)
    };
    let rows: String = ROWS.iter().map(row).collect();
    assert_part(
        "docs/install.md",
        "\n| since driver | what | with an older one |\n|---|---|---|\n",
        "\n\n",
        rows.trim_end(),
    );
}

/// A driver of version 450: an A100 and an undivided one, with two processes each and one that draws.
const OLD: &str = "seed = 1\ndriver = { version = \"450.51.06\", nvml = \"11.450.51.06\", cuda = 11000 }\n\
                   [[gpu]]\nmodel = \"A100-80GB\"\nmig = [\"3g.40gb\", \"\", \"2g.20gb\"]\n[[gpu]]\nmodel = \"A100-80GB\"\n\
                   [[process]]\npid = 31\ngpu = 0\nmig = 0\nmemory = \"3GiB\"\n\
                   [[process]]\npid = 32\ncount = 2\ngpu = 0\nmig = 2\nmemory = \"1GiB\"\n\
                   [[process]]\npid = 41\ncount = 3\ngpu = 1\nmemory = \"5GiB\"\n\
                   [[process]]\npid = 51\ngpu = 1\ntype = \"graphics\"\nmemory = \"2GiB\"\n";

/// The series of a family as text.
fn series(scrape: &Scrape, family: &str) -> BTreeSet<String> {
    scrape.all(family).map(|series| format!("{:?} {}", series.labels, series.value)).collect()
}

#[test]
fn a_driver_that_lists_processes_without_mig_devices_loses_none() {
    let machine = Machine::new(OLD);
    let whole = machine.once(&[]);
    let old = machine.without_calls(missing_in_450()).once(&["--telemetry.fan-speed=true"]);
    assert_eq!(series(&old, "gpu_up"), series(&whole, "gpu_up"));
    assert_eq!(faults_but_slow(&old), 0.0, "{}", old.text);
    for family in ["gpu_process_memory_used_bytes", "gpu_workload_memory_used_bytes", "gpu_workload_processes"] {
        assert_eq!(series(&old, family), series(&whole, family), "{family}");
    }
    assert_eq!(old.all("gpu_process_memory_used_bytes").count(), 7);
    for absent in ["gpu_memory_reserved_bytes", "gpu_row_remap_banks", "gpu_fan_speed_ratio", "gpu_recovery_action"] {
        assert_eq!(old.all(absent).count(), 0, "{absent}");
    }
    for there in ["gpu_power_watts", "gpu_ecc_errors_total", "gpu_remapped_rows", "gpu_mig_memory_used_bytes"] {
        assert_ne!(old.all(there).count(), 0, "{there}");
    }
}

#[test]
fn a_process_on_a_mig_device_that_has_just_been_made_is_listed_without_it() {
    // The list of a MIG device does not answer, as that of a device that is not known.
    let machine = Machine::new(OLD).without_calls(missing_in_450().filter(|call| call.contains("RunningProcesses_v")));
    let refused = "[[fault]]\ngpu = 0\nmig = 2\ncall = \"nvmlDeviceGetComputeRunningProcesses\"\nkind = \"error\"\n";
    machine.control(&format!("{refused}code = \"NO_PERMISSION\"\n"));
    let scrape = machine.once(&[]);
    let mig = |pid| scrape.all("gpu_process_memory_used_bytes").find(|s| s.label("pid") == Some(pid));
    for pid in ["31", "32", "33"] {
        assert_eq!(mig(pid).unwrap().label("mig_uuid"), None, "{pid}: without a guess");
    }
}
