//! The report in human-readable form. Names come from processes that may be hostile, so no control character reaches
//! the terminal.

use std::fmt::Write;

use text_and_sizes::format::{bytes, seconds};
use text_and_sizes::text::printable;

use super::allocators::AllocatorUse;
use super::report::{Board, Gpu, Process, Report};

/// The maximum number of the command's processes, and of other processes, that are shown for a GPU. The JSON form has
/// all of them.
const PROCESSES: usize = 32;
const OTHERS: usize = 5;

/// The report as text.
pub(super) fn of(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(report, &mut out);
    out
}

fn write(report: &Report, out: &mut String) -> std::fmt::Result {
    let command: Vec<String> = report.command.iter().map(|part| printable(part)).collect();
    let end = match report.signal {
        Some(signal) => format!("ended by {signal}"),
        None => format!("exit status {}", report.exit_status),
    };
    writeln!(out, "vram run: {}: {end} after {}", command.join(" "), seconds(report.duration_seconds))?;
    if report.simulated {
        writeln!(out, "  SIMULATED GPUs: no number is a measurement")?;
    }
    if let Some(peak) = &report.together {
        let gpus = report.gpus.iter().filter(|gpu| gpu.together.is_some()).count();
        let on = if gpus == 1 { String::new() } else { format!(", on {gpus} GPUs together") };
        let at_least = at_least(peak.at_least);
        writeln!(out, "  peak       {at_least}{} at {}{on}", bytes(peak.peak_bytes), seconds(peak.peak_seconds))?;
    }
    // If no process of the command was listed, only the GPUs themselves can be shown.
    let has_process = |gpu: &&Gpu| gpu.processes.as_ref().is_some_and(|processes| !processes.is_empty());
    let all = !report.gpus.iter().any(|gpu| has_process(&gpu));
    for gpu in report.gpus.iter().filter(|gpu| all || has_process(gpu)) {
        write_gpu(gpu, &report.allocators, out)?;
    }
    write_unlisted(report, out)?;
    if let Some(fits) = &report.fits_in {
        let at_least = at_least(fits.at_least);
        let on = if report.gpus.iter().filter(|gpu| gpu.together.is_some()).count() > 1 { " for each GPU" } else { "" };
        writeln!(
            out,
            "  fits in    {at_least}{}; MIG {} (needed: {at_least}{}{on})",
            name(fits.board.as_ref()),
            name(fits.mig_profile.as_ref()),
            bytes(fits.needed_bytes)
        )?;
    }
    if let Some(sampling) = &report.sampling {
        writeln!(
            out,
            "  measured   {} samples, longest gap {}; {} lists of processes, longest gap {}",
            sampling.samples,
            seconds(sampling.longest_gap_seconds),
            sampling.lists,
            seconds(sampling.longest_list_gap_seconds)
        )?;
    }
    for note in &report.notes {
        writeln!(out, "  note       {}", printable(note))?;
    }
    Ok(())
}

fn at_least(is_bound: bool) -> &'static str {
    if is_bound { "at least " } else { "" }
}

fn name(board: Option<&Board>) -> String {
    board.map_or("none in the table".to_owned(), |board| format!("{} ({})", board.name, bytes(board.allocatable_bytes)))
}

fn write_gpu(gpu: &Gpu, allocators: &[AllocatorUse], out: &mut String) -> std::fmt::Result {
    write!(out, "  {}", gpu.label())?;
    if let Some(name) = &gpu.name {
        write!(out, " {}", printable(name))?;
    }
    match &gpu.together {
        Some(peak) => {
            writeln!(out, ": {}{} at {}", at_least(peak.at_least), bytes(peak.peak_bytes), seconds(peak.peak_seconds))?;
        }
        None => writeln!(out)?,
    }
    let processes = gpu.processes.as_deref().unwrap_or_default();
    for process in processes.iter().take(PROCESSES) {
        writeln!(out, "    {}", describe(process))?;
        for used in allocators.iter().filter(|used| used.is_of(process.key, gpu.device())) {
            writeln!(out, "      {}", used.sentence())?;
        }
    }
    if processes.len() > PROCESSES {
        writeln!(out, "    and {} more", processes.len() - PROCESSES)?;
    }
    if let (Some(peak), Some(at), Some(allocatable)) =
        (gpu.used_peak_bytes, gpu.used_peak_seconds, gpu.allocatable_bytes)
    {
        let at_least = at_least(gpu.used_peak_from_calls);
        writeln!(out, "    GPU itself: peak {at_least}{} of {} at {}", bytes(peak), bytes(allocatable), seconds(at))?;
    }
    if let (Some(least), Some(at), Some(full)) = (gpu.least_free_bytes, gpu.least_free_seconds, gpu.nearly_full_seconds)
    {
        writeln!(out, "    least left: {} at {}; at or above 90 %: {}", bytes(least), seconds(at), seconds(full))?;
    }
    let others = gpu.others.as_deref().unwrap_or_default();
    if others.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> = others.iter().take(OTHERS).map(describe).collect();
    let more = match others.len().saturating_sub(OTHERS) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    writeln!(out, "    others: {}{more}", shown.join("; "))
}

/// What processes reported about devices on which the driver did not list them.
fn write_unlisted(report: &Report, out: &mut String) -> std::fmt::Result {
    let is_listed = |used: &&AllocatorUse| {
        let on = report.gpus.iter().filter(|gpu| gpu.device() == used.device);
        on.flat_map(|gpu| gpu.processes.iter().flatten()).any(|process| used.is_of(process.key, &used.device))
    };
    let unlisted: Vec<_> = report.allocators.iter().filter(|used| !is_listed(used)).collect();
    for used in unlisted.iter().take(PROCESSES) {
        let name = used.name.as_deref().map(|name| format!(" {}", printable(name))).unwrap_or_default();
        let gpu = report.gpus.iter().find(|gpu| gpu.device() == used.device);
        let device = gpu.map_or_else(|| used.device.clone(), Gpu::label);
        writeln!(out, "  reported   pid {}{name} on {device}: {}", used.pid, used.sentence())?;
    }
    if unlisted.len() > PROCESSES {
        writeln!(out, "  reported   and {} more", unlisted.len() - PROCESSES)?;
    }
    Ok(())
}

fn describe(process: &Process) -> String {
    let mut text = format!("pid {}", process.pid);
    for part in [&process.name, &process.user].into_iter().flatten() {
        text.push(' ');
        text.push_str(&printable(part));
    }
    match (process.peak_bytes, process.peak_seconds) {
        (Some(peak), Some(at)) => {
            text.push_str(&format!(": {}{} at {}", at_least(process.peak_from_calls), bytes(peak), seconds(at)));
        }
        _ => text.push_str(": memory not reported"),
    }
    text
}
