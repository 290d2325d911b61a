//! Whether a process ended for lack of memory, as far as its figures and those of its device tell, and by how much
//! processes grew.

use std::sync::Arc;

use super::{DeviceHistory, DeviceKey, Holding, Micros, ProcessHistory, ProcessRef, SECOND};
use crate::snapshot::{Gpu, NEARLY_FULL};

/// If a process ends within this time after its memory use was last at its own peak, it counts as having ended at its
/// peak.
const AT_PEAK: Micros = 5 * SECOND;
/// The end of a process at its peak is one at the limit if its device's memory use reached this share of the
/// allocatable memory.
const FULL: f64 = NEARLY_FULL[1];
/// It is one only if the process, or another one on the device, has grown within this time by more than was left: what
/// needs no more memory has no reason to end for lack of it.
const GROWN_WITHIN: Micros = 10 * SECOND;

/// The end of a process at its peak, while its device was nearly full.
#[derive(Debug)]
pub(crate) struct AtLimit {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) device: DeviceKey,
    pub(crate) process: Holding,
    pub(crate) who: ProcessRef,
    /// Bytes that everything else on the device held.
    pub(crate) others: u64,
}

/// Whether the end of a process, which a list that was read at `at` no longer contains, was one at the limit.
pub(crate) fn at_limit(device: &DeviceHistory, process: &ProcessHistory, at: Micros) -> Option<AtLimit> {
    let (peak, peak_at) = process.peak.filter(|(peak, _)| *peak > 0)?;
    // A process that still held its peak when it ended counts as having ended at its peak, however long it held the
    // peak.
    let last = process.series.last_at_least(peak, process.seen).unwrap_or(peak_at);
    let from = at.saturating_sub(AT_PEAK).max(process.first.saturating_sub(SECOND));
    let (_, used) = device.memory.highest(from, at)?;
    let left = device.allocatable.saturating_sub(used);
    let was_full = device.allocatable > 0
        && !device.is_divided()
        && used as f64 >= device.allocatable as f64 * FULL
        && highest_growth(device, at.saturating_sub(GROWN_WITHIN), at) > left;
    (was_full && at.saturating_sub(last) <= AT_PEAK).then(|| AtLimit {
        gpu: device.gpu.clone(),
        device: device.key(),
        process: process.holding(),
        who: process.who(),
        others: used.saturating_sub(peak),
    })
}

/// What a process held on its device; `None` if that is unknown. If the device was already being sampled when the
/// process was not on it yet, the process held nothing.
pub(crate) fn held(process: &ProcessHistory, device: &DeviceHistory, at: Micros) -> Option<u64> {
    if at >= process.first {
        return process.series.at(at);
    }
    device.memory.begin.filter(|&begin| begin <= at).map(|_| 0)
}

/// Bytes by which a process on the device has grown at most within a time. Where it is unknown what a process held at
/// the beginning of that time, the growth since the first list that contained it counts.
fn highest_growth(device: &DeviceHistory, from: Micros, to: Micros) -> u64 {
    let growth = |process: &ProcessHistory| {
        let before = held(process, device, from).or_else(|| process.series.at(process.first))?;
        let (_, highest) = process.series.highest(from, to)?;
        Some(highest.saturating_sub(before))
    };
    device.processes().filter_map(growth).max().unwrap_or(0)
}
