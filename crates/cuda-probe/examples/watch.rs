//! Prints the memory calls of processes for some seconds: `watch [--refusals] [--perf] SECONDS PID_OR_LIBRARY...`

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use std::path::Path;
use std::time::{Duration, Instant};

use cuda_probe::{Library, Mode, Probes, Settings, Way, find_libraries};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (options, words): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let has = |option: &str| options.iter().any(|given| given == option);
    let [seconds, targets @ ..] = &*words else { return Err("watch SECONDS PID_OR_LIBRARY...".into()) };
    let mut settings = Settings::new(if has("--refusals") { Mode::Refusals } else { Mode::All });
    settings.way = has("--perf").then_some(Way::PerfEvent);
    let mut probes = Probes::load(settings)?;
    for target in targets {
        let libraries = match target.parse() {
            Ok(pid) => {
                let found = find_libraries(Path::new("/proc"), [pid], |id| probes.is_attached(id));
                found.failed.iter().for_each(|(pid, error)| println!("process {pid}: {error}"));
                found.libraries
            }
            Err(_) => vec![Library::open(Path::new(target))?],
        };
        for library in libraries {
            let attached = probes.attach(&library)?;
            println!("{}: {:?}, {} calls", library.path.display(), attached.way, attached.symbols.len());
            println!("absent: {}", attached.absent.join(" "));
        }
    }
    let end = Instant::now() + Duration::from_secs_f64(seconds.parse()?);
    let mut events = 0;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(100));
        events += probes.drain(|event| {
            let (who, took) = ((event.process, event.thread), event.duration);
            println!("{:.6} {who:?} {:?} -> {} in {took:?}", event.start.as_secs_f64(), event.call, event.result);
        });
    }
    println!("{events} events, {:?}, {:?}", probes.lost(), probes.sweep(Path::new("/proc")));
    Ok(())
}
