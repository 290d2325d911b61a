//! What clients in the processes report about their allocators, for the run that each process belongs to.

use std::collections::{BTreeMap, BTreeSet};

use text_and_sizes::sizing;

use super::prometheus::Series;
use super::queries::Answers;
use super::run_key::RunKey;

/// The framework whose client does not report what the framework took from the driver.
const TENSORFLOW: &str = "tensorflow";

/// What the clients of a run reported in the range.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reported {
    /// What the run needs at most, in bytes: the sum over as many processes as ran at the same time, those that need most.
    pub(super) need: u64,
    /// The highest allocated memory of one process, in bytes.
    pub(super) allocated_peak: u64,
    /// The highest memory of a process outside its allocators, in bytes; `None` if none reports it.
    pub(super) outside: Option<u64>,
    pub(super) frameworks: BTreeSet<String>,
    /// Failed allocations; `None` if no client counts them.
    pub(super) out_of_memory: Option<u64>,
    /// Whether a framework reported what it allocated, but not what it keeps.
    pub(super) hides_reservation: bool,
}

/// A process on a device: the labels that identify it.
type ProcessKey = [Option<String>; 5];

fn process(series: &Series) -> ProcessKey {
    ["cluster", "uuid", "mig_uuid", "pid", "process"].map(|name| series.label(name).map(str::to_owned))
}

/// One process.
#[derive(Debug, Default)]
struct Process {
    /// By framework, in bytes.
    allocated: BTreeMap<String, u64>,
    outside: Option<u64>,
    driver_peak: Option<u64>,
    /// The counter at the ends of intervals, by framework and time.
    failures: BTreeMap<String, BTreeMap<u64, u64>>,
}

impl Process {
    fn allocated(&self) -> u64 {
        self.allocated.values().sum()
    }

    /// Failed allocations after `begin`, the end of the interval before the range; `None` if it does not count them. A counter
    /// that falls has begun again.
    fn out_of_memory(&self, begin: u64) -> Option<u64> {
        let counters = self.failures.values().filter(|counter| counter.keys().any(|time| *time > begin));
        let failed = |counter: &BTreeMap<u64, u64>| {
            let mut before = counter.get(&begin).copied().unwrap_or(0);
            let mut failed = 0;
            for (_, value) in counter.range(begin + 1..) {
                failed += if *value >= before { value - before } else { *value };
                before = *value;
            }
            failed
        };
        counters.map(failed).reduce(|a, b| a + b)
    }

    /// What it needs, in bytes; `None` if nothing is known about its memory.
    fn need(&self) -> Option<u64> {
        let reported = self.outside.filter(|_| !self.allocated.is_empty()).map(|outside| outside + self.allocated());
        match (reported, self.driver_peak) {
            (Some(reported), Some(peak)) => Some(reported.min(peak)),
            (reported, peak) => reported.or(peak),
        }
    }
}

/// What the clients of each run reported. Runs without a client are absent. `begin` is the end of the interval before the
/// range, `at_once` the highest number of processes that a run had at the same time.
pub(super) fn reported(
    answers: &Answers,
    begin: u64,
    at_once: impl Fn(&RunKey) -> Option<u64>,
) -> BTreeMap<RunKey, Reported> {
    let mut processes: BTreeMap<ProcessKey, Process> = BTreeMap::new();
    let mut each = |series: &[Series], take: fn(&mut Process, &Series, u64)| {
        for series in series {
            if let Some(value) = series.value() {
                take(processes.entry(process(series)).or_default(), series, value);
            }
        }
    };
    each(&answers.allocated, |process, series, value| {
        process.allocated.insert(series.label("framework").unwrap_or_default().to_owned(), value);
    });
    each(&answers.outside, |process, _, value| process.outside = Some(value));
    each(&answers.process_peaks, |process, _, value| process.driver_peak = Some(value));
    for series in &answers.out_of_memory {
        let process = processes.entry(process(series)).or_default();
        let counter = process.failures.entry(series.label("framework").unwrap_or_default().to_owned()).or_default();
        counter.extend(series.points.iter().map(|point| (point.time, point.value)));
    }

    // A pid that was used twice can belong to two runs, and then counts for both: a need is an upper bound.
    let mut of_run: BTreeMap<RunKey, BTreeSet<ProcessKey>> = BTreeMap::new();
    for series in &answers.owners {
        if let Some(key) = RunKey::of(series) {
            of_run.entry(key).or_default().insert(process(series));
        }
    }
    let mut found = BTreeMap::new();
    let unread = Process::default();
    for (key, members) in of_run {
        let members: Vec<_> = members.iter().map(|key| processes.get(key).unwrap_or(&unread)).collect();
        if members.iter().any(|process| !process.allocated.is_empty()) {
            let at_once = at_once(&key).unwrap_or(0);
            found.insert(key, together(&members, begin, at_once));
        }
    }
    found
}

