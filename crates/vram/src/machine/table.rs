//! What one reading of the machine has found, as a table for a person at a terminal.
//!
//! Invariant: names come from processes that may be hostile, so no control character in a name is written. No line is
//! wider than the terminal, unless even its shortest form is wider.

use std::fmt::Write;
use std::io::{IsTerminal, stdout};

use text_and_sizes::format::{bytes, seconds};
use text_and_sizes::text::printable;
use vram_exporter::machine::{Document, Gpu, Gpus, Memory, Mig, Process};

const HEADER: [&str; 7] = ["PID", "USER", "PROCESS", "WORKLOAD", "USED", "PEAK", "IDLE"];
/// The columns that may be truncated, in the order in which they are truncated.
const FLEXIBLE: [usize; 3] = [3, 2, 1];
/// The numeric columns, which are right-aligned.
const RIGHT: [usize; 4] = [0, 4, 5, 6];
/// No column is truncated to fewer characters than this.
const NARROWEST: usize = 8;
const INDENT: usize = 2;
const GAP: usize = 2;
/// The minimum width of a label: the width of `unattributed`.
const LABEL: usize = 12;
/// What is shown for a value that is unknown.
const UNKNOWN: &str = "-";

/// How to write the table.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Style {
    /// The maximum number of characters in a line; `None` if there is no limit.
    width: Option<usize>,
    /// Whether headings are bold.
    bold: bool,
}

impl Style {
    /// The style for standard output: plain and without a limit on the width, unless it is a terminal.
    pub(super) fn of_standard_output() -> Self {
        if !stdout().is_terminal() {
            return Self::default();
        }
        let width = terminal_size::terminal_size_of(stdout()).map(|(width, _)| usize::from(width.0));
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        Self { width: width.filter(|&width| width > 0), bold: !is_set("NO_COLOR") && !is_dumb }
    }
}

/// The table.
pub(super) fn of(machine: &Document<Gpus>, style: Style) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(machine, style, &mut out);
    out
}

fn write(machine: &Document<Gpus>, style: Style, out: &mut String) -> std::fmt::Result {
    if !machine.driver.up {
        let why = machine.driver.problem.as_deref().unwrap_or("it has not answered yet");
        return writeln!(out, "no driver: {}", printable(why));
    }
    if machine.simulated {
        writeln!(out, "SIMULATED GPUs: no number is a measurement")?;
    }
    let version = |version: &Option<String>| version.as_deref().map_or(UNKNOWN.to_owned(), printable);
    let (driver, cuda) = (version(&machine.driver.driver_version), version(&machine.driver.cuda_version));
    let count = machine.content.gpus.len();
    writeln!(out, "driver {driver}, CUDA {cuda}, {count} GPU{}", if count == 1 { "" } else { "s" })?;
    for gpu in &machine.content.gpus {
        out.push('\n');
        write_gpu(gpu, style, out)?;
    }
    Ok(())
}

fn write_gpu(gpu: &Gpu, style: Style, out: &mut String) -> std::fmt::Result {
    let name = gpu.name.as_deref().map_or(String::new(), |name| format!("  {}", printable(name)));
    let heading = cut(&format!("GPU {}{name}  {}", gpu.gpu, printable(&gpu.uuid)), style.width.unwrap_or(usize::MAX));
    if style.bold {
        writeln!(out, "\u{1b}[1m{heading}\u{1b}[0m")?;
    } else {
        writeln!(out, "{heading}")?;
    }
    if !gpu.up {
        return writeln!(out, "  does not answer");
    }
    write_parts("memory", &gpu.memory.as_ref().map_or_else(not_reported, describe), style, out)?;
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
    let activity: Vec<String> = activity.into_iter().flatten().collect();
    if !activity.is_empty() {
        write_parts("activity", &activity, style, out)?;
    }
    for mig in &gpu.mig_devices {
        write_mig(mig, style, out)?;
    }
    write_processes(gpu, style, out)
}

fn write_mig(mig: &Mig, style: Style, out: &mut String) -> std::fmt::Result {
    let profile = mig.profile.as_deref().map_or(String::new(), |profile| format!(" {}", printable(profile)));
    let mut parts = mig.memory.as_ref().map_or_else(not_reported, describe);
    parts.extend(mig.unattributed_bytes.map(|unattributed| format!("unattributed {}", bytes(unattributed))));
    write_parts(&format!("MIG {}{profile}", mig.index), &parts, style, out)
}

/// Writes a label and its parts, on as many lines as the width requires.
fn write_parts(label: &str, parts: &[String], style: Style, out: &mut String) -> std::fmt::Result {
    let width = style.width.unwrap_or(usize::MAX);
    let indent = INDENT + LABEL.max(label.chars().count()) + 1;
    let mut line = format!("{:INDENT$}{label:LABEL$} ", "");
    let mut is_first = true;
    for part in parts {
        let length = line.chars().count() + part.chars().count() + if is_first { 0 } else { 2 };
        if is_first {
            line.push_str(part);
        } else if length < width {
            line.push_str(", ");
            line.push_str(part);
        } else {
            writeln!(out, "{line},")?;
            line = format!("{:indent$}{part}", "");
        }
        is_first = false;
    }
    writeln!(out, "{line}")
}

