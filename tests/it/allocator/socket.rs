//! The socket file: who may connect, what is replaced and what is kept.

use super::*;

#[test]
fn without_the_key_there_is_no_socket_and_no_source_of_faults() {
    let site = Site::new();
    let exporter = site.machine.export(&[]);
    assert!(!site.socket.exists());
    let scrape = exporter.scrape();
    assert_eq!(scrape.value("vram_exporter_faults_total", &[("source", "allocator")]), None);
    assert_eq!(reported(&scrape), Vec::<&str>::new());
}

#[test]
fn mode_and_group_are_those_of_the_configuration_and_the_file_goes_with_the_exporter() {
    let site = Site::new();
    let mode = || std::fs::metadata(&site.socket).unwrap().permissions().mode() & 0o777;
    let exporter = site.export();
    eventually("every user may connect", || (mode() == 0o666).then_some(()));
    assert!(exporter.terminate().success());
    assert!(!site.socket.exists());
    let group = nix::unistd::getgid().to_string();
    let command = site.command(&["--allocator.socket-mode=0660", &format!("--allocator.socket-group={group}")]);
    let _exporter = Exporter::start(command);
    eventually("the group may connect", || (site.socket.exists() && mode() == 0o660).then_some(()));
}

#[test]
fn the_socket_of_an_exporter_that_was_killed_is_replaced() {
    let (site, exporter, uuid) = Site::with_self(4 * GIB);
    let mut client = site.connect();
    exporter.signal(nix::sys::signal::Signal::SIGKILL);
    // The client notices that the exporter has ended.
    let mut rest = Vec::new();
    assert_eq!(client.lines.read_to_end(&mut rest).unwrap_or(0), 0);
    drop(exporter);
    assert!(site.socket.exists(), "nobody removed it");
    let exporter = site.export();
    let mut client = site.connect();
    client.report(&uuid, r#""allocated_bytes":9"#);
    exporter.scrape_until("the value", |s| value(s, ALLOCATED, std::process::id()) == Some(9));
}

#[test]
fn a_file_that_is_not_a_socket_is_kept_and_the_error_says_what_to_do() {
    let site = Site::new();
    std::fs::write(&site.socket, "precious").unwrap();
    let output = finish(site.command(&["--web.listen-address=127.0.0.1:0"]).stdin(Stdio::null()));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(error.contains("--allocator.socket") && error.contains("remove it"), "{error}");
    assert_eq!(std::fs::read_to_string(&site.socket).unwrap(), "precious");
}

#[test]
fn a_second_exporter_does_not_take_the_socket_of_the_first() {
    let (site, _exporter, _) = Site::with_self(GIB);
    let output = finish(site.command(&["--web.listen-address=127.0.0.1:0"]).stdin(Stdio::null()));
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--allocator.socket"));
    site.connect();
}

#[test]
fn an_invalid_mode_or_group_is_refused() {
    for (flag, why) in [
        ("--allocator.socket-mode=0888", "octal"),
        ("--allocator.socket-mode=1777", "octal"),
        ("--allocator.socket-mode=rw", "octal"),
        ("--allocator.socket-group=a b", "group"),
        ("--allocator.socket-group=-1", "group"),
    ] {
        let output = finish(&mut bare(&[flag]));
        assert_eq!(output.status.code(), Some(64), "{flag}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{flag}: {output:?}");
    }
}
