//! `vram run`: the command's input, output, signals and exit status, and what the report shows about its
//! processes.
//!
//! The simulator reports a real process if the control file names its pid. A script waits until the simulated `/proc`
//! shows a pid, which means that the sampler has read a list that contains it. No test depends on timing.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::harness::{Ended, Killed, Machine, assert_refused, ended, eventually, eventually_within, inside, pid, tool};

mod allocators;

const MIB: u64 = 1 << 20;
/// The memory that a context uses, according to the simulator.
const CONTEXT: u64 = 520 * MIB;
const GPU: &str = "[[gpu]]\nmodel = \"H200\"\n";

/// Functions for scripts. `place` replaces the control file. `listed PID MARKER [GPU]` waits until the processes of the
/// GPU (0 if it is left out) have been listed with the pid among them and the list has been recorded. To find out, it
/// adds a process with the pid MARKER to that GPU, which appears only in a later list. Each GPU is read on a thread of
/// its own, so a list of one GPU says nothing about the other.
///
/// Simulated processes have pids so high that no process of the command has one of them.
const FUNCTIONS: &str = r#"
place() { cat > "$NVML_SIM_CONTROL.new"; mv "$NVML_SIM_CONTROL.new" "$NVML_SIM_CONTROL"; }
await() { while [ ! -e "$1" ]; do sleep 0.01; done; }
listed() {
    await "$NVML_SIM_PROCFS/$1"
    { cat "$NVML_SIM_CONTROL"; printf '[[process]]\npid = %s\ngpus = [%s]\ncontext = "0B"\n' "$2" "${3:-0}"; } | place
    await "$NVML_SIM_PROCFS/$2"
}
"#;

/// Waits until the driver is open and a list has been read.
const OPEN: &str = "printf '[[process]]\\npid = %s\\n' $$ | place; listed $$ 4194001";

fn script(body: &str) -> String {
    format!("{FUNCTIONS}{body}")
}

/// The report of a run as JSON, and the exit status.
fn report(machine: &Machine, flags: &[&str], body: &str) -> (Value, Option<i32>) {
    let flags: Vec<&str> = flags.iter().copied().chain(["--format=json"]).collect();
    let ended = ended(&mut machine.run(&flags, &script(body)));
    (parse(&ended), ended.status)
}

fn parse(ended: &Ended) -> Value {
    serde_json::from_str(&ended.err).unwrap_or_else(|error| panic!("{error}: {}", ended.err))
}

fn notes(report: &Value) -> String {
    report["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap()).collect::<Vec<_>>().join("\n")
}

/// A run whose output is read while it runs.
struct Running {
    child: Killed,
    lines: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        // It has its own process group, because signals from the test's terminal, if there is one, must not reach it.
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn().unwrap();
        let mut child = Killed(child);
        let lines = BufReader::new(child.0.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill(pid(&self.child.0), signal).unwrap();
    }

    /// The exit status, the rest of standard output, and standard error.
    fn end(mut self) -> (Option<i32>, String, String) {
        let status = eventually("the end of the run", || self.child.0.try_wait().unwrap());
        let (mut out, mut err) = (String::new(), String::new());
        self.lines.read_to_string(&mut out).unwrap();
        self.child.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (status.code(), out, err)
    }
}

#[test]
fn the_exit_status_is_the_one_of_the_command() {
    let machine = Machine::new(GPU);
    for (body, status, how) in [
        ("exit 0", 0, "exit status 0"),
        ("exit 7", 7, "exit status 7"),
        ("kill -KILL $$", 137, "ended by SIGKILL"),
        ("kill -TERM $$", 143, "ended by SIGTERM"),
    ] {
        let ended = ended(&mut machine.run(&[], body));
        assert_eq!(ended.status, Some(status), "{body}");
        assert!(ended.err.contains(how), "{body}: {}", ended.err);
    }
}

#[test]
fn the_peak_of_a_command_that_is_killed_is_reported() {
    let machine = Machine::new(GPU);
    let body = "printf '[[process]]\\npid = %s\\nmemory = \"1GiB\"\\n' $$ | place; listed $$ 4194001; kill -KILL $$";
    let (report, status) = report(&machine, &[], body);
    assert_eq!((status, report["signal"].as_str()), (Some(137), Some("SIGKILL")));
    assert_eq!(report["together"]["peak_bytes"], 1024 * MIB + CONTEXT, "{report:#}");
}

#[test]
fn a_command_that_cannot_start_has_the_status_of_a_shell_and_no_report() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    let output = format!("--output={}", file.display());
    for (command, status) in [("/nonexistent/train", 127), ("/etc/passwd", 126), ("/", 126)] {
        let ended = ended(&mut tool(&["run", "--demo=idle-h200", &output, "--", command]));
        assert_eq!(ended.status, Some(status), "{command}");
        assert!(ended.err.contains("cannot be started"), "{}", ended.err);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "neither a report nor half of one");
}

