//! The follower of the kubelet over a real unix socket: whatever the peer does, names are right or absent, and the
//! follower recovers without a restart.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use gpu_readings::faults::{Faults, Reason, Source};
use gpu_readings::snapshot::{Allocations, DeviceName, Snapshot};
use prost::Message as _;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::Code;
use vram_exporter::kubernetes::kubelet::{PATIENCE as CLAIM_PATIENCE, Settings, follow};

use crate::harness::{eventually, eventually_or, eventually_within, until};
use crate::kubelet::{Allocatable, Kubelet, List, Pod, Reply, devices, pod};

/// How long a test waits for a request. Generous, but less than the minute after which the allocatable devices are requested
/// again: that request must not be mistaken for an immediate one.
const PATIENCE: Duration = Duration::from_secs(45);
const A: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000001";
const B: &str = "GPU-bbbbbbbb-0000-0000-0000-000000000002";
const MIG: &str = "MIG-cccccccc-0000-0000-0000-000000000003";
const LIMIT: usize = 4 << 20;

/// The exporter's side: a follower with its snapshot and its faults.
struct Follower {
    // Declared before the folder, so that the runtime is dropped first.
    _runtime: Runtime,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    folder: TempDir,
}

impl Follower {
    fn start() -> Self {
        Self::with_timeout(Duration::from_secs(10))
    }

    fn with_timeout(timeout: Duration) -> Self {
        Self::after(timeout, |_| ()).0
    }

    /// Starts the follower after `listen` has bound the socket.
    fn after<T>(timeout: Duration, listen: impl FnOnce(&Path) -> T) -> (Self, T) {
        let folder = TempDir::new().unwrap();
        let listening = listen(&socket_in(&folder));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (snapshot, faults) = (Snapshot::new(), Arc::new(Faults::default()));
        let (socket, interval) = (socket_in(&folder), Duration::from_millis(20));
        let settings = Settings { socket, interval, timeout, claims: None, patience: CLAIM_PATIENCE };
        runtime.spawn(follow(settings, Arc::clone(&snapshot), Arc::clone(&faults)));
        (Self { _runtime: runtime, snapshot, faults, folder }, listening)
    }

    fn socket(&self) -> PathBuf {
        socket_in(&self.folder)
    }

    fn now(&self) -> Arc<Allocations> {
        self.snapshot.allocations.load_full()
    }

    fn count(&self, reason: Reason) -> u64 {
        self.faults.count(Source::PodResources, reason)
    }

    fn faults(&self) -> u64 {
        Source::PodResources.reasons().map(|reason| self.count(reason)).sum()
    }

    /// Waits until the kubelet shows as up with these allocations.
    fn shows(&self, expected: &[&str]) -> Arc<Allocations> {
        eventually(&format!("up with {expected:?}"), || {
            let now = self.now();
            (now.up == Some(true) && lines(&now) == expected).then_some(now)
        })
    }

    /// Waits until the fault is counted and the kubelet shows as down.
    fn fails(&self, reason: Reason) {
        let before = self.count(reason);
        eventually_or(&format!("{reason:?}"), || {
            if self.count(reason) > before { Ok(()) } else { Err(format!("{:?}", self.counts())) }
        });
        until("down", || self.now().up == Some(false));
    }

