//! Attribution through its public interface: on this machine's own `/proc`, and on a `/proc` made of ordinary files.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpu_readings::attribution::{Attribution, Settings};
use gpu_readings::faults::{Faults, Reason, Source};
use gpu_readings::snapshot::{Owner, PodContainer, Pods, Snapshot};

use crate::harness::{allow_many_files, until};

const BOOT: u64 = 1_700_000_000;

/// The number of directories that may be held open.
const HELD: usize = 512;

/// A `/proc` made of ordinary files.
struct FakeProc {
    dir: tempfile::TempDir,
}

impl FakeProc {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("stat"), format!("cpu  1 2 3\nbtime {BOOT}\nprocesses 5\n")).unwrap();
        Self { dir }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    fn of(&self, pid: u32) -> PathBuf {
        self.dir.path().join(pid.to_string())
    }

    fn start(&self, pid: u32, comm: &[u8], start: u64, uid: u32, cmdline: &[u8]) {
        fs::create_dir(self.of(pid)).unwrap();
        let mut stat = fs::File::create(self.of(pid).join("stat")).unwrap();
        write!(stat, "{pid} (").unwrap();
        stat.write_all(comm).unwrap();
        writeln!(stat, ") S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 4096 1 0").unwrap();
        fs::write(self.of(pid).join("status"), format!("Name:\tx\nUid:\t0\t{uid}\t0\t0\nGid:\t0\t0\t0\t0\n")).unwrap();
        fs::write(self.of(pid).join("cmdline"), cmdline).unwrap();
    }

    fn end(&self, pid: u32) {
        fs::remove_dir_all(self.of(pid)).unwrap();
    }

    fn place(&self, pid: u32, cgroup: &str) {
        fs::write(self.of(pid).join("cgroup"), format!("0::{cgroup}\n")).unwrap();
    }

    fn watch(&self) -> (Attribution, Arc<Faults>) {
        let passwd = self.dir.path().join("passwd");
        fs::write(&passwd, "root:x:0:0::/:\nann:x:1000:1000::/:\n").unwrap();
        watch(&self.root(), Some(passwd), false)
    }
}

fn watch(procfs: &Path, passwd: Option<PathBuf>, command_line: bool) -> (Attribution, Arc<Faults>) {
    let faults = Arc::new(Faults::default());
    let settings = Settings { procfs: procfs.to_owned(), passwd, command_line, hold: HELD };
    (Attribution::new(settings, Snapshot::new(), faults.clone()), faults)
}

fn identify(attribution: &mut Attribution, pid: u32) -> Arc<Owner> {
    attribution.identify_all(&[pid]).remove(0)
}

fn unreadable(faults: &Faults) -> u64 {
    faults.count(Source::Attribution, Reason::Unreadable)
}

fn name(owner: &Owner) -> Option<&str> {
    owner.name.as_deref()
}

fn workload(owner: &Owner) -> Option<&str> {
    owner.workload.as_ref().map(|workload| workload.name.as_str())
}

#[test]
fn an_owner_has_every_value_that_proc_shows() {
    let proc = FakeProc::new();
    proc.start(42, b"python3", 12_300, 1000, b"python3\0-u\0/work/train.py\0--token=secret\0");
    let (mut attribution, faults) = proc.watch();
    let identity = identify(&mut attribution, 42);
    assert_eq!(identity.start_ticks, Some(12_300));
    assert_eq!(name(&identity), Some("train.py"));
    assert_eq!(identity.uid, Some(1000));
    assert_eq!(identity.user.as_deref(), Some("ann"));
    assert_eq!(identity.command, None);
    let ticks = procfs::ticks_per_second();
    let start = UNIX_EPOCH + Duration::from_secs(BOOT) + Duration::from_secs_f64(12_300.0 / ticks as f64);
    assert_eq!(identity.start, Some(start));
    assert_eq!(unreadable(&faults), 0);
    let again = identify(&mut attribution, 42);
    assert!(Arc::ptr_eq(&identity, &again), "a cached process keeps its owner");
}

