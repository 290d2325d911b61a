//! The open driver session continues whatever else fails: refused or hanging attempts to open another session,
//! and calls that never return.

use super::{TWO, faults, reopen, rounds, up, values};
use crate::harness::{Exporter, Machine, Scrape};

const LOST: &str = "[[fault]]\ncall = \"*\"\ngpu = 0\nkind = \"error\"\ncode = \"GPU_IS_LOST\"\n";

/// Asserts that all values of the second GPU are shown and the driver is open.
fn assert_second_gpu(scrape: &Scrape) {
    assert_eq!(scrape.value("vram_exporter_nvml_up", &[]), Some(1.0), "{}", scrape.text);
    assert!(up(scrape, "1") == Some(1.0) && values(scrape, "1") > 0, "{}", scrape.text);
}

/// Ends the faults, and waits until both GPUs show their values.
fn both_again(machine: &Machine, exporter: &Exporter) {
    machine.control("");
    exporter.scrape_until("both again", |s| {
        assert_second_gpu(s);
        values(s, "0") > 0
    });
}

#[test]
fn a_failed_reopening_for_a_lost_gpu_costs_no_other_gpu() {
    let (machine, exporter) = Machine::running(TWO, &[]);
    exporter.scrape_until("both", |s| values(s, "0") > 0 && values(s, "1") > 0);
    machine.control(&format!("{LOST}[[fault]]\ncall = \"nvmlInit_v2\"\nkind = \"error\"\ncode = \"UNKNOWN\"\n"));
    exporter.scrape_until("the loss", |s| up(s, "0") == Some(0.0));
    exporter.scrape_until("two openings that fail", |s| {
        assert_second_gpu(s);
        assert_eq!((up(s, "0"), values(s, "0")), (Some(0.0), 0), "{}", s.text);
        faults(s, "library", "unknown") >= 2.0
    });
    assert_eq!(exporter.get("/readyz").unwrap().status, 200);
    both_again(&machine, &exporter);
}

#[test]
fn a_reopening_that_hangs_costs_no_gpu_and_is_the_only_one() {
    let (machine, exporter) = Machine::running(TWO, &[]);
    machine.control(&format!("{LOST}[[fault]]\ncall = \"nvmlInit_v2\"\nkind = \"hang\"\n"));
    exporter.scrape_until("the opening", |s| {
        up(s, "0") == Some(0.0) && exporter.log().contains("while the current session continues")
    });
    let goal = rounds(&exporter.scrape(), "memory") + 1500.0;
    exporter.scrape_until("the lanes continue for long", |s| {
        assert_second_gpu(s);
        rounds(s, "memory") >= goal
    });
    assert_eq!(exporter.log().matches("while the current session continues").count(), 1, "{}", exporter.log());
    both_again(&machine, &exporter);
    assert!(exporter.terminate().success());
}

#[test]
fn a_session_outlives_a_machine_change_until_another_can_be_opened() {
    let machine = Machine::new(&TWO.replace("count = 2", "count = 3"));
    let exporter = machine.export(&["--telemetry.interval=100ms", "--telemetry.slow-interval=200ms"]);
    exporter.scrape_until("three", |s| s.all("gpu_up").count() == 3 && values(s, "1") > 0);
    let absent = "[[fault]]\ngpu = 2\nkind = \"absent\"\n";
    machine.control(&format!("{absent}[[fault]]\ncall = \"nvmlInit_v2\"\nkind = \"error\"\ncode = \"UNKNOWN\"\n"));
    exporter.scrape_until("an opening that fails", |s| {
        assert_second_gpu(s);
        faults(s, "library", "unknown") >= 1.0
    });
    machine.control(absent);
    exporter.scrape_until("two", |s| {
        assert_second_gpu(s);
        s.all("gpu_up").count() == 2
    });
}

