//! The driver is absent, appears, disappears, is replaced, or is released on request.

use std::fs;

use nix::sys::signal::Signal;

use super::{TWO, faults, up, values};
use crate::harness::{Exporter, Machine, Scrape, bare, eventually, simulator, until};

#[test]
fn without_a_library_it_serves_says_why_and_opens_it_once_it_appears() {
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
    exporter.scrape_until("several attempts", |s| faults(s, "library", "library_not_found") >= 2.0);
    let logged = exporter.log().lines().filter(|line| line.contains("library_not_found")).count();
    assert_eq!(logged, 1, "{}", exporter.log());

    fs::copy(simulator(), &library).unwrap();
    exporter.scrape_until("the driver", |s| s.value("vram_exporter_nvml_up", &[]) == Some(1.0));
    exporter.answers("/readyz", 200);
    assert!(exporter.terminate().success());
}

#[test]
fn a_driver_without_the_second_memory_call_is_read_by_the_first() {
    let lists = ["Compute", "Graphics", "MPSCompute"].map(|list| format!("nvmlDeviceGet{list}RunningProcesses_v3"));
    let calls = lists.iter().map(String::as_str).chain(["nvmlDeviceGetMemoryInfo_v2"]);
    let scrape = Machine::new(TWO).without_calls(calls).once(&[]);
    let of = |name: &str| scrape.value(&format!("gpu_memory_{name}_bytes"), &[("gpu", "0")]);
    assert_eq!(of("reserved"), None);
    assert_eq!(of("total").unwrap(), of("used").unwrap() + of("free").unwrap());
    assert_eq!(of("used"), Some(644_939_776.0));
    assert_eq!(scrape.all("gpu_memory_unattributed_bytes").count(), 0, "used includes reserved memory");
    let process = [("gpu", "1"), ("pid", "42")];
    assert_eq!(scrape.value("gpu_process_memory_used_bytes", &process), Some(1_619_001_344.0), "1 GiB and a context");
}

/// Whether the driver's library is mapped into the exporter's memory.
fn is_mapped(exporter: &Exporter) -> bool {
    let maps = fs::read_to_string(format!("/proc/{}/maps", exporter.pid())).unwrap();
    maps.contains("libnvml_sim.so")
}

fn nvml_up(scrape: &Scrape) -> Option<f64> {
    scrape.value("vram_exporter_nvml_up", &[])
}

#[test]
fn a_driver_that_is_gone_is_not_held() {
    let (machine, exporter) = Machine::running(TWO, &[]);
    assert!(is_mapped(&exporter));
    machine.control("[[fault]]\ncall = \"*\"\nkind = \"error\"\ncode = \"DRIVER_NOT_LOADED\"\n");
    exporter.scrape_until("the driver is gone", |s| nvml_up(s) == Some(0.0));
    // The exporter repeatedly tries to open the driver; in between, the library is closed.
    until("the library is unloaded", || !is_mapped(&exporter));
    exporter.scrape_until("attempts", |s| faults(s, "library", "driver_not_loaded") >= 2.0);
    until("the library is unloaded again", || !is_mapped(&exporter));
    machine.control("");
    exporter.scrape_until("the driver is back", |s| up(s, "0") == Some(1.0) && up(s, "1") == Some(1.0));
}

#[test]
fn a_signal_releases_the_driver_and_another_reacquires_it_at_once() {
    let exporter = Machine::new(TWO).export(&["--nvml.release-duration=1h"]);
    let before = exporter.scrape_until("values", |s| values(s, "1") > 0);
    let peak = |s: &Scrape| s.value("gpu_memory_peak_bytes", &[("gpu", "1")]);
    exporter.signal(Signal::SIGUSR1);
    let released = exporter.scrape_until("the release", |s| nvml_up(s) == Some(0.0));
    assert_eq!(released.all("gpu_up").count(), 0);
    until("the library is unloaded", || !is_mapped(&exporter));
    let ready = eventually("the reason", || {
        exporter.get("/readyz").ok().filter(|answer| answer.body.contains("released on request"))
    });
    assert_eq!(ready.status, 503);
    // A release is not a fault, the exporter stays healthy, and nothing is opened in the meantime.
    for _ in 0..20 {
        let scrape = exporter.scrape();
        assert_eq!(nvml_up(&scrape), Some(0.0));
        assert_eq!(exporter.get("/healthz").unwrap().status, 200);
        assert!(!is_mapped(&exporter));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let counted = |s: &Scrape| s.all("vram_exporter_faults_total").map(|fault| fault.value).sum::<f64>();
    assert_eq!(counted(&exporter.scrape()), counted(&before));
    exporter.signal(Signal::SIGUSR1);
    let back = exporter.scrape_until("the driver is back", |s| up(s, "1") == Some(1.0) && peak(s).is_some());
    assert!(peak(&back) >= peak(&before), "peaks are kept");
    assert!(is_mapped(&exporter));
}

#[test]
fn a_released_driver_is_reacquired_automatically() {
    let exporter = Machine::new(TWO).export(&["--nvml.release-duration=1s"]);
    exporter.signal(Signal::SIGUSR1);
    exporter.scrape_until("the release", |s| nvml_up(s) == Some(0.0));
    exporter.scrape_until("the driver is back", |s| up(s, "0") == Some(1.0) && up(s, "1") == Some(1.0));
    assert!(exporter.terminate().success());
}

#[test]
fn a_driver_replaced_while_released_is_the_one_that_is_opened() {
    let machine = Machine::new(&format!("driver = {{ version = \"570.1.1\" }}\n{TWO}"));
    let exporter = machine.export(&["--nvml.release-duration=1h"]);
    let version =
        |s: &Scrape| s.all("nvidia_driver_info").next().and_then(|i| i.label("driver_version").map(str::to_owned));
    assert_eq!(version(&exporter.scrape()).as_deref(), Some("570.1.1"));
    exporter.signal(Signal::SIGUSR1);
    exporter.scrape_until("the release", |s| nvml_up(s) == Some(0.0));
    until("the library is unloaded", || !is_mapped(&exporter));
    fs::write(machine.folder.path().join("scenario.toml"), TWO).unwrap();
    exporter.signal(Signal::SIGUSR1);
    let back = exporter.scrape_until("the driver is back", |s| nvml_up(s) == Some(1.0));
    assert_eq!(version(&back).as_deref(), Some("580.159.04"));
}
