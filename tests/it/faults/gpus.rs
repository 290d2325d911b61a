//! A GPU hangs, is lost, returns implausible values, comes and goes; the others continue.

use super::{TWO, faults, reopen, rounds, up, values, xids};
use crate::harness::{Machine, Scrape};

#[test]
fn xid_errors_are_counted() {
    let (machine, exporter) = Machine::running(TWO, &[]);
    let classes = |s: &Scrape| ["hardware", "memory", "application", "unknown"].map(|class| xids(s, "1", class));
    let start = exporter.scrape_until("zeros from the start", |s| classes(s) == [Some(0.0); 4]);
    assert_eq!(start.all("gpu_xid_errors_total").count(), 0, "a code has a series from its first error");
    let (memory, unknown) = ("[[xid]]\ngpu = 1\ncode = 140\n", "[[xid]]\ngpu = 1\ncode = 999\n");
    machine.control(&format!("{memory}{unknown}"));
    let counted = exporter.scrape_until("both Xids", |s| classes(s) == [Some(0.0), Some(1.0), Some(0.0), Some(1.0)]);
    let codes = counted.all("gpu_xid_errors_total").map(|series| (series.label("xid"), series.value));
    assert!(codes.eq([(Some("140"), 1.0), (Some("999"), 1.0)]), "{}", counted.text);
}

#[test]
fn the_last_xid_of_a_lost_gpu_stays_in_sight() {
    let (machine, exporter) = Machine::running(TWO, &[]);
    let count = |s: &Scrape| s.value("gpu_xid_errors_total", &[("gpu", "1"), ("xid", "79")]);
    exporter.scrape_until("zeros from the start", |s| xids(s, "1", "hardware") == Some(0.0));
    machine.control("[[xid]]\ngpu = 1\nat = \"0s\"\nevery = \"100ms\"\ncode = 79\n");
    exporter.scrape_until("the Xid", |s| count(s) >= Some(1.0));
    machine.control("[[fault]]\ncall = \"*\"\ngpu = 1\nkind = \"error\"\ncode = \"GPU_IS_LOST\"\n");
    let lost = exporter.scrape_until("the loss", |s| up(s, "1") == Some(0.0));
    assert!(count(&lost) >= Some(1.0));
    // The driver is opened again for another reason; the counts are kept.
    let version = "[[fault]]\ncall = \"*\"\nkind = \"error\"\ncode = \"LIB_RM_VERSION_MISMATCH\"\n";
    machine.control(version);
    exporter.scrape_until("the driver is gone", |s| s.value("vram_exporter_nvml_up", &[]) == Some(0.0));
    machine.control("");
    let back = exporter.scrape_until("the GPU is back", |s| up(s, "1") == Some(1.0) && count(s).is_some());
    assert!(count(&back) >= Some(1.0));
}

#[test]
fn an_xid_that_comes_while_a_call_hangs_is_counted_on_every_gpu() {
    let (machine, exporter) = Machine::running(TWO, &["--nvml.call-timeout=10s", "--memory.stale-after=60s"]);
    let count = |s: &Scrape, gpu, xid| s.value("gpu_xid_errors_total", &[("gpu", gpu), ("xid", xid)]);
    exporter.scrape_until("zeros from the start", |s| ["0", "1"].iter().all(|gpu| xids(s, gpu, "memory").is_some()));
    let hang = "[[fault]]\ncall = \"nvmlDeviceGetComputeRunningProcesses_v3\"\ngpu = 0\nkind = \"hang\"\n";
    machine.control(hang);
    let age = |s: &Scrape| s.value("vram_exporter_sample_age_seconds", &[("gpu", "0"), ("lane", "process")]);
    exporter.scrape_until("the list hangs", |s| age(s) > Some(3.0));
    // The Xids arrive long before the call's time limit, so they would be missed if events were registered only after
    // that limit.
    let both = "[[xid]]\ngpu = 0\ncode = 79\n[[xid]]\ngpu = 1\ncode = 31\n";
    machine.control(&format!("{hang}{both}"));
    exporter.scrape_until("both Xids", |s| count(s, "0", "79") == Some(1.0) && count(s, "1", "31") == Some(1.0));
}

