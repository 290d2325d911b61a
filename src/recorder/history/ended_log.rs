//! One log line for each process that has ended.
//!
//! Invariant: a burst of short-lived processes leads to a bounded number of lines, plus one line with the number of
//! processes that were left out.

use super::{DeviceHistory, Exit, Micros, ProcessHistory, ProcessRef, SECOND, names};
use crate::format;
use crate::snapshot::ProcessId;

/// The maximum number of lines in a period.
const MAX_LINES: u64 = 20;
const PERIOD: Micros = 10 * SECOND;

/// A process that has left its last GPU.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gone {
    pub(crate) who: ProcessRef,
    pub(crate) process: ProcessId,
    /// When the first list that did not contain it was read.
    pub(crate) ended: Micros,
    pub(crate) lived_seconds: f64,
    /// How it ended.
    pub(crate) exit: Exit,
    /// Index of the GPU, peak in bytes, and seconds from the peak to the end.
    pub(crate) peaks: Vec<(u32, Option<u64>, Option<f64>)>,
}

impl Gone {
    /// The process that ended on one device at `at`; `None` while it is on another one.
    pub(crate) fn of(
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

/// Writes the lines.
#[derive(Debug, Default)]
pub(crate) struct EndedLog {
    /// When the current period began.
    began: Micros,
    lines: u64,
    left_out: u64,
}

impl EndedLog {
    /// Writes a line for each process, up to the maximum number for the period.
    pub(crate) fn write(&mut self, gone: &[Gone], now: Micros) {
        if now.saturating_sub(self.began) >= PERIOD {
            if self.left_out > 0 {
                tracing::info!(processes = self.left_out, "more processes left the GPUs; their lines were left out");
            }
            *self = Self { began: now, ..Self::default() };
        }
        for process in gone {
            if self.lines >= MAX_LINES {
                self.left_out += 1;
                continue;
            }
            self.lines += 1;
            write(process);
        }
    }
}

fn write(gone: &Gone) {
    let Gone { who, lived_seconds, exit, peaks, .. } = gone;
    let name = who.name.as_deref().map(names::name);
    let peak_bytes = peaks.iter().filter_map(|(_, peak, _)| *peak).max();
    let gpus: Vec<String> = peaks
        .iter()
        .map(|(gpu, peak, before)| {
            let peak = peak.map_or_else(|| "unknown".to_owned(), format::bytes);
            before.map_or_else(
                || format!("{gpu}: {peak}"),
                |seconds| format!("{gpu}: {peak}, {seconds:.1} s before the end"),
            )
        })
        .collect();
    tracing::info!(
        pid = who.pid,
        name,
        user = who.user.as_deref().map(names::name),
        workload = who.workload.as_deref().map(names::name),
        peak_bytes,
        lived_seconds = (lived_seconds * 10.0).round() / 10.0,
        exit_status = exit.status,
        signal = exit.signal,
        gpus = gpus.join("; "),
        "process left the GPU: highest memory by GPU"
    );
}