#[test]
fn a_call_that_hangs_for_ever_keeps_no_more_threads_at_reopenings() {
    let (machine, exporter) = Machine::running(TWO, &["--nvml.call-timeout=200ms"]);
    let stuck = |s: &Scrape| s.value("vram_exporter_stuck_threads", &[]);
    assert_eq!(stuck(&exporter.scrape_until("both", |s| values(s, "0") > 0 && values(s, "1") > 0)), Some(0.0));
    let calls = "[\"nvmlDeviceGetMemoryInfo_v2\", \"nvmlDeviceGetComputeRunningProcesses_v3\"]";
    let hang = format!("[[fault]]\ncall = {calls}\ngpu = 0\nkind = \"hang\"\n");
    machine.control(&hang);
    let first = exporter.scrape_until("a thread is abandoned", |s| stuck(s) >= Some(1.0));
    let lists = rounds(&first, "process") + 3.0;
    let samples = rounds(&first, "memory") + 100.0;
    let later = exporter.scrape_until("both lanes run", |s| {
        let is_split = (up(s, "0"), up(s, "1")) == (Some(0.0), Some(1.0));
        is_split && rounds(s, "process") >= lists && rounds(s, "memory") >= samples
    });
    // One thread of the lane that made the call, or one of each lane if both made it at the same time.
    let kept = stuck(&later);
    assert!(kept <= Some(2.0), "{kept:?}");
    let health = exporter.get("/healthz").unwrap();
    let expected = format!("ok; driver calls that do not return: {} (limit 32)", kept.unwrap());
    assert_eq!((health.status, health.body.trim()), (200, expected.as_str()));
    let before = exporter.threads();
    let gone = format!("{hang}[[fault]]\ncall = {calls}\ngpu = 1\nkind = \"error\"\ncode = \"DRIVER_NOT_LOADED\"\n");
    let opened = || exporter.log().matches("the driver is open").count();
    for _ in 0..8 {
        machine.control(&gone);
        exporter.scrape_until("the driver is gone", |s| s.value("vram_exporter_nvml_up", &[]) == Some(0.0));
        machine.control(&hang);
        let count = opened();
        reopen(&exporter);
        exporter.scrape_until("the driver is open", |s| opened() > count && up(s, "1") == Some(1.0));
        let rounds_before = rounds(&exporter.scrape(), "process");
        // On a busy machine, a call that is well may also exceed its limit for a moment.
        exporter.scrape_until("some lists", |s| {
            let is_as_before = (up(s, "0"), values(s, "0"), stuck(s)) == (Some(0.0), 0, kept);
            is_as_before && rounds(s, "process") >= rounds_before + 2.0
        });
    }
    exporter.scrape_until("no other thread is kept", |_| exporter.threads() <= before);
    machine.control("");
    exporter.scrape_until("every GPU is back", |s| stuck(s) == Some(0.0) && values(s, "0") > 0 && values(s, "1") > 0);
    assert_eq!(exporter.get("/healthz").unwrap().body.trim(), "ok");
}

#[test]
fn a_session_that_lacks_a_gpu_that_answers_replaces_no_other() {
    let (machine, exporter) = Machine::running(TWO, &[]);
    exporter.scrape_until("both", |s| values(s, "0") > 0 && values(s, "1") > 0);
    let refused =
        "[[fault]]\ncall = \"nvmlDeviceGetHandleByIndex_v2\"\ngpu = 1\nkind = \"error\"\ncode = \"UNKNOWN\"\n";
    machine.control(&format!("{LOST}{refused}"));
    exporter.scrape_until("the loss", |s| up(s, "0") == Some(0.0));
    let opening = exporter.scrape_until("an opening in which neither can be queried", |s| {
        assert_second_gpu(s);
        faults(s, "topology", "unknown") >= 1.0
    });
    let goal = rounds(&opening, "memory") + 200.0;
    exporter.scrape_until("the lanes continue", |s| {
        assert_second_gpu(s);
        rounds(s, "memory") >= goal
    });
    both_again(&machine, &exporter);
}

#[test]
fn an_opening_that_hangs_at_one_gpu_is_repeated_without_it() {
    let machine = Machine::new(TWO);
    machine.control("[[fault]]\ncall = \"nvmlDeviceGetUUID\"\ngpu = 0\nkind = \"hang\"\n");
    let exporter = Exporter::start(machine.command(&[]));
    let without = exporter.scrape_until("the second GPU", |s| up(s, "1") == Some(1.0) && values(s, "1") > 0);
    assert_eq!((up(&without, "0"), values(&without, "0")), (Some(0.0), 0), "{}", without.text);
    assert_eq!(faults(&without, "topology", "stalled"), 1.0);
    exporter.scrape_until("the opening is counted", |s| s.value("vram_exporter_stuck_threads", &[]) == Some(1.0));
    // The next attempt to open another session does not query the GPU either.
    let opened = || exporter.log().matches("the driver is open\"").count();
    let before = opened();
    exporter.scrape_until("another session", |s| {
        assert_second_gpu(s);
        opened() > before
    });
    assert_eq!(exporter.scrape().value("vram_exporter_stuck_threads", &[]), Some(1.0));
    machine.control("");
    exporter.scrape_until("both", |s| {
        assert_second_gpu(s);
        values(s, "0") > 0 && s.value("vram_exporter_stuck_threads", &[]) == Some(0.0)
    });
    assert!(exporter.terminate().success());
}
