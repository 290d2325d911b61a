//! OpenMetrics: the same samples as in the text format, creation times where they are known, and exemplars.

use std::collections::BTreeSet;

use exposition::open_metrics::{OpenFamily, assert_same, read};

use super::HOSTILE;
use super::machine::{INCIDENT, Machine, SINCE, everything, process};

/// Families whose values differ between two expositions of one machine.
fn varies(name: &str) -> bool {
    name.starts_with("process_") || ["vram_exporter_sample_age_seconds", "gpu_process_idle_seconds"].contains(&name)
}

#[test]
fn both_formats_hold_the_same_samples() {
    let hostile = || {
        let mut machine = everything();
        machine.processes[0].processes.push(process(5, HOSTILE));
        machine
    };
    for machine in [everything, hostile, || Machine::of(&[])] {
        let text = exposition::read(&machine().text());
        for created in [false, true] {
            let open = read(&machine().open_metrics(created));
            assert_same(&text, &open, varies);
            assert_eq!(open.iter().any(|family| !family.created.is_empty()), created);
        }
    }
}

/// The counters that the driver or a process counts: they did not begin at 0 when the exporter first saw them.
const COUNTED_ELSEWHERE: [&str; 10] = [
    "gpu_clock_limited_seconds",
    "gpu_driver_energy_joules",
    "gpu_ecc_errors",
    "gpu_nvlink_errors",
    "gpu_nvlink_link_errors",
    "gpu_nvlink_payload_received_bytes",
    "gpu_nvlink_payload_transmitted_bytes",
    "gpu_pcie_replays",
    "gpu_process_allocator_out_of_memory",
    "gpu_process_allocator_retries",
];

#[test]
fn every_counter_of_the_exporter_itself_has_a_creation_time_and_no_other() {
    let open = read(&everything().open_metrics(true));
    let begin_at_zero = |family: &&OpenFamily| ["counter", "histogram"].contains(&family.kind.as_str());
    let (with, without): (Vec<_>, Vec<_>) =
        open.iter().filter(begin_at_zero).partition(|family| !family.created.is_empty());
    assert_eq!(without.iter().map(|family| family.name.as_str()).collect::<BTreeSet<_>>(), COUNTED_ELSEWHERE.into());
    for family in with {
        let labels: BTreeSet<_> = family.series.iter().map(|series| without_bound(&series.labels)).collect();
        let created: BTreeSet<_> = family.created.iter().map(|series| series.labels.clone()).collect();
        assert_eq!(labels, created, "{}", family.name);
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        for created in &family.created {
            if family.name.starts_with("gpu_") {
                assert_eq!(created.number(), SINCE, "{}", family.name)
            } else {
                assert!(created.number() >= SINCE && created.number() <= now + 1.0, "{created:?}")
            }
        }
    }
}

fn without_bound(labels: &exposition::Labels) -> exposition::Labels {
    labels.iter().filter(|(name, _)| *name != "le").map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[test]
fn a_creation_time_that_is_not_known_is_absent() {
    let mut machine = everything();
    machine.memory.iter_mut().for_each(|memory| memory.counted_since = None);
    let open = read(&machine.open_metrics(true));
    let increase = open.iter().find(|family| family.name == "gpu_memory_increase_bytes").unwrap();
    assert!(increase.created.is_empty() && !increase.series.is_empty());
}

#[test]
fn only_incidents_have_an_exemplar_and_only_while_they_are_kept() {
    let exemplars = |machine: Machine| -> Vec<_> {
        let open = read(&machine.open_metrics(false));
        open.into_iter()
            .flat_map(|family| family.exemplars.into_iter().map(move |of| (family.name.clone(), of)))
            .collect()
    };
    let found = exemplars(everything());
    let [(family, exemplar)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(family, "gpu_memory_incidents");
    assert_eq!((exemplar.of["kind"].as_str(), exemplar.of["gpu"].as_str()), ("near_limit", "0"));
    assert_eq!(exemplar.labels, exposition::Labels::from([("incident_id".to_owned(), INCIDENT.to_owned())]));
    assert_eq!((exemplar.value.as_str(), exemplar.at.as_str()), ("1", "1700000000.5"));
    let mut machine = everything();
    machine.recorder.incidents[0].last_id = None;
    assert_eq!(exemplars(machine), []);
}
