//! What the command's processes report about their memory allocators: with the Python client and its stand-in for
//! PyTorch, and with programs that speak the protocol themselves.

use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};

use workspace_skips::missing;

use super::*;

/// The device of the stand-in for PyTorch.
const DEVICE: &str = "GPU-05b7b3b8-a000-0000-0000-000000000000";
const GIB: u64 = 1024 * MIB;
const DEFAULT: &str = "/run/vram-exporter/allocator.sock";

/// The beginning of a program that speaks the protocol.
const SPEAK: &str = r#"
import json, os, signal, socket, sys, time
def connect():
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(os.environ["VRAM_EXPORTER_SOCKET"].split(":")[0])
    return peer
def send(peer, **message): peer.sendall(json.dumps(message).encode() + b"\n")
def hello():
    peer = connect()
    send(peer, type="hello", version=1)
    return peer
def report(peer, device, framework="pytorch", **values): send(peer, type="report", framework=framework, device=device, **values)
"#;

fn machine() -> Machine {
    Machine::new(&format!("[[gpu]]\nmodel = \"H200\"\nuuid = \"{DEVICE}\"\n"))
}

/// The path of the interpreter, because it may not be on the search path of the scripts; `None` if there is none.
fn python() -> Option<String> {
    let code = "import sys; assert sys.version_info >= (3, 9); print(sys.executable)";
    let output = Command::new("python3").args(["-c", code]).output().ok().filter(|output| output.status.success());
    let there = output.map(|output| String::from_utf8(output.stdout).unwrap().trim().to_owned());
    if missing("python3 (3.9 or newer)", there.is_some()) { None } else { there }
}

/// `run` with a shell script in which `speak FILE` runs a program whose text is `program`.
fn speaking(machine: &Machine, python: &str, flags: &[&str], program: &str, body: &str) -> Command {
    let file = machine.folder.path().join("program.py");
    fs::write(&file, format!("{SPEAK}{program}")).unwrap();
    let speak = format!("speak() {{ {python} -S {} \"$@\"; }}\n", file.display());
    let mut command = machine.run(flags, &script(&format!("{speak}{body}")));
    command.env("TMPDIR", machine.folder.path());
    command
}

/// The folders of runs that are left.
fn left(machine: &Machine) -> Vec<String> {
    let names = fs::read_dir(machine.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with("vram-run-")).collect()
}

#[test]
fn the_command_gets_a_private_socket_in_addition_to_the_one_it_would_report_to() {
    let machine = machine();
    let temporary = machine.folder.path().to_str().unwrap();
    let runtime = tempfile::tempdir().unwrap();
    let body = "echo \"$VRAM_EXPORTER_ARM $VRAM_EXPORTER_SOCKET\"; own=${VRAM_EXPORTER_SOCKET%%:*}; [ -S \"$own\" ] && \
                stat -c %a \"${own%/*}\"; exit 3";
    for (inherited, arm, rest, armed) in
        [(None, None, DEFAULT, "1"), (Some("/a:/b"), Some("1"), "/a:/b", "1"), (None, Some("0"), DEFAULT, "0")]
    {
        for folder in [temporary, runtime.path().to_str().unwrap()] {
            let mut command = machine.run(&[], body);
            command.env("TMPDIR", temporary);
            command.envs(inherited.map(|sockets| ("VRAM_EXPORTER_SOCKET", sockets)));
            command.envs(arm.map(|arm| ("VRAM_EXPORTER_ARM", arm)));
            command.env("XDG_RUNTIME_DIR", if folder == temporary { "/nonexistent" } else { folder });
            let Ended { status, out: said, err } = ended(&mut command);
            assert_eq!(status, Some(3), "{said}");
            let (line, mode) = said.trim_end().split_once('\n').unwrap();
            let (shown, list) = line.split_once(' ').unwrap();
            let (own, others) = list.split_once(':').unwrap();
            assert_eq!((shown, others, mode), (armed, rest, "700"), "{said}");
            assert!(own.starts_with(&format!("{folder}/vram-run-")), "{said}");
            assert!(own.len() <= 107 && !Path::new(own).parent().unwrap().exists(), "{own} is left");
            assert!(!err.contains("allocator"), "{err}");
        }
    }
}

#[test]
fn the_folder_is_removed_when_the_command_cannot_start() {
    let machine = machine();
    let mut command = tool(&["run", "--demo=idle-h200", "--", "/nonexistent/train"]);
    assert_eq!(ended(command.env("TMPDIR", machine.folder.path())).status, Some(127));
    assert_eq!(left(&machine), [""; 0]);
}

#[test]
fn without_a_socket_the_command_runs_and_a_note_says_why() {
    let machine = machine();
    let mut command = machine.run(&["--format=json"], "echo \"[$VRAM_EXPORTER_ARM$VRAM_EXPORTER_SOCKET]\"; exit 4");
    let ended = ended(command.env("TMPDIR", "/nonexistent").env("XDG_RUNTIME_DIR", "/proc/none"));
    assert_eq!((ended.status, ended.out.as_str()), (Some(4), "[]\n"));
    let report = parse(&ended);
    assert!(
        notes(&report).contains("no process could report about its allocator: no socket in /nonexistent"),
        "{report:#}"
    );
    assert!(report["allocators"].is_null(), "{report:#}");
}

