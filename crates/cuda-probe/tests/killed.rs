//! A watching program that is killed while a process calls: before, it has seen every call; after, nothing of its probes is left.
//!
//! `lab/kernels/check.py` runs this test under other kernels and reads the lines that begin with `kernel:`.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "another test uses the rest")]
mod rig;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fake_libcuda::{CAPACITY, Driver, FIRST_ADDRESS, OUT_OF_MEMORY};
use rig::{DriverFile, eventually, program};

const CALLS: u64 = 1000;

/// The parts of this process's code of a file that differ from the file: bytes on x86-64, whose breakpoint is one byte, else words.
fn changed(library: &Path) -> usize {
    const UNIT: usize = if cfg!(target_arch = "x86_64") { 1 } else { 4 };
    let (path, file) = (library.to_str().unwrap(), std::fs::read(library).unwrap());
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains(" r-xp ") && line.ends_with(path)).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let (begin, end) = words[0].split_once('-').map(|(begin, end)| (number(begin), number(end))).unwrap();
    let in_file = &file[usize::try_from(number(words[2])).unwrap()..];
    // The mapping ends with a page, the file need not.
    let mut code = vec![0; in_file.len().min(usize::try_from(end - begin).unwrap())];
    memory.read_exact_at(&mut code, begin).unwrap();
    code.chunks(UNIT).zip(in_file.chunks(UNIT)).filter(|(now, then)| now != then).count()
}

/// The program that watches.
struct Watcher {
    child: Child,
    says: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Watcher {
    fn start(role: &str, library: &Path) -> Self {
        let mut child = program(role, library, &[]);
        let says = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, says }
    }

    /// The rest of the next line that begins with this word.
    fn says(&mut self, word: &str) -> String {
        loop {
            let line = self.says.next().unwrap_or_else(|| panic!("the watching program has ended")).unwrap();
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
            assert!(!line.starts_with("error"), "{line}");
        }
    }

    /// The sizes and results of the calls since the last time, and how many were lost so far.
    fn calls(&mut self) -> (Vec<(u64, i32)>, u64) {
        self.child.stdin.as_mut().unwrap().write_all(b"calls\n").unwrap();
        let count: usize = self.says("events").parse().unwrap();
        let call = |text: String| text.split_once(' ').map(|(size, result)| (size.parse().ok(), result.parse().ok()));
        let calls =
            (0..count).map(|_| call(self.says("call")).unwrap()).map(|(size, result)| (size.unwrap(), result.unwrap()));
        let calls = calls.collect();
        (calls, self.says("lost").parse().unwrap())
    }
}

/// Ends the watching program also if the test fails: it would wait for its input.
impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The calls of the other threads' kind: granted, with the address that follows from the size.
fn call(driver: &Driver, size: u64) {
    assert_eq!(driver.cuMemAlloc_v2(size), (0, FIRST_ADDRESS + size));
}

/// How long a call takes: the shortest of some.
fn shortest(driver: &Driver) -> Duration {
    let time = |size| {
        let begin = Instant::now();
        call(driver, size);
        begin.elapsed()
    };
    (1..=200).map(time).min().unwrap()
}

#[test]
fn a_watching_program_that_is_killed_leaves_nothing() {
    for role in ["watches", "watches-with-perf"] {
        let copy = DriverFile::new();
        let driver = copy.driver();
        // Touches the functions, so that their code is in this process's memory.
        call(&driver, 1);
        let (before, took_before) = (changed(&copy.path), shortest(&driver));
        let mut watcher = Watcher::start(role, &copy.path);
        let attached = watcher.says("attached");
        if let Some(why) = attached.strip_prefix("not: ") {
            return workspace_skips::skipped(why);
        }
        let functions: usize = attached.split_once(' ').unwrap().1.parse().unwrap();
        for size in 1..=CALLS {
            call(&driver, size);
        }
        assert_eq!(driver.cuMemAlloc_v2(CAPACITY + 1), (OUT_OF_MEMORY, 0));
        let (seen, lost) = watcher.calls();
        let granted = (1..=CALLS).map(|size| (size, 0));
        assert!(seen.iter().copied().eq(granted.chain([(CAPACITY + 1, OUT_OF_MEMORY)])), "{role}: {seen:?}");
        let (during, took_during) = (changed(&copy.path), shortest(&driver));

        // A thread calls all the time.
        let (ended, made) = (AtomicBool::new(false), AtomicU64::new(0));
        let (after, took) = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Acquire) {
                    call(&driver, 4096);
                    made.fetch_add(1, Ordering::Relaxed);
                }
            });
            let more_calls = |count| {
                let then = made.load(Ordering::Relaxed) + count;
                eventually("the thread goes on", || (made.load(Ordering::Relaxed) >= then).then_some(()));
            };
            more_calls(100);
            let begin = Instant::now();
            watcher.child.kill().unwrap();
            watcher.child.wait().unwrap();
            eventually("the probes are gone", || (changed(&copy.path) == before).then_some(()));
            let took = begin.elapsed();
            more_calls(100);
            ended.store(true, Ordering::Release);
            (changed(&copy.path), took)
        });
        println!(
            "\nkernel: {attached} functions, {} calls seen, {lost} lost, code changed at {before}, {during} and {after} places, a call takes \
             {took_before:?}, {took_during:?} and {:?}, gone after {took:?}",
            seen.len(),
            shortest(&driver)
        );
        assert_eq!((before, during, after, lost), (0, functions, 0, 0), "{role}");
        call(&driver, 1);
        if attached.starts_with("PerfEvent") {
            break;
        }
    }
}
