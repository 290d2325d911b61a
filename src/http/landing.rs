//! The page at `/`: the state of each GPU as a table, and links. The page is complete without its script, which
//! replaces the table with charts. The page loads nothing from other hosts.
//!
//! Invariant: every value that does not come from this file goes through [`Escaped`] or is a number.

use std::fmt::{self, Write as _};
use std::time::{Duration, Instant};

use super::assets::{ICON, RUNBOOK, SCRIPT, STYLE};
use super::state::HttpState;
use crate::snapshot::{Driver, GpuState, MemoryFigures, Process, SharedMemory};
use crate::text::Escaped;
use gpu_metrics::{GpuView, Parts, Settings};

/// Seconds after which the page reloads if no script updates it.
const REFRESH: u32 = 5;
/// How many running processes a GPU's row shows, and how many processes that have ended.
const SHOWN_PROCESSES: usize = 3;

/// The whole page.
pub(super) fn page(parts: &Parts, state: &HttpState) -> String {
    let mut out = String::with_capacity(4096);
    // Writing into a String cannot fail.
    let _ = write_page(&mut out, parts, state);
    out
}

fn write_page(out: &mut String, parts: &Parts, state: &HttpState) -> fmt::Result {
    let (driver, settings) = (&parts.driver, state.metrics.settings());
    let host = state.host.as_deref().unwrap_or_default();
    let title = if host.is_empty() { "" } else { " – " };
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <noscript><meta http-equiv=\"refresh\" content=\"{REFRESH}\"></noscript>\n\
         <link rel=\"icon\" type=\"image/svg+xml\" href=\"{ICON}\">\n<link rel=\"stylesheet\" href=\"{STYLE}\">\n\
         <script type=\"module\" src=\"{SCRIPT}\"></script>\n<title>{0}{title}vram-exporter</title>\n</head>\n<body>\n",
        Escaped(host)
    )?;
    if driver.simulated {
        out.push_str("<div class=\"banner\">SIMULATED GPUs: no number on this page is a measurement</div>\n");
    }
    write!(
        out,
        "<header><h1>{}{title}vram-exporter</h1><span class=\"soft\">{}</span>\n\
         <nav aria-label=\"Other pages\"><a href=\"{}\">metrics</a><a href=\"/healthz\">healthz</a><a href=\"/readyz\">readyz</a>\
         <a href=\"{RUNBOOK}\">runbook</a><a href=\"/api/v1/gpus\">GPUs as JSON</a></nav></header>\n<main id=\"main\">\n",
        Escaped(host),
        env!("CARGO_PKG_VERSION"),
        Escaped(&state.telemetry_path)
    )?;
    write_sights(out, &state.sights)?;
    out.push_str("<div id=\"table\">\n");
    write_driver(out, driver)?;
    let gpus = parts.gpus(settings);
    if !gpus.is_empty() {
        write_gpus(out, &gpus, settings)?;
    } else if driver.up {
        out.push_str("<p class=\"card note\">The driver reports no GPU.</p>\n");
    }
    out.push_str(
        "</div>\n</main>\n<footer class=\"soft\"><code>docs/metrics.md</code> describes every metric, <code>docs/incidents.md</code> this page, \
         <code>README.md</code> how to install and configure the exporter.</footer>\n</body>\n</html>\n",
    );
    Ok(())
}

/// Writes the list of things to look at in a demo.
fn write_sights(out: &mut String, sights: &[&str]) -> fmt::Result {
    if sights.is_empty() {
        return Ok(());
    }
    out.push_str("<section class=\"card note\" id=\"sights\"><h2>What to look at in this demo</h2>\n<ul>");
    sights.iter().try_for_each(|sight| write!(out, "<li>{}</li>", Escaped(sight)))?;
    out.push_str("</ul></section>\n");
    Ok(())
}

fn write_driver(out: &mut String, driver: &Driver) -> fmt::Result {
    if !driver.up {
        return match &driver.problem {
            Some(problem) => {
                writeln!(out, "<p class=\"card note problem\">No GPU can be read: {}</p>", Escaped(problem))
            }
            None => writeln!(out, "<p class=\"card note\">Starting: the driver is being opened.</p>"),
        };
    }
    let known = |version: &Option<String>| version.clone().unwrap_or_else(|| "unknown".to_owned());
    writeln!(
        out,
        "<p class=\"soft\">Driver {}, CUDA {}</p>",
        Escaped(&known(&driver.driver_version)),
        Escaped(&known(&driver.cuda_version))
    )
}

