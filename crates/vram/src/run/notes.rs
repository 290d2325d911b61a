//! The notes of the report: sentences that a reader needs to understand the numbers. They state what was not measured
//! and why, and what happened at the end.

use nix::sys::signal::Signal;
use text_and_sizes::format;

use super::facts::{Facts, Followed};
use super::readings::{LIST_INTERVAL, Lost, State};
use super::record::{Membership, PlaceRecord};

/// The notes. `labels`: the names of the devices, in the order of their records.
pub(super) fn of(facts: &Facts, state: &State, labels: &[String]) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |text: String| notes.push(text);
    match (&state.problem, &state.machine) {
        (Some(problem), None) => note(format!("no GPU memory was measured: {problem}")),
        (None, None) => {
            note("no GPU memory was measured: the driver was not open when the command had ended".to_owned())
        }
        (_, Some(machine)) if machine.places.is_empty() => {
            note("no GPU memory was measured: the driver shows no GPU".to_owned());
        }
        (_, Some(_)) if !state.record.has_samples() => note("no GPU memory was measured".to_owned()),
        (_, Some(_)) => {}
    }
    if let Some(Lost { at, problem, back }) = &state.lost {
        let at = format::seconds(at.as_secs_f64());
        let lost = format!("the driver was lost {at} after the start: {problem}");
        note(match back {
            None => format!("the measurement ended early: {lost}"),
            Some(back) => format!("{lost}; nothing was measured until {}", format::seconds(back.as_secs_f64())),
        });
    }
    for (gpu, calls) in &state.calls {
        if let Some(began) = calls.hangs_since {
            note(format!(
                "GPU {gpu}: a driver call that began at {} had not returned at the end: what happened on this GPU after \
                 the call began was not measured",
                format::seconds(began.as_secs_f64())
            ));
        }
    }
    if let Some(opened) = state.opened.filter(|opened| *opened > LIST_INTERVAL) {
        let before = if opened < facts.duration { "before that" } else { "while the command ran" };
        note(format!(
            "the driver was not open until {} after the start of the command: nothing was measured {before}",
            format::seconds(opened.as_secs_f64())
        ));
    }
    if let Some(problem) = &state.calls_unseen {
        note(format!("memory.probes: peaks between two readings can be missing: {problem}"));
    }
    if state.calls_lost > 0 {
        note(format!("memory.probes: {} calls were lost: peaks between two readings can be missing", state.calls_lost));
    }
    if state.record.together_is_at_least() {
        let known = if state.record.together.is_some() { "may have been higher" } else { "is unknown" };
        note(format!("the lists of several GPUs were not always of one moment: their highest sum {known}"));
    }
    for index in state.machine.iter().flat_map(|machine| &machine.unreachable) {
        note(format!("GPU {index} cannot be opened: nothing was measured on it"));
    }
    let measured = state.record.places.iter().any(|place| place.processes.is_some());
    let mut processes = state.record.places.iter().flat_map(|place| place.processes.iter().flatten());
    let found = processes.any(|(_, process)| process.membership == Membership::Tree);
    if measured && !found {
        note("no process of the command was listed on a GPU".to_owned());
    }
    if measured && facts.sees_host == Some(false) {
        note(
            "this pid namespace is not the machine's: the driver shows only the processes of this namespace, or none; \
             the memory of a GPU as a whole is correct; to see all processes, share the machine's pid namespace \
             (docker run --pid=host, hostPID: true)"
                .to_owned(),
        );
    }
    for (place, (label, record)) in labels.iter().zip(&state.record.places).enumerate() {
        notes.extend(on_device(label, record, place, state));
    }
    for (gpu, calls) in &state.calls {
        if let Some(first) = &calls.first_failure {
            notes.push(format!("GPU {gpu}: {} driver calls failed, the first: {first}", calls.failures));
        }
    }
    notes.extend(on_end(facts));
    notes
}

