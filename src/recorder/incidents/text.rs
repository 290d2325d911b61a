//! An incident as text, for a terminal or a chat.

use std::fmt::Write as _;

use super::trace::sentence;
use super::words;
use crate::format;
use crate::recorder::history::{Failure, FailureSites, Holder, Incident, ModuleUse, SiteUse, names, time};
use crate::text::printable;

/// The text of an incident. It ends with a line break.
pub fn text(incident: &Incident) -> String {
    let mut out = String::new();
    // Writing into a String cannot fail.
    let _ = write_text(&mut out, incident);
    out
}

fn write_text(out: &mut String, incident: &Incident) -> std::fmt::Result {
    let Incident { gpu, host, .. } = incident;
    let host = host.as_deref().map_or_else(String::new, |host| format!(" on {}", names::name(host)));
    let gpu_name = gpu.name.as_deref().map_or_else(String::new, |name| format!(", {}", names::name(name)));
    writeln!(out, "{}", incident.summary)?;
    writeln!(out)?;
    if incident.simulated {
        writeln!(out, "SIMULATED GPU: no number here is a measurement.")?;
    }
    writeln!(out, "incident {} ({})", incident.id, incident.kind.words())?;
    let uuid = gpu.device_uuid();
    writeln!(out, "{}, {}{gpu_name}, {uuid}{host}", time(incident.at), words::device(gpu))?;
    writeln!(out, "on the exporter's page: /?incident={}", incident.id)?;
    if let Some(last) = incident.last_at {
        let (count, last) = (incident.count, time(last));
        writeln!(out, "{count} such moments, the last at {last}; what follows was recorded around the first")?;
    }
    if !incident.complete {
        writeln!(out, "The ten seconds after the moment are still being recorded.")?;
    }
    if let Some(peak) = &incident.peak {
        let what = if gpu.mig.is_some() { "MIG device" } else { "GPU" };
        write!(out, "highest memory use of the {}: {} at {}", what, format::bytes(peak.used_bytes), time(peak.at))?;
        let left = peak.left_bytes.map(|left| format!(", {} left", format::bytes(left)));
        writeln!(out, "{}", left.unwrap_or_default())?;
        if let Some((listed, at)) = peak.listed_bytes.zip(peak.listed_at) {
            writeln!(out, "the processes listed at {} held {} of it", time(at), format::bytes(listed))?;
        }
    }
    if let Some(failed) = &incident.out_of_memory {
        write_failure(out, failed, &incident.facts)?;
    }
    writeln!(out)?;
    writeln!(out, "{:>10}  {:>10}  {:>10}  {:>10}  process", "at peak", "own peak", "last 10 s", "last 60 s")?;
    for holder in &incident.processes {
        write_holder(out, holder)?;
    }
    if incident.more_processes > 0 {
        writeln!(out, "and {} more", incident.more_processes)?;
    }
    writeln!(out)?;
    for event in &incident.events {
        writeln!(out, "{}  {}", time(event.at), sentence(event))?;
    }
    Ok(())
}

/// What a failed allocation was: what its figures prove, the stack that asked, and what the memory was.
fn write_failure(out: &mut String, failed: &Failure, facts: &[String]) -> std::fmt::Result {
    if let Some(path) = failed.snapshot_path.as_deref() {
        writeln!(out, "the framework wrote {}", printable(path))?;
    }
    if !facts.is_empty() {
        writeln!(out)?;
        facts.iter().try_for_each(|fact| writeln!(out, "{fact}"))?;
    }
    if !failed.frames.is_empty() {
        writeln!(out, "\nthe stack that asked, innermost first")?;
        failed.frames.iter().try_for_each(|frame| writeln!(out, "  {}", printable(frame)))?;
    }
    failed.memory.as_deref().map_or(Ok(()), |memory| write_memory(out, memory))
}

/// What the memory of the process was: by role, by call site, by growth and by module.
fn write_memory(out: &mut String, memory: &FailureSites) -> std::fmt::Result {
    let roles: Vec<String> =
        memory.largest().into_iter().map(|(role, bytes)| format!("{role} {}", format::bytes(bytes))).collect();
    let (before, colon) = (format::seconds(memory.seconds_before), if roles.is_empty() { "" } else { ": " });
    writeln!(out, "\nthe live memory of the framework, {before} before{colon}{}", roles.join(", "))?;
    write_sites(out, &memory.sites)?;
    write_rest(out, memory.other_bytes, "other call sites")?;
    write_rest(out, memory.unrecorded_bytes, "not recorded")?;
    if let Some(grew) = memory.grew.as_ref().filter(|grew| !grew.sites.is_empty()) {
        writeln!(out, "\nthe call sites that grew most within the {} s before that", grew.seconds)?;
        write_sites(out, &grew.sites)?;
    }
    if !memory.modules.is_empty() {
        writeln!(out, "\nparameters, gradients, optimizer state and buffers by module")?;
        for ModuleUse { module, bytes } in &memory.modules {
            writeln!(out, "{:>10}  {}", format::bytes(*bytes), printable(module))?;
        }
        write_rest(out, memory.other_modules_bytes, "other modules")?;
    }
    Ok(())
}

fn write_sites(out: &mut String, sites: &[SiteUse]) -> std::fmt::Result {
    for SiteUse { site, role, bytes } in sites {
        writeln!(out, "{:>10}  {role:<15}  {}", format::bytes(*bytes), printable(site))?;
    }
    Ok(())
}

/// What the lines before do not list, if there is any.
fn write_rest(out: &mut String, bytes: Option<u64>, what: &str) -> std::fmt::Result {
    match bytes {
        Some(bytes) if bytes > 0 => writeln!(out, "{:>10}  {what}", format::bytes(bytes)),
        _ => Ok(()),
    }
}

fn write_holder(out: &mut String, holder: &Holder) -> std::fmt::Result {
    let known = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), format::bytes);
    let grew = |by: Option<i64>| match by {
        None => "unknown".to_owned(),
        Some(by) => format!("{}{}", if by < 0 { "-" } else { "+" }, format::bytes(by.unsigned_abs())),
    };
    let ended =
        holder.ended.map_or_else(String::new, |ended| format!(", ended at {}{}", time(ended.by), holder.exit.suffix()));
    writeln!(
        out,
        "{:>10}  {:>10}  {:>10}  {:>10}  {}{ended}",
        known(holder.used_bytes),
        known(holder.peak_bytes),
        grew(holder.grew.ten_seconds),
        grew(holder.grew.minute),
        words::process(&holder.who)
    )
}
