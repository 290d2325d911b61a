//! Runs the real binary on a simulated machine, through the real nvml-wrapper, and reads its responses.
//!
//! Nothing here waits for a fixed time: [`eventually`] repeats a check until it succeeds or a generous time limit
//! has passed.

mod http;
mod programs;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;

pub(crate) use http::{Answer, connect};
pub(crate) use programs::{
    Ended, Killed, Logging, address_in, assert_refused, ended, inside, install, pid, pid_namespace,
};

/// How long anything may take before a test fails. Generous: the machine may be busy, and 16 tests run at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// The exporter that the tests run: the one that cargo built with them, or the one that `VRAM_EXPORTER_TEST_PROGRAM` names,
/// such as a script that runs a build for another architecture in an emulator.
pub(crate) fn program() -> PathBuf {
    let built = || PathBuf::from(env!("CARGO_BIN_EXE_vram-exporter"));
    std::env::var_os("VRAM_EXPORTER_TEST_PROGRAM").map_or_else(built, PathBuf::from)
}

/// The tool `vram`, which `cargo test --workspace` builds beside the exporter, or which is beside the program that
/// `VRAM_EXPORTER_TEST_PROGRAM` names.
pub(crate) fn tool_program() -> PathBuf {
    static CHECKED: OnceLock<PathBuf> = OnceLock::new();
    let checked = || {
        let path = program().with_file_name("vram");
        assert!(path.is_file(), "{} is missing: build it with `cargo build --package vram`", path.display());
        // `cargo test --test it` builds the programs of the package of this test alone.
        if std::env::var_os("VRAM_EXPORTER_TEST_PROGRAM").is_none() {
            let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
            let sources = ["vram/src", "gpu-readings/src"].map(|folder| newest(&crates.join(folder)));
            let is_newer = sources.into_iter().max() > fs::metadata(&path).unwrap().modified().ok();
            assert!(!is_newer, "{} is older than its sources: run `cargo build --package vram`", path.display());
        }
        path
    };
    CHECKED.get_or_init(checked).clone()
}

/// When a file in the folder was last changed.
fn newest(folder: &Path) -> SystemTime {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let changed = |path: PathBuf| {
        if path.is_dir() { newest(&path) } else { fs::metadata(path).unwrap().modified().unwrap() }
    };
    entries.map(changed).max().unwrap()
}

/// A command that runs the tool without a simulated machine.
pub(crate) fn tool(flags: &[&str]) -> Command {
    unset(Command::new(tool_program()), flags)
}

/// The simulator's library, which cargo builds as a dependency of the exporter.
pub(crate) fn simulator() -> PathBuf {
    let library = program().parent().unwrap().join("deps").join("libnvml_sim.so");
    assert!(library.is_file(), "{} is missing: build with the feature `demo`", library.display());
    library
}

/// Raises this process's limit on open files to the maximum, for concurrent tests that hold hundreds of files open.
pub(crate) fn allow_many_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most.min(1 << 16), most).unwrap();
}

/// Repeats the call until it returns a value.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    eventually_or(what, || ask().ok_or(String::new()))
}

/// Repeats the check until it holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, || holds().then_some(()));
}

/// Repeats the check until it succeeds. On failure the message says what the last attempt lacked.
pub(crate) fn eventually_or<T>(what: &str, ask: impl FnMut() -> Result<T, String>) -> T {
    eventually_within(PATIENCE, what, ask)
}

