//! Copies of a driver without a GPU, probes on them, and programs that call them in a process of their own.
//!
//! A test that needs BPF is skipped, visibly, where there is none.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cuda_probe::{Attached, Call, Event, Library, Probes, Settings, Way};
use fake_libcuda::Driver;
use tempfile::TempDir;
use workspace_skips::probes::{no_probes, unless_skipped};

/// How long anything may take. The limit is generous, because the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const WAYS: [Way; 2] = [Way::Multi, Way::PerfEvent];

/// A copy of the library with an inode of its own, under the driver's name.
pub(crate) struct DriverFile {
    folder: TempDir,
    pub(crate) path: PathBuf,
}

impl DriverFile {
    pub(crate) fn new() -> Self {
        let built = std::env::current_exe().unwrap().with_file_name("libfake_libcuda.so");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libcuda.so.1");
        std::fs::copy(&built, &path).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
        Self { folder, path }
    }

    pub(crate) fn driver(&self) -> Driver {
        Driver::load(&self.path)
    }

    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Loaded programs; `None` after a reported skip.
pub(crate) fn load(settings: Settings) -> Option<Probes> {
    unless_skipped(Probes::load(settings))
}

/// Probes on a copy, attached this way, or in the way that the kernel has; `None` after a reported skip.
pub(crate) fn watch(copy: &DriverFile, mut settings: Settings, way: Option<Way>) -> Option<(Probes, Attached)> {
    settings.way = way;
    let mut probes = load(settings)?;
    let attached = unless_skipped(probes.attach(&Library::open(&copy.path).unwrap()))?;
    assert!(way.is_none_or(|way| way == attached.way), "{attached:?}");
    Some((probes, attached))
}

/// The events that are in the ring.
pub(crate) fn events(probes: &mut Probes) -> Vec<Event> {
    let mut events = Vec::new();
    let count = probes.drain(|event| events.push(event));
    assert_eq!(count, events.len());
    events
}

/// Repeats `ask` until it returns a value.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const ROLE: &str = "CUDA_PROBE_TEST_ROLE";
const LIBRARY: &str = "CUDA_PROBE_TEST_LIBRARY";

/// Runs this test program again as the program with this role, on this library, under `wrapper` if there is one.
pub(crate) fn program(role: &str, library: &Path, wrapper: &[&str]) -> Child {
    let own = std::env::current_exe().unwrap();
    let words: Vec<&str> = wrapper.iter().copied().chain([own.to_str().unwrap()]).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["rig::as_program", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(LIBRARY, library).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// What a program has printed. It must have ended well.
pub(crate) fn output(program: Child) -> String {
    let output = program.wait_with_output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    said
}

/// Not a test: what [`program`] runs.
#[test]
fn as_program() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let path = PathBuf::from(std::env::var_os(LIBRARY).unwrap());
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    match role.to_str().unwrap() {
        "thread-ends" => {
            let driver: &'static Driver = Box::leak(Box::new(Driver::load(&path)));
            let before = threads();
            std::thread::spawn(|| driver.cuMemAlloc_v2(fake_libcuda::ENDS_THREAD));
            // One more thread at some time, then as many as before: it has ended.
            eventually("the thread has ended", || (threads() == before).then_some(()));
            assert_eq!(driver.cuMemAlloc_v2(64).0, 0);
        }
        "process-ends" => {
            Driver::load(&path).cuMemAlloc_v2(fake_libcuda::ENDS_PROCESS);
        }
        "waits" => {
            Driver::load(&path).cuMemAlloc_v2(fake_libcuda::WAITS);
        }
        "frees" => {
            Driver::load(&path).cuMemFree_v2(fake_libcuda::NEVER_FREED);
        }
        "calls-later" => {
            let driver = Driver::load(&path);
            // Until the test closes its end.
            std::io::read_to_string(std::io::stdin()).unwrap();
            driver.cuMemAlloc_v2(64);
        }
        "watches" => watch_until_killed(&path, None),
        "watches-with-perf" => watch_until_killed(&path, Some(Way::PerfEvent)),
        "loads" => match Probes::load(Settings::new(cuda_probe::Mode::All)) {
            Ok(_) => println!("loaded"),
            Err(error) => println!("refused: {error}"),
        },
        other => panic!("{other}"),
    }
}

/// Watches a library. Prints how, and on each line of the input what it has seen since the last one.
fn watch_until_killed(path: &Path, way: Option<Way>) {
    let mut settings = Settings::new(cuda_probe::Mode::All);
    settings.way = way;
    let watching = Probes::load(settings).and_then(|mut probes| {
        let attached = probes.attach(&Library::open(path)?)?;
        Ok((probes, attached))
    });
    let (mut probes, attached) = match watching {
        Ok(watching) => watching,
        Err(error) => return println!("\nattached not: {}", no_probes(&error)),
    };
    println!("\nattached {:?} {}", attached.way, attached.symbols.len());
    for _ in std::io::stdin().lines() {
        let events = events(&mut probes);
        println!("events {}", events.len());
        for event in events {
            match event.call {
                Call::Allocate { size, .. } => println!("call {size} {}", event.result),
                other => println!("error: {other:?}"),
            }
        }
        println!("lost {}", probes.lost().calls());
    }
}

/// Waits for readiness edges of the probes.
pub(crate) struct Edges(nix::sys::epoll::Epoll);

impl Edges {
    pub(crate) fn of(probes: &Probes) -> Self {
        use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        epoll.add(probes.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0)).unwrap();
        Self(epoll)
    }

    /// Whether there was an edge since the last wait, or is one within this time.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        use nix::sys::epoll::{EpollEvent, EpollTimeout};
        let mut events = [EpollEvent::empty()];
        self.0.wait(&mut events, EpollTimeout::try_from(limit).unwrap()).unwrap() == 1
    }
}
