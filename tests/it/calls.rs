//! Probes on the driver's memory calls: what an exporter tells of a program that calls a driver without a GPU
//! (`tests/fake-libcuda`), beside what the simulated NVML reports for the same process.
//!
//! A test that needs BPF is skipped, visibly, where there is none.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use cuda_probe::{Mode, Probes, Settings};
use fake_libcuda::{CAPACITY, Driver, FIRST_ADDRESS, OUT_OF_MEMORY};
use tempfile::TempDir;
use workspace_skips::probes::{in_first_pid_namespace, unless_skipped};
use workspace_skips::{missing, skipped};

use crate::harness::{Exporter, Killed, Machine, Scrape, eventually, inside, until};

mod hostile;

const GIB: u64 = 1 << 30;
const GPU: &str = "[[gpu]]\nmodel = \"H200\"\n";
const LIBRARY: &str = "CALLS_TEST_LIBRARY";

/// Whether probes can be loaded here; reports why not.
fn has_probes() -> bool {
    if !in_first_pid_namespace() {
        skipped("the tests are not in the first pid namespace");
        return false;
    }
    unless_skipped(Probes::load(Settings::new(Mode::All))).is_some()
}

/// A program that makes the calls of the driver that a test asks for.
struct Program {
    child: Killed,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Program {
    fn start() -> Self {
        Self::with(|_| {})
    }

    /// With a library that is changed before it is loaded.
    fn with(change: impl FnOnce(&Path)) -> Self {
        Self::in_command(change, |words| {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            command
        })
    }

    /// As a part of the command that is made of the program and its arguments.
    fn in_command(change: impl FnOnce(&Path), command: impl FnOnce(&[String]) -> Command) -> Self {
        let own = std::env::current_exe().unwrap();
        // A copy has an inode of its own: the exporters of other tests do not see these calls.
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libcuda.so.1");
        std::fs::copy(own.with_file_name("libfake_libcuda.so"), &library).unwrap();
        change(&library);
        let words = [own.to_str().unwrap(), "calls::as_program", "--exact", "--nocapture", "--test-threads=1"];
        let mut command = command(&words.map(str::to_owned));
        command.env(LIBRARY, &library);
        let mut child = Killed(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let (input, output) = (child.0.stdin.take().unwrap(), BufReader::new(child.0.stdout.take().unwrap()));
        let mut program = Self { child, input, output, folder };
        assert_eq!(program.told("ready"), 0);
        program
    }

    fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Makes a call. Returns its result.
    fn call(&mut self, words: &str) -> i32 {
        writeln!(self.input, "{words}").unwrap();
        self.told(words.split(' ').next().unwrap())
    }

    /// What the program prints after this word. The test harness in it prints lines of its own.
    fn told(&mut self, word: &str) -> i32 {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the program ended before {word}");
            if let Some((_, result)) = line.trim_end().split_once(&format!("{word} = ")) {
                return result.parse().unwrap();
            }
        }
    }
}

/// Not a test: what [`Program`] runs.
#[test]
#[allow(clippy::print_stdout, reason = "answers the test")]
fn as_program() {
    let Some(library) = std::env::var_os(LIBRARY) else { return };
    let driver = Driver::load(Path::new(&library));
    println!("ready = 0");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (word, size) = line.split_once(' ').unwrap();
        let size: u64 = size.parse().unwrap();
        let result = match word {
            "take" => driver.cuMemAlloc_v2(size).0,
            "free" => driver.cuMemFree_v2(FIRST_ADDRESS + size),
            "spike" => {
                let result = driver.cuMemAlloc_v2(size).0;
                driver.cuMemFree_v2(FIRST_ADDRESS.wrapping_add(size));
                result
            }
            // 10,000 small requests, and as many frees.
            "crumbs" => {
                (1..=10_000).map(|n| driver.cuMemAlloc_v2(size + n).0).max().unwrap()
                    + (1..=10_000).map(|n| driver.cuMemFree_v2(FIRST_ADDRESS + size + n)).max().unwrap()
            }
            // This number of requests, each for another size, and more than is granted.
            "storm" => (1..=size).map(|n| driver.cuMemAlloc_v2(CAPACITY + n).0).max().unwrap(),
            // This number of copies of the library in use.
            "copies" => {
                for number in 0..size {
                    let folder = Path::new(&library).with_file_name(number.to_string());
                    std::fs::create_dir(&folder).unwrap();
                    std::fs::copy(&library, folder.join("libcuda.so.1")).unwrap();
                    std::mem::forget(Driver::load(&folder.join("libcuda.so.1")));
                }
                0
            }
            "grants" => {
                driver.set_capacity(size);
                0
            }
            other => panic!("{other}"),
        };
        println!("{word} = {result}");
    }
}

