//! The shipped files, and a check that a faster clock changes nothing but their times.

use std::path::{Path, PathBuf};

use serde_json::Value;
use workspace_skips::missing;

use super::servers::{PROMETHEUS, PROMTOOL, Prometheus, check_rules, is_there};
use super::{FACTOR, scale};

pub(crate) fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus").join(path)
}

/// The shipped rule files.
pub(crate) fn rules() -> Vec<scale::File> {
    let files = std::fs::read_dir(shipped("rules")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "yml")).collect();
    files.sort();
    assert!(!files.is_empty(), "no rules in {}", shipped("rules").display());
    let file = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    files.iter().map(file).collect()
}

#[test]
fn rules_on_a_clock_of_the_same_speed_are_the_same_bytes() {
    assert_eq!(scale::scale_rules(&rules(), 1), rules());
}

#[test]
fn scaled_rules_are_rules() {
    if missing(PROMTOOL, is_there(PROMTOOL)) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in scale::scale_rules(&rules(), FACTOR) {
        let file = folder.path().join(name);
        std::fs::write(&file, &text).unwrap();
        check_rules(&file).unwrap_or_else(|said| panic!("{said}\n{text}"));
    }
}

/// Every rule in these groups, each with its group's name and the group's interval in seconds.
pub(crate) fn rules_of(groups: &[Value]) -> Vec<(String, f64, Value)> {
    let of = |group: &Value| {
        let (name, interval) = (group["name"].as_str().unwrap().to_owned(), group["interval"].as_f64().unwrap());
        let rules = group["rules"].as_array().unwrap().clone();
        rules.into_iter().map(move |rule| (name.clone(), interval, rule))
    };
    groups.iter().flat_map(of).collect()
}

/// A query with a `#` in place of each number and duration.
fn masked(query: &str) -> String {
    let mut masked = String::new();
    let mut in_number = false;
    for c in query.chars() {
        let begins = !in_number
            && c.is_ascii_digit()
            && !masked.ends_with(|last: char| last.is_ascii_alphanumeric() || last == '_');
        in_number = begins || in_number && (c.is_ascii_alphanumeric() || c == '.');
        match in_number {
            true if begins => masked.push('#'),
            true => {}
            false => masked.push(c),
        }
    }
    masked
}

#[test]
fn prometheus_finds_no_difference_but_the_times() {
    if missing(PROMETHEUS, is_there(PROMETHEUS)) {
        return;
    }
    const CONFIG: &str = "global:\n  evaluation_interval: 1h\nrule_files:\n  - rules/*.yml\n";
    let [before, after] = [1, FACTOR].map(|factor| {
        let prometheus = Prometheus::start(CONFIG, &scale::scale_rules(&rules(), factor), factor);
        rules_of(&prometheus.groups())
    });
    assert!(before.len() > 10 && before.len() == after.len(), "{} and {}", before.len(), after.len());
    let close = |whole: f64, part: f64| (whole / f64::from(FACTOR) - part).abs() < 0.002;
    for ((group, interval, rule), (same, shorter, scaled)) in before.iter().zip(&after) {
        let name = &rule["name"];
        // A group without an interval uses the interval from the configuration, which is the same in both runs.
        assert!(group == same && (close(*interval, *shorter) || *interval == 3600.0), "{group}: {interval} {shorter}");
        for key in ["name", "type", "labels", "annotations"] {
            assert_eq!(rule[key], scaled[key], "{name}");
        }
        for key in ["duration", "keepFiringFor"] {
            let [whole, part] = [rule, scaled].map(|rule| rule[key].as_f64().unwrap_or(0.0));
            assert!(close(whole, part), "{name}: {key} {whole} {part}");
        }
        let [query, faster] = [rule, scaled].map(|rule| masked(rule["query"].as_str().unwrap()));
        assert_eq!(query, faster, "{name}");
    }
}
