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

const FORMATS: &str = "
## Formats

A scrape is in Prometheus' text format 0.0.4. A scraper that names OpenMetrics 1.0 in its `Accept` header
(`application/openmetrics-text` without a version or with `version=1.0.0`) and does not prefer `text/plain` gets
OpenMetrics; Prometheus does this by default. Any other version or header gets the text format. The same holds for
the listener of dcgm-exporter's families.

- **The series are the same in both formats**: names, labels (including `le`) and values. Dashboards and rules do not
  depend on the format.
- The metadata differs as the specification requires. A counter's family has no `_total` in TYPE, UNIT and HELP.
  UNIT is given where the name ends with the unit. Families whose name ends in `_info` are gauges in both formats: a family of the type
  info has another name than its samples, and a collector may store the samples under it. Families with one series for each state
  (`gpu_recovery_action`, `gpu_throttle_active`) stay gauges, because a state set requires a label with the name of the family.
- A counter of dcgm-exporter whose name does not end in `_total` has the type `unknown`: as a counter it would need another
  name.
- **Exemplars**: `gpu_memory_incidents_total` names the last incident that it counted: `# {incident_id=\"…\"} 1 <time>`.
  `/api/v1/incidents/{id}` has this incident. When the exporter has dropped the incident, the exemplar is absent.
- **Creation times** (`_created`) are sent only with `web.openmetrics-created`, because Prometheus stores each as one more
  series unless its feature `created-timestamp-zero-ingestion` is on. They are present for what the exporter itself counts from
  0. They are absent for what the driver, the GPU or a framework counts: `gpu_driver_energy_joules_total`, `gpu_ecc_errors_total`,
  `gpu_pcie_replays_total` and `gpu_process_allocator_*_total`.
";

/// Returns the whole document in Markdown.
pub fn reference() -> String {
    let mut page = INTRO.to_owned();
    for section in SECTIONS {
        let _ = write!(page, "\n## {}\n\n{}\n\n", section.title, section.intro);
        page.push_str("| family | type | labels | meaning | measured |\n|---|---|---|---|---|\n");
        section.families().for_each(|family| page.push_str(&row(family)));
    }
    page.push_str(FORMATS);
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
        family.cadence.sentence()
    )
}
