//! What one reading of the machine has found, as a table for a person at a terminal.
//!
//! Invariant: names come from processes that may be hostile, so no control character in a name is written. No line is
//! wider than the terminal, unless even its shortest form is wider.

use std::io::{IsTerminal, stdout};

use text_and_sizes::format::{bytes, seconds};
use text_and_sizes::text::printable;
use vram_exporter::machine::{Document, Gpu, Gpus, Memory, Mig, Process};

use crate::table::{self, Layout, cut};

const HEADER: [&str; 7] = ["PID", "USER", "PROCESS", "WORKLOAD", "USED", "PEAK", "IDLE"];
/// The workload is cut first.
const LAYOUT: Layout = Layout { indent: INDENT, right: &[0, 4, 5, 6], flexible: &[3, 2, 1] };
const INDENT: &str = "  ";
/// The minimum width of a label: the width of `unattributed`.
const LABEL: usize = 12;
/// What is shown for a value that is unknown.
const UNKNOWN: &str = "-";

/// How to write the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    /// The maximum number of characters in a line.
    width: usize,
    /// Whether headings are bold.
    bold: bool,
}

impl Style {
    /// The style for standard output: plain and without a limit on the width, unless it is a terminal.
    pub(super) fn of_standard_output() -> Self {
        if !stdout().is_terminal() {
            return Self { width: usize::MAX, bold: false };
        }
        let width = terminal_size::terminal_size_of(stdout()).map(|(width, _)| usize::from(width.0));
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        let width = width.filter(|&width| width > 0).unwrap_or(usize::MAX);
        Self { width, bold: !is_set("NO_COLOR") && !is_dumb }
    }
}

/// The table.
pub(super) fn of(machine: &Document<Gpus>, style: Style) -> String {
    if !machine.driver.up {
        let why = machine.driver.problem.as_deref().unwrap_or("it has not answered yet");
        return format!("no driver: {}\n", printable(why));
    }
    let mut lines = Vec::new();
    if machine.simulated {
        lines.push("SIMULATED GPUs: no number is a measurement".to_owned());
    }
    let version = |version: &Option<String>| printable(version.as_deref().unwrap_or(UNKNOWN));
    let (driver, cuda) = (version(&machine.driver.driver_version), version(&machine.driver.cuda_version));
    let count = machine.content.gpus.len();
    lines.push(format!("driver {driver}, CUDA {cuda}, {count} GPU{}", if count == 1 { "" } else { "s" }));
    for gpu in &machine.content.gpus {
        lines.push(String::new());
        lines.extend(of_gpu(gpu, style));
    }
    lines.join("\n") + "\n"
}

fn of_gpu(gpu: &Gpu, style: Style) -> Vec<String> {
    let name = gpu.name.as_deref().map_or(String::new(), |name| format!("  {}", printable(name)));
    let heading = cut(&format!("GPU {}{name}  {}", gpu.gpu, printable(&gpu.uuid)), style.width);
    let mut lines = vec![if style.bold { format!("\u{1b}[1m{heading}\u{1b}[0m") } else { heading }];
    if !gpu.up {
        lines.push("  does not answer".to_owned());
        return lines;
    }
    lines.extend(labelled("memory", &of_memory(gpu.memory.as_ref()), style.width));
    let percent = |ratio: f64| format!("utilization {:.0} %", ratio * 100.0);
    let power = |watts: f64| match gpu.power_limit_watts {
        Some(limit) => format!("{watts:.0} of {limit:.0} W"),
        None => format!("{watts:.0} W"),
    };
    let activity = [
        gpu.utilization_ratio.map(percent),
        gpu.temperature_celsius.map(|celsius| format!("{celsius:.0} °C")),
        gpu.power_watts.map(power),
    ];
    lines.extend(labelled("activity", &activity.into_iter().flatten().collect::<Vec<_>>(), style.width));
    for mig in &gpu.mig_devices {
        lines.extend(of_mig(mig, style.width));
    }
    lines.extend(of_processes(gpu, style.width));
    lines
}

