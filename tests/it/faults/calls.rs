//! Every NVML call that the exporter makes returns every error code that NVML has, one after another, while the same
//! exporter keeps running.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::refusals::{Bench, QUICKLY, counted, is_nothing_invented, more_rounds, reacquire, release, shown_values};
use super::table::{
    AT_OPENING, CODES, OF_ACCOUNTING, OF_CGROUPS, OF_FANS, OF_GUESTS, OF_LAYOUT, OF_LINKS, OF_LISTS, OF_MEMORY,
    OF_NO_GPU, OF_RETIRED_PAGES, OF_SLICES, OF_SLICES_AT_OPENING, OF_THE_DRIVER, READINGS, names, numbers,
};
use super::{faults, rounds, up, xids};
use crate::harness::{Machine, Scrape};

/// A reading that is older than a few of these intervals is not shown. With MIG, a round over this many GPUs takes
/// longer, so the intervals are longer, too.
const RHYTHM: [&str; 2] = ["--telemetry.interval=100ms", "--telemetry.slow-interval=100ms"];
const RHYTHM_WITH_MIG: [&str; 2] = ["--telemetry.interval=500ms", "--telemetry.slow-interval=500ms"];

/// Whether the process of [`super::TWO`] and the profiling counters, which take two samples, are shown.
fn is_complete(s: &Scrape) -> bool {
    s.all("gpu_process_idle_seconds").count() == 1 && s.all("gpu_sm_occupancy_ratio").count() == 2
}

#[test]
fn every_code_in_every_gpu_call_costs_its_values_and_they_return() {
    let bench = Bench::new("H200", "", RHYTHM);
    let repeated = OF_ACCOUNTING.iter().chain(&OF_LISTS).chain(&OF_MEMORY).chain(&READINGS).chain(&OF_LAYOUT);
    repeated.for_each(|call| bench.meets(call));
    numbers().for_each(|call| bench.meets(&call));
    AT_OPENING.iter().for_each(|call| bench.meets_at_opening(call));
    bench.comes_back();
}

#[test]
fn every_code_for_the_limits_of_cgroups_is_counted() {
    let bench = Bench::new("H200", "[driver]\nversion = \"610.43.02\"\ncuda = 13050\n", RHYTHM);
    OF_CGROUPS.iter().for_each(|call| bench.meets(call));
    bench.comes_back();
}

#[test]
fn every_code_for_the_guests_of_a_vgpu_host_costs_the_unattributed_memory_and_it_returns() {
    let guest = |gpu| format!("[[vgpu]]\ngpu = {gpu}\nvm = \"{gpu}\"\nmemory = \"1GiB\"\n");
    let guests: String = (0..=CODES.len()).map(guest).collect();
    let bench = Bench::new("H200", &format!("vgpu_host = true\n{guests}"), RHYTHM);
    OF_GUESTS.iter().for_each(|call| bench.meets(call));
    bench.comes_back();
}

#[test]
fn every_code_for_retired_pages_costs_their_values_and_they_return() {
    let bench = Bench::new("H200", "errors = { retired_pages = [3, 2] }\n", RHYTHM);
    OF_RETIRED_PAGES.iter().for_each(|call| bench.meets(call));
    bench.comes_back();
}

#[test]
fn every_code_for_links_costs_their_values_and_they_return() {
    let linked = "nvlink = { links = 4 }\nfabric = { state = 3, health = 2 }\n";
    let bench = Bench::new("H200", linked, RHYTHM);
    OF_LINKS.iter().for_each(|call| bench.meets(call));
    bench.comes_back();
}

#[test]
fn every_code_for_fans_costs_their_values_and_they_return() {
    let bench = Bench::new("RTX 4090", "", RHYTHM);
    OF_FANS.iter().for_each(|call| bench.meets(call));
    bench.comes_back();
}

#[test]
fn every_code_in_every_mig_gpu_call_costs_its_values_and_they_return() {
    let bench = Bench::new("H100", "mig = [\"3g.40gb\", \"\", \"2g.20gb\"]\n", RHYTHM_WITH_MIG);
    let repeated = OF_LISTS.iter().chain(&OF_MEMORY).chain(&OF_LAYOUT).chain(&OF_SLICES);
    repeated.for_each(|call| bench.meets(call));
    OF_SLICES_AT_OPENING.iter().for_each(|call| bench.meets_at_opening(call));
    bench.comes_back();
}

