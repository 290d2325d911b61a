//! However many clients connect at the same time, the exporter starts no thread for each of them.

use std::fs;

use nix::sys::signal::Signal;

use super::children::Process;
use super::*;

/// The clients that connect at the same time.
const CLIENTS: u64 = 300;
/// The threads that may be added: four that identify processes, and four that send answers of the web server.
const MORE_THREADS: usize = 8;
/// The limit on the threads of the exporter in [`Tasks`].
const MAX_TASKS: u64 = 40;

/// Connects all clients while the exporter is stopped, so that it finds all of them waiting, and waits until it has
/// refused them. All but the first four are too many for one process; on a busy machine, some are not identified in time,
/// or send no hello in time.
fn flood(site: &Site, exporter: &Exporter) -> Vec<Client> {
    let refused = || {
        let reasons = ["too_many_connections", "unknown_process", "unsupported_version"];
        reasons.iter().map(|reason| faults(exporter, reason)).sum::<u64>()
    };
    let before = refused();
    exporter.signal(Signal::SIGSTOP);
    let clients: Vec<_> = (0..CLIENTS).map(|_| Client::open(&site.socket)).collect();
    exporter.signal(Signal::SIGCONT);
    until("all but four clients are refused", || refused() >= before + CLIENTS - 4);
    clients
}

#[test]
fn three_hundred_clients_at_once_take_few_threads_and_leave_others_their_turn() {
    let (site, exporter, uuid) = Site::exported();
    let before = exporter.threads();
    let _clients = flood(&site, &exporter);
    // A thread of the pool lives on for ten seconds after its work.
    let after = exporter.threads();
    assert!(after <= before + MORE_THREADS, "{before} threads before, {after} after");
    let mut honest = Process::start(&site);
    site.list(&[(honest.pid(), 4 * GIB)]);
    honest.send(&report("pytorch", &uuid, r#""allocated_bytes":5"#));
    exporter.scrape_until("the honest process", |scrape| value(scrape, ALLOCATED, honest.pid()) == Some(5));
}

/// A cgroup that limits the number of tasks. It is removed with the value.
struct Tasks(PathBuf);

impl Tasks {
    /// `None` if this test may not create one.
    fn limit(exporter: &Exporter) -> Option<Self> {
        let name = format!("vram-exporter-test-{}", exporter.pid());
        let made = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].iter().find_map(|parent| {
            let tasks = Self(Path::new(parent).join(&name));
            fs::create_dir(&tasks.0).ok()?;
            fs::write(tasks.0.join("pids.max"), MAX_TASKS.to_string()).ok()?;
            fs::write(tasks.0.join("cgroup.procs"), exporter.pid().to_string()).ok()?;
            Some(tasks)
        });
        if missing("a writable cgroup with the controller pids", made.is_some()) { None } else { made }
    }

    fn events(&self) -> String {
        fs::read_to_string(self.0.join("pids.events")).unwrap()
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // It is empty once the exporter has ended.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn under_a_limit_on_tasks_new_processes_keep_their_names() {
    let site = Site::new();
    let exporter = site.export();
    let Some(tasks) = Tasks::limit(&exporter) else { return };
    // Moved, so that it ends before its cgroup is removed.
    let exporter = exporter;
    for _ in 0..3 {
        let _clients = flood(&site, &exporter);
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        let _child = Killed(child);
        site.list(&[(pid, GIB)]);
        let is_named = |scrape: &Scrape| {
            let mut all = scrape.all("gpu_process_memory_used_bytes");
            all.any(|series| series.label("pid") == Some(&pid.to_string()) && series.label("process") == Some("sleep"))
        };
        exporter.scrape_until("the name of the new process", is_named);
    }
    assert_eq!(tasks.events(), "max 0\n", "no thread was refused");
}
