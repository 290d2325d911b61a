//! Where the exporter listens: socket files, sockets from the service manager, and a listener for probes only.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use workspace_skips::missing;

use crate::harness::{Answer, Exporter, bare, ended, eventually, pid, program};

/// There is no library at this path, so that no test waits for a driver.
const NO_LIBRARY: &str = "--nvml.library=/nonexistent/libnvidia-ml.so.1";

/// The exporter with a socket passed as a service manager would pass it: as descriptor 3, announced by two variables.
fn activated(socket: impl Into<OwnedFd>) -> Command {
    let script = "exec 3<&0 0</dev/null; LISTEN_FDS=1; LISTEN_PID=$$; export LISTEN_FDS LISTEN_PID; exec \"$@\"";
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, "sh"]).arg(program()).args([NO_LIBRARY, "--web.systemd-socket"]);
    command.env_clear().stdin(Stdio::from(socket.into()));
    command
}

#[test]
fn a_socket_file_serves_beside_an_address_and_is_removed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("exporter.sock");
    let flag = format!("--web.listen-address=unix:{}", socket.display());
    let exporter = Exporter::start(bare(&[NO_LIBRARY, &flag]));
    let through = eventually("the socket answers", || Answer::through(&socket, "/metrics", "").ok());
    assert_eq!(through.value("vram_exporter_nvml_up"), "0");
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666, "the folder decides which users may connect");
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
    assert!(exporter.terminate().success());
    assert!(!socket.exists());
}

#[test]
fn sockets_of_the_service_manager_replace_the_addresses() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let exporter = Exporter::start(activated(socket));
    assert_eq!(exporter.address, address, "{}", exporter.log());
    assert_eq!(exporter.scrape().value("vram_exporter_nvml_up", &[]), Some(0.0));
    assert!(exporter.terminate().success());
}

#[test]
fn a_socket_file_of_the_service_manager_is_left_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("manager.sock");
    let mut child = activated(UnixListener::bind(&path).unwrap()).stderr(Stdio::null()).spawn().unwrap();
    let answer = eventually("the socket answers", || Answer::through(&path, "/metrics", "").ok());
    assert_eq!(answer.value("vram_exporter_nvml_up"), "0");
    nix::sys::signal::kill(pid(&child), nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(eventually("the exporter ends", || child.try_wait().unwrap()).success());
    assert!(path.exists());
}

/// Runs its arguments as on a kernel without IPv6 sockets (`ipv6.disable=1`): a system-call filter, whose steps are
/// (code, jump if true, jump if false, operand), returns EAFNOSUPPORT.
const WITHOUT_IPV6: &str = r#"
import ctypes, os, platform, socket, struct, sys
call = {"x86_64": 41, "aarch64": 198}[platform.machine()]
refused, allowed = 0x50000 | 97, 0x7fff0000
steps = [(0x20, 0, 0, 0), (0x15, 0, 3, call), (0x20, 0, 0, 16), (0x15, 0, 1, socket.AF_INET6), (6, 0, 0, refused), (6, 0, 0, allowed)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
c = ctypes.CDLL(None, use_errno=True)
NO_NEW_PRIVS, SECCOMP, FILTER = 38, 22, 2
if c.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) or c.prctl(SECCOMP, FILTER, program):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
"#;

fn without_ipv6(flags: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", WITHOUT_IPV6]).arg(program()).arg(NO_LIBRARY).args(flags);
    command
}

#[test]
fn the_unspecified_address_is_that_of_ipv4_on_a_kernel_without_ipv6() {
    let there =
        Command::new("python3").args(["-c", "import ctypes"]).output().is_ok_and(|tried| tried.status.success());
    if missing("python3 with ctypes", there) {
        return;
    }
    let exporter = Exporter::start(without_ipv6(&["--web.listen-address=:0"]));
    assert_eq!(exporter.address.ip(), std::net::Ipv4Addr::UNSPECIFIED, "{}", exporter.log());
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
    // An explicit address is never replaced by a different one.
    let named = ended(&mut without_ipv6(&["--web.listen-address=[::1]:0"]));
    assert!(named.status != Some(0) && named.err.contains("cannot listen on [::1]:0"), "{named:?}");
}

#[test]
fn an_address_that_cannot_be_bound_is_reported_with_the_way_out() {
    for (flags, words) in [
        (&["--web.systemd-socket"][..], ["omit it", "no socket"]),
        (&["--web.listen-address=unix:/nonexistent/x.sock"], ["/nonexistent/x.sock", "--web.listen-address"]),
        (
            &["--web.listen-address=127.0.0.1:0", "--web.health-address=unix:/nonexistent/x.sock"],
            ["/nonexistent/x.sock", "--web.health-address"],
        ),
    ] {
        let ended = ended(bare(&[NO_LIBRARY]).args(flags));
        assert!(ended.status != Some(0) && words.iter().all(|word| ended.err.contains(word)), "{flags:?}: {ended:?}");
    }
}

#[test]
fn the_listener_for_probes_serves_health_and_nothing_else() {
    let exporter = Exporter::start(bare(&[NO_LIBRARY, "--web.health-address=127.0.0.1:0"]));
    let address = exporter.listener("for probes");
    let answers = ["/healthz", "/readyz", "/metrics", "/"].map(|path| Answer::get(address, path).unwrap().status);
    assert_eq!(answers, [200, 503, 404, 404]);
    assert_eq!(exporter.get("/metrics").unwrap().status, 200);
}

#[test]
fn open_files_are_limited_by_the_system_and_not_by_the_shell() {
    let mut command = Command::new("/bin/sh");
    let script = "ulimit -S -n 256 && exec \"$@\"";
    command.args(["-c", script, "sh"]).arg(program()).arg(NO_LIBRARY).env_clear();
    let exporter = Exporter::start(command);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", exporter.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let files: Vec<u64> = files.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(files[0], files[1].min(65_536), "{limits}");
}
