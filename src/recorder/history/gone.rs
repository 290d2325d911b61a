//! A process that has ended, with one peak for each of its GPUs.

use super::device_history::DeviceHistory;
use super::event::ProcessRef;
use super::exit_status::Exit;
use super::process_history::ProcessHistory;
use super::series::Micros;
use crate::snapshot::ProcessId;

/// A process that has left its last GPU.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::recorder) struct Gone {
    pub(in crate::recorder) who: ProcessRef,
    pub(in crate::recorder) process: ProcessId,
    /// When the first list that did not contain it was read.
    pub(in crate::recorder) ended: Micros,
    pub(in crate::recorder) lived_seconds: f64,
    /// How it ended.
    pub(in crate::recorder) exit: Exit,
    /// Index of the GPU, peak in bytes, and seconds from the peak to the end.
    pub(in crate::recorder) peaks: Vec<(u32, Option<u64>, Option<f64>)>,
}

impl Gone {
    /// The process that ended on one device at `at`; `None` while it is on another one.
    pub(in crate::recorder) fn of(
        devices: &[DeviceHistory],
        ended: &ProcessHistory,
        at: Micros,
        lived_seconds: f64,
    ) -> Option<Self> {
        let (id, first) = (ended.id(), ended.first);
        if devices.iter().any(|gpu| gpu.living.iter().any(|process| process.id().may_be(id))) {
            return None;
        }
        let parts = devices.iter().flat_map(|gpu| gpu.ended.iter().map(move |process| (gpu.gpu.index, process)));
        let is_same = |process: &ProcessHistory| process.id().may_be(id) && process.seen >= first;
        let seconds = |process: &ProcessHistory, at| Some(process.ended?.0.saturating_sub(at) as f64 / 1e6);
        let peaks = parts.filter(|(_, process)| is_same(process)).map(|(gpu, process)| {
            (gpu, process.peak.map(|(peak, _)| peak), process.peak.and_then(|(_, at)| seconds(process, at)))
        });
        let peaks = peaks.collect();
        Some(Self { who: ended.who(), process: id, ended: at, lived_seconds, exit: Exit::default(), peaks })
    }
}
