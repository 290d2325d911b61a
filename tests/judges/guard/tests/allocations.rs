//! How often the exporter allocates memory: never during a tick of the memory lane or a profiling round, and a known
//! number of times during a process pass and during a scrape.
//!
//! Only the allocations of the thread that does the work are counted, so other threads cannot change the counts.

use std::sync::{Mutex, MutexGuard, PoisonError};

use guard::Workplace;

/// Allocations in a process pass over sixteen processes, none of which changed.
const PASS: f64 = 63.0;
/// Allocations in a scrape of the golden scenario.
const SCRAPE: f64 = 323.0;
/// Allocations in the same scrape in OpenMetrics.
const OPEN_METRICS: f64 = 305.0;

/// The simulator simulates one machine at a time.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn allocations(work: impl FnOnce()) -> u64 {
    allocation_counter::measure(work).count_total
}

/// The problem to report if a count is more than a tenth above or below the known count. A lower count is a problem
/// too, because the constants must stay up to date.
fn problem(constant: &str, known: f64, found: f64) -> Option<String> {
    let reported = format!("{known} allocations became {found:.1}");
    let remedy = format!("set {constant} in {} to {found:.0}", file!());
    match found / known {
        change if change > 1.1 => Some(format!("{reported}: if the change is worth it, {remedy}")),
        change if change < 0.9 => Some(format!("{reported}: {remedy}, or it would hide the next growth")),
        _ => None,
    }
}

#[test]
fn a_tick_allocates_nothing_while_memory_stands_still() {
    let _turn = one_at_a_time();
    let mut place = Workplace::still();
    assert_eq!(allocations(|| (0..1000).for_each(|_| place.tick())), 0);
}

#[test]
fn a_tick_allocates_nothing_while_memory_moves_at_every_tick() {
    let _turn = one_at_a_time();
    let mut place = Workplace::moving();
    for _ in 0..1000 {
        let before = place.used();
        assert_eq!(allocations(|| place.tick()), 0);
        assert!(std::iter::zip(before, place.used()).all(|(before, now)| before != now), "memory did not change");
    }
}

#[test]
fn a_tick_that_is_recorded_allocates_nothing() {
    let _turn = one_at_a_time();
    let mut place = Workplace::recorded();
    assert_eq!(allocations(|| (0..1000).for_each(|_| place.tick())), 0);
    assert!(place.passed_on() >= 8000, "not every change was passed on");
}

#[test]
fn a_tick_allocates_nothing_for_mig_devices() {
    let _turn = one_at_a_time();
    let mut place = Workplace::sliced();
    assert_eq!(allocations(|| (0..1000).for_each(|_| place.tick())), 0);
}

#[test]
fn a_profiling_round_allocates_nothing() {
    let _turn = one_at_a_time();
    // The start of a session allocates; a longer session must make the same number of allocations.
    let session = |place: Workplace, rounds| {
        let mut place = place.reopened();
        let count = allocations(|| place.profile(rounds));
        (place, count)
    };
    let (place, _) = session(Workplace::profiled(), 3);
    let (place, few) = session(place, 4);
    let (_, many) = session(place, 10);
    println!("{few} in 4 rounds, {many} in 10");
    assert_eq!(many, few);
}

#[test]
fn a_process_pass_in_which_nothing_changed_allocates_as_often_as_is_known() {
    let _turn = one_at_a_time();
    // A session begins with allocations of its own; the additional ones in a longer session come from its passes.
    let (place, few, passes) = session(Workplace::unchanging(), 20);
    let (_, many, more_passes) = session(place, 120);
    println!("{few} in {passes}, {many} in {more_passes}");
    assert_eq!(problem("PASS", PASS, (many - few) / (more_passes - passes)), None);
}

/// Opens the driver again and counts the allocations of at least `passes` process passes, and the passes themselves.
fn session(place: Workplace, passes: u64) -> (Workplace, f64, f64) {
    let mut place = place.reopened();
    let before = place.passes();
    let allocated = allocations(|| place.pass(passes));
    let passes = place.passes() - before;
    (place, allocated as f64, passes as f64)
}

#[test]
fn a_golden_scrape_allocates_as_often_as_is_known() {
    let _turn = one_at_a_time();
    let place = Workplace::golden();
    let series = |text: &[u8]| String::from_utf8_lossy(text).lines().filter(|line| !line.starts_with('#')).count();
    // The first scrape is not counted, because the length of its text is not yet known.
    assert!(series(&place.scrape()) > 200, "the scenario is incomplete");
    assert_eq!(problem("SCRAPE", SCRAPE, allocations(|| drop(place.scrape())) as f64), None);
    // Again, the first scrape is not counted: OpenMetrics is longer.
    assert!(series(&place.scrape_open_metrics()) > 200, "the scenario is incomplete");
    let open_metrics = allocations(|| drop(place.scrape_open_metrics())) as f64;
    assert_eq!(problem("OPEN_METRICS", OPEN_METRICS, open_metrics), None);
}

#[test]
fn what_is_counted_is_every_allocation_of_this_thread_and_no_other() {
    let count = allocations(|| {
        drop(std::hint::black_box(vec![1u8; 100]));
        let mut grows = Vec::with_capacity(1);
        grows.extend(std::hint::black_box([1u64; 50]));
        drop(std::hint::black_box(grows));
    });
    assert_eq!(count, 3);
    let elsewhere = || (0..1000).for_each(|size| drop(std::hint::black_box(vec![1u8; size + 1])));
    let beside = || std::thread::scope(|scope| scope.spawn(elsewhere).join().unwrap());
    assert!(allocations(beside) < 100);
    assert_eq!(allocations(elsewhere), 1000);
}

#[test]
fn a_tenth_more_or_less_is_a_problem() {
    for (found, reported) in [(100.0, None), (109.0, None), (91.0, None), (111.0, Some("worth")), (89.0, Some("hide"))]
    {
        let problem = problem("IT", 100.0, found);
        assert!(
            reported.is_none_or(|reported| problem.as_ref().is_some_and(|problem| problem.contains(reported))),
            "{problem:?}"
        );
        assert_eq!(problem.is_some(), reported.is_some(), "{found}");
    }
}
