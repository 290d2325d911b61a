//! The words of the tables. Names are not escaped here.

use std::time::{Duration, UNIX_EPOCH};

use text_and_sizes::format::bytes;
use text_and_sizes::sizing;

use super::super::record::{Action, Advice, Basis, Reason, Size, Workload};

/// What limits all advice.
pub(super) const CAVEATS: [&str; 3] = [
    "Advice is for one GPU or MIG device, and judges by the past: another input can need more.",
    "Packing adds peaks that occurred at different times, and does not consider compute, bandwidth, topology or isolation.",
    "Shares of two workloads fit on a GPU only if what the driver reserves is not promised to either.",
];

/// The headings of the advice.
pub(super) const HEADINGS: [&str; 7] =
    ["WORKLOAD", "PEAK", "FIRST REACHED (UTC)", "NEAR PEAK", "JUDGED BY", "CURRENT → ADVISED", "FREED"];
/// The headings of the units.
pub(super) const UNIT_HEADINGS: [&str; 9] =
    ["WORKLOAD", "ADVISED", "BOARD", "MIG", "KAI FRACTION", "KAI, HAMI MiB", "TORCH", "XLA", "VLLM"];

/// A title with the range and the server.
pub(super) fn title(advice: &Advice) -> String {
    let (range, end) = (days(advice.range_seconds), moment(advice.time));
    format!("GPU memory by {}: the {range} before {end}, from {}", advice.by, advice.prometheus)
}

/// Sentences that come before the table.
pub(super) fn notes(advice: &Advice) -> Vec<String> {
    let mut notes = Vec::new();
    if advice.workloads.iter().any(|workload| workload.simulated) {
        notes.push("SIMULATED GPUs: no number of the workloads marked with * is a measurement.".to_owned());
    }
    notes.extend(advice.warnings.iter().map(|warning| format!("Warning: {warning}")));
    if advice.workloads.is_empty() {
        notes.push("No workload.".to_owned());
    }
    notes
}

/// The name of a workload, with its cluster.
fn name(workload: &Workload) -> String {
    let cluster = workload.cluster.as_ref().map(|cluster| format!("{cluster}: ")).unwrap_or_default();
    let mark = if workload.simulated { " *" } else { "" };
    format!("{cluster}{}{mark}", workload.workload)
}

/// The cells of a workload.
pub(super) fn cells(workload: &Workload) -> [String; HEADINGS.len()] {
    let basis = match workload.basis {
        Basis::Allocator => " (needed)",
        Basis::Driver => "",
    };
    [
        name(workload),
        format!("{}{basis}", bytes(workload.peak_bytes)),
        workload.peak_from.map(minute).unwrap_or_default(),
        format!("{} of {}", workload.intervals_near_peak, workload.intervals),
        judged_by(workload),
        change(workload),
        if workload.freed_bytes > 0 { bytes(workload.freed_bytes) } else { String::new() },
    ]
}

fn judged_by(workload: &Workload) -> String {
    let count = |number: u64, one: &str| format!("{number} {one}{}", if number == 1 { "" } else { "s" });
    // True to one interval of the range.
    let hours = workload.span_seconds / 3600;
    let span = if hours < 48 { format!("{hours} h") } else { format!("{} d", hours / 24) };
    let failures = workload.out_of_memory.filter(|failures| *failures > 0);
    let failures = failures.map(|failures| format!(", {failures} out of memory")).unwrap_or_default();
    format!("{}, {span}, {}{failures}", count(workload.samples, "sample"), count(workload.runs, "run"))
}

/// `139.8 GiB → 20.1 GiB (lower)`, or why there is no advice.
fn change(workload: &Workload) -> String {
    let current = workload.current_bytes.map_or_else(|| "?".to_owned(), bytes);
    let budget = workload.current_source.as_ref().filter(|source| *source != "device");
    let budget = budget.map(|source| format!(" ({source})")).unwrap_or_default();
    let advised = match (workload.advice_bytes, workload.reason) {
        (Some(advice), _) => {
            let action = match workload.action {
                Action::None => "",
                Action::Keep if workload.current_bytes.is_some_and(|current| current < advice) => {
                    ", keep (margin not met)"
                }
                Action::Keep => ", keep",
                Action::Lower => ", lower",
                Action::Raise => ", RAISE",
            };
            format!("{}{action}", bytes(advice))
        }
        (None, reason) => format!("none: {}{}", why_none(workload, reason), beyond(workload)),
    };
    let raise = if workload.advice_bytes.is_none() && workload.action == Action::Raise { ", RAISE" } else { "" };
    format!("{current}{budget} → {advised}{raise}")
}