#[test]
fn a_gpu_whose_events_hang_takes_no_other_gpu_s_events() {
    let (machine, exporter) = Machine::running(TWO, &["--nvml.call-timeout=300ms"]);
    let count = |s: &Scrape, gpu| s.value("gpu_xid_errors_total", &[("gpu", gpu), ("xid", "79")]);
    exporter.scrape_until("zeros from the start", |s| ["0", "1"].iter().all(|gpu| xids(s, gpu, "hardware").is_some()));
    let hang = "[[fault]]\ncall = \"nvmlEventSetWait_v2\"\ngpu = 0\nkind = \"hang\"\n";
    machine.control(hang);
    exporter.scrape_until("the stall", |s| faults(s, "telemetry", "stalled") >= 1.0);
    let both = "[[xid]]\ngpu = 0\ncode = 79\n[[xid]]\ngpu = 1\ncode = 79\n";
    machine.control(&format!("{hang}{both}"));
    // Its other calls return, so it does not count as a GPU that hangs.
    let met = exporter.scrape_until("the Xid of the GPU that is well", |s| {
        count(s, "1") == Some(1.0) && up(s, "0") == Some(1.0) && values(s, "0") > 0
    });
    assert_eq!((count(&met, "0"), xids(&met, "0", "hardware")), (None, Some(0.0)));
    machine.control(both);
    exporter.scrape_until("the other Xid, late", |s| count(s, "0") == Some(1.0));
}

#[test]
fn a_mig_mode_that_cannot_be_read_for_once_is_no_new_layout() {
    let (machine, exporter) = Machine::running(TWO, &["--telemetry.interval=100ms", "--telemetry.slow-interval=200ms"]);
    machine.control("[[fault]]\ncall = \"nvmlDeviceGetMigMode\"\nkind = \"error\"\ncode = \"UNKNOWN\"\n");
    exporter.scrape_until("several refusals", |s| {
        assert_eq!(s.value("vram_exporter_nvml_up", &[]), Some(1.0), "the driver was closed for nothing");
        faults(s, "topology", "unknown") >= 3.0
    });
    assert!(!exporter.log().contains("MIG layout changed"), "{}", exporter.log());
}

const EIGHT: &str = "seed = 1\n[[gpu]]\nmodel = \"H200\"\ncount = 8\n";

fn ages(scrape: &Scrape) -> Vec<(String, f64)> {
    let memory = scrape.all("vram_exporter_sample_age_seconds").filter(|age| age.label("lane") == Some("memory"));
    memory.map(|age| (age.label("gpu").unwrap().to_owned(), age.value)).collect()
}

#[test]
fn a_call_that_hangs_forever_on_one_gpu_leaves_the_other_seven_fresh() {
    let machine = Machine::new(EIGHT);
    // Nothing uses the GPUs: without the last flag, they would soon be read once a second.
    let flags = ["--nvml.call-timeout=2s", "--memory.stale-after=30s", "--memory.idle-rate=100"];
    let exporter = machine.export(&flags);
    machine.control("[[fault]]\ncall = \"*\"\ngpu = 5\nkind = \"hang\"\n");
    let stalled = exporter.scrape_until("the stall", |s| up(s, "5") == Some(0.0));
    assert!(stalled.value("gpu_info", &[("gpu", "5")]).is_some(), "its identity is still shown");
    let goal = rounds(&stalled, "memory") + 400.0;
    let later = exporter.scrape_until("the lanes continue for long", |s| {
        assert_eq!((up(s, "5"), values(s, "5")), (Some(0.0), 0));
        let fresh = ["0", "1", "2", "3", "4", "6", "7"].iter().all(|gpu| up(s, gpu) == Some(1.0) && values(s, gpu) > 0);
        assert!(fresh, "{}", s.text);
        rounds(s, "memory") >= goal && rounds(s, "process") >= 3.0
    });
    let ages = ages(&later);
    let (_, oldest) = ages.iter().find(|(gpu, _)| gpu == "5").unwrap();
    assert_eq!(ages.iter().filter(|(_, age)| age < oldest).count(), 7, "{ages:?}");
    assert!(faults(&later, "memory", "stalled") + faults(&later, "process", "stalled") >= 1.0);
    // Further attempts add no threads: the GPU is left alone.
    let before = exporter.threads();
    exporter.scrape_until("the lanes continue", |s| rounds(s, "memory") >= goal + 200.0);
    assert!(exporter.threads() <= before, "{} threads, then {}", before, exporter.threads());
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
    machine.control("");
    exporter.scrape_until("the GPU is back", |s| up(s, "5") == Some(1.0) && values(s, "5") == values(s, "4"));
}