fn not_reported() -> Vec<String> {
    vec!["not reported by the driver".to_owned()]
}

fn describe(memory: &Memory) -> Vec<String> {
    let share = 100.0 * memory.used_bytes as f64 / (memory.allocatable_bytes.max(1)) as f64;
    let (used, of) = (bytes(memory.used_bytes), bytes(memory.allocatable_bytes));
    vec![
        format!("{used} of {of} used ({share:.0} %)"),
        format!("window peak {}", bytes(memory.window_peak_bytes)),
        format!("peak {}", bytes(memory.peak_bytes)),
    ]
}

fn write_processes(gpu: &Gpu, style: Style, out: &mut String) -> std::fmt::Result {
    let Some(processes) = &gpu.processes else {
        return writeln!(out, "  processes    could not be listed");
    };
    if processes.is_empty() {
        writeln!(out, "  no processes")?;
    } else {
        let rows = std::iter::once(HEADER.map(str::to_owned)).chain(processes.iter().map(row)).collect::<Vec<_>>();
        let widths = widths(&rows, style.width);
        for row in &rows {
            writeln!(out, "{}", line(row, &widths))?;
        }
    }
    if let Some(count) = gpu.processes_left_out {
        writeln!(out, "  and {count} more")?;
    }
    if let Some(count) = gpu.processes_invisible {
        writeln!(out, "  invisible    {count} processes that /proc does not show")?;
    }
    match gpu.unattributed_bytes {
        Some(unattributed) => writeln!(out, "  unattributed {}", bytes(unattributed)),
        None => Ok(()),
    }
}

fn row(process: &Process) -> [String; HEADER.len()] {
    let text = |text: &Option<String>| text.as_deref().map_or(UNKNOWN.to_owned(), printable);
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

/// The widths of the columns, reduced so that each line fits within `limit` if that is possible.
fn widths(rows: &[[String; HEADER.len()]], limit: Option<usize>) -> [usize; HEADER.len()] {
    let mut widths = [0; HEADER.len()];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let total = INDENT + widths.iter().sum::<usize>() + GAP * (widths.len() - 1);
    let mut excess = limit.map_or(0, |limit| total.saturating_sub(limit));
    for column in FLEXIBLE {
        let cut = excess.min(widths[column].saturating_sub(NARROWEST));
        widths[column] -= cut;
        excess -= cut;
    }
    widths
}

fn line(row: &[String; HEADER.len()], widths: &[usize; HEADER.len()]) -> String {
    let mut line = " ".repeat(INDENT);
    for (column, (cell, &width)) in row.iter().zip(widths).enumerate() {
        if column > 0 {
            line.push_str(&" ".repeat(GAP));
        }
        let cell = cut(cell, width);
        let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
        if RIGHT.contains(&column) { line.extend([padding, cell]) } else { line.extend([cell, padding]) }
    }
    line.truncate(line.trim_end().len());
    line
}

/// The text, with an ellipsis in place of what exceeds the width.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(name: &str, workload: &str) -> Vec<[String; HEADER.len()]> {
        let row = ["4100", "mira", name, workload, "12.52 GiB", "94.51 GiB", "0.124 s"];
        vec![HEADER.map(str::to_owned), row.map(str::to_owned)]
    }

    #[test]
    fn the_longest_texts_are_cut_to_the_width_of_the_terminal() {
        let rows = rows("vllm.entrypoints.openai.api_server", "team-b/llama-13b-0/trainer");
        let free = widths(&rows, None);
        assert!(rows.iter().all(|row| !line(row, &free).contains('…')));
        for width in [64, 80, 100] {
            let widths = widths(&rows, Some(width));
            assert!(rows.iter().all(|row| line(row, &widths).chars().count() <= width), "{width}");
            let shown = line(&rows[1], &widths);
            assert!(shown.contains('…') && shown.ends_with("12.52 GiB  94.51 GiB  0.124 s"), "{shown}");
        }
    }

    #[test]
    fn parts_that_do_not_fit_go_to_the_next_line() {
        let parts =
            ["94.52 GiB of 139.8 GiB used (68 %)", "window peak 94.52 GiB", "peak 94.52 GiB"].map(str::to_owned);
        let written = |width| {
            let mut out = String::new();
            write_parts("memory", &parts, Style { width, bold: false }, &mut out).unwrap();
            out
        };
        assert_eq!(written(None).lines().count(), 1);
        let narrow = written(Some(76));
        assert!(narrow.lines().all(|line| line.chars().count() <= 76), "{narrow}");
        assert!(narrow.ends_with(",\n               peak 94.52 GiB\n"), "{narrow}");
    }

    #[test]
    fn columns_stay_aligned() {
        let rows = rows("é", "user:mira");
        let widths = widths(&rows, None);
        assert_eq!(line(&rows[0], &widths), "   PID  USER  PROCESS  WORKLOAD        USED       PEAK     IDLE");
        assert_eq!(line(&rows[1], &widths), "  4100  mira  é        user:mira  12.52 GiB  94.51 GiB  0.124 s");
    }
}