#[test]
fn wrong_arguments_are_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let marker = folder.path().join("started");
    let script = format!("touch {}", marker.display());
    for flags in [
        &["--rate=0"][..],
        &["--format=xml"],
        &["--nvml.call-timeout=soon"],
        &["--demo=nosuch"],
        &["--output=/nonexistent/report"],
        &["--output=/dev/null"],
    ] {
        let mut command = tool(&["run"]);
        command.args(flags).args(["--", "sh", "-c", &script]).env("PATH", "/usr/bin:/bin");
        let said = assert_refused(&mut command, &[]).err;
        assert!(said.starts_with("vram run: "), "{said}");
    }
    assert_refused(&mut tool(&["run"]), &[]);
    assert!(!marker.exists());
    let help = ended(&mut tool(&["run", "--help"]));
    assert!(help.status == Some(0) && help.out.contains("--output"), "{help:?}");
}

#[test]
fn input_and_output_are_the_command_s_own() {
    let machine = Machine::new(GPU);
    let mut command = machine.run(&[], "cat; echo oops >&2");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hello").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"hello");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("oops\nvram run: sh -c cat"), "{said}");
}

#[test]
fn the_report_goes_to_a_file_as_a_whole() {
    let machine = Machine::new(GPU);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    fs::write(&file, "an older report").unwrap();
    let flag = format!("--output={}", file.display());
    let check = format!("grep -q older {}", file.display());
    let ended = ended(&mut machine.run(&[&flag, "--format=json"], &check));
    assert_eq!(ended.status, Some(0), "the file is replaced at the end");
    assert_eq!(ended.err, "");
    let report: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((report["version"].as_u64(), report["exit_status"].as_u64()), (Some(1), Some(0)));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn signals_reach_the_command() {
    let machine = Machine::new(GPU);
    let body = "trap 'echo TERM; exit 3' TERM; for s in HUP INT QUIT USR1 USR2; do trap \"echo $s\" $s; done; echo ready; \
                while :; do sleep 0.01; done";
    let mut running = Running::start(machine.run(&[], body));
    assert_eq!(running.line(), "ready");
    let signals = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT];
    // A signal that is ignored here, as under nohup, is ignored by the command too.
    for signal in signals.into_iter().filter(|signal| !is_ignored(*signal)) {
        running.signal(signal);
        assert_eq!(running.line(), signal.as_str().trim_start_matches("SIG"));
    }
    running.signal(Signal::SIGTERM);
    let (status, out, report) = running.end();
    assert_eq!((status, out.as_str()), (Some(3), "TERM\n"));
    assert!(report.contains("exit status 3"), "{report}");
}

/// Whether this process ignores the signal.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << (signal as u64 - 1) != 0
}