#[test]
fn a_gpu_lost_for_good_stays_down_through_every_reopening() {
    let (machine, exporter) = Machine::running(TWO, &[]);
    machine.control("[[fault]]\ncall = \"*\"\ngpu = 1\nkind = \"error\"\ncode = \"GPU_IS_LOST\"\n");
    exporter.scrape_until("the loss", |s| up(s, "1") == Some(0.0));
    let lost = std::cell::Cell::new(0.0);
    let later = exporter.scrape_until("the driver was reopened for it", |s| {
        // In every scrape the lost GPU has no values, the other one has values, and the counter does not fall.
        assert_eq!((up(s, "1"), values(s, "1")), (Some(0.0), 0), "{}", s.text);
        assert!(up(s, "0") == Some(1.0) && values(s, "0") > 0, "{}", s.text);
        let counted = faults(s, "memory", "gpu_is_lost");
        assert!(counted >= lost.replace(counted));
        exporter.log().matches("a lost GPU may answer again").count() >= 1
            && exporter.log().matches("the driver is open").count() >= 2
    });
    assert!(faults(&later, "memory", "gpu_is_lost") >= 1.0);
    assert_eq!(later.value("gpu_info", &[("gpu", "1")]), Some(1.0), "its identity is still shown");
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
}

#[test]
fn numbers_that_cannot_be_true_are_counted_and_never_shown() {
    let (machine, exporter) = Machine::running(TWO, &["--memory.stale-after=3s"]);
    let figures = ["gpu_memory_total_bytes", "gpu_memory_used_bytes", "gpu_memory_free_bytes", "gpu_memory_peak_bytes"];
    let of = |s: &Scrape, gpu: &str| figures.map(|family| s.value(family, &[("gpu", gpu)]));
    let good = exporter.scrape_until("both", |s| of(s, "0").iter().chain(&of(s, "1")).all(Option::is_some));
    for value in ["above", "ones", "zeros"] {
        let before = faults(&exporter.scrape(), "memory", "implausible");
        let call = "call = \"nvmlDeviceGetMemoryInfo_v2\"\ngpu = 1";
        machine.control(&format!("[[fault]]\n{call}\nkind = \"implausible\"\nvalue = \"{value}\"\n"));
        let gone = exporter.scrape_until("what cannot be true is not shown", |s| {
            assert!(of(s, "1").iter().zip(of(&good, "1")).all(|(now, good)| now.is_none_or(|now| Some(now) == good)));
            assert_eq!(of(s, "0"), of(&good, "0"));
            up(s, "1") == Some(0.0) && of(s, "1") == [None; 4]
        });
        assert!(faults(&gone, "memory", "implausible") > before, "{value}");
        machine.control("");
        let back = exporter.scrape_until("the GPU is back", |s| up(s, "1") == Some(1.0) && of(s, "1")[0].is_some());
        assert_eq!(of(&back, "1"), of(&good, "1"));
    }
}