/// A machine on which the program holds this much, an exporter with probes on it, and the program.
fn watched(probes: &str, bytes: u64) -> (Machine, Exporter, Program) {
    let machine = Machine::new(GPU);
    let program = Program::start();
    hold(&machine, &program, bytes);
    let exporter = machine.export(&["--path.procfs=/proc", &format!("--memory.probes={probes}")]);
    exporter.logged("libcuda.so.1");
    (machine, exporter, program)
}

/// The simulated NVML reports this much for the program.
fn hold(machine: &Machine, program: &Program, bytes: u64) {
    hold_all(machine, &[(program, bytes)]);
}

fn hold_all(machine: &Machine, programs: &[(&Program, u64)]) {
    let process = |(program, bytes): &(&Program, u64)| listed(program.pid(), *bytes);
    machine.control(&programs.iter().map(process).collect::<String>());
}

/// A process in the file that controls the simulated NVML.
fn listed(pid: u32, bytes: u64) -> String {
    format!("[[process]]\npid = {pid}\ncontext = \"0B\"\nmemory = \"{bytes}B\"\n")
}

fn of_program(scrape: &Scrape, pid: &str, name: &str) -> Option<f64> {
    scrape.value(name, &[("pid", pid)])
}

/// The sum of a family over all workloads and devices.
fn sum(scrape: &Scrape, name: &str) -> f64 {
    scrape.all(name).map(|series| series.value).sum()
}

#[test]
fn a_refused_request_is_counted_and_is_an_incident_with_what_was_left() {
    if !has_probes() {
        return;
    }
    let (_machine, exporter, mut program) = watched("refusals", 100 * GIB);
    let before = exporter.scrape();
    assert_eq!(before.value("vram_exporter_probes_up", &[]), Some(1.0));
    assert_eq!(before.value("gpu_memory_refused_requests_total", &[]), Some(0.0));
    assert_eq!(before.all("gpu_memory_call_correction_bytes_count").count(), 0, "not every call is seen");
    // As PyTorch asks: again, and in vain.
    let asked = CAPACITY + GIB;
    assert_eq!([1, 2].map(|_| program.call(&format!("take {asked}"))), [OUT_OF_MEMORY; 2]);
    let counted = |scrape: &Scrape| scrape.value("gpu_memory_refused_requests_total", &[]) == Some(1.0);
    let scrape = exporter.scrape_until("the refusal is counted", counted);
    assert_eq!(sum(&scrape, "gpu_workload_memory_retried_requests_total"), 0.0);
    let incident = eventually("the incident", || {
        let all = exporter.json("/api/v1/incidents");
        let found = all["incidents"].as_array()?.iter().find(|incident| incident["kind"] == "out_of_memory").cloned();
        Some(exporter.json(&format!("/api/v1/incidents/{}", found?["id"].as_str()?)))
    });
    let failed = &incident["out_of_memory"];
    assert_eq!((failed["pid"].as_u64(), failed["requested_bytes"].as_u64()), (Some(program.pid().into()), Some(asked)));
    assert!(failed["framework"].is_null(), "{failed}");
    let free = scrape.value("gpu_memory_free_bytes", &[]).unwrap();
    assert_eq!(failed["free_bytes"].as_f64(), Some(free));
    assert_eq!(incident["processes"][0]["pid"].as_u64(), Some(program.pid().into()), "who held what");
    let summary = incident["summary"].as_str().unwrap();
    assert!(summary.contains("asked the driver for 81.00 GiB and was refused"), "{summary}");
}