/// A program that uses the stand-in and ends right after a failed allocation. When a program ends, the client waits a
/// short time for its own last reading; on a very busy machine this time is too short, so it is extended here.
const JOB: &str = "import sys, torch
import vram_exporter._client
vram_exporter._client.JOIN = 60.0
kept = torch.empty(10 << 20)
high = torch.empty(300 << 20); del high
torch.cuda.empty_cache()
try: torch.empty(1 << 40)
except torch.OutOfMemoryError: pass
";

#[test]
fn what_the_python_client_reports_is_complete_although_the_command_ends_at_once() {
    let Some(python) = python() else { return };
    let machine = machine();
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python");
    let (bootstrap, standin) = (clients.join("src/vram_exporter/_bootstrap"), clients.join("tests/standin"));
    // An exporter to which the job reports as well.
    let exporter = machine.folder.path().join("exporter.sock");
    let listener = UnixListener::bind(&exporter).unwrap();
    let job = machine.folder.path().join("job.py");
    fs::write(&job, JOB).unwrap();
    // The driver is opened beside the command. Before it is open, no index of a GPU is known.
    let body = format!(
        "listed() {{ :; }}; while [ ! -e \"$NVML_SIM_PROCFS/stat\" ]; do sleep 0.01; done; {python} {} & wait $!; exit $?",
        job.display()
    );
    let mut command = machine.run(&["--format=json"], &body);
    command.env("PYTHONPATH", format!("{}:{}", bootstrap.display(), standin.display()));
    command.env("STANDIN_WAIT_FOR_CLIENT", "1").env("VRAM_EXPORTER_SOCKET", &exporter);
    let ended = ended(&mut command);
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    let report = parse(&ended);
    let [used] = &report["allocators"].as_array().unwrap()[..] else { panic!("{report:#}") };
    assert_eq!((used["framework"].as_str(), used["device"].as_str()), (Some("pytorch"), Some(DEVICE)));
    assert_eq!((used["gpu"].as_u64(), used["failed_allocations"].as_u64()), (Some(0), Some(1)), "{report:#}");
    assert_eq!(used["allocated_peak_bytes"], 310 * MIB);
    assert_eq!(used["reserved_peak_bytes"], 310 * MIB, "the reserved memory was freed before the only reading");
    assert_eq!(used["failures"][0]["requested_bytes"], 1_u64 << 40);
    assert_eq!(used["failures"][0]["free_bytes"], (1_u64 << 37) - 10 * MIB);
    let failed_at = used["failures"][0]["seconds"].as_f64().unwrap();
    assert!((0.0..=report["duration_seconds"].as_f64().unwrap()).contains(&failed_at), "{report:#}");

    let (mut stream, _) = listener.accept().unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert!(said.contains("\"out_of_memory\"") && said.contains("\"peak_bytes\":325058560"), "{said}");
}

