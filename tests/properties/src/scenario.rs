//! Any scenario and control file for the simulator: either the error names the key, or all of the machine's numbers
//! are possible values.

mod arbitrary;

use nvml_sim::internals::{Gpu, Machine, Nanos, Problem, Process, ProcessList, SECOND, build};

use crate::choices::choices;

/// Separates the scenario from a control file.
const CONTROL: &str = "\n--\n";
/// Times at which the machine is read: the start, the span of the demo, and the latest time that a clock may show.
const TIMES: [Nanos; 6] = [0, 1, SECOND, 90 * SECOND, 40 * 86_400 * SECOND, 1_900_000_000 * SECOND];
/// The largest product of GPUs and processes for which a machine is read. A larger one takes too long and runs the
/// same code.
const LARGEST: usize = 300;

/// Builds the machine of a scenario and of the control file that may follow it. True if both are valid.
pub fn scenario(data: &[u8]) -> bool {
    let text = match choices(data) {
        Some(mut u) => arbitrary::scenario(&mut u),
        None => String::from_utf8_lossy(data).into_owned(),
    };
    let (scenario, control) = text.split_once(CONTROL).unwrap_or((&text, ""));
    let built = build(scenario, control);
    match (&built, &build(scenario, control)) {
        (Ok(machine), Ok(again)) => assert_sound(machine, again),
        (Err(problem), _) => assert_names_the_key(problem),
        (Ok(_), Err(problem)) => panic!("refused only the second time: {problem}"),
    }
    built.is_ok()
}

fn assert_names_the_key(problem: &Problem) {
    let text = problem.to_string();
    assert!(text.starts_with("s.toml: ") || text.starts_with("c.toml: "), "{text}");
    assert!(text.split_whitespace().count() >= 3, "{text}");
    if let Problem::Impossible { key, what, .. } = problem {
        assert!(!key.is_empty() && !what.is_empty(), "{text}");
    }
}

fn assert_sound(machine: &Machine, again: &Machine) {
    assert!(!machine.gpus.is_empty());
    if machine.processes.len() * machine.gpus.len() > LARGEST {
        return;
    }
    for now in TIMES {
        for process in &machine.processes {
            assert_lives(process, now);
        }
        for (gpu, same) in machine.gpus.iter().zip(&again.gpus) {
            assert_holds(machine, gpu, now);
            assert_eq!(
                machine.used(gpu, None, now),
                again.used(same, None, now),
                "two machines of one scenario differ"
            );
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
    assert!((0.0..=1.0).contains(&busy), "{process:?} has a utilization of {busy}");
    // Soon after the start, before noise has changed many times.
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