#[test]
fn a_reused_pid_is_another_process_with_and_without_a_held_directory() {
    allow_many_files();
    let proc = FakeProc::new();
    for pid in 1..=600 {
        proc.start(pid, b"many", u64::from(pid), 1000, format!("/bin/p{pid}\0").as_bytes());
    }
    let (mut attribution, faults) = proc.watch();
    // A pass waits only a limited time for all the processes together; the next pass reads the rest.
    let pids: Vec<u32> = (1..=600).collect();
    until("all are read", || {
        let owners = attribution.identify_all(&pids);
        attribution.sweep(|_| false);
        std::iter::zip(&pids, &owners).all(|(pid, read)| name(read) == Some(format!("p{pid}").as_str()))
    });
    let held = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|fd| fs::read_link(fd.unwrap().path()).ok())
        .filter(|target| target.starts_with(proc.root()))
        .count();
    assert_eq!(held, HELD);
    for pid in [1, 600] {
        proc.end(pid);
        proc.start(pid, b"new", 9_000, 0, b"/bin/new\0");
        let identity = identify(&mut attribution, pid);
        assert_eq!((identity.start_ticks, name(&identity)), (Some(9_000), Some("new")), "pid {pid}");
        assert_eq!(identity.user.as_deref(), Some("root"));
        proc.end(pid);
        let gone = identify(&mut attribution, pid);
        assert_eq!((gone.start_ticks, name(&gone)), (None, None));
    }
    assert_eq!(unreadable(&faults), 0, "the end of a process is not a fault");
}

#[test]
fn a_sweep_drops_processes_that_were_not_identified() {
    let proc = FakeProc::new();
    proc.start(1, b"stays", 1, 0, b"");
    proc.start(2, b"leaves", 1, 0, b"");
    let (mut attribution, _) = proc.watch();
    let stays = identify(&mut attribution, 1);
    let leaves = identify(&mut attribution, 2);
    attribution.sweep(|_| false);
    assert!(Arc::ptr_eq(&stays, &identify(&mut attribution, 1)));
    attribution.sweep(|_| false);
    assert!(Arc::ptr_eq(&stays, &identify(&mut attribution, 1)));
    let read_again = identify(&mut attribution, 2);
    assert!(!Arc::ptr_eq(&leaves, &read_again));
    // A list that was not read in this pass still has it.
    (0..3).for_each(|_| attribution.sweep(|pid| pid == 2));
    assert!(Arc::ptr_eq(&read_again, &identify(&mut attribution, 2)));
}

#[test]
fn hostile_bytes_and_sizes_are_handled() {
    let proc = FakeProc::new();
    let huge = [b"python\0-W\0ignore\0/a/run.py\0".as_slice(), &vec![b'x'; 4 << 20]].concat();
    proc.start(1, b"a) R 1 (\xff\n", 7, 1000, b"");
    proc.start(2, b"python", 7, 1000, &huge);
    proc.start(3, b"x", 7, 1000, "\u{20ac}".repeat(3_000).as_bytes());
    let (mut attribution, faults) = watch(&proc.root(), Some(proc.dir.path().join("stat")), true);
    let first = identify(&mut attribution, 1);
    assert_eq!((first.start_ticks, name(&first)), (Some(7), Some("a) R 1 (\u{fffd}\n")));
    assert_eq!(first.command, None);
    let second = identify(&mut attribution, 2);
    assert_eq!(name(&second), Some("run.py"));
    let command = second.command.as_deref().unwrap();
    assert!(command.starts_with("python -W ignore /a/run.py xxx"));
    assert_eq!(command.len(), 4096);
    let third = identify(&mut attribution, 3);
    assert_eq!(third.command.as_deref().map(str::len), Some(4095), "cut between characters");
    assert_eq!(unreadable(&faults), 0);
}

#[test]
fn a_malformed_file_is_counted_and_the_others_are_used() {
    let proc = FakeProc::new();
    for pid in 1..=4 {
        proc.start(pid, b"x", 7, 1000, b"/bin/x\0");
    }
    fs::write(proc.of(1).join("stat"), "1 (x) S 1 1").unwrap();
    fs::write(proc.of(2).join("stat"), "").unwrap();
    fs::write(proc.of(3).join("status"), "Name:\tx\nUid:\t1000").unwrap();
    fs::remove_file(proc.of(4).join("status")).unwrap();
    let (mut attribution, faults) = proc.watch();
    for (pid, count) in [(1, 1), (2, 2)] {
        let identity = identify(&mut attribution, pid);
        assert_eq!((identity.start_ticks, name(&identity)), (None, None));
        assert_eq!(unreadable(&faults), count);
    }
    let third = identify(&mut attribution, 3);
    assert_eq!((name(&third), third.uid, unreadable(&faults)), (Some("x"), None, 3));
    let fourth = identify(&mut attribution, 4);
    assert_eq!((name(&fourth), fourth.uid, unreadable(&faults)), (Some("x"), None, 3), "a missing file is not counted");
}

