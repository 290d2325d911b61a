//! What the exporter shows when the driver misbehaves, and that it comes back by itself.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails in a test fails the test")]

mod harness;

use std::fs;

use harness::{Exporter, Machine, Scrape, bare, eventually, simulator};

const TWO: &str = "seed = 1\n[[gpu]]\nmodel = \"H200\"\ncount = 2\n[[process]]\npid = 42\ngpu = 1\ncommand = [\"train\"]\nmemory = \"1GiB\"\n";

fn up(scrape: &Scrape, gpu: &str) -> Option<f64> {
    scrape.value("gpu_up", &[("gpu", gpu)])
}

/// What is told of a GPU that does not answer: its state, who it is, and the errors that its driver reported.
const STAYING: [&str; 3] = ["gpu_up", "gpu_info", "gpu_xid_errors_total"];

fn values(scrape: &Scrape, gpu: &str) -> usize {
    let shown = |s: &&harness::Series| {
        s.label("gpu") == Some(gpu) && s.name.starts_with("gpu_") && !STAYING.contains(&s.name.as_str())
    };
    scrape.series.iter().filter(shown).count()
}

#[test]
fn without_a_library_it_serves_says_why_and_takes_the_library_up_when_it_appears() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libnvidia-ml.so.1");
    let mut command = bare(&[&format!("--nvml.library={}", library.display())]);
    command.env("NVML_SIM_SCENARIO", "idle-h200");
    let exporter = Exporter::start(command);
    let answer = eventually("the first attempt", || {
        exporter.get("/readyz").ok().filter(|answer| answer.body.contains("libnvidia-ml.so.1"))
    });
    assert_eq!(answer.status, 503);
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
    let scrape = exporter.scrape();
    assert_eq!(scrape.value("vram_exporter_nvml_up", &[]), Some(0.0));
    assert_eq!(scrape.all("gpu_up").count(), 0);
    let missing = [("source", "library"), ("reason", "library_not_found")];
    exporter.scrape_until("several attempts", |s| s.value("vram_exporter_faults_total", &missing) >= Some(2.0));
    let told = exporter.log().lines().filter(|line| line.contains("library_not_found")).count();
    assert_eq!(told, 1, "{}", exporter.log());

    fs::copy(simulator(), &library).unwrap();
    exporter.scrape_until("the driver", |s| s.value("vram_exporter_nvml_up", &[]) == Some(1.0));
    eventually("readiness", || exporter.get("/readyz").ok().filter(|answer| answer.status == 200));
    assert!(exporter.terminate().success());
}

#[test]
fn a_call_that_hangs_costs_its_gpu_alone_and_the_gpu_comes_back() {
    let machine = Machine::new(TWO);
    let exporter = machine.export(&["--nvml.call-timeout=300ms"]);
    exporter.scrape_until("both GPUs", |s| up(s, "0") == Some(1.0) && up(s, "1") == Some(1.0));
    machine.control("[[fault]]\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\ngpu = 0\nkind = \"hang\"\n");
    // The call never comes back while the fault is on, so each of these scrapes is answered during the stall.
    let stalled = exporter.scrape_until("the stall", |s| up(s, "0") == Some(0.0));
    assert_eq!(values(&stalled, "0"), 0, "{}", stalled.text);
    assert_eq!(up(&stalled, "1"), Some(1.0));
    assert!(stalled.value("gpu_info", &[("gpu", "0")]).is_some());
    let ticks = |s: &Scrape| s.value("vram_exporter_lane_duration_seconds_count", &[("lane", "memory")]).unwrap();
    let before = ticks(&stalled);
    let later = exporter.scrape_until("the memory lane goes on", |s| ticks(s) > before + 20.0);
    assert_eq!(up(&later, "1"), Some(1.0));
    let missed = [("source", "memory"), ("reason", "stalled")];
    assert!(later.value("vram_exporter_faults_total", &missed) >= Some(1.0));
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
    machine.control("");
    exporter.scrape_until("the GPU is back", |s| up(s, "0") == Some(1.0) && values(s, "0") > 0);
}

#[test]
fn the_exporter_ends_while_a_call_hangs() {
    let machine = Machine::new(TWO);
    let exporter = machine.export(&["--nvml.call-timeout=300ms"]);
    machine.control("[[fault]]\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\nkind = \"hang\"\n");
    exporter.scrape_until("the stall", |s| up(s, "0") == Some(0.0) && up(s, "1") == Some(0.0));
    assert!(exporter.terminate().success());
}

