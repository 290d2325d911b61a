//! The values that driver calls return, free of nvml-wrapper types.

/// Bytes of device memory, all read by one call, or the sum over the processes of a GPU without memory of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryReading {
    /// All device memory.
    pub total: u64,
    /// Reserved by the driver and the firmware; `None` if read by version 1 of the call, whose `used` includes it.
    pub reserved: Option<u64>,
    /// Allocated.
    pub used: u64,
    /// Free; `None` if no call reads it.
    pub free: Option<u64>,
}

impl MemoryReading {
    /// What one call returned.
    pub(super) fn of_call(total: u64, reserved: Option<u64>, used: u64, free: u64) -> Self {
        Self { total, reserved, used, free: Some(free) }
    }
}

/// Row remapping (NVIDIA Ampere and later).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemappedRows {
    /// Rows remapped because of correctable errors.
    pub correctable: u64,
    /// Rows remapped because of uncorrectable errors.
    pub uncorrectable: u64,
    /// Whether a remapping is pending until the next reset.
    pub pending: bool,
    /// Whether a remapping failed.
    pub failed: bool,
}

/// The work of one process on the GPU during one of the driver's sampling periods.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UtilizationSample {
    /// The pid in the exporter's pid namespace.
    pub pid: u32,
    /// When the driver took the sample, as Unix time in microseconds.
    pub timestamp: u64,
    /// Share of the time of the streaming multiprocessors (SMs), 0 to 1.
    pub sm: f64,
    /// Whether any engine (SM, memory, encoder, decoder) was busy.
    pub active: bool,
}

/// Bytes of the BAR1 window, through which the host reaches device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bar1 {
    /// The size of the window.
    pub total: u64,
    /// Bytes in use.
    pub used: u64,
}