#[test]
fn a_stopped_run_stops_its_command_and_both_continue() {
    let machine = Machine::new(GPU);
    let mut command = machine.run(&[], "echo $$; read line; exit 4");
    command.stdin(Stdio::piped());
    let mut running = Running::start(command);
    let both = [running.line().parse().unwrap(), running.child.0.id()];
    let state = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    };
    running.signal(Signal::SIGTSTP);
    eventually("both are stopped", || (both.map(state) == ['T', 'T']).then_some(()));
    running.signal(Signal::SIGCONT);
    eventually("both continue", || (!both.map(state).contains(&'T')).then_some(()));
    running.child.0.stdin.take().unwrap().write_all(b"on\n").unwrap();
    assert_eq!(running.end().0, Some(4));
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let machine = Machine::new(GPU);
    let mut outer = Command::new("sh");
    outer.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
    let ended = ended(&mut inside(outer, &machine.run(&[], "kill -HUP $$; echo alive")));
    assert_eq!((ended.out.as_str(), ended.status), ("alive\n", Some(0)), "{ended:?}");
}

#[test]
fn peaks_are_those_of_one_moment_and_of_each_process() {
    let other = "[[process]]\npid = 4194200\ncommand = [\"/opt/server\"]\nuser = \"mira\"\nmemory = \"5GiB\"\n";
    let machine = Machine::new(&format!("{}{other}", GPU.repeat(2)));
    // The two processes hold first 1 and 2 GiB, then 512 MiB and 2.25 GiB, so their peaks are not at the same moment.
    // A sum over both GPUs is known once a later list of each shows that its memory has not changed in between, so the
    // lists of the two are awaited in turn.
    let (report, status) = report(
        &machine,
        &[],
        r#"
        sh -c "await() { while [ ! -e \$1 ]; do sleep 0.01; done; }; await $NVML_SIM_PROCFS/4194117" &
        state() { printf '[[process]]\npid = %s\nmemory = "%s"\n[[process]]\npid = %s\ngpus = [0, 1]\nmemory = "%s"\n' $$ $1 $! $2 | place; }
        settled() { for i in 0 1 2 3 4 5 6 7; do listed $! $1$i $((i % 2)); done; }
        state 1GiB 2GiB; settled 419410
        state 512MiB 2304MiB; settled 419411
        wait
        "#,
    );
    assert_eq!(status, Some(0));
    let contexts = 3 * CONTEXT;
    assert_eq!(report["together"]["peak_bytes"], 5 * 1024 * MIB + contexts, "{report:#}");
    let gpu = &report["gpus"][0];
    assert_eq!(gpu["together"]["peak_bytes"], 3 * 1024 * MIB + 2 * CONTEXT, "{report:#}");
    assert_eq!(gpu["together"]["processes"], 2);
    let peaks: Vec<_> =
        gpu["processes"].as_array().unwrap().iter().map(|p| p["peak_bytes"].as_u64().unwrap()).collect();
    assert_eq!(peaks, [2304 * MIB + CONTEXT, 1024 * MIB + CONTEXT]);
    assert!(gpu["processes"].as_array().unwrap().iter().all(|process| process["name"] == "sh"), "{report:#}");
    assert_eq!(report["gpus"][1]["together"]["peak_bytes"], 2304 * MIB + CONTEXT);
    let server = gpu["others"].as_array().unwrap().iter().find(|process| process["pid"] == 4_194_200).unwrap();
    assert_eq!((server["name"].as_str(), server["user"].as_str()), (Some("server"), Some("mira")), "{report:#}");
    assert_eq!(server["peak_bytes"], 5 * 1024 * MIB + CONTEXT);
    // The command's two contexts and the other process's context each use 8 MiB that belong to no process.
    let used = (3 + 5) * 1024 * MIB + 3 * CONTEXT + 3 * 8 * MIB;
    assert_eq!(gpu["used_peak_bytes"], used, "{report:#}");
    assert_eq!(gpu["least_free_bytes"].as_u64().unwrap(), gpu["allocatable_bytes"].as_u64().unwrap() - used);
    assert_eq!(report["fits_in"]["needed_bytes"], 3 * 1024 * MIB + 2 * CONTEXT + 2 * 8 * MIB);
    assert_eq!(report["fits_in"]["board"]["name"], "T4");
    assert_eq!(report["fits_in"]["mig_profile"]["name"], "1g.5gb of an A100 40GB");
}