#[test]
fn a_lost_gpu_is_down_without_values_and_the_other_goes_on() {
    let machine = Machine::new(TWO);
    let exporter = machine.export(&[]);
    exporter.scrape_until("both GPUs", |s| up(s, "0") == Some(1.0) && up(s, "1") == Some(1.0));
    machine.control("[[fault]]\ncall = \"*\"\ngpu = 1\nkind = \"error\"\ncode = \"GPU_IS_LOST\"\n");
    let lost = exporter.scrape_until("the loss", |s| up(s, "1") == Some(0.0));
    assert_eq!(values(&lost, "1"), 0, "{}", lost.text);
    assert_eq!(up(&lost, "0"), Some(1.0));
    assert!(lost.value("gpu_info", &[("gpu", "1")]).is_some());
    machine.control("");
    exporter.scrape_until("the GPU is back", |s| up(s, "1") == Some(1.0) && values(s, "1") > 0);
}

#[test]
fn a_replaced_driver_is_opened_again() {
    let machine = Machine::new(TWO);
    let exporter = machine.export(&[]);
    machine.control("[[fault]]\ncall = \"*\"\nkind = \"error\"\ncode = \"LIB_RM_VERSION_MISMATCH\"\n");
    let gone = exporter.scrape_until("the driver is gone", |s| s.value("vram_exporter_nvml_up", &[]) == Some(0.0));
    assert_eq!(gone.all("gpu_memory_used_bytes").count(), 0);
    machine.control("");
    exporter.scrape_until("the driver is back", |s| up(s, "0") == Some(1.0) && up(s, "1") == Some(1.0));
}

#[test]
fn a_list_that_grows_between_two_calls_is_read_whole() {
    let machine = Machine::new(TWO);
    let exporter = machine.export(&[]);
    let grow = "[[fault]]\ncall = \"nvmlDeviceGetComputeRunningProcesses_v3\"\nkind = \"grow\"\nby = 30\n";
    machine.control(grow);
    exporter
        .scrape_until("the process", |s| s.all("gpu_process_memory_used_bytes").any(|p| p.label("pid") == Some("42")));
    let short = [("source", "process"), ("reason", "insufficient_size")];
    assert_eq!(exporter.scrape().value("vram_exporter_faults_total", &short), Some(0.0));
}

#[test]
fn a_driver_without_the_second_memory_call_is_read_by_the_first() {
    // The symbol is taken out of the library itself, as in an old driver: its name is made unfindable.
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(simulator()).unwrap();
    let name = b"\0nvmlDeviceGetMemoryInfo_v2\0";
    let places: Vec<_> = bytes.windows(name.len()).enumerate().filter(|(_, w)| w == name).map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at + 1..at + 5].copy_from_slice(b"gone");
    }
    let library = folder.path().join("libnvidia-ml.so.1");
    fs::write(&library, bytes).unwrap();
    let scrape = Machine::new(TWO).with_library(library).once(&[]);
    let of = |name: &str| scrape.value(&format!("gpu_memory_{name}_bytes"), &[("gpu", "0")]);
    assert_eq!(of("reserved"), None);
    assert_eq!(of("total").unwrap(), of("used").unwrap() + of("free").unwrap());
    assert_eq!(of("used"), Some(644_939_776.0));
    assert_eq!(scrape.all("gpu_memory_unattributed_bytes").count(), 0, "used contains what is reserved");
}

#[test]
fn numbers_that_cannot_be_true_are_counted_and_not_shown() {
    let machine = Machine::built_in("unified-memory");
    let scrape = machine.once(&[]);
    assert_eq!(up(&scrape, "0"), Some(1.0));
    assert_eq!(scrape.all("gpu_memory_used_bytes").count(), 0);
    let told = [("source", "memory"), ("reason", "not_supported")];
    assert_eq!(scrape.value("vram_exporter_faults_total", &told), Some(1.0));
}

