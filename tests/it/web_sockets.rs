//! Where the exporter listens: socket files, sockets from the service manager, and a listener for probes only.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use workspace_skips::missing;

use crate::harness::{Exporter, bare, eventually, program};

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

fn ended(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap()
}

fn get_through(socket: &Path, path: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(crate::harness::PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn get(address: SocketAddr, path: &str) -> u16 {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(crate::harness::PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_socket_file_serves_beside_an_address_and_is_removed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("exporter.sock");
    let flag = format!("--web.listen-address=unix:{}", socket.display());
    let exporter = Exporter::start(bare(&[NO_LIBRARY, &flag]));
    let through = eventually("the socket answers", || get_through(&socket, "/metrics").ok());
    assert!(through.contains("\nvram_exporter_nvml_up 0\n"));
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
    let answer = eventually("the socket answers", || get_through(&path, "/metrics").ok());
    assert!(answer.contains("\nvram_exporter_nvml_up 0\n"));
    let pid = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
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
    let error_text = String::from_utf8(named.stderr).unwrap();
    assert!(!named.status.success() && error_text.contains("cannot listen on [::1]:0"), "{error_text}");
}

#[test]
fn an_address_that_cannot_be_bound_is_reported_with_the_way_out() {
    let alone = ended(&mut bare(&[NO_LIBRARY, "--web.systemd-socket"]));
    let error_text = String::from_utf8(alone.stderr).unwrap();
    assert!(
        !alone.status.success() && error_text.contains("omit it") && error_text.contains("no socket"),
        "{error_text}"
    );
    for (flag, way_out) in [
        ("--web.listen-address=unix:/nonexistent/x.sock", "--web.listen-address"),
        ("--web.health-address=unix:/nonexistent/x.sock", "--web.health-address"),
    ] {
        let output = ended(&mut bare(&[NO_LIBRARY, "--web.listen-address=127.0.0.1:0", flag]));
        let error_text = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && error_text.contains("/nonexistent/x.sock") && error_text.contains(way_out),
            "{error_text}"
        );
    }
}

#[test]
fn the_listener_for_probes_serves_health_and_nothing_else() {
    let exporter = Exporter::start(bare(&[NO_LIBRARY, "--web.health-address=127.0.0.1:0"]));
    let address: SocketAddr = eventually("the log names it", || {
        let log = exporter.log();
        let line = log.lines().find(|line| line.contains("for probes"))?;
        line.split("address=").nth(1)?.split_whitespace().next()?.trim_matches('"').parse().ok()
    });
    let answers: Vec<u16> = ["/healthz", "/readyz", "/metrics", "/"].map(|path| get(address, path)).into();
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
    let files: Vec<u64> = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap()
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    assert_eq!(files[0], files[1].min(65_536), "{limits}");
}