#[test]
fn a_pid_without_a_process_is_unknown_and_not_a_fault() {
    let (mut attribution, faults) = watch(Path::new("/proc"), None, false);
    for pid in [0, u32::MAX, i32::MAX as u32] {
        assert_eq!(identify(&mut attribution, pid).start_ticks, None);
    }
    let (mut nowhere, more) = watch(Path::new("/nowhere/proc"), None, false);
    assert_eq!(identify(&mut nowhere, 1).start_ticks, None);
    assert_eq!((unreadable(&faults), unreadable(&more)), (0, 0));
}

#[test]
fn this_process_is_identified_with_its_user() {
    let (mut attribution, faults) = watch(Path::new("/proc"), None, true);
    let pid = std::process::id();
    let uid = nix::unistd::geteuid();
    let expected = nix::unistd::User::from_uid(uid).unwrap().map(|user| user.name);
    let first = identify(&mut attribution, pid);
    assert!(name(&first).is_some_and(|name| name.starts_with("it-")), "{:?}", first);
    assert_eq!(first.uid, Some(uid.as_raw()));
    assert!(first.command.as_ref().is_some_and(|command| command.contains("/it-")));
    let age = SystemTime::now().duration_since(first.start.unwrap()).unwrap_or_default();
    assert!(age < Duration::from_secs(3600), "started {age:?} ago");
    until("the name of the user", || identify(&mut attribution, pid).user == expected);
    assert_eq!(unreadable(&faults), 0);
}

#[test]
fn an_unreadable_cgroup_is_read_again_and_gives_no_workload() {
    let proc = FakeProc::new();
    let (mut attribution, _) = proc.watch();
    proc.start(7, b"job", 100, 1000, b"job\0");
    let identity = identify(&mut attribution, 7);
    assert_eq!((name(&identity), workload(&identity)), (Some("job"), None), "not the user: it may be in a container");
    proc.place(7, "/system.slice/ollama.service");
    assert_eq!(workload(&identify(&mut attribution, 7)), Some("unit:ollama.service"));
    proc.place(7, "/system.slice/other.service");
    assert_eq!(workload(&identify(&mut attribution, 7)), Some("unit:ollama.service"), "a cgroup is read once");
}

#[test]
fn a_pods_name_is_filled_in_later_and_kept_when_the_pod_is_gone() {
    let proc = FakeProc::new();
    let id = "3b1f".repeat(16);
    let snapshot = Snapshot::new();
    let settings =
        Settings { procfs: proc.root(), passwd: Some(proc.root().join("passwd")), command_line: false, hold: HELD };
    let mut attribution = Attribution::new(settings, snapshot.clone(), Arc::default());
    proc.start(7, b"job", 100, 1000, b"job\0");
    proc.place(
        7,
        &format!("/kubepods.slice/kubepods-pod1d5c7a0e_52f1_4b55_9f0e_6a2b8c3d4e5f.slice/cri-containerd-{id}.scope"),
    );
    assert_eq!(workload(&identify(&mut attribution, 7)), Some("container:3b1f3b1f3b1f"));
    let pod = PodContainer { namespace: "team-b".into(), pod: "notebook-7".into(), container: "main".into() };
    let containers = Arc::new([(id, Arc::new(pod))].into());
    snapshot.pods.store(Arc::new(Pods { up: Some(true), containers, ..Pods::default() }));
    assert_eq!(workload(&identify(&mut attribution, 7)), Some("team-b/notebook-7/main"));
    snapshot.pods.store(Arc::default());
    assert_eq!(workload(&identify(&mut attribution, 7)), Some("team-b/notebook-7/main"));
}

#[test]
fn a_zombie_that_the_kernel_moved_to_the_root_has_no_workload() {
    let proc = FakeProc::new();
    let (mut attribution, _) = proc.watch();
    proc.start(7, b"job", 100, 1000, b"");
    let stat = fs::read_to_string(proc.of(7).join("stat")).unwrap();
    fs::write(proc.of(7).join("stat"), stat.replace(") S ", ") Z ")).unwrap();
    proc.place(7, "/");
    assert_eq!(workload(&identify(&mut attribution, 7)), None);
    assert_eq!(workload(&identify(&mut attribution, 7)), None);
    proc.place(7, "/system.slice/ollama.service");
    assert_eq!(workload(&identify(&mut attribution, 7)), Some("unit:ollama.service"), "it is still in its cgroup");
}
