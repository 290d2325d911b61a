//! The limits that the driver itself keeps for cgroups. No real driver with this call has been recorded: the simulator
//! follows `nvml.h`.

use super::{GIB, LIMIT, OVER, PROMISED};
use crate::faults::{faults, faults_but_slow, rounds};
use crate::harness::{Exporter, Machine, Scrape};

const NEW: &str = "driver = { version = \"610.43.02\", cuda = 13050 }\n";
const GPU: &str = "[[gpu]]\nmodel = \"H200\"\n";
const CALL: &str = "nvmlDeviceGetMemoryLimits_v1";

fn process(pid: u32, gib: u32, cgroup: &str) -> String {
    format!("[[process]]\npid = {pid}\nmemory = \"{gib}GiB\"\ncgroup = \"0::{cgroup}\"\n")
}

fn limit(gpu: u32, cgroup: &str, key: &str, gib: u32) -> String {
    format!("[[memory_limit]]\ngpu = {gpu}\ncgroup = \"{cgroup}\"\n{key} = \"{gib}GiB\"\n")
}

fn service(name: &str) -> String {
    format!("/system.slice/{name}.service")
}

fn export(machine: &Machine) -> Exporter {
    machine.export(&["--process.interval=100ms"])
}

fn of(scrape: &Scrape, family: &str, workload: &str) -> Option<f64> {
    scrape.value(family, &[("workload", workload), ("source", "driver")])
}

/// Waits until a process with this pid is shown, and for some passes after that.
fn after_process(exporter: &Exporter, pid: u32) -> Scrape {
    let shown = |s: &Scrape| s.value("gpu_process_memory_used_bytes", &[("pid", &pid.to_string())]).is_some();
    let begin = rounds(&exporter.scrape_until("the process", shown), "process");
    exporter.scrape_until("more passes", |s| rounds(s, "process") >= begin + 5.0)
}

#[test]
fn the_hard_limit_of_a_cgroup_is_the_limit_of_its_workload() {
    let docker = format!("/system.slice/docker-{}.scope", "a".repeat(64));
    let scenario = [
        NEW.to_owned(),
        GPU.to_owned(),
        process(11, 10, &format!("{}/worker", service("train"))),
        process(12, 1, &service("train")),
        process(13, 1, &docker),
        process(14, 1, &service("soft")),
        process(15, 1, &service("none")),
        limit(0, &service("train"), "hard", 20),
        limit(0, &docker, "hard", 5),
        limit(0, &service("soft"), "soft", 5),
        limit(0, "/system.slice", "hard", 30),
    ];
    let scrape = Machine::new(&scenario.concat()).once(&[]);
    let shown: Vec<_> = scrape.all(LIMIT).map(|s| (s.label("workload").unwrap(), s.label("source"), s.value)).collect();
    let expected =
        [("container:aaaaaaaaaaaa", Some("driver"), 5.0 * GIB), ("unit:train.service", Some("driver"), 20.0 * GIB)];
    assert_eq!(shown, expected, "a soft limit, no limit and the limit of a slice are no limits");
    assert_eq!((of(&scrape, OVER, "unit:train.service"), scrape.value(PROMISED, &[])), (Some(0.0), Some(25.0 * GIB)));
    assert_eq!(faults_but_slow(&scrape), 0.0, "{}", scrape.text);
}

#[test]
fn a_limit_of_a_cgroup_that_changes_applies_within_seconds() {
    let scenario = [NEW, GPU, &process(11, 10, &service("train")), &limit(0, &service("train"), "hard", 20)];
    let machine = Machine::new(&scenario.concat());
    let exporter = export(&machine);
    let train = "unit:train.service";
    exporter.scrape_until("the limit", |s| of(s, LIMIT, train) == Some(20.0 * GIB));
    machine.control(&limit(0, &service("train"), "hard", 5));
    exporter.scrape_until("the new limit", |s| of(s, LIMIT, train) == Some(5.0 * GIB));
    exporter.scrape_until("time over the limit", |s| of(s, OVER, train).is_some_and(|seconds| seconds > 0.2));
    // The call fails: the limit is unknown, until the driver answers again.
    let failing = format!("[[fault]]\ncall = \"{CALL}\"\nkind = \"error\"\ncode = \"TIMEOUT\"\n");
    machine.control(&(failing + &limit(0, &service("train"), "hard", 5)));
    let unknown = exporter.scrape_until("no limit", |s| of(s, LIMIT, train).is_none());
    assert!(faults(&unknown, "process", "timeout") >= 1.0 && of(&unknown, OVER, train).is_some());
    machine.control("");
    exporter.scrape_until("the first limit", |s| of(s, LIMIT, train) == Some(20.0 * GIB));
}

#[test]
fn a_cgroup_that_cannot_be_opened_is_reported_once_and_has_no_limit() {
    let closed = format!("[[fault]]\ncall = \"{CALL}\"\nkind = \"error\"\ncode = \"OPERATING_SYSTEM\"\n");
    let scenario = [NEW, GPU, &process(11, 10, &service("train")), &closed];
    let machine = Machine::new(&scenario.concat());
    let exporter = export(&machine);
    exporter.scrape_until("the fault", |s| faults(s, "process", "no_permission") == 1.0);
    machine.control(&process(12, 1, &service("other")));
    let later = after_process(&exporter, 12);
    assert_eq!((faults(&later, "process", "no_permission"), later.all(LIMIT).count()), (1.0, 0));
    assert!(exporter.log().contains(CALL), "{}", exporter.log());
}

#[test]
fn a_driver_or_gpu_without_limits_is_asked_once() {
    let gpus = format!("{GPU}unsupported = [\"{CALL}\"]\n[[gpu]]\nmodel = \"H100\"\nmig = [\"3g.40gb\"]\n");
    let on_mig = process(12, 1, &service("mig")) + "gpu = 1\nmig = 0\n";
    let scenario = [NEW, &gpus, &process(11, 10, &service("train")), &on_mig, &limit(1, &service("mig"), "hard", 5)];
    let machine = Machine::new(&scenario.concat());
    let exporter = export(&machine);
    after_process(&exporter, 12);
    // From now on, each call is counted. A new workload would be asked for at once.
    let fault = format!("[[fault]]\ncall = \"{CALL}\"\nkind = \"error\"\ncode = \"TIMEOUT\"\n");
    machine.control(
        &[fault, process(13, 1, &service("other")), process(14, 1, &service("late")) + "gpu = 1\nmig = 0\n"].concat(),
    );
    after_process(&exporter, 13);
    let later = after_process(&exporter, 14);
    assert_eq!((faults(&later, "process", "timeout"), faults(&later, "process", "not_supported")), (0.0, 0.0));
    let sources: Vec<_> = later.all(LIMIT).map(|series| series.label("source")).collect();
    assert_eq!(sources, [Some("mig"), Some("mig")], "a GPU with MIG devices is not asked");
}

#[test]
fn a_library_without_the_call_shows_no_limits_and_no_faults() {
    let older = GPU.to_owned() + &process(11, 10, &service("train"));
    for machine in [Machine::new(&older), Machine::new(&older).without_calls([CALL])] {
        let exporter = export(&machine);
        let scrape = after_process(&exporter, 11);
        assert_eq!(scrape.all(LIMIT).count(), 0);
        assert_eq!(faults_but_slow(&scrape), 0.0, "{}", scrape.text);
        assert!(!exporter.log().contains(CALL), "{}", exporter.log());
    }
}