/// `at_once` processes ran at the same time at most; 0 if that is not known.
fn together(members: &[&Process], begin: u64, at_once: u64) -> Reported {
    // Without the need of a process, the run may need all that it held.
    let mut needs: Vec<u64> = members.iter().map(|process| process.need().unwrap_or(u64::MAX)).collect();
    let at_once = usize::try_from(at_once).ok().filter(|at_once| *at_once > 0).unwrap_or(usize::MAX);
    let reporting = || members.iter().filter(|process| !process.allocated.is_empty());
    let of_tensorflow = |process: &&&Process| process.allocated.contains_key(TENSORFLOW) && process.outside.is_none();
    Reported {
        need: sizing::largest_at_once(&mut needs, at_once),
        allocated_peak: members.iter().map(|process| process.allocated()).max().unwrap_or(0),
        outside: reporting().filter_map(|process| process.outside).max(),
        frameworks: members.iter().flat_map(|process| process.allocated.keys().cloned()).collect(),
        out_of_memory: members.iter().filter_map(|process| process.out_of_memory(begin)).reduce(|a, b| a + b),
        hides_reservation: members.iter().filter(of_tensorflow).count() > 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(allocated: &[(&str, u64)], outside: Option<u64>, driver_peak: Option<u64>) -> Process {
        let allocated = allocated.iter().map(|(framework, bytes)| ((*framework).to_owned(), *bytes)).collect();
        Process { allocated, outside, driver_peak, failures: BTreeMap::new() }
    }

    #[test]
    fn a_run_needs_no_more_than_its_largest_processes_at_once() {
        let jax = process(&[("jax", 1000)], Some(500), Some(100_000));
        let torch = process(&[("pytorch", 300), ("jax", 200)], Some(100), Some(550));
        let silent = process(&[], None, Some(70));
        let unknown = process(&[], None, None);
        let all = [&jax, &torch, &silent];
        let found = together(&all, 0, 2);
        assert_eq!((found.need, found.allocated_peak, found.outside), (2050, 1000, Some(500)));
        assert_eq!(found.frameworks.into_iter().collect::<Vec<_>>(), ["jax", "pytorch"]);
        assert_eq!((found.out_of_memory, found.hides_reservation), (None, false));
        assert_eq!(together(&all, 0, 0).need, 2120);
        assert_eq!(together(&[&jax, &unknown], 0, 1).need, u64::MAX, "the run may need all that it held");
    }

    #[test]
    fn a_counter_of_failures_begins_at_0_or_before_the_range() {
        let failed = |counters: &[&[(u64, u64)]]| {
            let failures = counters
                .iter()
                .enumerate()
                .map(|(number, points)| (number.to_string(), points.iter().copied().collect::<BTreeMap<_, _>>()));
            Process { failures: failures.collect(), ..Process::default() }.out_of_memory(100)
        };
        assert_eq!(failed(&[]), None);
        assert_eq!(failed(&[&[(100, 4)]]), None, "it does not count in the range");
        assert_eq!(failed(&[&[(200, 2)]]), Some(2));
        assert_eq!(failed(&[&[(100, 4), (200, 4), (300, 5)]]), Some(1));
        assert_eq!(failed(&[&[(200, 2), (300, 0), (500, 1)], &[(400, 3)]]), Some(6));
    }

    #[test]
    fn tensorflow_does_not_say_what_it_keeps() {
        let found = together(&[&process(&[("tensorflow", 10)], None, Some(90))], 0, 1);
        assert!(found.hides_reservation);
        assert_eq!((found.need, found.allocated_peak, found.outside), (90, 10, None));
    }
}