#[test]
fn every_code_in_calls_without_a_gpu_keeps_the_values_or_says_why_not() {
    let (machine, exporter) = Machine::running(super::TWO, &[&QUICKLY[..], &RHYTHM].concat());
    more_rounds(&exporter, 3.0);
    let good = shown_values(&exporter.scrape_until("everything", is_complete));
    for ((call, label), (code, reason)) in OF_NO_GPU.iter().flat_map(|call| CODES.iter().map(move |code| (call, code)))
    {
        // This code only means that no event has arrived.
        if (*call, *code) == ("nvmlEventSetWait_v2", "TIMEOUT") {
            continue;
        }
        let what = format!("{call} {code}");
        let before = release(&exporter);
        machine.control(&format!("[[fault]]\ncall = \"{call}\"\nkind = \"error\"\ncode = \"{code}\"\n"));
        reacquire(&exporter);
        let cannot_open = ["nvmlInit_v2", "nvmlDeviceGetCount_v2"].contains(call);
        let now = exporter.scrape_until(&what, |s| {
            let unnamed =
                label.is_some_and(|label| s.all("nvidia_driver_info").all(|info| info.label(label).is_none()));
            let felt = unnamed || counted(s, None, reason) > counted(&before, None, reason);
            felt && (cannot_open || up(s, "0") == Some(1.0))
        });
        is_nothing_invented(&good, &now, &what);
        let open = now.value("vram_exporter_nvml_up", &[]);
        assert_eq!(open, Some(if cannot_open { 0.0 } else { 1.0 }), "{what}");
        let ready = exporter.get("/readyz").unwrap();
        assert!(!cannot_open || (ready.status == 503 && ready.body.contains("failed")), "{what}: {}", ready.body);
        assert_eq!(exporter.get("/healthz").unwrap().status, 200, "{what}");
    }
    release(&exporter);
    machine.control("");
    reacquire(&exporter);
    exporter.scrape_until("all is as it was", |s| shown_values(s).keys().eq(good.keys()));
}

#[test]
fn every_driver_code_in_calls_of_every_lane_reopens_the_driver() {
    let (machine, exporter) = Machine::running(super::TWO, &[&QUICKLY[..], &RHYTHM].concat());
    more_rounds(&exporter, 3.0);
    let good = shown_values(&exporter.scrape_until("everything", is_complete));
    let calls = [
        ("memory", "nvmlDeviceGetMemoryInfo_v2"),
        ("process", "nvmlDeviceGetComputeRunningProcesses_v3"),
        ("telemetry", "nvmlDeviceGetTemperature"),
        ("topology", "nvmlDeviceGetCount_v2"),
    ];
    for ((source, call), (code, reason)) in
        calls.iter().flat_map(|call| OF_THE_DRIVER.iter().map(move |code| (call, code)))
    {
        let before = faults(&exporter.scrape(), source, reason);
        machine.control(&format!("[[fault]]\ncall = \"{call}\"\nkind = \"error\"\ncode = \"{code}\"\n"));
        // The session may have ended before the call that ended it is counted.
        let closed = exporter.scrape_until(&format!("the driver is closed for {call} {code}"), |s| {
            is_nothing_invented(&good, s, code);
            s.value("vram_exporter_nvml_up", &[]) == Some(0.0) && faults(s, source, reason) > before
        });
        assert_eq!(shown_values(&closed).len(), 0, "{call} {code}");
        // The wait before the driver is opened again grows with each attempt; it is cut short here.
        release(&exporter);
        machine.control("");
        reacquire(&exporter);
        exporter.scrape_until("all is as it was", |s| shown_values(s).keys().eq(good.keys()));
    }
}

/// The quoted names of NVML functions in the source files of a folder.
fn named(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        if path.is_dir() {
            named(&path, found);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let words =
            text.split('"').filter(|word| word.starts_with("nvml") && !word.starts_with("nvmlSim") && word.len() > 5);
        let functions =
            words.filter(|word| word[4..].starts_with(char::is_uppercase) && !word.contains(char::is_whitespace));
        found.extend(functions.map(str::to_owned));
    }
}

#[test]
fn no_call_that_the_exporter_names_is_left_out() {
    let mut found = BTreeSet::new();
    named(&Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/gpu-readings/src/nvml"), &mut found);
    assert!(found.len() > 30, "{found:?}");
    let known: BTreeSet<&str> = names().collect();
    let left_out: Vec<_> = found.iter().filter(|name| !known.contains(name.as_str())).collect();
    assert_eq!(left_out, Vec::<&String>::new());
}

#[test]
fn what_was_refused_is_asked_for_again_while_the_driver_is_open() {
    let (machine, exporter) = Machine::running(super::TWO, &RHYTHM);
    let temperature = |s: &Scrape| s.value("gpu_temperature_celsius", &[("gpu", "1")]);
    exporter.scrape_until("both", |s| temperature(s).is_some() && xids(s, "1", "hardware") == Some(0.0));
    let refused =
        "call = [\"nvmlDeviceGetTemperature\", \"nvmlEventSetWait_v2\"]\nkind = \"error\"\ncode = \"NO_PERMISSION\"";
    machine.control(&format!("[[fault]]\n{refused}\n"));
    let gone = exporter
        .scrape_until("the refusal", |s| temperature(s).is_none() && faults(s, "telemetry", "no_permission") >= 1.0);
    let later = rounds(&gone, "telemetry") + 4.0;
    exporter.scrape_until("more rounds", |s| rounds(s, "telemetry") >= later);
    machine.control("[[xid]]\ngpu = 1\nat = \"0s\"\nevery = \"100ms\"\ncode = 79\n");
    exporter.scrape_until("both again", |s| temperature(s).is_some() && xids(s, "1", "hardware") >= Some(1.0));
    assert_eq!(exporter.log().matches("the driver is open").count(), 1, "{}", exporter.log());
}