fn why_none(workload: &Workload, reason: Reason) -> String {
    let peak = bytes(workload.driver_peak_bytes);
    let rate = bytes(workload.rising_bytes_per_hour.unwrap_or_default());
    match reason {
        Reason::FailedAllocations => format!("allocations failed, it may need more than its {peak}"),
        Reason::Shortage => {
            let last = workload.last_shortage.map(minute).unwrap_or_default();
            format!("ended at the memory limit or could not allocate at {last}, it may need more than its {peak}")
        }
        Reason::Rising => format!("rising by {rate} an hour"),
        Reason::ExceedsDevice => format!("its peak and {} % are more than the device has", sizing::MARGIN),
        Reason::TooFewSamples => "too few samples".to_owned(),
        Reason::TooShort => "too short a history".to_owned(),
        Reason::Preallocated | Reason::Peak => reservation(workload.preallocates),
    }
}

/// `: may not fit one NVIDIA L4; several, or NVIDIA L40S`, if it is so.
fn beyond(workload: &Workload) -> String {
    let Some(beyond) = &workload.beyond else { return String::new() };
    let device = beyond.name.as_deref().unwrap_or("device of this kind");
    let larger = beyond.larger_board.as_ref().map_or("a larger board", |board| &board.name);
    format!(": may not fit one {device}; several, or {larger}")
}

fn reservation(reason: Option<&str>) -> String {
    match reason {
        Some("share_75") => "holds 75 % all the time like JAX's reservation; needs a client".to_owned(),
        Some("share_93") => "holds nearly everything all the time like a reservation; needs a client".to_owned(),
        Some(framework) => format!("{framework} reserves memory in advance; needs a client"),
        None => String::new(),
    }
}

/// The cells of the units of a workload; `None` without them.
pub(super) fn unit_cells(workload: &Workload) -> Option<[String; UNIT_HEADINGS.len()]> {
    let units = workload.units.as_ref()?;
    let size = |size: &Option<Size>| size.as_ref().map_or_else(|| "-".to_owned(), |size| size.name.clone());
    let share =
        |share: Option<f64>, digits: usize| share.map_or_else(|| "-".to_owned(), |share| format!("{share:.digits$}"));
    Some([
        name(workload),
        bytes(workload.advice_bytes?),
        size(&units.board),
        size(&units.mig_profile),
        share(units.kai_gpu_fraction, 2),
        units.kai_gpu_memory_mib.to_string(),
        share(units.torch_memory_fraction, 4),
        share(units.xla_client_mem_fraction, 4),
        share(units.vllm_gpu_memory_utilization, 4),
    ])
}

/// The lines below the table: a legend, and the fleet.
pub(super) fn packing(advice: &Advice) -> Vec<String> {
    let fleet = &advice.fleet;
    let minutes = advice.interval_seconds.div_ceil(60);
    let mut lines = Vec::new();
    if !advice.workloads.is_empty() {
        lines.push(format!(
            "Near peak: in how many of its intervals of {minutes} min it reached 95 % of its peak. First reached: in the interval \
             that begins then."
        ));
    }
    lines.push(format!("Could be given back in all: {}", bytes(fleet.freed_bytes)));
    if fleet.gpus_now > 0 {
        lines.push(format!(
            "Packed by their advised memory, the current workloads need at least {} GPUs, {} with first fit; now they use {}",
            fleet.gpus_lower_bound, fleet.gpus_first_fit, fleet.gpus_now
        ));
    }
    lines
}

/// Seconds in hours or days, with one decimal if they are not whole.
fn days(seconds: u64) -> String {
    let (length, unit) = if seconds < 48 * 3600 { (3600, "h") } else { (86_400, "d") };
    let digits = usize::from(!seconds.is_multiple_of(length));
    format!("{:.digits$} {unit}", seconds as f64 / length as f64)
}

fn moment(time: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(time)).to_string()
}

fn minute(time: u64) -> String {
    moment(time).get(..16).unwrap_or_default().replace('T', " ")
}