fn on_device(label: &str, record: &PlaceRecord, place: usize, state: &State) -> Vec<String> {
    let mut notes = Vec::new();
    let gpu = state.machine.as_ref().and_then(|machine| Some(machine.places.get(place)?.gpu.index));
    let has_failed = gpu.and_then(|gpu| state.calls.get(&gpu)).is_some_and(|calls| calls.failures > 0);
    let was_tried = has_failed || !state.record.has_samples();
    if record.has_no_memory {
        notes.push(format!("{label}: the driver does not report the memory of the GPU as a whole"));
    } else if record.own_peak.is_none() && !was_tried {
        notes.push(format!("{label}: the memory of the GPU as a whole was not read"));
    }
    if record.processes.is_none() && !was_tried {
        notes.push(format!("{label}: its processes were not listed"));
    }
    if let Some(peak) = record.spike() {
        let (bytes, at) = (format::bytes(peak.bytes), format::seconds(peak.at.as_secs_f64()));
        notes.push(match record.lists.last {
            Some(last) if last > peak.at => format!(
                "{label}: its own peak of {bytes} at {at} was too short for a list of its processes; they were listed at \
                 least every {}",
                format::seconds(record.lists.longest_gap.as_secs_f64()),
            ),
            _ => format!("{label}: its processes were not listed after its own peak of {bytes} at {at}"),
        });
    }
    if record.unknown_memory {
        notes.push(format!("{label}: at times the driver did not report the memory of a process of the command"));
    }
    let processes = record.processes.iter().flatten();
    let unidentified = processes.filter(|(_, process)| process.membership == Membership::Unidentified).count();
    let simulated = state.machine.as_ref().is_some_and(|machine| machine.simulated);
    match unidentified {
        // Simulated processes have a simulated `/proc`, and do not belong to the command.
        _ if simulated => {}
        0 => {}
        count => notes.push(format!(
            "{label}: /proc did not show {count} of the listed processes; whether they belong to the command is unknown"
        )),
    }
    if record.left_out {
        notes.push(format!("{label}: there were more processes than are listed here; the others are only in the sums"));
    }
    notes
}

