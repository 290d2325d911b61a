//! Runs the built library as a program would: loaded by its path, through nvml-wrapper.
//!
//! The library's settings apply to the whole process, so a test runs each machine in a child process: [`Rig::alone`]
//! runs the body there.

#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nvml_wrapper::Nvml;
use tempfile::TempDir;

/// How long anything may take. The limit is generous, because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The library that cargo built with this test.
pub fn library() -> PathBuf {
    let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let path = beside.join("libnvml_sim.so");
    assert!(path.is_file(), "{} is missing", path.display());
    path
}

/// A simulated machine in a process of its own.
pub struct Rig {
    pub folder: PathBuf,
}

/// The variable that marks a process as the child, and holds the path of its folder.
const CHILD: &str = "NVML_SIM_TEST_FOLDER";

impl Rig {
    /// Runs the body on a scenario (a built-in name, or the text of one) in a process of its own: NVML and the
    /// environment belong to a whole process. `test` is the running test's name.
    pub fn alone(test: &str, scenario: &str, body: impl FnOnce(&Rig)) {
        Self::alone_with(test, scenario, &[], body);
    }

    /// The same, with additional environment variables.
    pub fn alone_with(test: &str, scenario: &str, more: &[(&str, &str)], body: impl FnOnce(&Rig)) {
        if let Some(folder) = std::env::var_os(CHILD) {
            return body(&Rig { folder: folder.into() });
        }
        let folder: TempDir = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let name = if scenario.contains('\n') {
            std::fs::write(path("scenario.toml"), scenario).unwrap();
            path("scenario.toml").into_os_string()
        } else {
            scenario.into()
        };
        let output = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, folder.path())
            .env("NVML_SIM_SCENARIO", name)
            .env("NVML_SIM_PROCFS", path("proc"))
            .env("NVML_SIM_CONTROL", path("control.toml"))
            .env("NVML_SIM_EPOCH", format!("{:.6}", unix_now()))
            .envs(more.iter().copied())
            .output()
            .unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains("1 passed"), "{test} in its own process:\n{said}");
    }

    pub fn nvml(&self) -> Nvml {
        Nvml::builder().lib_path(library().as_os_str()).init().unwrap()
    }

    pub fn procfs(&self) -> PathBuf {
        self.folder.join("proc")
    }

    /// Replaces the control file.
    pub fn control(&self, text: &str) {
        let aside = self.folder.join("control.new");
        std::fs::write(&aside, text).unwrap();
        std::fs::rename(aside, self.folder.join("control.toml")).unwrap();
    }
}

pub fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Repeats `ask` until it returns a value.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A file from the GPU recordings.
pub fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/recordings").join(name)
}
