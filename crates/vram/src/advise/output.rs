//! The advice in the formats of the command line.

mod csv;
mod html;
mod table;
mod words;
mod yaml;

use text_and_sizes::text::is_plain;

use super::arguments::Format;
use super::record::Advice;

/// The cells of a workload in the table.
#[cfg(test)]
pub(super) fn words_of(workload: &super::record::Workload) -> [String; 6] {
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
        Format::Csv => csv::text(advice),
        Format::Html => html::text(advice),
    })
}

/// JSON or YAML in which what a terminal would interpret is escaped. It occurs in strings only, and both have this escape.
fn inert(text: &str) -> String {
    let mut inert = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => inert.push(c),
            c if is_plain(c) => inert.push(c),
            c => inert.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    inert
}
