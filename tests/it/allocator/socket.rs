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
    until("every user may connect", || mode() == 0o666);
    assert!(exporter.terminate().success());
    assert!(!site.socket.exists());
    let group = nix::unistd::getgid().to_string();
    let command = site.command(&["--allocator.socket-mode=0660", &format!("--allocator.socket-group={group}")]);
    let _exporter = Exporter::start(command);
    until("the group may connect", || site.socket.exists() && mode() == 0o660);
}

#[test]
fn a_file_that_is_not_a_socket_is_kept_and_the_error_says_what_to_do() {
    let site = Site::new();
    std::fs::write(&site.socket, "precious").unwrap();
    let ended = ended(site.command(&["--web.listen-address=127.0.0.1:0"]).stdin(Stdio::null()));
    assert_ne!(ended.status, Some(0));
    assert!(ended.err.contains("--allocator.socket") && ended.err.contains("remove it"), "{ended:?}");
    assert_eq!(std::fs::read_to_string(&site.socket).unwrap(), "precious");
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
        assert_refused(&mut bare(&[flag]), &[why]);
    }
}
