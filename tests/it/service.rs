//! The notifications to a service manager, over a real notification socket.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use crate::harness::{Exporter, PATIENCE, bare};

/// The watchdog's limit. The exporter notifies the service manager three times within this time.
const LIMIT: Duration = Duration::from_millis(600);

fn hear(socket: &UnixDatagram) -> String {
    let mut message = [0; 512];
    loop {
        match socket.recv(&mut message) {
            Ok(length) => return String::from_utf8(message[..length].to_vec()).unwrap().trim().to_owned(),
            // The test process was stopped and has resumed.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("no message in time: {error}"),
        }
    }
}

#[test]
fn the_manager_hears_of_the_start_of_life_and_of_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = bare(&["--demo"]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", LIMIT.as_micros().to_string());
    let exporter = Exporter::start(command);
    assert_eq!(hear(&socket), "READY=1");
    assert!(exporter.get("/healthz").is_ok_and(|answer| answer.status == 200), "ready means that it listens");
    for _ in 0..5 {
        assert_eq!(hear(&socket), "WATCHDOG=1");
    }
    assert!(exporter.terminate().success());
    let last = std::iter::repeat_with(|| hear(&socket)).find(|message| message != "WATCHDOG=1");
    assert_eq!(last.as_deref(), Some("STOPPING=1"));
}

#[test]
fn a_manager_that_asks_for_no_life_signs_gets_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = bare(&["--demo"]);
    command.env("NOTIFY_SOCKET", &path);
    let exporter = Exporter::start(command);
    assert_eq!(hear(&socket), "READY=1");
    // Long enough for several notifications, if there were any.
    std::thread::sleep(LIMIT);
    assert!(exporter.terminate().success());
    assert_eq!(hear(&socket), "STOPPING=1");
}
