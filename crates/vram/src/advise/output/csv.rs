//! One line for each workload, for a spreadsheet (RFC 4180).
//!
//! Invariant: no name is a formula for a spreadsheet.

use text_and_sizes::text::is_plain;

use super::super::record::{Advice, Workload};

/// A column: its name, and its value; an unknown value is empty.
type Column = (&'static str, fn(&Workload) -> String);

const COLUMNS: [Column; 30] = [
    ("cluster", |w| name(w.cluster.as_deref().unwrap_or_default())),
    ("workload", |w| name(&w.workload)),
    ("kind", |w| name(&w.kind)),
    ("runs", |w| w.runs.to_string()),
    ("devices", |w| w.devices.to_string()),
    ("devices_now", |w| w.devices_now.to_string()),
    ("samples", |w| w.samples.to_string()),
    ("first", |w| optional(w.first)),
    ("last", |w| optional(w.last)),
    ("span_seconds", |w| w.span_seconds.to_string()),
    ("driver_peak_bytes", |w| w.driver_peak_bytes.to_string()),
    ("peak_from", |w| optional(w.peak_from)),
    ("intervals", |w| w.intervals.to_string()),
    ("intervals_near_peak", |w| w.intervals_near_peak.to_string()),
    ("peak_bytes", |w| w.peak_bytes.to_string()),
    ("allocated_peak_bytes", |w| optional(w.allocated_peak_bytes)),
    ("out_of_memory", |w| optional(w.out_of_memory)),
    ("last_shortage", |w| optional(w.last_shortage)),
    ("current_bytes", |w| optional(w.current_bytes)),
    ("current_source", |w| name(w.current_source.as_deref().unwrap_or_default())),
    ("advice_bytes", |w| optional(w.advice_bytes)),
    ("reason", |w| <&str>::from(w.reason).to_owned()),
    ("action", |w| <&str>::from(w.action).to_owned()),
    ("rising_bytes_per_hour", |w| optional(w.rising_bytes_per_hour)),
    ("freed_bytes", |w| w.freed_bytes.to_string()),
    ("board", |w| name(w.units.as_ref().and_then(|u| u.board.as_ref()).map_or("", |board| &board.name))),
    ("mig_profile", |w| {
        name(w.units.as_ref().and_then(|u| u.mig_profile.as_ref()).map_or("", |profile| &profile.name))
    }),
    ("kai_gpu_fraction", |w| optional(w.units.as_ref().and_then(|u| u.kai_gpu_fraction))),
    ("gpu_memory_mib", |w| optional(w.units.as_ref().map(|u| u.kai_gpu_memory_mib))),
    ("torch_memory_fraction", |w| optional(w.units.as_ref().and_then(|u| u.torch_memory_fraction))),
];

/// The table with a heading.
pub(super) fn text(advice: &Advice) -> String {
    let line = |fields: Vec<String>| fields.join(",") + "\r\n";
    let heading = line(COLUMNS.iter().map(|(name, _)| (*name).to_owned()).collect());
    let lines =
        advice.workloads.iter().map(|workload| line(COLUMNS.iter().map(|(_, value)| value(workload)).collect()));
    heading + &lines.collect::<String>()
}

fn optional(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// A name that may be hostile, quoted.
fn name(name: &str) -> String {
    let plain: String = name.chars().map(|c| if is_plain(c) { c } else { ' ' }).collect();
    // Spaces before a sign are ignored by some spreadsheets.
    let is_formula = plain.trim_start().starts_with(['=', '+', '-', '@']);
    let guard = if is_formula { "'" } else { "" };
    if guard.is_empty() && !plain.contains([',', '"', '\'']) {
        plain
    } else {
        format!("\"{guard}{}\"", plain.replace('"', "\"\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_a_formula_or_another_column() {
        for (hostile, written) in [
            ("ml/a/b", "ml/a/b"),
            ("", ""),
            ("=1+1", "\"'=1+1\""),
            ("  @SUM(A1)", "\"'  @SUM(A1)\""),
            ("-1", "\"'-1\""),
            ("\t=1", "\"' =1\""),
            ("a,\"b\"\r\nc", "\"a,\"\"b\"\"  c\""),
            ("\u{1b}[31m", " [31m"),
        ] {
            assert_eq!(name(hostile), written);
        }
    }
}