    /// The counted faults, by reason.
    fn counts(&self) -> Vec<(Reason, u64)> {
        let counts = Source::PodResources.reasons().map(|reason| (reason, self.count(reason)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

fn socket_in(folder: &TempDir) -> PathBuf {
    folder.path().join("kubelet.sock")
}

/// The allocations, one line each.
fn lines(allocations: &Allocations) -> Vec<String> {
    let line = |one: &gpu_readings::snapshot::Allocation| {
        let (holder, device) = (&one.holder, &one.device);
        let share = device.replica.as_deref().map_or(String::new(), |replica| format!(" share {replica}"));
        let name = match &device.device {
            DeviceName::Gpu(uuid) | DeviceName::Mig(uuid) => uuid.clone(),
            other => format!("{other:?}"),
        };
        format!("{}/{}/{} {name}{share}", holder.namespace, holder.pod, holder.container)
    };
    allocations.allocated.iter().map(line).collect()
}

fn list(pods: Vec<Pod>) -> List {
    List { pod_resources: pods }
}

/// A pod that holds whole GPUs.
fn holder(name: &str, gpus: &[&str]) -> Pod {
    pod("team", name, vec![devices("nvidia.com/gpu", gpus)])
}

fn gpus(ids: &[&str]) -> Allocatable {
    Allocatable { devices: vec![devices("nvidia.com/gpu", ids)] }
}

/// The line for such a pod.
fn holds(name: &str, gpu: &str) -> String {
    format!("team/{name}/main {gpu}")
}

/// Listens in the kubelet's place and calls `serve` with every connection.
fn impostor(socket: &Path, serve: impl Fn(UnixStream) + Send + Sync + 'static) {
    let listener = crate::kubelet::bind(socket);
    let serve = Arc::new(serve);
    // The thread runs until the test's process ends, but no client connects to it once another listener has the path.
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            let serve = Arc::clone(&serve);
            std::thread::spawn(move || serve(stream));
        }
    });
}

/// A follower, and a kubelet whose pod `name` holds the GPU [`A`], which is shown.
fn following(name: &str) -> (Follower, Kubelet) {
    let answer = list(vec![holder(name, &[A])]);
    let (follower, kubelet) = Follower::after(Duration::from_secs(10), |socket| Kubelet::start(socket, &answer));
    follower.shows(&[&holds(name, A)]);
    (follower, kubelet)
}

/// Checks that the follower recovers once a kubelet listens at the socket's path.
fn recovers(follower: &Follower) {
    let _kubelet = Kubelet::start(&follower.socket(), &list(vec![holder("after", &[B])]));
    follower.shows(&[&holds("after", B)]);
}

// ---- right answers
// ----------------------------------------------------------------------------------------------------

#[test]
fn holders_and_devices_are_those_of_the_answer() {
    let answer = list(vec![
        holder("whole", &[A]),
        // One entry for each NUMA node, as the kubelet writes it.
        pod("team", "two", vec![devices("nvidia.com/gpu", &[B]), devices("nvidia.com/gpu", &["GPU-not-a-uuid"])]),
        // Two shares of one GPU in one pod, and a third share in another.
        pod("ml", "shared-0", vec![devices("nvidia.com/gpu.shared", &[&format!("{A}::0"), &format!("{A}::1")])]),
        pod("ml", "shared-1", vec![devices("nvidia.com/gpu.shared", &[&format!("{A}::2")])]),
        pod("ml", "mig", vec![devices("nvidia.com/mig-1g.10gb", &[MIG]), devices("rdma/hca", &["0"])]),
        pod("ml", "nothing", vec![]),
        pod("", "nameless", vec![devices("nvidia.com/gpu", &[A])]),
    ]);
    let (follower, _kubelet) = Follower::after(PATIENCE, |socket| Kubelet::start(socket, &answer));
    let expected = [
        format!("ml/mig/main {MIG}"),
        format!("ml/shared-0/main {A} share 0"),
        format!("ml/shared-0/main {A} share 1"),
        format!("ml/shared-1/main {A} share 2"),
        holds("two", B),
        holds("whole", A),
    ];
    let expected: Vec<_> = expected.iter().map(String::as_str).collect();
    let first = follower.shows(&expected);
    assert_eq!(first.allocated[0].device.resource, "nvidia.com/mig-1g.10gb");
    assert!(first.at.is_some());
}

#[test]
fn an_unchanged_answer_is_not_published_as_another() {
    let (follower, kubelet) = Follower::after(PATIENCE, |socket| {
        Kubelet::start(socket, &list(vec![holder("one", &[A]), holder("two", &[B])]))
    });
    let first = follower.shows(&[&holds("one", A), &holds("two", B)]);
    // The kubelet keeps its devices in maps, so the next response has the same devices in a different order.
    kubelet.list(&list(vec![holder("two", &[B]), holder("one", &[A])]));
    let asked = kubelet.lists();
    until("another request", || kubelet.lists() > asked + 3);
    let later = follower.now();
    assert!(later.at > first.at);
    assert!(Arc::ptr_eq(&first.allocated, &later.allocated));
    // An allocation is removed.
    kubelet.list(&list(vec![holder("two", &[B])]));
    follower.shows(&[&holds("two", B)]);
    kubelet.list(&list(vec![]));
    let empty = follower.shows(&[]);
    assert_eq!(empty.allocatable, None);
    assert_eq!(follower.faults(), 0);
    assert!(kubelet.allocatables() < kubelet.lists() / 2, "allocatable devices are rarely requested");
}

#[test]
fn allocatable_devices_are_published_where_the_kubelet_lists_them() {
    let follower = Follower::start();
    let shows = |expected: &[&str]| {
        eventually("allocatable", || {
            let now = follower.now();
            let devices = now.allocatable.as_ref()?.iter().map(|device| device.device.clone());
            let expected: Vec<_> = expected.iter().map(|&uuid| DeviceName::Gpu(uuid.to_owned())).collect();
            (now.up == Some(true) && devices.collect::<Vec<_>>() == expected).then_some(())
        });
    };
    // At first the kubelet lists no devices.
    let kubelet = Kubelet::start(&follower.socket(), &list(vec![]));
    until("a request", || kubelet.allocatables() == 1);
    assert_eq!(follower.now().allocatable, None);
    // After a lost connection the allocatable devices are requested again.
    kubelet.allocatable(&gpus(&[B, A]));
    kubelet.reply_to_list(Reply::Status(Code::Unavailable, "not yet".into()));
    follower.fails(Reason::Unknown);
    kubelet.list(&list(vec![]));
    shows(&[A, B]);
    drop(kubelet);
    follower.fails(Reason::Connection);
    assert!(follower.now().allocatable.is_some(), "what was known stays, as old as it is");
    let kubelet = Kubelet::start(&follower.socket(), &list(vec![]));
    kubelet.allocatable(&gpus(&[A]));
    let asked = || if kubelet.allocatables() > 0 { Ok(()) } else { Err(String::new()) };
    eventually_within(PATIENCE, "another request", asked);
}

#[test]
fn a_kubelet_that_lists_no_allocatable_devices_is_no_fault() {
    for (code, words) in [(Code::Unimplemented, "unknown method"), (Code::Unknown, "API disabled")] {
        let (follower, kubelet) = Follower::after(PATIENCE, |socket| {
            let kubelet = Kubelet::start(socket, &list(vec![holder("one", &[A])]));
            kubelet.reply_to_allocatable(Reply::Status(code, words.into()));
            kubelet
        });
        follower.shows(&[&holds("one", A)]);
        until("a request", || kubelet.allocatables() > 0 && kubelet.lists() > 3);
        let now = follower.now();
        assert_eq!((now.up, &now.allocatable), (Some(true), &None));
        assert_eq!(follower.faults(), 0);
    }
}

#[test]
fn holders_are_shown_although_allocatable_devices_cannot_be_read() {
    let (follower, kubelet) = Follower::after(Duration::from_secs(1), |socket| {
        let kubelet = Kubelet::start(socket, &list(vec![holder("one", &[A])]));
        kubelet.reply_to_allocatable(Reply::Bytes(b"\x0a\x7f".to_vec()));
        kubelet
    });
    until("malformed", || follower.count(Reason::Malformed) > 0);
    kubelet.reply_to_allocatable(Reply::Never);
    until("too late", || follower.count(Reason::Timeout) > 0);
    let now = follower.shows(&[&holds("one", A)]);
    assert_eq!(now.allocatable, None);
    kubelet.allocatable(&gpus(&[A]));
    eventually("allocatable devices", || follower.now().allocatable.clone());
}

/// A field of a message, with a text, bytes or another message.
fn field(tag: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::bytes::encode(tag, &content.to_vec(), &mut bytes);
    bytes
}

#[test]
fn fields_that_are_not_read_do_not_matter() {
    let follower = Follower::start();
    // NUMA nodes, processors, memory and CDI devices, as a kubelet lists them, and a field that a later version may have.
    let topology = field(3, &field(1, b"\x08\x01"));
    let gpus = [field(1, b"nvidia.com/gpu"), field(2, A.as_bytes()), topology].concat();
    let memory = [field(1, b"hugepages-2Mi"), b"\x10\xff\xff\xff\xff\x0f".to_vec()].concat();
    let claim = [field(2, b"claim"), field(3, b"team"), field(4, &field(1, &field(1, b"gpu.nvidia.com/a=b")))].concat();
    let processors = field(3, b"\x00\x01\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
    let train = [field(1, b"train"), field(2, &gpus), processors, field(4, &memory), field(5, &claim)].concat();
    let sidecar = [field(1, b"sidecar"), field(3, b"\x02")].concat();
    let pod = [field(1, b"full"), field(2, b"team"), field(3, &train), field(3, &sidecar), field(1000, b"\xff\n\x00")];
    let kubelet = Kubelet::start(&follower.socket(), &list(vec![]));
    kubelet.reply_to_list(Reply::Bytes(field(1, &pod.concat())));
    follower.shows(&[&format!("team/full/train {A}")]);
    kubelet.reply_to_allocatable(Reply::Bytes([field(1, &gpus), field(2, b"\x00\x01"), field(3, &memory)].concat()));
    // Causes another request.
    kubelet.reply_to_list(Reply::Status(Code::ResourceExhausted, "rejected by rate limit".into()));
    follower.fails(Reason::Unknown);
    kubelet.list(&list(vec![]));
    eventually("allocatable devices", || follower.now().allocatable.clone().filter(|devices| devices.len() == 1));
}

// ---- a kubelet that starts, stops or is slow
// ---------------------------------------------------------------------------

#[test]
fn a_socket_that_appears_later_is_found() {
    let follower = Follower::start();
    follower.fails(Reason::NotFound);
    let now = follower.now();
    assert_eq!((now.up, now.at, now.allocated.len(), &now.allocatable), (Some(false), None, 0, &None));
    recovers(&follower);
}

#[test]
fn a_restart_that_replaces_the_socket_is_followed() {
    let (follower, kubelet) = following("before");
    kubelet.stop();
    follower.fails(Reason::NotFound);
    let gone = follower.now();
    assert_eq!(lines(&gone), [holds("before", A)], "what was known stays");
    follower.fails(Reason::NotFound);
    assert_eq!(follower.now().at, gone.at, "and grows older");
    let kubelet = Kubelet::start(&follower.socket(), &list(vec![holder("after", &[A])]));
    assert!(follower.shows(&[&holds("after", A)]).at > gone.at);
    // Killed: the socket stays, and no process listens.
    drop(kubelet);
    follower.fails(Reason::Connection);
    recovers(&follower);
}

#[test]
fn a_new_kubelet_under_the_path_is_asked_while_the_old_one_still_listens() {
    let (follower, old) = following("old");
    let _new = Kubelet::start(&follower.socket(), &list(vec![holder("new", &[A])]));
    follower.shows(&[&holds("new", A)]);
    let asked = old.lists();
    let newer = follower.now().at;
    until("further requests", || follower.now().at > newer);
    assert_eq!(old.lists(), asked);
}

#[test]
fn a_late_answer_is_a_fault_until_it_is_in_time_again() {
    let follower = Follower::with_timeout(Duration::from_secs(1));
    let answer = list(vec![holder("one", &[A])]);
    let kubelet = Kubelet::start(&follower.socket(), &list(vec![]));
    kubelet.reply_to_list(Reply::Never);
    follower.fails(Reason::Timeout);
    assert_eq!(lines(&follower.now()), [""; 0]);
    kubelet.reply_to_list(Reply::Late(Duration::from_millis(50), answer.encode_to_vec()));
    follower.shows(&[&holds("one", A)]);
}

#[test]
fn a_silent_peer_times_out() {
    let follower = Follower::with_timeout(Duration::from_millis(300));
    // Reads everything and sends no response until the peer closes the connection.
    impostor(&follower.socket(), |mut stream| drop(std::io::copy(&mut stream, &mut std::io::sink())));
    follower.fails(Reason::Timeout);
    assert_eq!(follower.now().at, None);
    recovers(&follower);
}

// ---- peers other than a kubelet
// ----------------------------------------------------------------------------------------

#[test]
fn a_peer_that_breaks_the_connection_is_a_connection_fault() {
    let settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    let goaway = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let peers: [&'static [u8]; 6] = [
        b"",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        &[0xff; 4096],
        &[0x00; 4096],
        settings,
        [&settings[..], goaway].concat().leak(),
    ];
    for says in peers {
        let answer = move |mut stream: UnixStream| {
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(says);
        };
        let (follower, ()) = Follower::after(PATIENCE, |socket| impostor(socket, answer));
        follower.fails(Reason::Connection);
        let now = follower.now();
        assert_eq!((now.at, now.allocated.len()), (None, 0), "{says:?}");
        assert_eq!(follower.faults(), follower.count(Reason::Connection), "{says:?}");
        recovers(&follower);
    }
}

#[test]
fn a_refusal_in_the_middle_of_a_connection_keeps_the_names() {
    let (follower, kubelet) = following("one");
    for reply in
        [Reply::Status(Code::Internal, "\u{1f4a5}\n".repeat(1000)), Reply::Status(Code::Unimplemented, "".into())]
    {
        kubelet.reply_to_list(reply);
        follower.fails(Reason::Unknown);
        assert_eq!(lines(&follower.now()), [holds("one", A)]);
    }
    // The library panics on this response.
    kubelet.reply_to_list(Reply::BadDetails);
    follower.fails(Reason::Malformed);
    kubelet.list(&list(vec![holder("two", &[A])]));
    follower.shows(&[&holds("two", A)]);
}

#[test]
fn an_answer_that_cannot_be_understood_is_not_taken_in_part() {
    let good = list(vec![holder("one", &[A])]).encode_to_vec();
    let odd_name = list(vec![holder("xyz", &[B])]).encode_to_vec();
    let at = odd_name.windows(3).position(|bytes| bytes == b"xyz").unwrap();
    let odd_name = [&odd_name[..at], b"\xff\xfe\xfd", &odd_name[at + 3..]].concat();
    let follower = Follower::start();
    let kubelet = Kubelet::start(&follower.socket(), &list(vec![holder("before", &[A])]));
    let before = follower.shows(&[&holds("before", A)]);
    for wrong in [[&good[..], &odd_name].concat(), good[..good.len() - 1].to_vec(), b"no protobuf at all".to_vec()] {
        kubelet.reply_to_list(Reply::Bytes(wrong));
        follower.fails(Reason::Malformed);
        assert!(Arc::ptr_eq(&follower.now().allocated, &before.allocated));
    }
    kubelet.reply_to_list(Reply::Bytes(good));
    follower.shows(&[&holds("one", A)]);
}

// ---- large answers
// ----------------------------------------------------------------------------------------------------

/// A response of `bytes` bytes, in which one pod holds a GPU and the rest are devices from another vendor.
fn padded(bytes: usize) -> Vec<u8> {
    let padding = pod("team", "padding", vec![devices("example.org/nic", &["0123456789abcdef"; 200_000])]);
    let answer = list(vec![holder("one", &[A]), padding]).encode_to_vec();
    // The field's number and length take a few bytes.
    let padded = (1..9).map(|own| [&answer[..], &field(1000, &vec![0; bytes - answer.len() - own])].concat());
    padded.into_iter().find(|answer| answer.len() == bytes).expect("a length that fits")
}

#[test]
fn four_mebibytes_are_read_and_no_byte_more() {
    let (follower, kubelet) = Follower::after(PATIENCE, |socket| Kubelet::start(socket, &list(vec![])));
    follower.shows(&[]);
    kubelet.reply_to_list(Reply::Bytes(padded(LIMIT)));
    let read = follower.shows(&[&holds("one", A)]);
    for longer in [LIMIT + 1, 16 << 20] {
        kubelet.reply_to_list(Reply::Bytes(padded(longer)));
        follower.fails(Reason::Malformed);
        assert!(Arc::ptr_eq(&follower.now().allocated, &read.allocated));
    }
    assert_eq!(follower.faults(), follower.count(Reason::Malformed));
    kubelet.list(&list(vec![holder("two", &[B])]));
    follower.shows(&[&holds("two", B)]);
}

#[test]
fn a_node_full_of_pods_is_read() {
    let follower = Follower::with_timeout(PATIENCE);
    let pods = (0..40_000).map(|n| holder(&format!("pod-{n:06}"), &[&format!("{A}::{n}")]));
    let answer = list(pods.collect());
    assert!((LIMIT / 2..LIMIT).contains(&answer.encoded_len()), "{}", answer.encoded_len());
    let kubelet = Kubelet::start(&follower.socket(), &answer);
    let read = eventually("all pods", || Some(follower.now()).filter(|now| now.allocated.len() == 40_000));
    assert_eq!(read.allocated[39_999].holder.pod, "pod-039999");
    kubelet.list(&list(vec![]));
    follower.shows(&[]);
}

// ---- permission
// -------------------------------------------------------------------------------------------------------

#[test]
fn a_socket_without_permission_has_a_reason_of_its_own() {
    const NAME: &str = "pod_resources::a_socket_without_permission_has_a_reason_of_its_own";
    const NOBODY: u32 = 65534;
    if nix::unistd::geteuid().is_root() {
        // Root may connect to anything, so the test runs again as the user `nobody`.
        let mut again = Command::new(std::env::current_exe().unwrap());
        let again = again.args(["--exact", NAME]).uid(NOBODY).gid(NOBODY).current_dir("/").output();
        let Ok(again) =
            again.inspect_err(|error| workspace_skips::skipped(&format!("it cannot run as the user nobody ({error})")))
        else {
            return;
        };
        let said = String::from_utf8_lossy(&again.stdout);
        assert!(again.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let (follower, _kubelet) = following("one");
    fs::set_permissions(follower.socket(), fs::Permissions::from_mode(0o000)).unwrap();
    follower.fails(Reason::NoPermission);
    assert_eq!(lines(&follower.now()), [holds("one", A)]);
    fs::set_permissions(follower.socket(), fs::Permissions::from_mode(0o600)).unwrap();
    follower.shows(&[&holds("one", A)]);
}
