//! What processes report about their allocators, over the socket of the real binary on a simulated machine. The clients
//! are this test and its children; the machine's procfs is the real one, so that their pids and start times are real.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use workspace_skips::missing;

use crate::harness::{
    Exporter, Killed, Machine, PATIENCE, Scrape, allow_many_files, assert_refused, bare, ended, eventually, inside,
    pid_namespace, until,
};

mod answers;
mod children;
mod hostile;
mod ladder;
mod leaks;
mod refusals;
mod socket;
mod threads;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Bytes of GPU memory that a context takes.
const CONTEXT: u64 = 520 * MIB;

const HELLO: &str = r#"{"type":"hello","version":1,"client":"test"}"#;
const ALIVE: &str = r#"{"type":"alive"}"#;
const ALLOCATED: &str = "gpu_process_allocator_allocated_bytes";
const RESERVED: &str = "gpu_process_allocator_reserved_bytes";

/// A machine with two H200 GPUs and a socket.
struct Site {
    machine: Machine,
    socket: PathBuf,
}

impl Site {
    fn new() -> Self {
        let machine = Machine::new("seed = 3\n[[gpu]]\nmodel = \"H200\"\ncount = 2\n");
        let socket = machine.folder.path().join("allocator.sock");
        Self { machine, socket }
    }

    /// The processes on GPU 0: their pids and how much memory they hold in addition to their contexts.
    fn list(&self, processes: &[(u32, u64)]) {
        let list = processes.iter().map(|(pid, bytes)| {
            let mib = bytes / MIB;
            format!("[[process]]\npid = {pid}\nmemory = \"{mib}MiB\"\nuid = 0\nuser = \"root\"\n")
        });
        self.machine.control(&list.collect::<String>());
    }

    fn command(&self, flags: &[&str]) -> Command {
        let socket = format!("--allocator.socket={}", self.socket.display());
        let flags = [&["--path.procfs=/proc", &socket], flags].concat();
        self.machine.command(&flags)
    }

    fn export(&self) -> Exporter {
        let exporter = Exporter::start(self.command(&[]));
        exporter.answers("/readyz", 200);
        exporter
    }

    /// This test as a process on GPU 0, with this much memory in addition to its context.
    fn with_self(bytes: u64) -> (Self, Exporter, String) {
        let site = Self::new();
        site.list(&[(std::process::id(), bytes)]);
        let exporter = site.export();
        let uuid = uuid(&exporter, 0);
        (site, exporter, uuid)
    }

    /// An exporter on the machine, and the UUID of GPU 0.
    fn exported() -> (Self, Exporter, String) {
        let site = Self::new();
        let exporter = site.export();
        let uuid = uuid(&exporter, 0);
        (site, exporter, uuid)
    }

    fn connect(&self) -> Client {
        Client::connect(&self.socket)
    }
}

fn uuid(exporter: &Exporter, gpu: usize) -> String {
    let scrape = exporter.scrape();
    let gpu = gpu.to_string();
    let info = scrape.all("gpu_info").find(|series| series.label("gpu") == Some(&gpu)).unwrap();
    info.label("uuid").unwrap().to_owned()
}

/// A client in this process.
struct Client {
    lines: BufReader<UnixStream>,
    to: Arc<Mutex<UnixStream>>,
}

impl Client {
    /// Connects without sending a message.
    fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let to = Arc::new(Mutex::new(stream.try_clone().unwrap()));
        Self { lines: BufReader::new(stream), to }
    }

    /// Connects, waits for the welcome, and then sends only what the test sends, so that its values become stale.
    fn silent(socket: &Path) -> Self {
        let mut client = Self::open(socket);
        client.send(HELLO);
        assert_eq!(client.answer()["type"], "welcome");
        client
    }

    /// Connects, waits for the welcome, and keeps the connection alive.
    fn connect(socket: &Path) -> Self {
        let client = Self::silent(socket);
        client.keep_alive();
        client
    }

    /// Says once a second that nothing has changed, until the connection ends: however slow the machine is, a test does not
    /// lose its values because it waits for something else.
    fn keep_alive(&self) {
        let to = Arc::downgrade(&self.to);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let Some(to) = to.upgrade() else { return };
                if writeln!(to.lock().unwrap(), "{ALIVE}").is_err() {
                    return;
                }
            }
        });
    }

    fn send(&mut self, line: &str) {
        self.write(format!("{line}\n").as_bytes());
    }

    fn write(&mut self, bytes: &[u8]) {
        self.to.lock().unwrap().write_all(bytes).unwrap();
    }

    /// A line from the exporter.
    fn answer(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?} is no answer"))
    }

    /// The reason in the error with which the exporter ends the connection.
    fn refusal(&mut self) -> String {
        let answer = self.answer();
        assert_eq!(answer["type"], "error", "{answer}");
        let mut rest = Vec::new();
        // The socket may also be reset, since the exporter does not read the rest.
        let ended = self.lines.read_to_end(&mut rest);
        assert!(ended.is_err() || rest.is_empty(), "{rest:?}");
        answer["reason"].as_str().unwrap().to_owned()
    }

    fn report(&mut self, uuid: &str, more: &str) {
        self.send(&report("pytorch", uuid, more));
    }
}

fn report(framework: &str, uuid: &str, more: &str) -> String {
    format!(r#"{{"type":"report","framework":"{framework}","device":"{uuid}",{more}}}"#)
}

/// The value of this family for a process, whatever the framework is.
fn value(scrape: &Scrape, family: &str, pid: u32) -> Option<u64> {
    scrape.value(family, &[("pid", &pid.to_string())]).map(|value| value as u64)
}

/// How many faults with this reason have been counted.
fn faults(exporter: &Exporter, reason: &str) -> u64 {
    crate::faults::faults(&exporter.scrape(), "allocator", reason) as u64
}

/// The names of all series that come from the reports of clients.
fn reported(scrape: &Scrape) -> Vec<&str> {
    let is_reported = |name: &str| name.contains("allocator") || name == "gpu_memory_needed_bytes";
    scrape.series.iter().map(|series| series.name.as_str()).filter(|name| is_reported(name)).collect()
}
