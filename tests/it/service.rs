//! The notifications to a service manager, over a real notification socket.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use crate::harness::{Exporter, PATIENCE, bare};

/// The watchdog's limit. The exporter notifies the service manager three times within this time.
const LIMIT: Duration = Duration::from_millis(600);

/// The socket of a service manager, which the exporter notifies.
struct Manager {
    folder: tempfile::TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { folder, socket }
    }

    /// Starts a demo with these flags, and waits until it says that it is ready.
    fn start(&self, flags: &[&str], watchdog: Option<Duration>) -> Exporter {
        let mut command = bare(&[&["--demo"], flags].concat());
        command.env("NOTIFY_SOCKET", self.folder.path().join("notify"));
        command.envs(watchdog.map(|limit| ("WATCHDOG_USEC", limit.as_micros().to_string())));
        let exporter = Exporter::start(command);
        assert_eq!(self.hear(), "READY=1");
        exporter
    }

    fn hear(&self) -> String {
        let mut message = [0; 512];
        loop {
            match self.socket.recv(&mut message) {
                Ok(length) => return String::from_utf8(message[..length].to_vec()).unwrap().trim().to_owned(),
                // The test process was stopped and has resumed.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("no message in time: {error}"),
            }
        }
    }
}

#[test]
fn the_manager_hears_of_the_start_of_life_and_of_the_end() {
    let manager = Manager::new();
    let exporter = manager.start(&[], Some(LIMIT));
    assert!(exporter.get("/healthz").is_ok_and(|answer| answer.status == 200), "ready means that it listens");
    for _ in 0..5 {
        assert_eq!(manager.hear(), "WATCHDOG=1");
    }
    assert!(exporter.terminate().success());
    let last = std::iter::repeat_with(|| manager.hear()).find(|message| message != "WATCHDOG=1");
    assert_eq!(last.as_deref(), Some("STOPPING=1"));
}

#[test]
fn a_reload_is_announced_and_its_result_is_the_status() {
    let manager = Manager::new();
    let file = manager.folder.path().join("web-config.yml");
    std::fs::write(&file, "").unwrap();
    let exporter = manager.start(&[&format!("--web.config-file={}", file.display())], None);
    for (content, status) in [("", "web-config file read: "), ("nonsense: 1\n", "web-config file not accepted: ")] {
        std::fs::write(&file, content).unwrap();
        let before = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
        exporter.signal(nix::sys::signal::Signal::SIGHUP);
        let message = manager.hear();
        let time = message.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{message}"));
        assert!(time.parse::<u128>().unwrap() >= Duration::from(before).as_micros(), "{message}");
        let message = manager.hear();
        assert!(message.starts_with(&format!("READY=1\nSTATUS={status}")) && message.lines().count() == 2, "{message}");
    }
    assert!(exporter.terminate().success());
}

#[test]
fn lines_for_the_journal_begin_with_their_priority() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    for (is_journal, prefixes) in [(true, ["<6>", "<4>", "<3>"]), (false, ["", "", ""])] {
        let file = std::fs::File::create(&path).unwrap();
        let metadata = file.metadata().unwrap();
        let stream = format!("{}:{}", metadata.dev(), metadata.ino() + u64::from(!is_journal));
        // An unusable address ends it after the log has begun.
        let mut command = bare(&["--web.listen-address=unix:/no/such/folder/socket", "--log.level=debug"]);
        command.args(["--web.config-file"]).arg(folder.path().join("web-config.yml"));
        let users = format!("basic_auth_users:\n  alice: {}\n", bcrypt::hash("wonderland", 4).unwrap());
        std::fs::write(folder.path().join("web-config.yml"), users).unwrap();
        let status = command.env("JOURNAL_STREAM", stream).stderr(file).status().unwrap();
        assert_eq!(status.code(), Some(1));
        let log = std::fs::read_to_string(&path).unwrap();
        let begins = [" level=info ", " level=warn ", "vram-exporter: cannot listen"].map(|part| {
            let line = log.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}: {log}"));
            line.split("ts=").next().unwrap().split("vram-exporter: ").next().unwrap()
        });
        assert_eq!(begins, prefixes, "{log}");
    }
}

#[test]
fn a_manager_that_asks_for_no_life_signs_gets_none() {
    let manager = Manager::new();
    let exporter = manager.start(&[], None);
    // Long enough for several notifications, if there were any.
    std::thread::sleep(LIMIT);
    assert!(exporter.terminate().success());
    assert_eq!(manager.hear(), "STOPPING=1");
}
