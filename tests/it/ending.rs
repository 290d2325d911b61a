//! The exporter exits on a signal, and `--once` exits by itself, whatever it is waiting for: files that hang as they
//! do on a dead mount, a cluster that does not respond, users without a name.

use std::process::Command;

use nix::sys::signal::Signal;

use crate::api_server::{ApiServer, Trouble, pod, status};
use crate::faults::{faults, rounds};
use crate::harness::{Exporter, Machine, eventually, pid, until};

const GPU: &str = "seed = 7\n[[gpu]]\nmodel = \"H200\"\n";
const CONTAINER: &str = "aaaaaaaaaaaa1111111111111111111111111111111111111111111111111111";
const NODE: &str = "--kubernetes.node-name=node-1";
/// Nothing needs to listen here, because no server is queried before the token has been read.
const SERVER: &str = "--kubernetes.api-server=http://127.0.0.1:9";
const IMPATIENT: &str = "--kubernetes.timeout=1s";

/// A file whose reader waits forever.
fn hanging_file(machine: &Machine) -> String {
    let path = machine.folder.path().join("hangs");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_file_that_hangs_holds_one_thread_and_does_not_block_the_end() {
    let machine = Machine::new(GPU);
    let file = format!("--kubernetes.token-file={}", hanging_file(&machine));
    let exporter = machine.export(&[NODE, SERVER, &file, IMPATIENT]);
    // One thread is hanging; another reads the files that do not hang.
    exporter.scrape_until("two faults", |scrape| faults(scrape, "kubernetes_api", "timeout") >= 2.0);
    exporter.logged("kubernetes.token-file");
    let before = exporter.threads();
    exporter.scrape_until("one more", |scrape| faults(scrape, "kubernetes_api", "timeout") >= 3.0);
    assert!(exporter.threads() <= before, "{before} threads, then {}", exporter.threads());
    assert!(exporter.terminate().success());
}

#[test]
fn a_pipe_instead_of_certificates_is_refused_and_does_not_block_the_end() {
    let machine = Machine::new(GPU);
    let file = format!("--kubernetes.ca-file={}", hanging_file(&machine));
    // Without TLS, nothing needs the certificates.
    let exporter = machine.export(&[NODE, "--kubernetes.api-server=https://127.0.0.1:9", &file, IMPATIENT]);
    exporter.logged("it is not a regular file");
    exporter.logged("kubernetes.ca-file");
    assert_eq!(faults(&exporter.scrape(), "kubernetes_api", "timeout"), 0.0);
    assert!(exporter.terminate().success());
}

#[test]
fn once_ends_although_a_file_hangs() {
    let machine = Machine::new(GPU);
    let file = format!("--kubernetes.token-file={}", hanging_file(&machine));
    let scrape = machine.once(&[NODE, SERVER, &file, IMPATIENT]);
    assert_eq!(scrape.value("vram_exporter_kubernetes_api_up", &[]), Some(0.0));
    assert_eq!(scrape.value("gpu_up", &[]), Some(1.0));
}

#[test]
fn once_does_not_wait_for_a_long_interval() {
    let machine = Machine::new(&format!("{GPU}[[process]]\npid = 11\nmemory = \"1GiB\"\nuid = 4242\n"));
    let dead = ["--process.interval=60s", NODE, SERVER, IMPATIENT];
    let scrape = machine.once(&dead);
    let info = scrape.all("gpu_process_info").next().unwrap();
    assert_eq!((info.label("uid"), info.label("user")), (Some("4242"), None));
}

#[test]
fn once_waits_for_names_that_come_after_the_first_list() {
    let cgroup = format!("0::/kubepods.slice/cri-containerd-{CONTAINER}.scope");
    let machine = Machine::new(&format!("{GPU}[[process]]\npid = 11\nmemory = \"1GiB\"\ncgroup = \"{cgroup}\"\n"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let api = runtime.block_on(ApiServer::start());
    api.put(pod("team-b", "notebook-7", &[("main", &format!("containerd://{CONTAINER}"))]));
    // The second request is made a while after the first one, and after the processes were listed.
    api.list_with(Some(Trouble::Status(503, status(503, "busy"), Some(1))));
    let scrape = std::thread::scope(|scope| {
        scope.spawn(|| {
            until("the first request", || !api.lists().is_empty());
            api.list_with(None);
        });
        let server = format!("--kubernetes.api-server={}", api.url());
        machine.once(&["--process.interval=60s", NODE, &server])
    });
    let info = scrape.all("gpu_process_info").next().unwrap();
    assert_eq!(info.label("pod"), Some("notebook-7"));
}

#[test]
fn the_exporter_ends_while_a_call_hangs() {
    let (machine, exporter) = Machine::running(&format!("{GPU}count = 2\n"), &["--nvml.call-timeout=300ms"]);
    machine.control("[[fault]]\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\nkind = \"hang\"\n");
    exporter.scrape_until("the stall", |s| s.all("gpu_up").all(|gpu| gpu.value == 0.0));
    assert!(exporter.terminate().success());
}

#[test]
fn a_lane_that_waits_for_its_next_sample_ends_at_once() {
    let machine = Machine::new(GPU);
    let path = machine.folder.path().join("log");
    let mut command = machine.command(&["--memory.rate=1", "--web.listen-address=127.0.0.1:0"]);
    let mut child = command.stderr(std::fs::File::create(&path).unwrap()).spawn().unwrap();
    let log = || std::fs::read_to_string(&path).unwrap();
    // The first sample is taken now, the next one in a second.
    until("the driver is open", || log().contains("the driver is open"));
    nix::sys::signal::kill(pid(&child), Signal::SIGTERM).unwrap();
    assert!(eventually("the end", || child.try_wait().unwrap()).success());
    assert!(!log().contains("does not return"), "{}", log());
}

#[test]
fn scrapes_in_progress_at_the_end_are_answered_completely() {
    // A scrape of 16 processes takes far less than the time for which the exporter waits at its end, on a busy machine too.
    let machine = Machine::built_in("busy-h200");
    let exporter = machine.export(&[]);
    let full = exporter.scrape_until("all processes", |s| s.all("gpu_process_info").count() == 16).text.len();
    let answers = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let (exporter, answers) = (&exporter, &answers);
        for _ in 0..4 {
            // Scrapes until a connection is refused, or is closed before its request is read.
            scope.spawn(move || {
                while let Ok(answer) = exporter.get("/metrics") {
                    answers.lock().unwrap().push(answer);
                }
            });
        }
        until("scrapes", || answers.lock().unwrap().len() > 8);
        exporter.signal(Signal::SIGTERM);
    });
    let answers = answers.into_inner().unwrap();
    for answer in &answers {
        assert!(answer.status == 200 && answer.whole, "{}", answer.head);
        assert!(answer.body.len() > full / 2 && answer.body.ends_with('\n'));
    }
    assert!(exporter.terminate().success());
}

#[test]
fn the_exporter_ends_while_the_driver_is_opened_released_or_closed() {
    let machine = Machine::new(GPU);
    // Opening the driver hangs.
    machine.control("[[fault]]\ncall = \"nvmlInit_v2\"\nkind = \"hang\"\n");
    let exporter = Exporter::start(machine.command(&[]));
    exporter.answers("/healthz", 200);
    assert!(exporter.terminate().success());
    machine.control("");
    // The driver is released.
    let exporter = machine.export(&[]);
    exporter.signal(Signal::SIGUSR1);
    exporter.scrape_until("the release", |s| s.value("vram_exporter_nvml_up", &[]) == Some(0.0));
    assert!(exporter.terminate().success());
    // Closing the driver hangs.
    let exporter = machine.export(&[]);
    machine.control("[[fault]]\ncall = \"nvmlShutdown\"\nkind = \"hang\"\n");
    let before = rounds(&exporter.scrape(), "memory");
    exporter.scrape_until("the library knows", |s| rounds(s, "memory") > before + 5.0);
    assert!(exporter.terminate().success());
}