#[test]
fn a_recovery_action_that_is_not_known_is_counted_and_never_shown() {
    let (machine, exporter) = Machine::running(TWO, &["--telemetry.interval=100ms"]);
    let family = "gpu_recovery_action";
    let shown = |s: &Scrape, gpu: &str| s.all(family).filter(|series| series.label("gpu") == Some(gpu)).count();
    let none = |s: &Scrape| s.value(family, &[("gpu", "1"), ("action", "none")]);
    exporter.scrape_until("both", |s| shown(s, "0") > 1 && none(s) == Some(1.0));
    for value in ["above", "ones"] {
        let before = faults(&exporter.scrape(), "telemetry", "implausible");
        let call = "call = \"nvmlDeviceGetFieldValues\"\ngpu = 1";
        machine.control(&format!("[[fault]]\n{call}\nkind = \"implausible\"\nvalue = \"{value}\"\n"));
        let gone = exporter.scrape_until("the action is not shown", |s| {
            assert!(none(s).is_none_or(|required| required == 1.0), "{}", s.text);
            shown(s, "1") == 0 && faults(s, "telemetry", "implausible") > before
        });
        assert!(shown(&gone, "0") > 1 && up(&gone, "1") == Some(1.0));
        machine.control("");
        exporter.scrape_until("the action is back", |s| none(s) == Some(1.0));
    }
}

#[test]
fn a_mig_device_that_goes_and_comes_is_followed() {
    let machine = Machine::new("seed = 1\n[[gpu]]\nmodel = \"A100-80GB\"\nmig = [\"3g.40gb\", \"\", \"2g.20gb\"]\n");
    let exporter = machine.export(&["--telemetry.interval=100ms", "--telemetry.slow-interval=200ms"]);
    let profiles = |s: &Scrape| {
        let devices = s.all("gpu_mig_memory_total_bytes").map(|device| device.label("profile").unwrap().to_owned());
        devices.collect::<Vec<_>>()
    };
    exporter.scrape_until("both devices", |s| profiles(s).len() == 2);
    machine.control("[[fault]]\nkind = \"absent\"\ngpu = 0\nmig = 2\n");
    let one = exporter.scrape_until("one device", |s| profiles(s).len() == 1 && up(s, "0") == Some(1.0));
    assert_eq!(profiles(&one), ["3g.40gb"]);
    machine.control("");
    exporter.scrape_until("both devices again", |s| profiles(s).len() == 2);
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
}

const THREE: &str = "seed = 1\n[[gpu]]\nmodel = \"H200\"\ncount = 3\n";

/// The UUID of each index, as `gpu_up` shows it.
fn uuids(scrape: &Scrape) -> Vec<Option<String>> {
    scrape.all("gpu_up").map(|gpu| gpu.label("uuid").map(str::to_owned)).collect()
}

#[test]
fn a_gpu_that_cannot_be_opened_takes_no_other_gpu_s_identity() {
    let machine = Machine::new(THREE);
    let exporter = machine.export(&["--telemetry.interval=100ms", "--telemetry.slow-interval=200ms"]);
    let before = uuids(&exporter.scrape_until("three GPUs", |s| ["0", "1", "2"].iter().all(|gpu| values(s, gpu) > 0)));
    assert!(before.len() == 3 && before.iter().all(Option::is_some), "{before:?}");
    machine.control("[[fault]]\ngpu = 0\nkind = \"absent\"\n");
    let two = exporter.scrape_until("two GPUs", |s| s.all("gpu_up").count() == 2 && values(s, "1") > 0);
    assert_eq!(uuids(&two), before[1..]);
    machine.control("[[fault]]\ncall = \"*\"\ngpu = 0\nkind = \"error\"\ncode = \"UNKNOWN\"\n");
    let back = exporter.scrape_until("three GPUs, of which two answer", |s| {
        s.all("gpu_up").count() == 3 && values(s, "1") > 0 && values(s, "2") > 0
    });
    assert_eq!((uuids(&back), up(&back, "0"), values(&back, "0")), (before.clone(), Some(0.0), 0), "{}", back.text);
    assert!(faults(&back, "topology", "unknown") >= 1.0);
    machine.control("");
    let all = exporter.scrape_until("all three", |s| ["0", "1", "2"].iter().all(|gpu| values(s, gpu) > 0));
    assert_eq!(uuids(&all), before);
}

