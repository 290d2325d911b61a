//! What processes held on a device at a moment, and by how much they grew.

use super::device_history::DeviceHistory;
use super::process_history::ProcessHistory;
use super::series::Micros;

/// What a process held on its device; `None` if that is unknown. If the device was already being sampled when the process was
/// not on it yet, the process held nothing.
pub(super) fn held(process: &ProcessHistory, device: &DeviceHistory, at: Micros) -> Option<u64> {
    match at < process.first {
        true => device.memory.begin().filter(|&begin| begin <= at).map(|_| 0),
        false => process.series.at(at),
    }
}

/// Bytes by which a process on the device has grown at most within a time. Where it is unknown what a process held at the
/// beginning of that time, the growth since the first list that contained it counts.
pub(super) fn highest(device: &DeviceHistory, from: Micros, to: Micros) -> u64 {
    let growth = |process: &ProcessHistory| {
        let before = held(process, device, from).or_else(|| process.series.at(process.first))?;
        let (_, highest) = process.series.highest(from, to)?;
        Some(highest.saturating_sub(before))
    };
    device.processes().filter_map(growth).max().unwrap_or(0)
}