#[test]
fn a_request_that_is_granted_when_repeated_is_a_retry_and_no_incident() {
    if !has_probes() {
        return;
    }
    let (_machine, exporter, mut program) = watched("refusals", 100 * GIB);
    program.call(&format!("grants {GIB}"));
    assert_eq!(program.call(&format!("take {}", 2 * GIB)), OUT_OF_MEMORY);
    program.call(&format!("grants {}", 2 * GIB));
    assert_eq!(program.call(&format!("take {}", 2 * GIB)), 0);
    let scrape = exporter.scrape_until("the retry is counted", |scrape| {
        sum(scrape, "gpu_workload_memory_retried_requests_total") == 1.0
    });
    assert_eq!(scrape.value("gpu_memory_refused_requests_total", &[]), Some(0.0));
    assert_eq!(exporter.json("/api/v1/incidents")["incidents"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_spike_that_no_reading_shows_is_the_peak_of_the_process_and_of_the_gpu() {
    if !has_probes() {
        return;
    }
    let (machine, exporter, mut program) = watched("all", 10 * GIB);
    let pid = program.pid().to_string();
    let listed = |bytes: u64| {
        exporter.scrape_until("the list with the new memory", |scrape| {
            of_program(scrape, &pid, "gpu_process_memory_used_bytes") == Some(bytes as f64)
        })
    };
    let before = listed(10 * GIB);
    let used = before.value("gpu_memory_used_bytes", &[]).unwrap();
    assert_eq!(before.value("gpu_memory_window_peak_from_calls", &[]), None);
    // Far too short for any reading, and each with a size of its own.
    let sizes: Vec<u64> = (1..=20).map(|n| 3 * GIB + (n << 20)).collect();
    let highest = sizes.iter().copied().max().unwrap() as f64;
    // Again if a list was read at the same moment: it may contain a spike that is over, so the next bound is lower.
    let after = eventually("the peak of the spikes", || {
        for size in &sizes {
            assert_eq!(program.call(&format!("spike {size}")), 0);
        }
        let scrape = exporter.scrape();
        let peak = of_program(&scrape, &pid, "gpu_process_memory_window_peak_bytes");
        (peak == Some(10.0 * GIB as f64 + highest)).then_some(scrape)
    });
    let value = |name: &str| after.value(name, &[]);
    assert_eq!(value("gpu_memory_window_peak_bytes"), Some(used + highest));
    assert_eq!((value("gpu_memory_window_peak_from_calls"), value("gpu_memory_used_bytes")), (Some(1.0), Some(used)));
    assert_eq!(of_program(&after, &pid, "gpu_process_memory_window_peak_from_calls"), Some(1.0));
    let workload = after.all("gpu_workload_memory_window_peak_bytes").next().map(|series| series.value);
    assert_eq!(workload, Some(10.0 * GIB as f64 + highest));
    until("the calls are counted", || sum(&exporter.scrape(), "gpu_workload_memory_calls_total") >= 40.0);
    assert!(sum(&exporter.scrape(), "gpu_workload_memory_call_seconds_total") > 0.0);
    // The history has it beside the readings, which do not show it.
    let series = eventually("the spike in the history", || {
        let history = exporter.json("/api/v1/history?of=all");
        let all = history["series"].as_array().unwrap().clone();
        let is_shown = |series: &serde_json::Value| series["peaks_from_calls"].is_array();
        (all.iter().filter(|series| is_shown(series)).count() == 3).then_some(all)
    });
    for (series, base) in series.iter().zip([used, 10.0 * GIB as f64, 10.0 * GIB as f64]) {
        let peaks = series["peaks_from_calls"].as_array().unwrap();
        assert!(peaks.iter().any(|peak| peak[1].as_f64() == Some(base + highest)), "{series}");
        let readings = series["memory"]["points"].as_array().unwrap();
        assert!(readings.iter().all(|point| point[2].as_f64() <= Some(base)), "{series}");
    }
    // 10,000 requests of 64 KiB are no 20 GB.
    assert_eq!(program.call("crumbs 65536"), 0);
    until("the small calls are counted", || sum(&exporter.scrape(), "gpu_workload_memory_calls_total") >= 20_040.0);
    let peak = of_program(&exporter.scrape(), &pid, "gpu_process_memory_window_peak_bytes");
    assert_eq!(peak, Some(10.0 * GIB as f64 + highest));
    // The next reading overrules what calls told: the process asked for 4 GiB more, and NVML shows 5.
    assert_eq!(program.call(&format!("take {}", 4 * GIB)), 0);
    hold(&machine, &program, 15 * GIB);
    listed(15 * GIB);
    let corrected = exporter.scrape_until("the correction", |scrape| {
        scrape.value("gpu_memory_call_correction_bytes_sum", &[]) >= Some(GIB as f64)
    });
    let lost = sum(&corrected, "vram_exporter_probe_events_lost_total");
    assert_eq!(lost, 0.0, "{}", corrected.text);
}

#[test]
fn a_run_reports_a_spike_that_only_calls_tell_as_a_lower_bound() {
    if !has_probes() {
        return;
    }
    let machine = Machine::new(GPU);
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let mut program = Program::in_command(
        |_| {},
        |words| {
            let output = format!("--output={}", report.display());
            let flags = ["--path.procfs=/proc", "--memory.probes=all", "--format=json", &output];
            machine.run(&flags, &format!("exec {}", words.join(" ")))
        },
    );
    let run = program.pid();
    let pid: u32 = std::fs::read_to_string(format!("/proc/{run}/task/{run}/children")).unwrap().trim().parse().unwrap();
    // The simulated /proc shows a process once it is on a list. A list that another one follows has been taken in.
    for control in [listed(pid, 10 * GIB), listed(pid, 10 * GIB) + &listed(3_000_001, 0)] {
        let last = control.rsplit("pid = ").next().unwrap().split('\n').next().unwrap();
        machine.control(&control);
        until("the process is listed", || machine.procfs().join(last).exists());
    }
    // While a process cannot be watched, there is no bound of the GPU.
    machine.control(&listed(pid, 10 * GIB));
    // A probe is a breakpoint in a page of the program's own.
    until("the library has probes", || {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
        let mut code = maps.split("VmFlags:").filter(|map| map.contains("r-xp") && map.contains("libcuda.so.1"));
        code.any(|map| !map.lines().any(|line| line.starts_with("Anonymous:") && line.ends_with(" 0 kB")))
    });
    // Again, because a list that is read at the same moment may contain a spike that is over.
    for _ in 0..20 {
        assert_eq!(program.call(&format!("spike {}", 3 * GIB)), 0);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let Program { mut child, input, .. } = program;
    drop(input);
    assert!(child.0.wait().unwrap().success());
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let (gpu, spike) = (&report["gpus"][0], 13 * GIB);
    assert_eq!(
        (&report["together"]["peak_bytes"], &report["together"]["at_least"]),
        (&spike.into(), &true.into()),
        "{report}"
    );
    assert_eq!((&gpu["together"]["peak_bytes"], &gpu["together"]["at_least"]), (&spike.into(), &true.into()));
    let process = &gpu["processes"][0];
    assert_eq!((&process["peak_bytes"], &process["peak_from_calls"]), (&spike.into(), &true.into()), "{report}");
    assert_eq!(gpu["used_peak_from_calls"], true, "{report}");
    assert!(gpu["used_peak_bytes"].as_u64() >= Some(spike), "{report}");
    assert_eq!(report["fits_in"]["at_least"], true, "{report}");
}

#[test]
fn without_the_rights_everything_else_is_as_it_is_and_the_reason_is_told() {
    // A user who is not root has none of the rights.
    let is_root = nix::unistd::geteuid().is_root();
    let there = Command::new("setpriv").arg("--version").output().is_ok();
    if !has_probes() && is_root || missing("setpriv", there) {
        return;
    }
    let machine = Machine::new(GPU);
    let mut command = machine.command(&["--path.procfs=/proc", "--memory.probes=all"]);
    if is_root {
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--bounding-set=-bpf,-perfmon,-sys_admin", "--inh-caps=-bpf,-perfmon,-sys_admin"]);
        command = inside(setpriv, &command);
    }
    let exporter = Exporter::start(command);
    exporter.answers("/readyz", 200);
    exporter.logged("CAP_BPF");
    let scrape = exporter.scrape_until("the reason", |scrape| scrape.all("vram_exporter_probes_up").next().is_some());
    let up: Vec<_> = scrape.all("vram_exporter_probes_up").collect();
    assert_eq!((up.len(), up[0].value, up[0].label("reason")), (1, 0.0, Some("no_permission")));
    assert_eq!(scrape.value("vram_exporter_faults_total", &[("source", "probes")]), Some(1.0));
    assert!(scrape.value("gpu_memory_used_bytes", &[]).is_some());
    let told = ["gpu_memory_refused_requests_total", "gpu_memory_window_peak_from_calls"];
    assert!(told.iter().all(|name| scrape.all(name).next().is_none()));
    assert_eq!(exporter.log().lines().filter(|line| line.contains("probes")).count(), 1, "{}", exporter.log());
}

#[test]
fn by_default_nothing_is_watched_and_nothing_is_told() {
    let exporter = Machine::new(GPU).export(&[]);
    let scrape = exporter.scrape();
    let told = |name: &str| name.contains("probe") || name.contains("requests_total") || name.contains("_from_calls");
    assert!(!scrape.series.iter().any(|series| told(&series.name)), "{}", scrape.text);
    assert_eq!(scrape.value("vram_exporter_faults_total", &[("source", "probes")]), None);
}
