//! A report as text, for a terminal or the output of a job. Names come from processes that may be hostile, so no
//! control character reaches the terminal.

use std::fmt::Write as _;

use super::job_report::{DeviceReport, JobReport, State};
use crate::format::{bytes, seconds};
use crate::recorder::history::names::name;
use crate::recorder::history::time;
use crate::text::printable;

/// The text of a report. It ends with a line break.
pub fn text(report: &JobReport) -> String {
    let mut out = String::new();
    // Writing into a String cannot fail.
    let _ = write(&mut out, report);
    out
}

fn write(out: &mut String, report: &JobReport) -> std::fmt::Result {
    let user = report.user.as_deref().map_or_else(String::new, |user| format!(", user {}", name(user)));
    let node = report.node.as_deref().map_or_else(String::new, |node| format!(" on {}", name(node)));
    writeln!(out, "GPU memory of {}{user}{node}", name(&report.workload))?;
    if report.simulated {
        writeln!(out, "  SIMULATED GPU: no number here is a measurement.")?;
    }
    let from = if report.seen_from_start { "" } else { " or earlier, when the exporter did not read the GPUs" };
    let end = match (report.state, report.end) {
        (State::Running, _) => "still running".to_owned(),
        (State::ExporterStopped, _) => "still running when the exporter stopped".to_owned(),
        (State::Left, Some(end)) => format!("left the GPUs at {}", time(end)),
        (_, end) => end.map_or_else(|| "ended".to_owned(), |end| format!("ended at {}", time(end))),
    };
    writeln!(out, "  from {}{from}, {end}: {}", time(report.start), seconds(report.seconds))?;
    writeln!(out, "  {}", processes(report))?;
    report.gpus.iter().try_for_each(|gpu| write_device(out, gpu))
}

/// `3 processes: 2 with exit status 0, 1 with signal 9 (SIGKILL)`.
fn processes(report: &JobReport) -> String {
    let plural = if report.processes == 1 { "" } else { "es" };
    let exits = report.exits.iter().map(|ended| {
        let how = ended.exit.suffix();
        format!("{} with {}", ended.processes, how.trim_start_matches(", "))
    });
    let exits: Vec<_> = exits.collect();
    let colon = if exits.is_empty() { "" } else { ": " };
    format!("{} process{plural}{colon}{}", report.processes, exits.join(", "))
}

fn write_device(out: &mut String, gpu: &DeviceReport) -> std::fmt::Result {
    let known = |size: Option<u64>| size.map_or_else(|| "unknown".to_owned(), bytes);
    write!(out, "  GPU {}", gpu.gpu)?;
    if let Some(product) = &gpu.name {
        write!(out, " {}", name(product))?;
    }
    if let Some(mig) = &gpu.mig_uuid {
        write!(out, " {}", name(mig))?;
    }
    let at = gpu.peak_at.map_or_else(String::new, |at| format!(" at {}", time(at)));
    let of = gpu.allocatable_bytes.map_or_else(String::new, |all| format!(" of {}", bytes(all)));
    writeln!(out, ": peak {}{of}{at}", known(gpu.peak_bytes))?;
    writeln!(out, "    mean {}, last {}, for {}", known(gpu.mean_bytes), known(gpu.last_bytes), seconds(gpu.seconds))?;
    if let (Some(budget), Some(source), Some(reached)) = (gpu.budget_bytes, &gpu.budget_source, gpu.seconds_at_budget) {
        writeln!(out, "    budget {} ({}), reached for {}", bytes(budget), name(source), seconds(reached))?;
    }
    if let (Some(at_90), Some(at_95), Some(at_98)) =
        (gpu.seconds_at_90_percent, gpu.seconds_at_95_percent, gpu.seconds_at_98_percent)
    {
        let near = [at_90, at_95, at_98].map(seconds);
        writeln!(out, "    GPU at least 90 / 95 / 98 % full, with its other processes: {}", near.join(" / "))?;
    }
    if let Some(idle) = gpu.idle_ratio {
        writeln!(out, "    idle {:.0} % of the time", idle * 100.0)?;
    }
    if let Some(joules) = gpu.energy_joules {
        let kwh = joules / 3.6e6;
        writeln!(out, "    energy {joules:.0} J ({kwh:.4} kWh), by its share of SM time: an estimate")?;
    }
    if gpu.out_of_memory > 0 {
        writeln!(out, "    out of memory: {} failed allocations reported", gpu.out_of_memory)?;
    }
    if let Some(failed) = &gpu.last_failure {
        writeln!(out, "    the last one requested {}", bytes(failed.requested_bytes))?;
        if let Some(by) = &failed.asked_by {
            writeln!(out, "      asked by {}", printable(by))?;
        }
        for site in failed.memory.iter().flat_map(|memory| &memory.sites) {
            writeln!(out, "      live before: {} {} of {}", bytes(site.bytes), site.role, printable(&site.site))?;
        }
    }
    if let Some(needs) = gpu.needs_more_than_bytes {
        let times = match gpu.ended_at_limit {
            0 => String::new(),
            1 => "ended at the memory limit once: ".to_owned(),
            times => format!("ended at the memory limit {times} times: "),
        };
        let others = gpu
            .others_bytes
            .map_or_else(String::new, |others| format!("; the rest of the device held {}", bytes(others)));
        let incident = gpu
            .incident
            .as_deref()
            .map_or_else(String::new, |id| format!("; on the exporter's page: /?incident={}", name(id)));
        writeln!(out, "    {times}needs more than {}{others}{incident}", bytes(needs))?;
    }
    if let Some(allocated) = gpu.allocated_peak_bytes {
        let needed =
            gpu.needed_bytes.map_or_else(String::new, |needed| format!("; it needed at most {}", bytes(needed)));
        writeln!(out, "    its allocators had at most {} allocated{needed}", bytes(allocated))?;
    }
    let basis = if gpu.needed_bytes.is_some() { "what it needed" } else { "peak" };
    match (gpu.advice_bytes, gpu.advice_margin, &gpu.no_advice) {
        (Some(advice), Some(margin), _) => writeln!(
            out,
            "    to request next time, judging by this one run ({} samples): {} ({basis} + {:.0} %)",
            gpu.samples,
            bytes(advice),
            margin * 100.0
        ),
        (.., Some(why)) => writeln!(out, "    no advice: {}", name(why)),
        _ => Ok(()),
    }
}
