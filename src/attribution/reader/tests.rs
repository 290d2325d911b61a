//! The reader over files that hang: a FIFO that nobody writes to makes whoever opens it wait, as a wedged process does.

use std::fs;
use std::process::Command;

use super::*;

/// How long anything may take before it is called missing.
const PATIENCE: Duration = Duration::from_secs(30);

struct Fake(tempfile::TempDir);

impl Fake {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
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

    fn readers(&self) -> Readers {
        Readers::new(self.0.path().to_owned())
    }
}

fn ask(pids: &[u32]) -> Vec<Ask> {
    pids.iter().map(|&pid| Ask { pid, hold: true, cmdline: true }).collect()
}

#[test]
fn all_are_answered_in_one_round_the_missing_too() {
    let fake = Fake::new();
    (1..=50).for_each(|pid| fake.add(pid));
    let mut readers = fake.readers();
    let round = readers.read(ask(&(1..=51).collect::<Vec<_>>()));
    assert_eq!(round.answers.len(), 51);
    assert!((1..=50).all(|pid| round.answers[&pid].as_ref().is_ok_and(|reading| reading.stat.start == 77)));
    assert!(round.answers[&51].as_ref().is_err_and(ReadError::is_gone));
    assert!(round.hung.is_none());
}

#[test]
fn one_that_hangs_is_told_with_what_was_seen_and_the_next_round_has_another_reader() {
    let fake = Fake::new();
    (1..=3).for_each(|pid| fake.add(pid));
    let fifo = fake.wedge(2, "cmdline");
    let mut readers = fake.readers();
    let round = readers.read(ask(&[1, 2, 3]));
    let hung = round.hung.unwrap();
    let glimpse = hung.glimpse.unwrap();
    assert_eq!((hung.pid, glimpse.stat.start, glimpse.uid), (2, 77, Some(5)));
    assert_eq!(glimpse.cgroup.as_deref(), Some(&b"0::/\n"[..]));
    assert!(round.answers[&1].is_ok() && !round.answers.contains_key(&3));
    assert!(readers.read(ask(&[3])).answers.is_empty(), "this pass has waited its share");
    readers.begin_pass();
    assert!(readers.read(ask(&[3])).answers[&3].is_ok());
    assert!(!hung.reader.is_back());
    drop(fs::OpenOptions::new().write(true).open(fifo).unwrap());
    let begin = Instant::now();
    while !hung.reader.desk.has_ended() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(2));
    }
    let long_ago = Straggler { since: Instant::now().checked_sub(AGAIN).unwrap(), ..hung.reader.clone() };
    let just_now = Straggler { since: Instant::now() + PATIENCE, ..hung.reader };
    assert!(long_ago.is_back() && !just_now.is_back());
}

#[test]
fn only_so_many_are_left_behind_then_arguments_are_left_out_and_then_nobody_is_waited_for() {
    let fake = Fake::new();
    (1..=7).for_each(|pid| fake.add(pid));
    let mut fifos: Vec<_> = (1..=3).map(|pid| fake.wedge(pid, "stat")).collect();
    fifos.extend([4, 7].map(|pid| fake.wedge(pid, "cmdline")));
    fifos.push(fake.wedge(5, "status"));
    let mut readers = fake.readers();
    for pid in 1..=LEFT_BEHIND as u32 {
        assert!(!readers.are_exhausted());
        readers.begin_pass();
        let hung = readers.read(ask(&[pid])).hung.unwrap();
        assert_eq!((hung.pid, hung.glimpse.is_some()), (pid, pid == 4));
    }
    assert!(readers.are_exhausted());
    readers.begin_pass();
    let round = readers.read(ask(&[6, 7]));
    assert!(round.hung.is_none());
    for pid in [6, 7] {
        let reading = round.answers[&pid].as_ref().unwrap();
        assert!(reading.cmdline.is_none() && reading.uid.is_ok() && reading.cgroup.is_ok());
    }
    readers.begin_pass();
    assert_eq!(readers.read(ask(&[5])).hung.unwrap().pid, 5);
    readers.begin_pass();
    let round = readers.read(ask(&[6]));
    assert!(round.answers.is_empty() && round.hung.is_none());
    // One comes back, and its place is free.
    drop(fs::OpenOptions::new().write(true).open(&fifos[0]).unwrap());
    let begin = Instant::now();
    while !readers.read(ask(&[6])).answers.contains_key(&6) {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(2));
    }
    [&fifos[1..4], &fifos[5..]]
        .concat()
        .iter()
        .for_each(|fifo| drop(fs::OpenOptions::new().write(true).open(fifo).unwrap()));
}

#[test]
fn a_reader_that_died_is_told_once_and_the_next_one_waits_a_while() {
    let fake = Fake::new();
    fake.add(1);
    let mut readers = fake.readers();
    let desk = Arc::new(Desk::default());
    drop(desk::End(&desk));
    readers.current = Some(desk);
    assert!(readers.read(ask(&[1])).died);
    let round = readers.read(ask(&[1]));
    assert!(!round.died && round.answers.is_empty());
    readers.paused_until = Some(Instant::now());
    assert!(readers.read(ask(&[1])).answers[&1].is_ok());
}