fn write_gpus(out: &mut String, gpus: &[GpuView<'_>], settings: &Settings) -> fmt::Result {
    write!(
        out,
        "<div class=\"card\"><table>\n<thead><tr><th class=\"n\">GPU</th><th>name</th><th>used of total</th>\
         <th class=\"n\">peak, last {} s</th><th class=\"n\">peak since start</th><th>largest processes, running and ended</th><th>state</th></tr></thead>\n<tbody>\n",
        settings.peak_window.as_secs()
    )?;
    let now = Instant::now();
    for gpu in gpus {
        write_gpu(out, gpu, now)?;
    }
    out.push_str("</tbody></table></div>\n");
    Ok(())
}

fn write_gpu(out: &mut String, view: &GpuView<'_>, now: Instant) -> fmt::Result {
    let name = view.gpu.name.as_deref().unwrap_or("unknown");
    write!(out, "<tr><td class=\"n\">{}</td><td class=\"w\">{}</td>", view.gpu.index, Escaped(name))?;
    let shared = view.memory.and_then(|memory| memory.shared);
    match (view.memory.and_then(|memory| memory.figures.as_ref()), shared) {
        (Some(figures), _) => {
            write!(out, "<td>{} of {}", bytes(figures.used), bytes(figures.total))?;
            write_bar(out, figures)?;
            write_available(out, shared)?;
            let (window, ever) = (bytes(figures.window_peak), bytes(figures.peak));
            write!(out, "</td><td class=\"n\">{window}</td><td class=\"n\">{ever}</td>")?;
        }
        (None, Some(SharedMemory { total, .. })) => {
            let held = view.processes.and_then(|listed| listed.held);
            let used = held.map_or_else(|| "unknown".to_owned(), |held| format!("at least {}", bytes(held.bytes)));
            write!(out, "<td><span class=\"soft\">{used}</span> of {}", bytes(total))?;
            write_available(out, shared)?;
            out.push_str("</td><td></td><td></td>");
        }
        (None, None) => out.push_str("<td class=\"soft\">unknown</td><td></td><td></td>"),
    }
    out.push_str("<td><ul>");
    let processes = view.processes.map_or(&[][..], |part| &part.processes);
    for process in largest(processes, |process| process.alive, |process| process.used) {
        write!(out, "<li>{} ", known(process.used))?;
        write_process(out, process)?;
        out.push_str("</li>");
    }
    for process in largest(processes, |process| !process.alive, |process| process.peak) {
        write!(out, "<li class=\"soft\">peak {} ", known(process.peak))?;
        write_process(out, process)?;
        if let Some(ended) = process.ended {
            let since = |moment| now.saturating_duration_since(moment);
            write!(out, ", ended {}", age_between(since(ended.by), since(ended.after)))?;
        }
        out.push_str("</li>");
    }
    let class = if view.up { "" } else { " problem" };
    writeln!(out, "</ul></td><td class=\"w{class}\">{}</td></tr>", state(view))
}

/// What can still be allocated of the memory that a GPU shares with the CPU.
fn write_available(out: &mut String, shared: Option<SharedMemory>) -> fmt::Result {
    let Some(SharedMemory { available, .. }) = shared else { return Ok(()) };
    write!(out, "<br><span class=\"soft\">shared with the CPU, {} available</span>", bytes(available))
}

/// Used memory as a bar, with a mark at the window's peak.
fn write_bar(out: &mut String, figures: &MemoryFigures) -> fmt::Result {
    let share = |bytes: u64| 100.0 * (bytes as f64 / figures.total.max(1) as f64).min(1.0);
    let (used, peak) = (share(figures.used), share(figures.window_peak));
    write!(
        out,
        "<svg class=\"bar\" viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect width=\"{used:.1}\" height=\"4\"/><line x1=\"{peak:.1}\" x2=\"{peak:.1}\" y1=\"0\" y2=\"4\" vector-effect=\"non-scaling-stroke\"/></svg>"
    )
}

/// Name, pid and owner of a process.
fn write_process(out: &mut String, process: &Process) -> fmt::Result {
    let owner = &process.owner;
    let name = owner.name.as_deref().unwrap_or("?");
    write!(out, "{} <span class=\"soft\">{}", Escaped(name), process.pid)?;
    let workload = owner.workload.as_ref().map(|workload| workload.name.as_str());
    if let Some(owner) = workload.or(owner.user.as_deref()) {
        write!(out, " of {}", Escaped(owner))?;
    }
    out.push_str("</span>");
    Ok(())
}

/// The processes of one kind with the highest values of `bytes`. Processes without a value come last.
fn largest(processes: &[Process], kind: fn(&Process) -> bool, bytes: fn(&Process) -> Option<u64>) -> Vec<&Process> {
    let mut found: Vec<_> = processes.iter().filter(|process| kind(process)).collect();
    found.sort_unstable_by_key(|process| (std::cmp::Reverse(bytes(process)), process.pid));
    found.truncate(SHOWN_PROCESSES);
    found
}

fn state(view: &GpuView<'_>) -> &'static str {
    match view.state {
        _ if view.up => "up",
        GpuState::Unsampled => "not sampled yet",
        GpuState::Stalled => "stalled: a driver call does not return",
        GpuState::Unreadable => "unreadable",
        GpuState::Up => "stale: no recent sample",
    }
}

/// A number of bytes in MiB, or in GiB from 1 GiB up.
fn bytes(number: u64) -> String {
    const MIB: f64 = 1_048_576.0;
    let mib = number as f64 / MIB;
    if mib >= 1024.0 { format!("{:.1} GiB", mib / 1024.0) } else { format!("{mib:.0} MiB") }
}

/// A number of bytes that may be unknown.
fn known(number: Option<u64>) -> String {
    number.map_or_else(|| "unknown".to_owned(), bytes)
}

/// The age of an event that happened between two moments: one age if they are less than two seconds apart, otherwise
/// both.
fn age_between(least: Duration, most: Duration) -> String {
    if most.saturating_sub(least) < Duration::from_secs(2) {
        return format!("{} ago", age(least));
    }
    format!("{} to {} ago", age(least), age(most))
}

fn age(since: Duration) -> String {
    match since.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_as_exact_as_they_are_known() {
        let between = |least: u64, most: u64| age_between(Duration::from_millis(least), Duration::from_millis(most));
        assert_eq!(between(12_900, 14_899), "12 s ago");
        assert_eq!(between(400, 2_400), "0 s to 2 s ago");
        assert_eq!(between(60_000, 600_000), "60 s to 10 min ago");
        assert_eq!(between(7_199_000, 7_200_000), "119 min ago");
        assert_eq!(between(7_200_000, 7_200_000), "2 h ago");
        assert_eq!(known(None), "unknown");
    }

    #[test]
    fn bytes_are_shown_in_mib_and_gib() {
        assert_eq!(bytes(0), "0 MiB");
        assert_eq!(bytes(528 << 20), "528 MiB");
        assert_eq!(bytes(10 << 30), "10.0 GiB");
    }
}