/// A script that leaves behind a process with 1 GiB. The parent of that process ends at once, and the script waits
/// until the process is listed. The driver, which is opened beside the command, makes the folder of the simulated `/proc`.
const ORPHAN: &str = r#"
    await "$NVML_SIM_PROCFS/stat"
    (sh -c "echo \$\$ > $NVML_SIM_PROCFS/../orphan; while [ -e $NVML_SIM_PROCFS/../orphan -a ! -e $NVML_SIM_PROCFS/../stop ]; do sleep 0.01; done" > /dev/null 2>&1 &)
    await "$NVML_SIM_PROCFS/../orphan"; orphan=
    while [ -z "$orphan" ]; do orphan=$(cat "$NVML_SIM_PROCFS/../orphan"); done
    printf '[[process]]\npid = %s\nmemory = "1GiB"\n' $orphan | place
    listed $orphan 4194001
    echo $$
"#;

/// Starts [`ORPHAN`] and waits until the script has ended and has been reaped.
fn with_orphan(machine: &Machine) -> Running {
    // On a busy machine, a list takes longer than the usual limit, after which the number of living processes is unknown.
    let mut running = Running::start(machine.run(&["--format=json", "--nvml.call-timeout=60s"], &script(ORPHAN)));
    let shell = format!("/proc/{}", running.line());
    eventually("the end of the script", || (!Path::new(&shell).exists()).then_some(()));
    running
}

#[test]
fn an_orphan_is_followed_until_it_ends() {
    let machine = Machine::new(GPU);
    let running = with_orphan(&machine);
    let orphan: u32 = fs::read_to_string(machine.folder.path().join("orphan")).unwrap().trim().parse().unwrap();
    // The orphan grows after the end of the command. The markers show that lists with its new memory have been read.
    let grown = format!("[[process]]\npid = {orphan}\nmemory = \"2GiB\"\n");
    machine.control(&grown);
    for marker in [4_194_002, 4_194_003] {
        machine.control(&format!("{grown}[[process]]\npid = {marker}\ncontext = \"0B\"\n"));
        eventually("a list after the growth", || machine.procfs().join(marker.to_string()).exists().then_some(()));
    }
    fs::write(machine.folder.path().join("stop"), "").unwrap();
    let (status, _, report) = running.end();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(status, Some(0));
    let process = &report["gpus"][0]["processes"][0];
    assert_eq!(
        (process["pid"].as_u64(), process["peak_bytes"].as_u64()),
        (Some(orphan.into()), Some(2048 * MIB + CONTEXT))
    );
    assert!(notes(&report).contains("1 of its processes outlived the command"), "{report:#}");
    assert!(notes(&report).contains("until they ended"), "{report:#}");
    assert!(report["followed_seconds"].is_number());
}

#[test]
fn a_signal_ends_the_waiting_for_an_orphan() {
    let machine = Machine::new(GPU);
    let running = with_orphan(&machine);
    running.signal(Signal::SIGTERM);
    let (status, _, report) = running.end();
    fs::write(machine.folder.path().join("stop"), "").unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(status, Some(0), "the command had ended before the signal");
    assert!(notes(&report).contains("until SIGTERM"), "{report:#}");
    assert!(notes(&report).contains("still run"), "{report:#}");
}

