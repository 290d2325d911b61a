//! The cost of identifying 128 processes in this machine's own `/proc`: new ones and cached ones. The baseline, from
//! the same run, only reads one file for each process.
//!
//! `cargo bench --bench attribution` starts 128 sleeping processes and kills them.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints its figures and stops at the first error"
)]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_readings::attribution::{Attribution, Settings};
use gpu_readings::faults::Faults;
use gpu_readings::snapshot::Snapshot;

const PROCESSES: usize = 128;
const ROUNDS: usize = 41;

/// Children that are killed when this is dropped.
struct Sleepers(Vec<Child>);

impl Sleepers {
    fn start() -> Self {
        let sleeper = || Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        Self((0..PROCESSES).map(|_| sleeper()).collect())
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn attribution() -> Attribution {
    let settings =
        Settings { procfs: "/proc".into(), passwd: Some("/etc/passwd".into()), command_line: false, hold: 512 };
    Attribution::new(settings, Snapshot::new(), Arc::new(Faults::default()))
}

fn timed(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

fn report(what: &str, mut rounds: Vec<Duration>, beside: Duration) -> Duration {
    rounds.sort();
    let (median, worst) = (rounds[rounds.len() / 2], rounds[rounds.len() - 1]);
    let each = median.as_secs_f64() * 1e6 / PROCESSES as f64;
    let ratio = if beside.is_zero() { 1.0 } else { median.as_secs_f64() / beside.as_secs_f64() };
    println!("{what:<44} {median:>12.3?} {worst:>12.3?} {each:>9.2} us {ratio:>7.2}");
    median
}

fn main() {
    let sleepers = Sleepers::start();
    let pids: Vec<u32> = sleepers.0.iter().map(Child::id).collect();
    std::thread::sleep(Duration::from_millis(200));
    let (mut read, mut new, mut cached) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        read.push(timed(|| {
            for pid in &pids {
                std::hint::black_box(std::fs::read(format!("/proc/{pid}/stat")).unwrap());
            }
        }));
        let mut attribution = attribution();
        new.push(timed(|| {
            let owners = attribution.identify_all(&pids);
            assert!(owners.iter().all(|owner| owner.start_ticks.is_some()));
            attribution.sweep(|_| false);
        }));
        cached.push(timed(|| {
            let owners = attribution.identify_all(&pids);
            assert!(owners.iter().all(|owner| owner.start_ticks.is_some()));
            attribution.sweep(|_| false);
        }));
    }
    println!(
        "{PROCESSES} processes, {ROUNDS} alternating rounds {:>16} {:>12} {:>12} {:>7}",
        "median", "worst", "each", "ratio"
    );
    let beside = report("reading stat of each", read, Duration::ZERO);
    report("new: name, user, start, cgroup, workload", new, beside);
    report("cached: check of existence, names", cached, beside);
}