fn on_end(facts: &Facts) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(Followed { time, processes, until }) = &facts.followed {
        let (time, until) = (format::seconds(time.as_secs_f64()), until.map(Signal::as_str));
        notes.push(match until {
            None => {
                format!("{processes} of its processes outlived the command and were followed until they ended, {time}")
            }
            Some(signal) => format!(
                "{processes} of its processes outlived the command and were followed for {time}, until {signal}"
            ),
        });
    }
    if facts.left {
        notes.push("processes of the command still run: what they do from now on is not measured".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant, SystemTime};

    use super::super::child::Ended;
    use super::super::places::{Machine, Place};
    use super::super::record::{Entry, Record};
    use super::super::reported::Reported;
    use super::*;
    use gpu_readings::snapshot::{Gpu, ProcessId};

    fn facts(sees_host: Option<bool>) -> Facts {
        Facts {
            command: Vec::new(),
            begun: SystemTime::UNIX_EPOCH,
            start: Instant::now(),
            ended: Ended::Exited(0),
            duration: Duration::from_secs(1),
            followed: None,
            left: false,
            sees_host,
            reported: Reported::default(),
        }
    }

    /// One GPU with one process.
    fn state(membership: Membership) -> State {
        let places = vec![Place { gpu: Arc::default(), mig: None }];
        let machine = Machine { simulated: false, driver_version: None, places, unreachable: Vec::new() };
        let mut record = Record::of(1);
        record.see(0, Duration::ZERO, 100 << 20, 1 << 40);
        let key = ProcessId { pid: 7, start_ticks: None };
        record.list(0, Duration::ZERO, &[Entry { key, membership, used: Some(90 << 20) }], [Some(100 << 20); 2]);
        let mut state = State::default();
        (state.machine, state.record) = (Some(machine), record);
        state
    }

    fn notes(facts: &Facts, state: &State) -> String {
        of(facts, state, &["GPU 0".to_owned()]).join("\n")
    }

    #[test]
    fn a_complete_measurement_needs_no_note() {
        assert_eq!(notes(&facts(Some(true)), &state(Membership::Tree)), "");
        assert_eq!(notes(&facts(None), &state(Membership::Tree)), "");
    }

    #[test]
    fn a_container_is_told_what_it_cannot_see_and_how_it_could() {
        let hidden = notes(&facts(Some(false)), &state(Membership::Unidentified));
        assert!(hidden.contains("no process of the command was listed"), "{hidden}");
        assert!(hidden.contains("--pid=host"), "{hidden}");
        assert!(hidden.contains("GPU 0: /proc did not show 1 of the listed processes"), "{hidden}");
    }

    #[test]
    fn a_spike_without_a_list_is_named() {
        let mut state = state(Membership::Tree);
        state.record.see(0, Duration::from_millis(1234), 9 << 30, 1 << 40);
        let spike = notes(&facts(None), &state);
        assert!(
            spike.contains("GPU 0: its processes were not listed after its own peak of 9.00 GiB at 1.2 s"),
            "{spike}"
        );
        state.record.list(0, Duration::from_millis(1300), &[], [Some(0); 2]);
        let spike = notes(&facts(None), &state);
        assert!(spike.contains("GPU 0: its own peak of 9.00 GiB at 1.2 s was too short"), "{spike}");
        assert!(spike.contains("at least every 1.3 s"), "{spike}");
    }

    #[test]
    fn what_a_call_that_hangs_kept_from_being_read_is_not_blamed_on_the_driver() {
        let mut state = state(Membership::Tree);
        let gpu = Arc::new(Gpu { index: 1, ..Gpu::default() });
        state.machine.iter_mut().for_each(|machine| machine.places.push(Place { gpu: gpu.clone(), mig: None }));
        state.record.has_places(2);
        state.calls.entry(1).or_default().hangs_since = Some(Duration::from_millis(2500));
        let said = of(&facts(None), &state, &["GPU 0".to_owned(), "GPU 1".to_owned()]).join("\n");
        assert!(said.contains("GPU 1: a driver call that began at 2.5 s had not returned at the end"), "{said}");
        assert!(said.contains("GPU 1: the memory of the GPU as a whole was not read"), "{said}");
        assert!(said.contains("GPU 1: its processes were not listed"), "{said}");
        assert!(!said.contains("does not report") && !said.contains("GPU 0"), "{said}");
    }

    #[test]
    fn a_driver_that_was_lost_is_said_and_whether_it_came_back() {
        let (at, problem) = (Duration::from_millis(1500), "gone".to_owned());
        let mut state = state(Membership::Tree);
        state.lost = Some(Lost { at, problem, back: None });
        let lost = "the driver was lost 1.5 s after the start: gone";
        assert_eq!(notes(&facts(None), &state), format!("the measurement ended early: {lost}"));
        state.lost.iter_mut().for_each(|lost| lost.back = Some(Duration::from_secs(4)));
        assert_eq!(notes(&facts(None), &state), format!("{lost}; nothing was measured until 4.0 s"));
    }

    #[test]
    fn refused_calls_are_counted_for_the_gpu() {
        let mut state = state(Membership::Tree);
        let calls = state.calls.entry(0).or_default();
        (calls.failures, calls.first_failure) = (3, Some("the first".to_owned()));
        assert_eq!(notes(&facts(None), &state), "GPU 0: 3 driver calls failed, the first: the first");
    }

    #[test]
    fn a_driver_that_opened_late_is_said() {
        let mut late = state(Membership::Tree);
        late.opened = Some(Duration::from_millis(700));
        assert!(
            notes(&facts(None), &late).contains("after the start of the command: nothing was measured before that")
        );
        late.opened = Some(Duration::from_millis(1500));
        assert!(notes(&facts(None), &late).contains("nothing was measured while the command ran"));
    }

    #[test]
    fn a_measurement_that_did_not_begin_is_said_to_be_none() {
        let mut state = state(Membership::Tree);
        state.record = Record::of(1);
        assert_eq!(notes(&facts(None), &state), "no GPU memory was measured");
        state.machine = None;
        assert!(notes(&facts(None), &state).contains("the driver was not open"));
    }
}