#[test]
fn a_process_on_a_mig_device_is_measured_there() {
    let machine = Machine::new("[[gpu]]\nmodel = \"H100\"\nmig = [\"1g.10gb\", \"\", \"2g.20gb\"]\n");
    let body = r#"printf '[[process]]\npid = %s\nmig = 2\nmemory = "3GiB"\n' $$ | place
        await "$NVML_SIM_PROCFS/$$"
        { cat "$NVML_SIM_CONTROL"; printf '[[process]]\npid = 4194001\nmig = 0\ncontext = "0B"\n'; } | place
        await "$NVML_SIM_PROCFS/4194001""#;
    let (report, _) = report(&machine, &[], body);
    let devices = report["gpus"].as_array().unwrap();
    assert_eq!(devices.len(), 2, "{report:#}");
    let profiles: Vec<_> = devices.iter().map(|device| device["mig"]["profile"].as_str().unwrap()).collect();
    assert_eq!(profiles, ["1g.10gb", "2g.20gb"]);
    assert!(devices[0]["together"].is_null(), "{report:#}");
    assert_eq!(devices[1]["together"]["peak_bytes"], 3 * 1024 * MIB + CONTEXT);
}

#[test]
fn memory_that_the_driver_does_not_report_is_absent() {
    let machine = Machine::new(GPU);
    let refused =
        |call| format!("[[fault]]\ncall = \"{call}\"\nkind = \"error\"\ncode = \"NOT_SUPPORTED\"\nfrom = \"0s\"\n");
    machine.control(&["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"].map(refused).concat());
    let body = "cp \"$NVML_SIM_CONTROL\" fault; \
                { cat fault; printf '[[process]]\\npid = %s\\nmemory = \"unknown\"\\n' $$; } | place; listed $$ 4194001";
    let mut command = machine.run(&["--format=json"], &script(body));
    let report = parse(&ended(command.current_dir(machine.folder.path())));
    let gpu = report["gpus"][0].as_object().unwrap();
    for absent in ["used_peak_bytes", "allocatable_bytes", "least_free_bytes", "nearly_full_seconds", "together"] {
        assert!(!gpu.contains_key(absent), "{absent}: {report:#}");
    }
    assert!(report["together"].is_null() && report["fits_in"].is_null(), "{report:#}");
    assert!(gpu["processes"][0]["peak_bytes"].is_null());
    assert!(notes(&report).contains("does not report the memory of the GPU as a whole"), "{report:#}");
    assert!(notes(&report).contains("did not report the memory of a process"), "{report:#}");
}

