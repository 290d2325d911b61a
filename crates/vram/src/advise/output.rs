//! The advice in the formats of the command line.

mod csv;
mod table;
mod words;
mod yaml;

use text_and_sizes::text::is_plain;

use super::arguments::Format;
use super::record::Advice;

/// The cells of a workload in the table.
#[cfg(test)]
pub(super) fn words_of(workload: &super::record::Workload) -> [String; 7] {
    words::cells(workload)
}

/// The text for standard output.
///
/// # Errors
/// When a value cannot be written as JSON.
pub(super) fn text(advice: &Advice, format: Format) -> Result<String, serde_json::Error> {
    Ok(match format {
        Format::Table => table::text(advice),
        Format::Json => inert(&serde_json::to_string_pretty(advice)?) + "\n",
        Format::Yaml => inert(&yaml::text(&serde_json::to_value(advice)?)),
        Format::Csv => csv::text(&serde_json::to_value(advice)?),
    })
}

/// JSON or YAML in which what a terminal would interpret is escaped. It occurs in strings only, and both have this escape.
fn inert(text: &str) -> String {
    let escape = |c| if c == '\n' || is_plain(c) { String::from(c) } else { format!("\\u{:04x}", u32::from(c)) };
    text.chars().map(escape).collect()
}
