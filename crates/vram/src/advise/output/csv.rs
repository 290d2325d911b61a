//! One line for each workload, for a spreadsheet (RFC 4180).
//!
//! Invariant: no name is a formula for a spreadsheet.

use serde_json::Value;
use text_and_sizes::text::is_plain;

/// The columns that are fields of a workload in the JSON form. A value that is not known is empty.
const FIELDS: &str = "cluster workload kind runs devices devices_now samples first last span_seconds driver_peak_bytes \
    peak_from intervals intervals_near_peak peak_bytes allocated_peak_bytes out_of_memory last_shortage current_bytes \
    current_source advice_bytes reason action rising_bytes_per_hour freed_bytes";
/// The other columns, and where their values are.
const UNITS: [(&str, &str); 5] = [
    ("board", "/units/board/name"),
    ("mig_profile", "/units/mig_profile/name"),
    ("kai_gpu_fraction", "/units/kai_gpu_fraction"),
    ("gpu_memory_mib", "/units/kai_gpu_memory_mib"),
    ("torch_memory_fraction", "/units/torch_memory_fraction"),
];

/// The table with a heading, from the JSON form of the advice.
pub(super) fn text(advice: &Value) -> String {
    let heading = FIELDS.split(' ').chain(UNITS.map(|(name, _)| name)).map(str::to_owned).collect();
    let workloads = advice["workloads"].as_array().into_iter().flatten().map(|workload| {
        let fields = FIELDS.split(' ').map(|name| cell(&workload[name]));
        fields.chain(UNITS.map(|(_, at)| workload.pointer(at).map(cell).unwrap_or_default())).collect()
    });
    std::iter::once(heading).chain(workloads).map(|line: Vec<String>| line.join(",") + "\r\n").collect()
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => name(text),
        other => other.to_string(),
    }
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