#[test]
fn without_a_driver_the_command_runs_all_the_same() {
    let machine = Machine::new(GPU).with_library("/nonexistent/libnvidia-ml.so.1".into());
    let (report, status) = report(&machine, &[], "exit 5");
    assert_eq!((status, report["exit_status"].as_u64()), (Some(5), Some(5)));
    assert!(notes(&report).contains("no GPU memory was measured: no NVML library"), "{report:#}");
    assert!(report["together"].is_null() && report["sampling"].is_null(), "{report:#}");
    assert_eq!(report["gpus"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_command_without_gpu_memory_is_said_to_have_none() {
    // A command that ends before the driver is open has no list at all.
    let machine = Machine::new(&format!("{GPU}[[process]]\npid = 4194200\n"));
    machine.control("");
    let (report, _) = report(&machine, &[], "listed 4194200 4194001");
    assert!(report["together"].is_null() && report["fits_in"].is_null(), "{report:#}");
    assert!(notes(&report).contains("no process of the command was listed"), "{report:#}");
    let others = report["gpus"][0]["others"].as_array().unwrap();
    assert_eq!(others.iter().filter(|other| other["pid"] != 4_194_001).count(), 1, "{report:#}");
}

#[test]
fn a_driver_call_that_hangs_does_not_hold_back_the_report() {
    let machine = Machine::new(GPU);
    let fault = "printf '[[fault]]\\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\\nkind = \"hang\"\\n'";
    let body = format!("{OPEN}; {fault} | place; sleep 3; exit 6");
    let (report, status) = report(&machine, &["--nvml.call-timeout=50ms"], &body);
    assert_eq!(status, Some(6));
    let said = notes(&report);
    assert!(said.contains("GPU 0: a driver call that began at") && said.contains("had not returned"), "{report:#}");
}

#[test]
fn a_gpu_whose_call_hangs_delays_no_reading_of_another_one() {
    let machine = Machine::new(&GPU.repeat(2));
    let fault = "[[fault]]\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\ngpu = 0\nkind = \"hang\"\n";
    machine.control(fault);
    // Both lists that the script waits for are read after the call has begun to hang.
    let body = r#"
        await "$NVML_SIM_PROCFS/stat"; cp "$NVML_SIM_CONTROL" fault
        { cat fault; printf '[[process]]\npid = %s\ngpus = [1]\nmemory = "1GiB"\n' $$; } | place
        listed $$ 4194001 1
        exit 6
    "#;
    // On a busy machine, a call for the other GPU takes longer than 50 ms.
    let mut command = machine.run(&["--format=json", "--nvml.call-timeout=3s"], &script(body));
    let ended = ended(command.current_dir(machine.folder.path()));
    let report = parse(&ended);
    assert_eq!(ended.status, Some(6));
    let [sick, well] = [0, 1].map(|index| report["gpus"][index].as_object().unwrap());
    assert_eq!(well["together"]["peak_bytes"], 1024 * MIB + CONTEXT, "{report:#}");
    assert_eq!(well["used_peak_bytes"], 1024 * MIB + CONTEXT + 8 * MIB, "{report:#}");
    assert!(!sick.contains_key("used_peak_bytes") && !sick.contains_key("processes"), "{report:#}");
    assert!(report["together"].is_null(), "the sum over both is unknown: {report:#}");
    let said = notes(&report);
    assert!(said.contains("GPU 0: a driver call that began at"), "{said}");
    assert!(said.contains("GPU 0: the memory of the GPU as a whole was not read"), "{said}");
    assert!(!said.contains("GPU 1: the memory") && !said.contains("GPU 1: its processes"), "{said}");
    assert!(!said.contains("does not report") && !said.contains("too short"), "{said}");
}

#[test]
fn a_command_that_ends_before_the_driver_is_open_has_one_reading() {
    let machine = Machine::new(&format!("{GPU}[[process]]\npid = 4194200\nmemory = \"5GiB\"\n"));
    let (report, status) = report(&machine, &[], "exit 0");
    assert_eq!(status, Some(0));
    let gpu = &report["gpus"][0];
    assert_eq!(gpu["used_peak_bytes"], 5 * 1024 * MIB + CONTEXT + 8 * MIB, "{report:#}");
    assert_eq!(gpu["others"][0]["pid"], 4_194_200, "{report:#}");
    assert!(report["sampling"]["samples"].as_u64() >= Some(1) && report["sampling"]["lists"].as_u64() >= Some(1));
}

#[test]
fn a_driver_that_hangs_when_it_is_opened_does_not_hold_back_the_command() {
    let machine = Machine::new(GPU);
    machine.control("[[fault]]\ncall = [\"nvmlInit_v2\", \"nvmlInit\"]\nkind = \"hang\"\n");
    let started = machine.folder.path().join("started");
    let body = format!("touch {}; read line; exit 6", started.display());
    let mut command = machine.run(&["--format=json", "--nvml.call-timeout=50ms"], &body);
    let mut running = Running::start({
        command.stdin(Stdio::piped());
        command
    });
    let begun = || started.exists().then_some(()).ok_or("the command waits for the driver".to_owned());
    eventually_within(std::time::Duration::from_secs(20), "the start of the command:", begun);
    running.child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    let (status, _, report) = running.end();
    assert_eq!(status, Some(6));
    let report: Value = serde_json::from_str(&report).unwrap();
    assert!(notes(&report).contains("no GPU memory was measured: the driver was not open"), "{report:#}");
    assert!(report["sampling"].is_null() && report["together"].is_null(), "{report:#}");
}

#[test]
fn a_lost_driver_ends_the_measurement_and_not_the_command() {
    let machine = Machine::new(GPU);
    let fault = "printf '[[fault]]\\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\\nkind = \"error\"\\ncode = \"DRIVER_NOT_LOADED\"\\n'";
    let body = format!("{OPEN}; {fault} | place; sleep 4; exit 6");
    let (report, status) = report(&machine, &[], &body);
    assert_eq!(status, Some(6));
    assert!(notes(&report).contains("the measurement ended early: the driver was lost"), "{report:#}");
}

#[test]
fn a_device_that_fails_has_only_what_was_measured() {
    let call = "call = [\"nvmlDeviceGetComputeRunningProcesses_v3\", \"nvmlDeviceGetComputeRunningProcesses_v2\"]";
    let fault = format!("[[fault]]\n{call}\ngpu = 1\nkind = \"error\"\ncode = \"UNKNOWN\"\n");
    let machine = Machine::new(&format!("{}{fault}", GPU.repeat(2)));
    let body = "printf '[[process]]\\npid = %s\\nmemory = \"1GiB\"\\n' $$ | place; listed $$ 4194001";
    let (report, _) = report(&machine, &[], body);
    let [good, bad] = [0, 1].map(|index| report["gpus"][index].as_object().unwrap());
    assert_eq!(good["together"]["peak_bytes"], 1024 * MIB + CONTEXT, "{report:#}");
    assert!(bad.contains_key("used_peak_bytes") && !bad.contains_key("processes") && !bad.contains_key("others"));
    assert!(report["together"].is_null(), "the sum over both is unknown: {report:#}");
    assert!(notes(&report).contains("GPU 1: "), "{report:#}");
    assert!(
        notes(&report).contains("driver calls failed, the first: nvmlDeviceGetComputeRunningProcesses"),
        "{report:#}"
    );
}

#[test]
fn a_lost_gpu_has_no_values_and_the_others_keep_theirs() {
    let fault = "[[fault]]\ncall = \"*\"\ngpu = 1\nkind = \"error\"\ncode = \"GPU_IS_LOST\"\nfrom = \"0s\"\n";
    let machine = Machine::new(&GPU.repeat(2));
    machine.control(fault);
    let body = "cp \"$NVML_SIM_CONTROL\" fault; { cat fault; printf '[[process]]\\npid = %s\\nmemory = \"1GiB\"\\n' $$; } | place; \
                listed $$ 4194001";
    let mut command = machine.run(&["--format=json"], &script(body));
    let report = parse(&ended(command.current_dir(machine.folder.path())));
    assert_eq!(report["gpus"][0]["together"]["peak_bytes"], 1024 * MIB + CONTEXT, "{report:#}");
    let lost = report["gpus"].as_array().unwrap().get(1);
    assert!(lost.is_none_or(|gpu| gpu["used_peak_bytes"].is_null() && gpu["processes"].is_null()), "{report:#}");
    assert!(notes(&report).contains("GPU 1"), "{report:#}");
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let machine = Machine::built_in("hostile-names");
    let body = script("await $NVML_SIM_PROCFS/6009; listed 6009 4194001 # \u{1b}[31m");
    let said = ended(&mut machine.run(&[], &body)).err;
    assert!(said.contains("\\u{1b}[31m"), "{said}");
    assert!(said.chars().all(|c| c == '\n' || !c.is_control()), "{said:?}");
}

#[test]
fn a_demo_says_that_the_gpus_are_simulated() {
    let ended = ended(&mut tool(&["run", "--demo", "--", "/bin/true"]));
    assert!(ended.status == Some(0) && ended.err.contains("SIMULATED"), "{ended:?}");
}