/// The same with another limit than [`PATIENCE`].
pub(crate) fn eventually_within<T>(limit: Duration, what: &str, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let begin = Instant::now();
    loop {
        let lacking = match ask() {
            Ok(answer) => return answer,
            Err(lacking) => lacking,
        };
        assert!(begin.elapsed() < limit, "not within {limit:?}: {what} {lacking}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A simulated machine: a scenario, its `/proc`, and a control file for what happens while it runs.
pub(crate) struct Machine {
    pub(crate) folder: Arc<TempDir>,
    scenario: String,
    library: PathBuf,
    epoch: f64,
}

/// One reading a second. A test that compares all series needs it: at the default rate a call that takes 50 ms is a slow one,
/// which a busy machine causes, and a fault has series of its own.
pub(crate) const CALM: &str = "--memory.rate=1";

impl Machine {
    /// A built-in scenario.
    pub(crate) fn built_in(name: &str) -> Self {
        Self::of(name.to_owned(), tempfile::tempdir().unwrap())
    }

    /// A scenario that the test provides.
    pub(crate) fn new(scenario: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scenario.toml");
        fs::write(&path, scenario).unwrap();
        Self::of(path.to_str().unwrap().to_owned(), folder)
    }

    fn of(scenario: String, folder: TempDir) -> Self {
        let now = SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Self { folder: Arc::new(folder), scenario, library: simulator(), epoch: now.as_secs_f64() }
    }

    /// A machine with this scenario, and an exporter on it.
    pub(crate) fn running(scenario: &str, flags: &[&str]) -> (Self, Exporter) {
        let machine = Self::new(scenario);
        let exporter = machine.export(flags);
        (machine, exporter)
    }

    /// Uses another library in place of the simulator that cargo built.
    pub(crate) fn with_library(mut self, library: PathBuf) -> Self {
        self.library = library;
        self
    }

    /// Uses a library that lacks the symbols of these calls, as an old driver's library does.
    pub(crate) fn without_calls<'c>(self, calls: impl IntoIterator<Item = &'c str>) -> Self {
        let mut bytes = fs::read(simulator()).unwrap();
        nvml_sim::hide(&mut bytes, calls).unwrap();
        let library = self.folder.path().join("libnvidia-ml.so.1");
        fs::write(&library, bytes).unwrap();
        self.with_library(library)
    }

    pub(crate) fn procfs(&self) -> PathBuf {
        self.folder.path().join("proc")
    }

    /// Replaces the content of the control file: faults and processes in addition to the scenario.
    pub(crate) fn control(&self, content: &str) {
        let aside = self.folder.path().join("control.new");
        fs::write(&aside, content).unwrap();
        fs::rename(aside, self.folder.path().join("control.toml")).unwrap();
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        let path = |name: &str| self.folder.path().join(name).to_str().unwrap().to_owned();
        vec![
            ("NVML_SIM_SCENARIO", self.scenario.clone()),
            ("NVML_SIM_PROCFS", path("proc")),
            ("NVML_SIM_CONTROL", path("control.toml")),
            ("NVML_SIM_EPOCH", format!("{:.6}", self.epoch)),
        ]
    }

    /// A command that runs the binary on this machine.
    pub(crate) fn command(&self, flags: &[&str]) -> Command {
        self.equipped(bare(&[]), flags)
    }

    /// `vram` on this machine.
    pub(crate) fn tool(&self, flags: &[&str]) -> Command {
        self.equipped(tool(&[]), flags)
    }

    /// `vram run` with a shell script, on this machine.
    pub(crate) fn run(&self, flags: &[&str], script: &str) -> Command {
        let mut command = self.equipped(tool(&["run"]), flags);
        command.args(["--", "sh", "-c", script]).env("PATH", "/usr/bin:/bin");
        command
    }

    fn equipped(&self, mut command: Command, flags: &[&str]) -> Command {
        command
            .arg(format!("--nvml.library={}", self.library.display()))
            .args(flags)
            // Passed as environment variables, so that a test's flag takes precedence.
            .env("VRAM_EXPORTER_PATH_PROCFS", self.procfs())
            .env("VRAM_EXPORTER_PATH_PASSWD", self.procfs().join("passwd"))
            // Half the default: tests wait for what a pass finds without a change in memory.
            .env("VRAM_EXPORTER_PROCESS_INTERVAL", "1s")
            .envs(self.environment());
        command
    }

    /// Starts the exporter on this machine and waits until it has read everything once.
    pub(crate) fn export(&self, flags: &[&str]) -> Exporter {
        let mut exporter = Exporter::start(self.command(flags));
        exporter._machine = Some(self.folder.clone());
        exporter.answers("/readyz", 200);
        exporter
    }

    /// `--once`: the exposition after everything has been read once.
    pub(crate) fn once(&self, flags: &[&str]) -> Scrape {
        let ended = ended(self.command(flags).arg("--once"));
        assert_eq!(ended.status, Some(0), "{}", ended.err);
        Scrape::parse(&ended.out)
    }
}

/// A command that runs the binary without a simulated machine.
pub(crate) fn bare(flags: &[&str]) -> Command {
    unset(Command::new(program()), flags)
}

/// The command with these flags, without the environment of the tests.
fn unset(mut command: Command, flags: &[&str]) -> Command {
    command.args(flags).env_clear().stdin(Stdio::null());
    command
}

/// A running exporter. It is killed when this value is dropped.
pub(crate) struct Exporter {
    running: Logging,
    pub(crate) address: SocketAddr,
    /// The machine's folder, which the exporter reads for as long as it runs.
    _machine: Option<Arc<TempDir>>,
}

impl Exporter {
    /// Starts the command on a free port.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut running = Logging::start(command.arg("--web.listen-address=127.0.0.1:0"));
        let address = running.address("listening");
        Self { running, address, _machine: None }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.child.0.id()
    }

    pub(crate) fn log(&self) -> String {
        self.running.log()
    }

    /// Waits until the log contains the text. What a scrape shows may be counted before it is logged.
    pub(crate) fn logged(&self, text: &str) {
        until(&format!("the log contains {text:?}"), || self.log().contains(text));
    }

    /// The address of a listener of its own, in the log line that contains these words.
    pub(crate) fn listener(&self, words: &str) -> SocketAddr {
        eventually("the log names the address", || address_in(&self.log(), words))
    }

    /// The number of its threads.
    pub(crate) fn threads(&self) -> usize {
        fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().count()
    }

    pub(crate) fn scrape(&self) -> Scrape {
        let answer = self.get("/metrics").unwrap();
        assert_eq!(answer.status, 200);
        Scrape::parse(&answer.body)
    }

    /// Scrapes until a scrape meets the condition, and returns that scrape.
    pub(crate) fn scrape_until(&self, what: &str, wanted: impl Fn(&Scrape) -> bool) -> Scrape {
        eventually(what, || Some(self.scrape()).filter(&wanted))
    }

    /// One request over a new connection.
    pub(crate) fn get(&self, path: &str) -> std::io::Result<Answer> {
        Answer::get(self.address, path)
    }

    /// One request with further header lines, each with its line end, over a new connection.
    pub(crate) fn get_with(&self, path: &str, headers: &str) -> std::io::Result<Answer> {
        Answer::ask(connect(self.address)?, "GET", path, headers)
    }

    /// What the API answers.
    pub(crate) fn json(&self, path: &str) -> serde_json::Value {
        let answer = self.get(path).unwrap();
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, "application/json"),
            "{path}: {}",
            answer.body
        );
        serde_json::from_str(&answer.body).unwrap()
    }

    /// Waits until the path is answered with this status, and returns the answer.
    pub(crate) fn answers(&self, path: &str, status: u16) -> Answer {
        eventually(path, || self.get(path).ok().filter(|answer| answer.status == status))
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(pid(&self.running.child.0), signal).unwrap();
    }

    /// Sends SIGTERM and returns the exit status.
    pub(crate) fn terminate(mut self) -> std::process::ExitStatus {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        eventually("the exporter ends", || self.running.child.0.try_wait().unwrap())
    }
}

/// An exposition, read by the tests' strict reader.
pub(crate) struct Scrape {
    pub(crate) text: String,
    pub(crate) series: Vec<Series>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) labels: exposition::Labels,
    pub(crate) value: f64,
}

impl Series {
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }
}

impl Scrape {
    pub(crate) fn parse(text: &str) -> Self {
        let series = exposition::read(text).into_iter().flat_map(|family| family.series).map(|series| Series {
            value: series.number(),
            name: series.name,
            labels: series.labels,
        });
        Self { text: text.to_owned(), series: series.collect() }
    }

    /// The names and labels of all series, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.series.iter().map(|s| format!("{}{:?}", s.name, s.labels)).collect();
        names.sort();
        names
    }

    /// All series of a family.
    pub(crate) fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s Series> {
        self.series.iter().filter(move |series| series.name == name)
    }

    /// The one value with these labels; `None` if there is none.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found = self.all(name).filter(|series| labels.iter().all(|(l, v)| series.label(l) == Some(v)));
        let value = found.next().map(|series| series.value);
        assert!(found.next().is_none(), "several series {name}{labels:?}");
        value
    }
}
