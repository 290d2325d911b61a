//! What holds of the machine whatever a scenario or a control file says: it is refused by key, or it is a machine whose
//! numbers can be.

#![allow(clippy::panic, reason = "a trial panics where what must hold does not")]

mod made;
/// The same bytes make the same trial as for the exporter, and the same driver runs it.
#[allow(dead_code, reason = "the exporter's trials use the rest of it")]
#[path = "../../../src/trials.rs"]
mod pieces;

use std::path::Path;

use crate::clock::{Nanos, SECOND};
use crate::control::Overlay;
use crate::machine::process::{Process, ProcessList};
use crate::machine::{Gpu, Machine};
use crate::scenario::{Problem, Source, parse, parse_control};
use pieces::Pieces;

/// Parts the scenario from a control file.
const CONTROL: &str = "\n--\n";
/// Times at which the machine is asked: the beginning, the demo's span, and the latest that a clock gives.
const TIMES: [Nanos; 6] = [0, 1, SECOND, 90 * SECOND, 40 * 86_400 * SECOND, 1_900_000_000 * SECOND];
/// A larger machine is built and not asked: it takes its time, and has no other code.
const ASKED: usize = 300;

/// Reads a scenario, with a control file where there is one. True where there is a machine of it.
pub fn scenario(data: &[u8]) -> bool {
    let text = match Pieces::of(data) {
        Some(mut pieces) => made::scenario(&mut pieces),
        None => String::from_utf8_lossy(data).into_owned(),
    };
    let (scenario, control) = text.split_once(CONTROL).unwrap_or((&text, ""));
    let built = build(scenario, control);
    match (&built, &build(scenario, control)) {
        (Ok(machine), Ok(again)) => assert_sound(machine, again),
        (Err(problem), _) => assert_told(problem),
        (Ok(_), Err(problem)) => panic!("only the second time: {problem}"),
    }
    built.is_ok()
}

fn build(scenario: &str, control: &str) -> Result<Machine, Problem> {
    let source = Source { file: "s.toml".to_owned(), scenario: parse("s.toml", scenario)? };
    let control = parse_control(Path::new("c.toml"), control)?;
    let overlay = Overlay {
        file: "c.toml".to_owned(),
        process_since: vec![7 * SECOND; control.process.len()],
        xid_since: vec![8 * SECOND; control.xid.len()],
        fault_since: vec![9 * SECOND; control.fault.len()],
        control,
    };
    Machine::build(&source, Some(&overlay))
}

fn assert_told(problem: &Problem) {
    let text = problem.to_string();
    assert!(text.starts_with("s.toml: ") || text.starts_with("c.toml: "), "{text}");
    assert!(text.split_whitespace().count() >= 3, "{text}");
    if let Problem::Impossible { key, what, .. } = problem {
        assert!(!key.is_empty() && !what.is_empty(), "{text}");
    }
}

fn assert_sound(machine: &Machine, again: &Machine) {
    assert!(!machine.gpus.is_empty());
    if machine.processes.len() * machine.gpus.len() > ASKED {
        return;
    }
    for now in TIMES {
        for process in &machine.processes {
            assert_lives(process, now);
        }
        for (gpu, same) in machine.gpus.iter().zip(&again.gpus) {
            assert_holds(machine, gpu, now);
            assert_eq!(machine.used(gpu, None, now), again.used(same, None, now), "another machine");
        }
        for xid in &machine.xids {
            assert!(xid.next(now).is_none_or(|next| next >= now), "{xid:?} at {now}");
        }
    }
}

fn assert_lives(process: &Process, now: Nanos) {
    if let Some(next) = process.next_change(now) {
        assert!(next > now, "{process:?} changes at {next}, before {now}");
    }
    if let Some((_, end)) = process.last_ended(now) {
        assert!(end <= now, "{process:?} ended at {end}, after {now}");
    }
    let Some(life) = process.life(now) else { return };
    assert!(life.start <= now && process.pid(life.number) > 0, "{process:?}");
    let wants = process.wants(life, now);
    assert!(wants <= process.most(), "{process:?} wants {wants}");
    let busy = process.busy(life, now);
    assert!((0.0..=1.0).contains(&busy), "{process:?} is busy by {busy}");
    // So soon after its birth that no noise has changed often.
    let soon = life.start + 500;
    let peak = process.peak(life, soon);
    assert!((process.wants(life, soon)..=process.most()).contains(&peak), "{process:?} had {peak}");
}

fn assert_holds(machine: &Machine, gpu: &Gpu, now: Nanos) {
    let instances = gpu.mig.iter().flatten().flatten().map(Some);
    let places: Vec<_> = if gpu.mig.is_some() { instances.collect() } else { vec![None] };
    for instance in places {
        let capacity = instance.map_or(gpu.load.capacity(), |instance| instance.load.capacity());
        let used = machine.used(gpu, instance, now);
        assert!(used <= capacity, "{used} of {capacity} at {now}");
        for list in [ProcessList::Compute, ProcessList::Graphics, ProcessList::Mps] {
            let mut held = 0;
            machine.listed(gpu, instance, list, now, |process| held += process.memory.unwrap_or(0));
            assert!(held <= used, "a list holds {held} of {used} at {now}");
        }
    }
    let [busy, power] = [machine.activity(gpu, None, now).busy, machine.power(gpu, now)];
    assert!((0.0..=1.0).contains(&busy), "{busy}");
    assert!(power.is_finite() && power >= 0.0 && machine.temperature(gpu, now).is_finite(), "{power} W");
    machine.clocks(gpu, now);
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_scenario_is_refused_by_key_or_makes_a_machine() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let built = super::pieces::drive(root, "scenario", 1_000, super::scenario);
        assert!(built > 80, "{built} machines");
    }
}
