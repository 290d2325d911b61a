//! A memory tick and a golden scrape, repeated on a simulated machine, to measure the cost of each.
//!
//! `work` without arguments prints how long a tick and a scrape take. `work still|moving|recorded|scrape|openmetrics TIMES`
//! is what `check.py` runs under callgrind, which dumps its counts on each call to `getppid`: before the first counted step,
//! after TIMES steps, and after twice as many more.

use std::hint::black_box;
use std::os::unix::process::parent_id;
use std::time::Instant;

use guard::Workplace;

/// Steps before anything is counted.
const WARM: u32 = 20;

/// The number of ticks between two rounds of the recorder. In each round the recorder takes the changes that the ticks
/// have passed on.
const TAKE_EVERY: u32 = 25;

/// A step, by its name in check.py.
fn step(name: &str) -> Option<Box<dyn FnMut()>> {
    let ticking = |mut place: Workplace| -> Box<dyn FnMut()> { Box::new(move || place.tick()) };
    match name {
        "still" => Some(ticking(Workplace::still())),
        "moving" => Some(ticking(Workplace::moving())),
        "recorded" => {
            let (mut place, mut ticks) = (Workplace::recorded(), 0);
            Some(Box::new(move || {
                place.tick();
                ticks += 1;
                if ticks % TAKE_EVERY == 0 {
                    black_box(place.passed_on());
                }
            }))
        }
        "scrape" => {
            let place = Workplace::golden();
            Some(Box::new(move || drop(black_box(place.scrape()))))
        }
        "openmetrics" => {
            let place = Workplace::golden();
            Some(Box::new(move || drop(black_box(place.scrape_open_metrics()))))
        }
        _ => None,
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_default();
    let Some(times) = args.next().map(|times| times.parse::<u32>().unwrap()) else { return print_times() };
    let mut step = step(&name).unwrap();
    // Warms up: some work is done only in the first steps.
    (0..WARM).for_each(|_| step());
    black_box(parent_id());
    (0..times).for_each(|_| step());
    black_box(parent_id());
    (0..2 * times).for_each(|_| step());
    black_box(parent_id());
}

fn print_times() {
    let steps =
        [("still", 100_000), ("moving", 100_000), ("recorded", 100_000), ("scrape", 2_000), ("openmetrics", 2_000)];
    for (name, times) in steps {
        let mut step = step(name).unwrap();
        (0..WARM).for_each(|_| step());
        let begin = Instant::now();
        (0..times).for_each(|_| step());
        let each = begin.elapsed().as_secs_f64() * 1e6 / f64::from(times);
        println!("{name:<11} {each:>10.3} us, the simulator included");
    }
}
