//! The fields of DCGM and of dcgm-exporter that are not served, each with the reason: the log shows it for the names in a
//! collectors file, and docs/from-dcgm.md for all of them.
//!
//! Invariant: no pattern matches a field that is served. A test holds the table against a list of every field.

/// Fields that are not served for the same reason.
#[derive(Debug, Clone, Copy)]
pub struct Missing {
    /// The names, in which `*` stands for any characters, `?` for one, and `[ab]` for one of these.
    pub names: &'static [&'static str],
    /// Why they are not served, and what is there instead.
    pub reason: &'static str,
}

impl Missing {
    fn has(&self, name: &str) -> bool {
        let is_match = |pattern: &&str| glob::Pattern::new(pattern).is_ok_and(|pattern| pattern.matches(name));
        self.names.iter().any(is_match)
    }
}

/// The reason of a field that is not served; `None` if no field of DCGM is known by this name.
pub(super) fn reason(name: &str) -> Option<&'static str> {
    MISSING.iter().find(|missing| missing.has(name)).map(|missing| missing.reason)
}

const fn missing(names: &'static [&'static str], reason: &'static str) -> Missing {
    Missing { names, reason }
}

/// The table. The first row that matches a name has its reason.
pub static MISSING: &[Missing] = &[
    missing(
        &["DCGM_EXP_GPU_HEALTH_STATUS", "DCGM_FI_DEV_DIAG_*"],
        "NVML has no such value: it is the result of checks and tests that DCGM itself runs; gpu_recovery_action and the \
         alerts show what the driver reports",
    ),
    missing(
        &["DCGM_EXP_CLOCK_EVENTS_*"],
        "dcgm-exporter counts samples of the reasons; DCGM_FI_DEV_CLOCKS_EVENT_REASONS has the reasons themselves",
    ),
    missing(
        &["DCGM_EXP_XID_ERRORS_COUNT"],
        "the exporter keeps no counts of a time window: query increase(DCGM_EXP_XID_ERRORS_TOTAL[5m])",
    ),
    missing(&["DCGM_EXP_P2P_STATUS", "DCGM_FI_DEV_NVLINK_P2P_STATUS", "DCGM_FI_DEV_P2P_NVLINK_STATUS"], NOT_READ),
    missing(
        &[
            "DCGM_FI_DEV_NVLINK_BANDWIDTH_*",
            "DCGM_FI_DEV_NVLINK_THROUGHPUT_*",
            "DCGM_FI_DEV_NVLINK_[TR]X_BANDWIDTH_*",
            "DCGM_FI_DEV_NVLINK_[TR]X_THROUGHPUT_*",
            "dcgm_nvlink_bandwidth_total",
        ],
        "a rate that DCGM makes of samples, which dcgm-exporter's list declared as a counter before 4.8.3; NVML gives no \
         value with that meaning. DCGM_FI_PROF_NVLINK_TX_BYTES and DCGM_FI_PROF_NVLINK_RX_BYTES are served",
    ),
    missing(
        &["DCGM_FI_DEV_PCIE_[TR]X_THROUGHPUT", "dcgm_pcie_[tr]x_throughput"],
        "DCGM gives no value for it any more; DCGM_FI_PROF_PCIE_TX_BYTES and DCGM_FI_PROF_PCIE_RX_BYTES are served",
    ),
    missing(
        &["DCGM_FI_DEV_TOTAL_*_VIOLATION", "DCGM_FI_DEV_CLOCKS_EVENT_REASON_*_NS"],
        "these times are not read; DCGM_FI_DEV_POWER_VIOLATION, DCGM_FI_DEV_THERMAL_VIOLATION and those of four other \
         reasons are served",
    ),
    missing(
        &["DCGM_FI_DEV_NVLINK_ERROR", "DCGM_FI_DEV_GPU_NVLINK_ERRORS"],
        "the kind of the last error of an NVLink, which NVML does not have; DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL and \
         the other counts are served",
    ),
    missing(
        &[
            "DCGM_FI_DEV_NVLINK_ERROR_DL_*",
            "DCGM_FI_DEV_NVLINK_CRC_ERROR_TOTAL",
            "DCGM_FI_DEV_NVLINK_RECOVERY_TOTAL",
            "DCGM_FI_DEV_NVLINK_REPLAY_TOTAL",
        ],
        "DCGM 4.6 asks for link 0 and shows its errors as those of the GPU; the counts over all links are served",
    ),
    missing(
        &[
            "DCGM_FI_DEV_NVLINK_*_ERROR_L?*",
            "DCGM_FI_DEV_NVLINK_*_COUNT_L?",
            "DCGM_FI_DEV_NVLINK_*_COUNT_L??",
            "DCGM_FI_DEV_NVLINK_*_PER_LINK_TOTAL",
            "DCGM_FI_DEV_NVLINK_P*",
            "DCGM_FI_DEV_NVLINK_[TR]X_*",
            "DCGM_FI_DEV_NVLINK_COUNT_[TRSEF]*",
            "DCGM_FI_DEV_NVLINK_COUNT_LO*",
            "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_[SF]*",
            "DCGM_FI_DEV_NVLINK_RECOVERY_[SF]*",
            "DCGM_FI_DEV_NVLINK_SYMBOL_*",
            "DCGM_FI_DEV_NVLINK_EFFECTIVE_*",
            "DCGM_FI_DEV_NVLINK_FEC_*",
            "DCGM_FI_DEV_NVLINK_INTEGRITY_*",
            "DCGM_FI_DEV_NVLINK_LINK_STATUS",
            "DCGM_FI_DEV_NVLINK_GET_STATE",
        ],
        "of NVLinks, the errors that the driver adds up over all links are read; gpu_nvlink_link_errors_total has those of \
         each link (telemetry.nvlink-errors-by-link)",
    ),
    missing(
        &[
            "DCGM_FI_DEV_NVSWITCH_*",
            "DCGM_FI_DEV_SXID_*",
            "DCGM_FI_DEV_CPU_*",
            "DCGM_FI_DEV_SYSIO_POWER_*",
            "DCGM_FI_DEV_MODULE_POWER_*",
            "DCGM_FI_DEV_CONNECTX_*",
            "DCGM_FI_IMEX_*",
            "DCGM_FI_DEV_FABRIC_MANAGER_ERROR*",
        ],
        "NVML has no such value: it belongs to NVSwitches, CPUs, network cards or daemons, of which DCGM asks other libraries",
    ),
    missing(
        &["DCGM_FI_DEV_VGPU_*", "DCGM_FI_DEV_*VIRTUAL_MODE", "DCGM_FI_DEV_*_VGPU_*", "DCGM_FI_DEV_SUPPORTED_TYPE_INFO"],
        "virtual GPUs and their licences are not read",
    ),
    missing(
        &[
            "DCGM_FI_PROF_NVDEC*",
            "DCGM_FI_PROF_NVJPG*",
            "DCGM_FI_PROF_NVOFA*",
            "DCGM_FI_PROF_NVLINK_L*",
            "DCGM_FI_PROF_NVLINK_*_PER_LINK",
            "DCGM_FI_PROF_*_CACHE_*",
            "DCGM_FI_PROF_[IHD]*MA_UTIL_RATIO",
            "DCGM_FI_PROF_PIPE_TENSOR_*MA_ACTIVE",
            "DCGM_FI_PROF_*_CYCLES_*_TOTAL",
            "DCGM_FI_PROF_PCIE_*_BYTES_TOTAL",
            "DCGM_FI_PROF_C2C_*_DATA_BYTES",
        ],
        "these counters are not read",
    ),
    missing(
        &["DCGM_FI_DEV_C2C_LINK_[ERPS]*", "DCGM_FI_DEV_C2C_MAX_*", "DCGM_FI_DEV_PLATFORM_*"],
        "of C2C links, their number and how many are down are read (gpu_c2c_links_down); the platform is not read",
    ),
    missing(
        &[
            "DCGM_FI_DEV_ECC_*_AGG_L?",
            "DCGM_FI_DEV_ECC_*_AGG_???",
            "DCGM_FI_DEV_ECC_*_VOL_L?",
            "DCGM_FI_DEV_ECC_*_VOL_???",
            "DCGM_FI_DEV_ECC_CURRENT",
            "DCGM_FI_DEV_ECC_MODE",
            "DCGM_FI_DEV_ECC_PENDING",
            "DCGM_FI_DEV_SRAM_EXCEEDED",
            "DCGM_FI_DEV_THRESHOLD_SRM",
        ],
        "of ECC errors, the totals are read: since the driver was loaded, and over the life of the GPU",
    ),
    missing(&["DCGM_FI_DEV_MEMORY_UNREPAIRABLE*", "DCGM_FI_DEV_PCIE_*CORRECTABLE_ERROR*"], NOT_READ),
    missing(
        &[
            "DCGM_FI_DEV_APP_*_CLOCK",
            "DCGM_FI_DEV_*_APP_CLOCK_HERTZ",
            "DCGM_FI_DEV_CLOCKS_SUPPORTED",
            "DCGM_FI_DEV_SUPPORTED_CLOCKS",
            "DCGM_FI_DEV_*AUTOBOOST*",
            "DCGM_FI_*SYNC_BOOST",
        ],
        "of clocks, the present and the highest ones are read",
    ),
    missing(
        &["DCGM_FI_DEV_GPU_TEMP_[LM]*"],
        "the margin to the temperature limit is not read; DCGM_FI_DEV_SLOWDOWN_TEMP is served",
    ),
    missing(
        &["DCGM_FI_DEV_*POWER_PROFILE*", "DCGM_FI_DEV_PWR_SMOOTHING_*"],
        "of power, the draw and the limits are read",
    ),
    missing(
        &[
            "DCGM_FI_DEV_*INFOROM_*",
            "DCGM_FI_DEV_PCI_COMBINED_ID",
            "DCGM_FI_DEV_PCI_SUBSYS_ID",
            "DCGM_FI_DEV_*COMPUTE_MODE",
            "DCGM_FI_DEV_*PERSISTENCE_MODE",
            "DCGM_FI_DEV_CC_MODE",
            "DCGM_FI_DEV_GPM_SUPPORT",
            "DCGM_FI_DEV_MIG_*",
            "DCGM_FI_*VISIBLE_DEVICES*",
        ],
        "settings and inventory of this kind are not read",
    ),
    missing(
        &[
            "DCGM_FI_*UNKNOWN",
            "DCGM_FI_*PROCESS_NAME",
            "DCGM_FI_*BIND*EVENT",
            "DCGM_FI_*TOPOLOGY*",
            "DCGM_FI_*AFFINITY*",
            "DCGM_FI_DEV_PROCESS_ACCOUNTING_STATS",
            "DCGM_FI_DEV_ACCOUNTING_DATA",
            "DCGM_FI_DEV_ENC_STATS",
            "DCGM_FI_DEV_FBC_*",
        ],
        "not one number or one text for a GPU",
    ),
];

const NOT_READ: &str = "not read";
