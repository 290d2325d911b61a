//! One log line for each process that has ended.
//!
//! Invariant: a burst of short-lived processes leads to a bounded number of lines, plus one line with the number of
//! processes that were left out.

use super::gone::Gone;
use super::names;
use super::series::{Micros, SECOND};
use crate::format;

/// The maximum number of lines in a period.
const MAX_LINES: u64 = 20;
const PERIOD: Micros = 10 * SECOND;

/// Writes the lines.
#[derive(Debug, Default)]
pub(in crate::recorder) struct EndedLog {
    /// When the current period began.
    began: Micros,
    lines: u64,
    left_out: u64,
}

impl EndedLog {
    /// Writes a line for each process, up to the maximum number for the period.
    pub(in crate::recorder) fn write(&mut self, gone: &[Gone], now: Micros) {
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
