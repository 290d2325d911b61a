//! What is declared once and listed in other files: their lists are written from the declaration, or compared with it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use generated_files::assert_committed;
use gpu_readings::lanes::telemetry_numbers;
use gpu_readings::snapshot::{IncidentKind, Scheduler, XIDS};
use nvml_sim::internals::NUMBERS;

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(path: &str) -> String {
    fs::read_to_string(file(path)).unwrap()
}

/// Compares the text between two marks of a file with a generated one. `UPDATE_GOLDEN=1` writes it.
pub(crate) fn assert_part(path: &str, from: &str, to: &str, part: &str) {
    let whole = text(path);
    let (before, rest) = whole.split_once(from).unwrap_or_else(|| panic!("{path} lacks {from:?}"));
    let (_, after) = rest.split_once(to).unwrap_or_else(|| panic!("{path} lacks {to:?} after {from:?}"));
    assert_committed(&file(path), &[before, from, part, to, after].concat());
}

/// The part of a file from one mark to the next.
fn part(path: &str, from: &str, to: &str) -> String {
    let whole = text(path);
    let (_, rest) = whole.split_once(from).unwrap_or_else(|| panic!("{path} lacks {from:?}"));
    rest.split(to).next().unwrap_or_default().to_owned()
}

/// The codes of the Xid errors at which the recorder keeps an incident: `31, 48 or 57`.
fn codes() -> String {
    let groups = XIDS.iter().filter(|group| group.concerns_memory);
    let all: BTreeSet<u64> = groups.flat_map(|group| group.codes).copied().collect();
    let all: Vec<_> = all.iter().map(u64::to_string).collect();
    let (last, others) = all.split_last().unwrap();
    format!("{} or {last}", others.join(", "))
}

#[test]
fn every_list_of_the_kinds_of_incidents_is_that_of_the_program() {
    let rows = IncidentKind::ALL.iter().map(|kind| {
        let codes = if *kind == IncidentKind::MemoryXid { format!(": {}", codes()) } else { String::new() };
        format!("| `{}` | {}{codes} |\n", kind.label(), kind.when())
    });
    assert_part("docs/incidents.md", "\n| `kind` | when |\n|---|---|\n", "\n\n", rows.collect::<String>().trim_end());
    let labels: Vec<_> = IncidentKind::ALL.iter().map(|kind| kind.label()).collect();
    assert_part("docs/openapi.yaml", "\n    kind: {enum: [", "]}\n", &labels.join(", "));
    let words = IncidentKind::ALL.iter().map(|kind| format!("\n  {}: \"{}\",", kind.label(), kind.words()));
    assert_part("src/http/page-incidents.js", "\nconst KINDS = {", "\n};", &words.collect::<String>());
}

/// The alert is about every kind but those that its selection leaves out; it says what each is, and so does the runbook.
#[test]
fn the_dashboard_the_alert_and_the_runbook_know_every_kind_of_incident() {
    const RULES: &str = "deploy/prometheus/rules/memory.yml";
    let of_dashboard = part("grafana/source/incidents.py", "\nKINDS = {\n", "\n}\n");
    let rule = part(RULES, "- alert: GpuMemoryIncident\n", "- alert: ");
    let left_out = rule.split("kind!~\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let section = part("docs/runbook.md", "\n## GpuMemoryIncident\n", "\n## ");
    for label in IncidentKind::ALL.iter().map(|kind| kind.label()) {
        let named = format!("\n    \"{label}\": (");
        assert!(format!("\n{of_dashboard}").contains(&named), "grafana/source/incidents.py: KINDS lacks {label}");
        if !left_out.split('|').any(|kind| kind == label) {
            let said = format!("eq $labels.kind \"{label}\"");
            assert!(rule.contains(&said), "{RULES}: GpuMemoryIncident does not say what {label} is");
            let explained = format!("`kind=\"{label}\"`");
            assert!(section.contains(&explained), "docs/runbook.md: GpuMemoryIncident does not explain {label}");
        }
    }
}

#[test]
fn the_page_about_owners_knows_every_scheduler() {
    let (names, forms) = (Scheduler::NAMES.join(", "), Scheduler::FORMS.join(", "));
    assert_part("docs/owners.md", "\n| a job of another scheduler: ", " | `job` |\n", &format!("{names} | {forms}"));
    let table = part("docs/owners.md", "\n| scheduler | `scheduler` | `job_id` |", "\n\n");
    for label in Scheduler::ALL.iter().map(|scheduler| scheduler.label()) {
        assert!(
            table.contains(&format!(" | `{label}` | ")),
            "docs/owners.md: no row says what the job_id of {label} is"
        );
    }
}

/// The simulator has the table of all calls that write one number, the exporter that of the calls that it makes.
#[test]
fn the_programs_that_make_the_same_calls_have_the_lists_of_the_simulator_and_of_the_exporter() {
    let rows = NUMBERS.iter().map(|(call, kind)| format!("  \"{call}\": \"{kind}\""));
    let rows: Vec<_> = rows.collect();
    assert_committed(&file("lab/gpu/numbers.json"), &format!("{{\n{}\n}}\n", rows.join(",\n")));

    let [fast, slow, _] = telemetry_numbers();
    let list = |name: &str, calls: &[(&str, &[&str])]| {
        let rows = calls.iter().map(|(call, _)| format!(" \\\n    call(int, {call}, (device, void *))"));
        format!("#define {name}(call){}\n", rows.collect::<String>())
    };
    const HEAD: &str = "/* The readings of one number, from crates/gpu-readings/src/lanes/telemetry/reading.rs. Generated: \
                        UPDATE_GOLDEN=1 cargo test --test it declared_once */\n";
    let header = format!("{HEAD}{}{}", list("FAST_NUMBERS", &fast), list("SLOW_NUMBERS", &slow));
    assert_committed(&file("lab/bench/numbers.h"), &header);
}