#[test]
fn a_uuid_unreadable_at_an_opening_costs_neither_identity_nor_history() {
    let (machine, exporter) = Machine::running(TWO, &["--telemetry.interval=100ms", "--telemetry.slow-interval=200ms"]);
    let peak = |s: &Scrape| s.value("gpu_memory_peak_bytes", &[("gpu", "1")]);
    let pressure = |s: &Scrape| s.value("gpu_memory_pressure_seconds_total", &[("gpu", "1"), ("ratio", "0.5")]);
    let grown = "[[process]]\npid = 43\ngpu = 1\ncommand = [\"peak\"]\nmemory = \"90GiB\"\n";
    let first = exporter.scrape_until("values", |s| values(s, "0") > 0 && values(s, "1") > 0);
    machine.control(grown);
    let high = exporter.scrape_until("a high peak under pressure", |s| {
        peak(s) > peak(&first).map(|peak| peak + 9e10) && pressure(s) > pressure(&first)
    });
    let refused = "[[fault]]\ncall = \"nvmlDeviceGetUUID\"\nkind = \"error\"\ncode = \"UNKNOWN\"\n";
    machine.control(refused);
    reopen(&exporter);
    let without = exporter.scrape_until("values", |s| values(s, "1") > 0 && peak(s).is_some());
    assert_eq!(uuids(&without), uuids(&first));
    assert_eq!(peak(&without), peak(&high));
    assert!(pressure(&without) >= pressure(&high), "the time under pressure is kept");
    let counted = faults(&without, "topology", "unknown");
    assert!(counted >= 2.0, "at the opening, for each GPU");
    exporter.scrape_until("it is requested again", |s| faults(s, "topology", "unknown") > counted + 2.0);
    machine.control("");
    let goal = rounds(&exporter.scrape(), "telemetry") + 5.0;
    let after = exporter.scrape_until("more rounds", |s| rounds(s, "telemetry") > goal);
    assert_eq!((uuids(&after), peak(&after)), (uuids(&first), peak(&high)));
    assert_eq!(exporter.log().matches("the driver is open").count(), 2, "{}", exporter.log());
}

#[test]
fn a_uuid_that_could_never_be_read_is_used_when_it_can_be() {
    let machine = Machine::new(TWO);
    machine.control("[[fault]]\ncall = \"nvmlDeviceGetUUID\"\ngpu = 1\nkind = \"error\"\ncode = \"UNKNOWN\"\n");
    let exporter = machine.export(&["--telemetry.interval=100ms", "--telemetry.slow-interval=200ms"]);
    let none = exporter.scrape_until("values", |s| values(s, "0") > 0 && values(s, "1") > 0);
    assert!(uuids(&none)[0].is_some() && uuids(&none)[1].is_none(), "{:?}", uuids(&none));
    machine.control("");
    exporter.scrape_until("the UUID", |s| values(s, "1") > 0 && uuids(s).iter().flatten().count() == 2);
}

#[test]
fn slow_lists_on_one_gpu_leave_time_for_the_readings_of_the_others() {
    let (machine, exporter) = Machine::running(TWO, &["--process.interval=200ms"]);
    exporter.scrape_until("both", |s| values(s, "0") > 0 && values(s, "1") > 0);
    machine.control("[[fault]]\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\ngpu = 0\nkind = \"slow\"\ndelay = \"300ms\"\n");
    let lists = rounds(&exporter.scrape(), "process") + 3.0;
    let slow = exporter.scrape_until("slow lists", |s| rounds(s, "process") >= lists);
    let readings = rounds(&slow, "telemetry") + 3.0;
    let later = exporter.scrape_until("three rounds of readings", |s| rounds(s, "telemetry") >= readings);
    let between = rounds(&later, "process") - rounds(&slow, "process");
    assert!(between <= 30.0, "a round of readings waited for {between} passes");
}
