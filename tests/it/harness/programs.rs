//! Programs that a test starts: how they end, what they log, and that none outlives its test.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{PATIENCE, eventually};

/// How a program ended, and what it wrote.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None` if a signal ended it.
    pub(crate) status: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the command to its end.
pub(crate) fn ended(command: &mut Command) -> Ended {
    let output = finish(command);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { status: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Checks that the command refuses how it is used, and that its error has all of these words.
pub(crate) fn assert_refused(command: &mut Command, words: &[&str]) -> Ended {
    let ended = ended(command);
    assert_eq!(ended.status, Some(64), "{command:?}: {ended:?}");
    for word in words {
        assert!(ended.err.contains(word), "{command:?}: {word} is not in {}", ended.err);
    }
    ended
}

/// The output of the command. If the command does not exit, it is killed and the test fails.
fn finish(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = pid(&child);
    let (sender, ended) = channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    ended.recv_timeout(PATIENCE).map(Result::unwrap).unwrap_or_else(|_| {
        kill(pid, Signal::SIGKILL).unwrap();
        panic!("not within {PATIENCE:?}: the end of {command:?}")
    })
}

/// Copies a program that is run next. A child of another test that has not reached its `exec` still holds open for writing what
/// this process wrote, and the kernel does not run such a file, so another process writes it.
pub(crate) fn install(source: &Path, path: &Path) {
    let ended = ended(Command::new("install").args(["-m", "755"]).args([source, path]));
    assert_eq!(ended.status, Some(0), "{ended:?}");
}

pub(crate) fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().unwrap())
}

/// A child that is killed when this value is dropped.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program whose log, on its standard error, is kept.
pub(crate) struct Logging {
    pub(crate) child: Killed,
    log: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Logging {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = Killed(command.stderr(Stdio::piped()).spawn().unwrap());
        let log = Arc::new(Mutex::new(String::new()));
        let (mut lines, kept) = (BufReader::new(child.0.stderr.take().unwrap()), log.clone());
        let reader = std::thread::spawn(move || {
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                kept.lock().unwrap().push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        });
        Self { child, log, reader }
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The address in the first log line that contains these words, once it is there. That of a socket file is none.
    pub(crate) fn address(&mut self, words: &str) -> SocketAddr {
        eventually("the log names the address", || {
            let ended = self.child.0.try_wait().unwrap().filter(|_| self.reader.is_finished());
            assert!(ended.is_none(), "the program ended: {ended:?}: {}", self.log());
            address_in(&self.log(), words)
        })
    }
}

/// The first address in the lines of a log that contain these words.
pub(crate) fn address_in(log: &str, words: &str) -> Option<SocketAddr> {
    log.lines().filter(|line| line.contains(words)).find_map(|line| {
        let address = line.split("address=").nth(1)?.split_whitespace().next()?;
        address.trim_matches('"').parse().ok()
    })
}

/// The same program with the same arguments and environment, started by another one, such as `unshare`.
pub(crate) fn inside(mut outer: Command, inner: &Command) -> Command {
    outer.arg(inner.get_program()).args(inner.get_args()).env_clear().stdin(Stdio::null());
    outer.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    outer
}

/// `unshare` with a user and a pid namespace of its own, which runs the program that is added as arguments. `None` if that is
/// not possible here: the test should return.
pub(crate) fn pid_namespace() -> Option<Command> {
    let unshare = || {
        let mut command = Command::new("/usr/bin/unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child=SIGKILL"]);
        command
    };
    let works = unshare().arg("true").output().is_ok_and(|output| output.status.success());
    let is_missing = workspace_skips::missing("unshare, or the right to make a pid namespace,", works);
    (!is_missing).then(unshare)
}
