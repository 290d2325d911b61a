//! The reference of all families as a document, generated from the table.

use std::fmt::Write as _;

use super::family::{Family, Unit};
use super::table::SECTIONS;

const INTRO: &str = "\
# Metrics

This page is generated from the same table as HELP and TYPE in the exposition.

- **Unknown values are absent.** A value that the driver does not report has no series: never 0, never the last
  good value.
- **Old values are absent.** A GPU that does not answer, or whose last good sample is too old, keeps `gpu_up 0`,
  `gpu_info`, its Xid errors and its sample ages, and loses everything else. A list of processes or a telemetry reading
  disappears when there has been no new one for three of its intervals and at least `memory.stale-after`.
- **A scrape changes nothing.** Any number of Prometheus servers may scrape, each at its own rate, and all see the same peaks.
- **A family covers only one level:** the GPU, the MIG device or the process.
- A label with an empty or unknown value is left out. A label value has at most 128 characters: the first 111 of a
  longer one are kept, followed by a tilde and 16 hexadecimal digits of its SHA-256, so that different values stay
  different.
";

/// Returns the whole document in Markdown.
pub fn reference() -> String {
    let mut page = INTRO.to_owned();
    for section in SECTIONS {
        let _ = write!(page, "\n## {}\n\n{}\n\n", section.title, section.intro);
        page.push_str("| family | type | labels | meaning | measured |\n|---|---|---|---|---|\n");
        for family in section.families {
            page.push_str(&row(family));
        }
    }
    page
}

fn row(family: &Family) -> String {
    let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
    let kind = match family.unit {
        Unit::Info => "info (gauge)",
        _ => family.kind.word(),
    };
    format!(
        "| `{}` | {kind} | {} | {} | {} |\n",
        family.name,
        labels.join(" "),
        family.meaning().replace('|', "\\|"),
        family.when.sentence()
    )
}
