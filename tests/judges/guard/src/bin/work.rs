//! A memory tick and a golden scrape, repeated on a simulated machine, to count the instructions of each.
//!
//! `work still|moving|recorded|scrape|openmetrics TIMES` is what `check.py` runs under callgrind, which dumps its counts on
//! each call to `getppid`: before the first counted step, after TIMES steps, and after twice as many more.

use std::hint::black_box;
use std::os::unix::process::parent_id;

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
    let args: Vec<_> = std::env::args().collect();
    let [_, name, times] = &args[..] else { panic!("usage: work NAME TIMES") };
    let (mut step, times) = (step(name).unwrap(), times.parse::<u32>().unwrap());
    // Warms up: some work is done only in the first steps.
    (0..WARM).for_each(|_| step());
    black_box(parent_id());
    (0..times).for_each(|_| step());
    black_box(parent_id());
    (0..2 * times).for_each(|_| step());
    black_box(parent_id());
}
