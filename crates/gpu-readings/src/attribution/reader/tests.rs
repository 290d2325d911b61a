//! The reader on files that hang: opening a FIFO without a writer blocks, as a read of a wedged process does.

use std::fs;
use std::process::Command;

use super::*;

/// How long anything may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(30);

struct FakeProc(tempfile::TempDir);

impl FakeProc {
    fn new(pids: impl IntoIterator<Item = u32>) -> Self {
        let fake = Self(tempfile::tempdir().unwrap());
        pids.into_iter().for_each(|pid| fake.add(pid));
        fake
    }

    fn add(&self, pid: u32) {
        let dir = self.0.path().join(pid.to_string());
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("stat"), format!("{pid} (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 4096 1 0\n"))
            .unwrap();
        fs::write(dir.join("status"), "Uid:\t0\t5\t0\t0\n").unwrap();
        fs::write(dir.join("cgroup"), "0::/\n").unwrap();
        fs::write(dir.join("cmdline"), "x\0").unwrap();
    }

    /// Makes a file of the process hang.
    fn wedge(&self, pid: u32, file: &str) -> PathBuf {
        let path = self.0.path().join(pid.to_string()).join(file);
        fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    }

    fn reader(&self) -> ProcReader {
        ProcReader::new(self.0.path().to_owned())
    }
}

fn requests(pids: impl IntoIterator<Item = u32>) -> Vec<ReadRequest> {
    pids.into_iter().map(|pid| ReadRequest { pid, hold: true, cmdline: true }).collect()
}

/// Reads a process that hangs, in a pass of its own.
fn time_out(reader: &mut ProcReader, pid: u32) -> Option<PartialReading> {
    reader.begin_pass();
    let mut timeout = reader.read(requests([pid])).timeout.unwrap();
    assert_eq!(timeout.pid, pid);
    let partial = timeout.partial.take();
    reader.abandon(timeout, Some(77));
    // A read is stalled 300 ms after its reader began, which can be later on a busy machine.
    wait_until(|| reader.newly_stalled() == [pid]);
    partial
}

/// Lets a read of the FIFO return.
fn release(fifo: &Path) {
    drop(fs::OpenOptions::new().write(true).open(fifo).unwrap());
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn one_round_answers_all_requests_also_for_missing_processes() {
    let fake = FakeProc::new(1..=50);
    let round = fake.reader().read(requests(1..=51));
    assert_eq!(round.answers.len(), 51);
    assert!((1..=50).all(|pid| round.answers[&pid].as_ref().is_ok_and(|reading| reading.stat.start == 77)));
    assert!(round.answers[&51].as_ref().is_err_and(ReadError::is_gone));
    assert!(round.timeout.is_none() && round.failure.is_none());
}

#[test]
fn a_read_that_hangs_costs_the_other_processes_one_pass() {
    let fake = FakeProc::new(1..=3);
    let fifo = fake.wedge(2, "cmdline");
    let mut reader = fake.reader();
    let mut round = reader.read(requests(1..=3));
    let mut timeout = round.timeout.take().unwrap();
    let partial = timeout.partial.take().unwrap();
    assert_eq!((timeout.pid, partial.stat.start, partial.status.map(|status| status.uid)), (2, 77, Some(5)));
    assert_eq!(partial.cgroup.as_deref(), Some(&b"0::/\n"[..]));
    assert!(round.answers[&1].is_ok() && !round.answers.contains_key(&3));
    reader.abandon(timeout, Some(77));
    let mut stalled = Vec::new();
    wait_until(|| {
        stalled.extend(reader.newly_stalled());
        !stalled.is_empty()
    });
    assert_eq!((stalled, reader.newly_stalled()), (vec![2], vec![]), "each is reported once");
    assert!(reader.read(requests([3])).answers.is_empty(), "this pass has used up its time");
    reader.begin_pass();
    assert!(reader.read(requests([3])).answers[&3].is_ok());
    assert!(reader.hangs(2, Some(77)) && !reader.hangs(2, Some(78)) && !reader.hangs(3, Some(77)));
    release(&fifo);
    wait_until(|| reader.hanging() == 0);
    assert!(reader.hangs(2, Some(77)), "not read again before ten seconds have passed");
    reader.abandoned[0].since = Instant::now().checked_sub(RETRY).unwrap();
    assert!(!reader.hangs(2, Some(77)));
    reader.begin_pass();
    assert!(reader.abandoned.is_empty());
}

#[test]
fn a_reader_that_is_only_late_is_no_fault() {
    let fake = FakeProc::new([1]);
    let fifo = fake.wedge(1, "cmdline");
    let mut reader = fake.reader();
    reader.left = Duration::from_millis(50);
    let timeout = reader.read(requests([1])).timeout.unwrap();
    // As if the read had begun just now, however slow the test is.
    reader.abandon(Timeout { since: Instant::now() + PATIENCE, ..timeout }, Some(77));
    assert!(reader.newly_stalled().is_empty());
    assert!(reader.hangs(1, Some(77)));
    reader.abandoned[0].since = Instant::now().checked_sub(STALLED).unwrap();
    assert_eq!(reader.newly_stalled(), [1], "it became a hang after its round");
    reader.abandoned[0].stalled = false;
    release(&fifo);
    wait_until(|| !reader.hangs(1, Some(77)));
    assert!(reader.newly_stalled().is_empty());
}

#[test]
fn readers_that_hang_cost_the_arguments_and_at_last_all_reads() {
    let fake = FakeProc::new(1..=7);
    let mut fifos: Vec<_> = (1..=3).map(|pid| fake.wedge(pid, "stat")).collect();
    fifos.extend([4, 7].map(|pid| fake.wedge(pid, "cmdline")));
    fifos.push(fake.wedge(5, "status"));
    let mut reader = fake.reader();
    for pid in 1..=ABANDONED_LIMIT as u32 {
        assert!(!reader.is_exhausted());
        assert_eq!(time_out(&mut reader, pid).is_some(), pid == 4);
    }
    assert!(reader.is_exhausted());
    reader.begin_pass();
    let round = reader.read(requests([6, 7]));
    assert!(round.timeout.is_none());
    for pid in [6, 7] {
        let reading = round.answers[&pid].as_ref().unwrap();
        assert!(reading.cmdline.is_none() && reading.status.is_ok() && reading.cgroup.is_ok());
    }
    time_out(&mut reader, 5);
    reader.begin_pass();
    let round = reader.read(requests([6]));
    assert!(round.answers.is_empty() && round.timeout.is_none());
    // One read returns, and another reader may start.
    release(&fifos[0]);
    wait_until(|| reader.read(requests([6])).answers.contains_key(&6));
    [&fifos[1..4], &fifos[5..]].concat().iter().for_each(|fifo| release(fifo));
}

#[test]
fn a_reader_that_panicked_is_reported_once_and_pauses_reading() {
    let fake = FakeProc::new([1, 2]);
    let mut reader = fake.reader();
    reader.read = |request, procfs, progress| match request.pid {
        // Panics without printing a message, because its backtrace can take longer than the round.
        2 => std::panic::resume_unwind(Box::new("a panic")),
        _ => read_process(request, procfs, progress),
    };
    let round = reader.read(requests([1, 2]));
    assert!(round.answers[&1].is_ok() && round.timeout.is_none());
    assert_eq!(round.failure.unwrap().0, Reason::Panicked);
    let round = reader.read(requests([1]));
    assert!(round.failure.is_none() && round.answers.is_empty());
    reader.paused_until = Some(Instant::now());
    assert!(reader.read(requests([1])).answers[&1].is_ok());
}