#[test]
fn xid_errors_are_counted() {
    let machine = Machine::new(TWO);
    let exporter = machine.export(&[]);
    let count = |s: &Scrape, xid| s.value("gpu_xid_errors_total", &[("gpu", "1"), ("xid", xid)]);
    exporter.scrape_until("zeros from the start", |s| count(s, "79") == Some(0.0));
    machine.control("[[xid]]\ngpu = 1\nat = \"0s\"\nevery = \"100ms\"\ncode = 79\n");
    exporter.scrape_until("the Xid", |s| count(s, "79") >= Some(1.0));
}

#[test]
fn a_changed_number_of_gpus_is_taken_up() {
    let machine = Machine::new(TWO);
    let exporter = machine.export(&["--telemetry.interval=100ms", "--telemetry.slow-interval=200ms"]);
    machine.control("[[fault]]\ngpu = 1\nkind = \"absent\"\n");
    exporter.scrape_until("one GPU", |s| s.all("gpu_info").count() == 1 && up(s, "0") == Some(1.0));
    machine.control("");
    exporter.scrape_until("two GPUs", |s| up(s, "0") == Some(1.0) && up(s, "1") == Some(1.0));
}

#[test]
fn the_last_xid_of_a_lost_gpu_stays_in_sight() {
    let machine = Machine::new(TWO);
    let exporter = machine.export(&[]);
    let count = |s: &Scrape| s.value("gpu_xid_errors_total", &[("gpu", "1"), ("xid", "79")]);
    exporter.scrape_until("zeros from the start", |s| count(s) == Some(0.0));
    machine.control("[[xid]]\ngpu = 1\nat = \"0s\"\nevery = \"100ms\"\ncode = 79\n");
    exporter.scrape_until("the Xid", |s| count(s) >= Some(1.0));
    machine.control("[[fault]]\ncall = \"*\"\ngpu = 1\nkind = \"error\"\ncode = \"GPU_IS_LOST\"\n");
    let lost = exporter.scrape_until("the loss", |s| up(s, "1") == Some(0.0));
    assert!(count(&lost) >= Some(1.0));
    // The driver is opened again for another reason; what was counted stays.
    let version = "[[fault]]\ncall = \"*\"\nkind = \"error\"\ncode = \"LIB_RM_VERSION_MISMATCH\"\n";
    machine.control(version);
    exporter.scrape_until("the driver is gone", |s| s.value("vram_exporter_nvml_up", &[]) == Some(0.0));
    machine.control("");
    let back = exporter.scrape_until("the GPU is back", |s| up(s, "1") == Some(1.0) && count(s).is_some());
    assert!(count(&back) >= Some(1.0));
}

#[test]
fn a_mig_mode_that_cannot_be_read_for_once_is_no_new_layout() {
    let machine = Machine::new(TWO);
    let exporter = machine.export(&["--telemetry.interval=100ms", "--telemetry.slow-interval=200ms"]);
    machine.control("[[fault]]\ncall = \"nvmlDeviceGetMigMode\"\nkind = \"error\"\ncode = \"UNKNOWN\"\n");
    let told = [("source", "topology"), ("reason", "unknown")];
    let count = |s: &Scrape| s.value("vram_exporter_faults_total", &told).unwrap();
    exporter.scrape_until("several refusals", |s| {
        assert_eq!(s.value("vram_exporter_nvml_up", &[]), Some(1.0), "the driver was closed for nothing");
        count(s) >= 3.0
    });
    assert!(!exporter.log().contains("MIG layout changed"), "{}", exporter.log());
}

#[test]
fn a_lane_goes_on_when_a_list_is_refused_and_the_others_stay_fresh() {
    let machine = Machine::new(TWO);
    let exporter = machine.export(&[]);
    let list = "call = \"nvmlDeviceGetComputeRunningProcesses_v3\"";
    machine.control(&format!("[[fault]]\n{list}\ngpu = 1\nkind = \"error\"\ncode = \"UNKNOWN\"\n"));
    let told = [("source", "process"), ("reason", "unknown")];
    let refused = exporter.scrape_until("refusals", |s| s.value("vram_exporter_faults_total", &told) >= Some(2.0));
    assert_eq!((up(&refused, "0"), up(&refused, "1")), (Some(1.0), Some(1.0)));
    // What was listed last is too old after a while, and goes.
    exporter.scrape_until("the old list is gone", |s| s.all("gpu_process_memory_used_bytes").count() == 0);
    machine.control("");
    exporter.scrape_until("the list is back", |s| s.all("gpu_process_memory_used_bytes").count() == 1);
}
