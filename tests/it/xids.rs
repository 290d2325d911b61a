//! The table of Xid codes in the program, the pages that list the codes, and the alerts that read their classes agree.

use std::path::Path;

use gpu_readings::snapshot::{XIDS, XidClass, XidGroup};

use crate::alerts::shipped;

fn page(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The section of the runbook about an alert.
fn section(alert: &str) -> String {
    let page = page("docs/runbook.md");
    let (_, after) = page.split_once(&format!("\n## {alert}\n")).unwrap();
    after.split("\n## ").next().unwrap().to_owned()
}

fn codes(group: &XidGroup) -> String {
    group.codes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

#[test]
fn the_runbook_lists_the_codes_of_each_alert() {
    for (alert, classes) in [
        ("GpuXidError", [XidClass::Memory, XidClass::Hardware].as_slice()),
        ("GpuXidApplicationError", &[XidClass::Application]),
    ] {
        let section = section(alert);
        let cells = |row: &str| row.split('|').skip(1).take(3).map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let is_row = |row: &&str| row.starts_with('|') && row.contains(|c: char| c.is_ascii_digit());
        let found: Vec<_> = section.lines().filter(is_row).map(cells).collect();
        let groups = classes.iter().flat_map(|class| XIDS.iter().filter(|group| group.class == *class));
        let wanted: Vec<_> =
            groups.map(|group| vec![codes(group), group.class.label().to_owned(), group.meaning.to_owned()]).collect();
        assert_eq!(found, wanted, "docs/runbook.md, {alert}: codes, class and meaning of each row");
    }
}

#[test]
fn every_class_raises_one_alert_and_no_alert_lists_codes() {
    let mut read = Vec::new();
    for (name, text) in shipped::rules() {
        assert!(!text.contains("xid=~") && !text.contains("xid!~"), "{name}: an alert that lists codes");
        let selections = text.split("gpu_xid_class_errors_total{class=~\"").skip(1);
        read.extend(selections.flat_map(|rest| rest.split('"').next().unwrap().split('|')).map(str::to_owned));
    }
    read.sort();
    let mut classes = XidClass::ALL.map(XidClass::label);
    classes.sort_unstable();
    assert_eq!(read, classes);
}