#[test]
fn a_report_is_shown_below_its_process_and_one_about_another_device_by_its_uuid() {
    let Some(python) = python() else { return };
    let program = r#"
report(peer := hello(), sys.argv[1], allocated_bytes=1 << 30, reserved_bytes=4 << 30, peak_bytes=2 << 30, retries=2, out_of_memory=1)
send(peer, type="out_of_memory", framework="pytorch", device=sys.argv[1], requested_bytes=8 << 30, free_bytes=3 << 29)
report(peer, "GPU-elsewhere", "jax", allocated_bytes=5 << 20)
print(os.getpid(), flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"#;
    for flags in [&["--format=json"][..], &[]] {
        let machine = machine();
        let body = format!("exec 2> /dev/null; mkfifo in out; speak {DEVICE} < in > out & exec 3> in 4< out; read pid <&4
            printf '[[process]]\\npid = %s\\nmemory = \"5GiB\"\\n' $pid | place; listed $pid 4194001; echo >&3; wait $!");
        let mut command = speaking(&machine, &python, flags, program, &body);
        let ended = ended(command.current_dir(tempfile::tempdir_in(machine.folder.path()).unwrap().keep()));
        // 128 + SIGKILL, from the shell.
        assert_eq!(ended.status, Some(137), "{}", ended.err);
        let note = "pytorch in process ";
        let rest =
            " reserved up to 4.00 GiB and had at most 2.00 GiB of it allocated: the peak and \"fits in\" can include";
        if flags.is_empty() {
            let said = ended.err;
            let line = "      pytorch: at most 2.00 GiB allocated, 4.00 GiB reserved; 2 retries, 1 failed allocation (asked \
                        for 8.00 GiB with 1.50 GiB free)\n";
            let (process, after) = said.split_once(line).unwrap_or_else(|| panic!("{said}"));
            assert!(process.lines().last().unwrap().starts_with("    pid "), "{said}");
            let elsewhere = after.lines().find(|line| line.starts_with("  reported   pid ")).unwrap();
            assert!(elsewhere.ends_with(" on GPU-elsewhere: jax: at most 5 MiB allocated"), "{said}");
            assert!(said.contains(note) && said.contains(rest), "{said}");
        } else {
            let report = parse(&ended);
            let process = &report["gpus"][0]["processes"][0]["pid"];
            let [pytorch, jax] = &report["allocators"].as_array().unwrap()[..] else { panic!("{report:#}") };
            assert!(pytorch["pid"] == *process && jax["pid"] == *process && process.is_u64(), "{report:#}");
            assert_eq!(pytorch["reserved_peak_bytes"], 4 * GIB);
            assert!(
                jax["gpu"].is_null() && jax["reserved_peak_bytes"].is_null() && jax["retries"].is_null(),
                "{jax:#}"
            );
            assert!(notes(&report).contains(note) && notes(&report).contains(rest), "{report:#}");
        }
        assert_eq!(left(&machine), [""; 0]);
    }
}

#[test]
fn processes_that_end_right_after_their_report_are_all_counted() {
    let Some(python) = python() else { return };
    let machine = machine();
    // Each program ends before the server can look it up; the last one ends together with the command.
    let program = "report(hello(), 'GPU-1', allocated_bytes=int(sys.argv[1]))\nos._exit(0)\n";
    let body = "for i in 1 2 3 4 5 6 7 8; do speak $i; done; speak 9 2> /dev/null & speak 10";
    let mut command = speaking(&machine, &python, &["--format=json"], program, body);
    let report = parse(&ended(&mut command));
    let uses = report["allocators"].as_array().unwrap();
    let mut peaks: Vec<_> = uses.iter().map(|used| used["allocated_peak_bytes"].as_u64().unwrap()).collect();
    peaks.sort_unstable();
    peaks.retain(|&peak| peak != 9);
    assert_eq!(peaks, [1, 2, 3, 4, 5, 6, 7, 8, 10], "{report:#}");
    assert!(!notes(&report).contains("refused"), "{report:#}");
}

#[test]
fn a_process_that_the_command_did_not_start_is_not_in_its_report() {
    let machine = machine();
    let body = "echo \"$VRAM_EXPORTER_SOCKET\"; read line; exit 5";
    let mut command = machine.run(&["--format=json"], body);
    command.stdin(Stdio::piped());
    let mut running = Running::start(command);
    let list = running.line();
    let mut stream = UnixStream::connect(list.split(':').next().unwrap()).unwrap();
    stream.set_read_timeout(Some(crate::harness::PATIENCE)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("unknown_process"), "{answer}");
    running.child.0.stdin.take().unwrap().write_all(b"on\n").unwrap();
    let (status, _, report) = running.end();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(status, Some(5));
    assert!(report["allocators"].is_null(), "{report:#}");
    let note = "what processes reported about their allocators was refused 1 time (unknown_process)";
    assert!(notes(&report).contains(note), "{report:#}");
}

#[test]
fn a_hostile_process_harms_neither_the_command_nor_the_report() {
    let Some(python) = python() else { return };
    let machine = machine();
    let program = r#"
if sys.argv[1] == "good":
    report(hello(), "GPU-1", allocated_bytes=7)
    os._exit(6)
held = []
for line in [b"\0\xff\n", b"x" * 5000, b"{}\n", b'{"type":"hello","version":9}\n', b"[" * 4000 + b"\n"]:
    held.append(connect())
    try: held[-1].sendall(line * 50)
    except OSError: pass
peer = hello()
peer.setblocking(False)
for number in range(3000):
    try: report(peer, "GPU-%d" % number, "f\u001b[31m", allocated_bytes=1 << 60, reserved_bytes=-1)
    except OSError: break
peer = hello()
report(peer, "GPU-evil", "evil", allocated_bytes=3, reserved_bytes=1 << 53)
held += [peer] + [connect() for _ in range(3)]
open("ready", "w").close()
while not os.path.exists("stop"): time.sleep(0.01)
"#;
    let body = "speak bad & while [ ! -e ready ]; do sleep 0.01; done; speak good";
    let mut command = speaking(&machine, &python, &["--format=json"], program, body);
    let folder = tempfile::tempdir().unwrap();
    let mut running = Running::start({
        command.current_dir(folder.path());
        command
    });
    let status = eventually("the end of the run", || running.child.0.try_wait().unwrap());
    fs::write(folder.path().join("stop"), "").unwrap();
    let mut said = String::new();
    running.child.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let report: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!(status.code(), Some(6));
    let uses = report["allocators"].as_array().unwrap();
    let good = uses.iter().find(|used| used["device"] == "GPU-1").unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!(good["allocated_peak_bytes"], 7, "{report:#}");
    assert!(uses.iter().all(|used| ["pytorch", "evil"].contains(&used["framework"].as_str().unwrap())), "{report:#}");
    assert!(notes(&report).contains(" times (invalid_message, "), "{report:#}");
    assert_eq!(left(&machine), [""; 0]);
}
