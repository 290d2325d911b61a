//! The exporter ends when it is told to, and `--once` by itself, whatever it waits for: files that hang as on a dead mount,
//! a cluster that does not answer, users without a name.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails in a test fails the test")]

mod api_server;
mod harness;

use std::path::Path;
use std::process::Command;

use api_server::{ApiServer, Trouble, pod, status};
use harness::{Exporter, Machine, Scrape, eventually};

const GPU: &str = "seed = 7\n[[gpu]]\nmodel = \"H200\"\n";
const CONTAINER: &str = "aaaaaaaaaaaa1111111111111111111111111111111111111111111111111111";
const NODE: &str = "--kubernetes.node-name=node-1";
/// Nobody is asked before the token was read.
const SERVER: &str = "--kubernetes.api-server=http://127.0.0.1:9";
const IMPATIENT: &str = "--kubernetes.timeout=1s";

/// A file whose reader waits for ever.
fn hanging_file(machine: &Machine) -> String {
    let path = machine.folder.path().join("hangs");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path.to_str().unwrap().to_owned()
}

fn timeouts(scrape: &Scrape) -> f64 {
    let pair = [("source", "kubernetes_api"), ("reason", "timeout")];
    scrape.value("vram_exporter_faults_total", &pair).unwrap()
}

fn threads(exporter: &Exporter) -> usize {
    std::fs::read_dir(Path::new("/proc").join(exporter.pid().to_string()).join("task")).unwrap().count()
}

#[test]
fn a_file_that_hangs_is_a_fault_holds_one_thread_and_does_not_keep_the_exporter_from_ending() {
    for key in ["kubernetes.token-file", "kubernetes.ca-file"] {
        let machine = Machine::new(GPU);
        let file = format!("--{key}={}", hanging_file(&machine));
        let exporter = machine.export(&[NODE, SERVER, &file, IMPATIENT]);
        // The one that hangs, and one for what does not.
        exporter.scrape_until("two faults", |scrape| timeouts(scrape) >= 2.0);
        assert!(exporter.log().contains(key), "{}", exporter.log());
        let before = threads(&exporter);
        exporter.scrape_until("one more", |scrape| timeouts(scrape) >= 3.0);
        assert!(threads(&exporter) <= before, "{key}: {before} threads, then {}", threads(&exporter));
        assert!(exporter.terminate().success());
    }
}

#[test]
fn once_ends_although_a_file_hangs() {
    for key in ["kubernetes.token-file", "kubernetes.ca-file"] {
        let machine = Machine::new(GPU);
        let file = format!("--{key}={}", hanging_file(&machine));
        let scrape = machine.once(&[NODE, SERVER, &file, IMPATIENT]);
        assert_eq!(scrape.value("vram_exporter_kubernetes_api_up", &[]), Some(0.0));
        assert_eq!(scrape.value("gpu_up", &[]), Some(1.0));
    }
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
fn once_has_the_names_that_come_after_the_first_list() {
    let cgroup = format!("0::/kubepods.slice/cri-containerd-{CONTAINER}.scope");
    let machine = Machine::new(&format!("{GPU}[[process]]\npid = 11\nmemory = \"1GiB\"\ncgroup = \"{cgroup}\"\n"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let api = runtime.block_on(ApiServer::start());
    api.put(pod("team-b", "notebook-7", &[("main", &format!("containerd://{CONTAINER}"))]));
    // The second question comes a while after the first one, and after the processes were listed.
    api.list_with(Some(Trouble::Status(503, status(503, "busy"), Some(1))));
    let scrape = std::thread::scope(|scope| {
        scope.spawn(|| {
            eventually("the first question", || (!api.lists().is_empty()).then_some(()));
            api.list_with(None);
        });
        let server = format!("--kubernetes.api-server={}", api.url());
        machine.once(&["--process.interval=60s", NODE, &server])
    });
    let info = scrape.all("gpu_process_info").next().unwrap();
    assert_eq!(info.label("pod"), Some("notebook-7"));
}
