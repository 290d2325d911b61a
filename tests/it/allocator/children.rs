//! Clients in other processes: many of them, of other users, and in other namespaces.

use std::os::unix::process::CommandExt as _;

use super::*;
use crate::harness::install;

/// The variable that holds the path of the socket for [`client_process`].
const SOCKET: &str = "ALLOCATOR_TEST_SOCKET";
/// The variable that holds the number of connections for the child to open. The child sends each line on all of them.
const CONNECTIONS: &str = "ALLOCATOR_TEST_CONNECTIONS";

/// Not a test: [`Process`] runs this in a child process. It copies each line of its input to the socket.
#[test]
#[ignore = "runs as a child of other tests"]
fn client_process() {
    let socket = std::env::var_os(SOCKET).expect("a test starts it");
    let connections: usize = std::env::var(CONNECTIONS).unwrap().parse().unwrap();
    let mut clients: Vec<_> = (0..connections).map(|_| Client::open(Path::new(&socket))).collect();
    clients.iter_mut().for_each(|client| client.send(HELLO));
    println!("answer {}", clients[0].answer());
    clients.iter().for_each(Client::keep_alive);
    for line in std::io::stdin().lines().map(Result::unwrap) {
        clients.iter_mut().for_each(|client| client.send(&line));
    }
}

/// A client in a process of its own. It is killed when this value is dropped.
pub(super) struct Process {
    child: Killed,
    input: ChildStdin,
    /// The exporter's first answer.
    pub(super) answer: serde_json::Value,
}

impl Process {
    pub(super) fn start(site: &Site) -> Self {
        Self::with(site, 1, Command::new(std::env::current_exe().unwrap()))
    }

    fn with(site: &Site, connections: usize, mut command: Command) -> Self {
        command.args(["--exact", "allocator::children::client_process", "--ignored", "--nocapture"]);
        command.env(SOCKET, &site.socket).env(CONNECTIONS, connections.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = Killed(command.spawn().unwrap());
        let input = child.0.stdin.take().unwrap();
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        // The test runner's own output may be on the same line.
        let answer = lines.find_map(|line| line.split_once("answer ").map(|(_, answer)| answer.to_owned()));
        let answer = serde_json::from_str(&answer.expect("an answer of the exporter")).unwrap();
        // Reads the rest, so that the child can always write.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, input, answer }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    pub(super) fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }
}

#[test]
fn five_hundred_clients_are_served() {
    const PROCESSES: usize = 125;
    allow_many_files();
    let (site, exporter, uuid) = Site::exported();
    let exe = std::env::current_exe().unwrap();
    let mut children: Vec<_> = (0..PROCESSES).map(|_| Process::with(&site, 4, Command::new(&exe))).collect();
    site.list(&children.iter().map(|child| (child.pid(), 64 * MIB)).collect::<Vec<_>>());
    let mut round = 0;
    eventually("every client is shown", || {
        round += 1;
        for child in &mut children {
            child.send(&report("pytorch", &uuid, &format!(r#""allocated_bytes":{round}"#)));
        }
        let scrape = exporter.scrape();
        let shown = children.iter().filter(|child| value(&scrape, ALLOCATED, child.pid()).is_some()).count();
        (shown == PROCESSES).then_some(())
    });
    assert_eq!(exporter.scrape().value("vram_exporter_faults_total", &[("source", "allocator")]), Some(0.0));
}

#[test]
fn a_process_of_another_user_reports_about_itself() {
    let (site, exporter, uuid) = Site::exported();
    // Every user can run the copy, whatever the permissions of the build folder are.
    let exe = site.machine.folder.path().join("client");
    install(&std::env::current_exe().unwrap(), &exe);
    std::fs::set_permissions(site.machine.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let stranger = || {
        let mut command = Command::new(&exe);
        command.uid(65_534).gid(65_534);
        command
    };
    let works = stranger().arg("--list").output().is_ok_and(|output| output.status.success());
    if missing("the right to run a process as another user", works) {
        return;
    }
    let mut child = Process::with(&site, 1, stranger());
    assert_eq!(child.answer["type"], "welcome");
    site.list(&[(child.pid(), 2 * GIB)]);
    child.send(&report("jax", &uuid, r#""allocated_bytes":7"#));
    exporter.scrape_until("its value", |s| value(s, ALLOCATED, child.pid()) == Some(7));
}

#[test]
fn a_process_in_another_namespace_has_the_pid_that_the_exporter_sees() {
    let (site, exporter, uuid) = Site::exported();
    let Some(mut command) = pid_namespace() else { return };
    command.arg(std::env::current_exe().unwrap());
    let mut inside = Process::with(&site, 1, command);
    assert_eq!(inside.answer["type"], "welcome");
    let unshare = inside.pid();
    let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).unwrap();
    let pid: u32 = children.trim().parse().unwrap();
    site.list(&[(pid, 2 * GIB), (1, 2 * GIB)]);
    inside.send(&report("pytorch", &uuid, r#""allocated_bytes":11"#));
    let scrape = exporter.scrape_until("its value", |s| value(s, ALLOCATED, pid) == Some(11));
    assert_eq!(scrape.all(ALLOCATED).count(), 1, "and not the process whose pid it has inside");
}

#[test]
fn a_process_outside_the_exporters_pid_namespace_is_refused() {
    let site = Site::new();
    let Some(namespace) = pid_namespace() else { return };
    let exporter = Exporter::start(inside(namespace, &site.command(&[])));
    // The connection is refused before anything is read, and may already be closed when the client would write.
    assert_eq!(Client::open(&site.socket).refusal(), "unknown_process");
    assert_eq!(faults(&exporter, "unknown_process"), 1);
}