fn of_mig(mig: &Mig, width: usize) -> Vec<String> {
    let profile = mig.profile.as_deref().map_or(String::new(), |profile| format!(" {}", printable(profile)));
    let mut parts = of_memory(mig.memory.as_ref());
    parts.extend(mig.unattributed_bytes.map(|unattributed| format!("unattributed {}", bytes(unattributed))));
    labelled(&format!("MIG {}{profile}", mig.index), &parts, width)
}

/// A label and its parts, on as many lines as the width requires; no line without a part.
fn labelled(label: &str, parts: &[String], width: usize) -> Vec<String> {
    let begin = format!("{INDENT}{label:LABEL$} ");
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            None => lines.push(format!("{begin}{part}")),
            Some(line) if line.chars().count() + part.chars().count() + 2 < width => *line += &format!(", {part}"),
            Some(line) => {
                line.push(',');
                lines.push(format!("{:1$}{part}", "", begin.chars().count()));
            }
        }
    }
    lines
}

fn of_memory(memory: Option<&Memory>) -> Vec<String> {
    let Some(memory) = memory else { return vec!["not reported by the driver".to_owned()] };
    // What is shared with the CPU is compared with all of it: how much of it the CPU leaves is a part of its own.
    let of = memory.allocatable_bytes.filter(|_| memory.available_bytes.is_none()).unwrap_or(memory.total_bytes);
    let share = |used: u64| format!("{:.0} %", 100.0 * used as f64 / of.max(1) as f64);
    let used = match (memory.used_bytes, memory.used_at_least_bytes) {
        (Some(used), _) => format!("{} of {} used ({})", bytes(used), bytes(of), share(used)),
        (None, Some(known)) => format!("at least {} of {} used ({})", bytes(known), bytes(of), share(known)),
        (None, None) => format!("an unknown part of {} used", bytes(of)),
    };
    let available = memory.available_bytes.map(|left| format!("shared with the CPU, {} available", bytes(left)));
    let peak = |label: &str, peak: Option<u64>| peak.map(|peak| format!("{label} {}", bytes(peak)));
    let peaks = [peak("window peak", memory.window_peak_bytes), peak("peak", memory.peak_bytes)];
    std::iter::once(used).chain(available).chain(peaks.into_iter().flatten()).collect()
}

fn of_processes(gpu: &Gpu, width: usize) -> Vec<String> {
    let mut lines = match gpu.processes.as_deref() {
        None => return vec!["  processes    could not be listed".to_owned()],
        Some([]) => vec!["  no processes".to_owned()],
        Some(processes) => table::lines(HEADER, processes.iter().map(row).collect(), &LAYOUT, width),
    };
    lines.extend(gpu.processes_left_out.map(|count| format!("  and {count} more")));
    let invisible = |count| format!("  invisible    {count} processes that /proc does not show");
    lines.extend(gpu.processes_invisible.map(invisible));
    lines.extend(gpu.unattributed_bytes.map(|unattributed| format!("  unattributed {}", bytes(unattributed))));
    lines
}

fn row(process: &Process) -> [String; HEADER.len()] {
    let text = |text: &Option<String>| text.clone().unwrap_or(UNKNOWN.to_owned());
    let size = |size: Option<u64>| size.map_or(UNKNOWN.to_owned(), bytes);
    let name = match process.mig_index {
        Some(index) => format!("{} (MIG {index})", text(&process.name)),
        None => text(&process.name),
    };
    [
        process.pid.to_string(),
        text(&process.user),
        name,
        text(&process.workload),
        size(process.used_bytes),
        size(process.peak_bytes),
        process.idle_seconds.map_or(UNKNOWN.to_owned(), seconds),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_do_not_fit_go_to_the_next_line() {
        let parts =
            ["94.52 GiB of 139.8 GiB used (68 %)", "window peak 94.52 GiB", "peak 94.52 GiB"].map(str::to_owned);
        assert_eq!(labelled("memory", &parts, usize::MAX).len(), 1);
        let narrow = labelled("memory", &parts, 76);
        assert!(narrow.iter().all(|line| line.chars().count() <= 76), "{narrow:?}");
        assert!(narrow.join("\n").ends_with(",\n               peak 94.52 GiB"), "{narrow:?}");
    }
}
