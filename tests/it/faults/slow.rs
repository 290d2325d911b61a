//! A GPU whose calls are slow, for a while, for ever, or now and then: it costs the other GPUs no readings.

use super::{TWO, faults, rounds, up, values};
use crate::harness::{Exporter, Machine, Scrape, until};
use nix::sys::signal::Signal;

/// Two GPUs. The memory of the second rises for 100 ms every 250 ms.
const SPIKY: &str = "seed = 9\n[[gpu]]\nmodel = \"H200\"\ncount = 2\n[[process]]\npid = 700\ngpu = 1\ncommand = [\"spiky\"]\nmemory_cycle = true\nmemory = [{ kind = \"spike\", base = \"5GiB\", peak = \"60GiB\", hold = \"100ms\", every = \"250ms\", for = \"1h\" }]\n";

/// The longest limit that is allowed: a call that does not return for a few seconds is slow and no more.
const NEVER_HANGS: &str = "--nvml.call-timeout=1m";

const MEMORY: &str = "\"nvmlDeviceGetMemoryInfo_v2\"";

/// A fault of GPU 0.
fn fault(call: &str, kind: &str) -> String {
    format!("[[fault]]\ngpu = 0\ncall = {call}\n{kind}\n")
}

fn slow(call: &str, delay: &str) -> String {
    fault(call, &format!("kind = \"slow\"\ndelay = \"{delay}\""))
}

fn missed(scrape: &Scrape, lane: &str, gpu: &str) -> f64 {
    scrape.value("vram_exporter_missed_ticks_total", &[("lane", lane), ("gpu", gpu)]).unwrap()
}

/// GiB by which the memory of the second GPU has risen.
fn risen(scrape: &Scrape) -> f64 {
    scrape.value("gpu_memory_increase_bytes_total", &[("gpu", "1")]).unwrap() / f64::from(1 << 30)
}

/// Starts the exporter, and makes the calls of GPU 0 slow. Returns a scrape after the first slow call.
fn slowed(machine: &Machine, flags: &[&str], control: &str, source: &str) -> (Exporter, Scrape) {
    let exporter = machine.export(flags);
    let before = exporter.scrape_until("both", |s| values(s, "0") > 0 && values(s, "1") > 0);
    // On a busy machine a call may have been slow already.
    let goal = faults(&before, source, "slow") + 1.0;
    machine.control(control);
    let slow = exporter.scrape_until("a slow call", |s| faults(s, source, "slow") >= goal);
    (exporter, slow)
}

/// Ends the faults, and waits until GPU 0 shows its values.
fn comes_back(machine: &Machine, exporter: &Exporter) {
    machine.control("");
    exporter.scrape_until("the GPU is back", |s| up(s, "0") == Some(1.0) && values(s, "0") > 0);
}

/// Waits for the memory lane to read the second GPU 300 times, and checks that it saw spikes.
fn assert_second_gpu_is_read(exporter: &Exporter, from: &Scrape) -> Scrape {
    let later = exporter.scrape_until("the second GPU is read", |s| {
        rounds(s, "memory") >= rounds(from, "memory") + 300.0 && up(s, "1") == Some(1.0)
    });
    exporter.scrape_until("spikes of the second GPU", |s| risen(s) >= risen(from) + 5.0 * 55.0);
    later
}

#[test]
fn a_slow_gpu_is_named_and_costs_the_other_no_readings() {
    for delay in ["200ms", "1500ms"] {
        let machine = Machine::new(SPIKY);
        let (exporter, slow) = slowed(&machine, &[NEVER_HANGS], &slow(MEMORY, delay), "memory");
        // A fault is counted before it is logged.
        let is_named = || exporter.log().lines().any(|line| line.contains("slow") && line.contains("gpu=0"));
        until("the log line", is_named);
        let later = assert_second_gpu_is_read(&exporter, &slow);
        let missed = |gpu| missed(&later, "memory", gpu) - missed(&slow, "memory", gpu);
        assert!(missed("0") >= missed("1") + 100.0, "{} and {}", missed("0"), missed("1"));
        assert_eq!(up(&later, "0"), Some(1.0), "a slow GPU is not one that hangs");
        assert_eq!(faults(&later, "memory", "stalled"), 0.0);
        let running = exporter.threads();
        machine.control("");
        exporter.scrape_until("the GPU comes back", |_| exporter.threads() < running);
        exporter.scrape_until("its values", |s| up(s, "0") == Some(1.0) && values(s, "0") > 0);
    }
}

#[test]
fn a_call_that_hangs_costs_the_other_gpu_no_readings_before_its_limit() {
    let machine = Machine::new(SPIKY);
    let hang = fault(MEMORY, "kind = \"hang\"");
    let (exporter, slow) = slowed(&machine, &[NEVER_HANGS], &hang, "memory");
    let later = assert_second_gpu_is_read(&exporter, &slow);
    assert_eq!(faults(&later, "memory", "stalled"), 0.0);
    comes_back(&machine, &exporter);
}

#[test]
fn a_gpu_that_hangs_again_and_again_comes_back_by_itself() {
    let machine = Machine::new(SPIKY);
    let hang = fault(MEMORY, "kind = \"hang\"");
    let exporter = machine.export(&["--nvml.call-timeout=300ms"]);
    let mut seen = exporter.scrape_until("both", |s| values(s, "0") > 0 && values(s, "1") > 0);
    for _ in 0..3 {
        machine.control(&hang);
        exporter.scrape_until("the stall", |s| up(s, "0") == Some(0.0));
        seen = assert_second_gpu_is_read(&exporter, &seen);
        comes_back(&machine, &exporter);
    }
    exporter.scrape_until("no thread is stuck", |s| s.value("vram_exporter_stuck_threads", &[]) == Some(0.0));
}

#[test]
fn a_gpu_that_alternates_stays_apart_and_costs_the_other_no_readings() {
    let machine = Machine::new(SPIKY);
    let (exporter, slow) = slowed(&machine, &[NEVER_HANGS], &slow(MEMORY, "200ms"), "memory");
    let mut seen = slow;
    for delay in ["1ms", "150ms", "1ms", "300ms"] {
        machine.control(&self::slow(MEMORY, delay));
        seen = assert_second_gpu_is_read(&exporter, &seen);
        assert_eq!(up(&seen, "0"), Some(1.0));
    }
    let running = exporter.threads();
    machine.control("");
    exporter.scrape_until("the GPU comes back", |_| exporter.threads() < running);
}

#[test]
fn all_gpus_are_slow_at_once_and_each_is_read_on_its_own() {
    let machine = Machine::new(
        "seed = 1\n[[gpu]]\nmodel = \"H200\"\ncount = 4\n[[process]]\npid = 42\ngpu = 1\ncommand = [\"train\"]\nmemory = \"1GiB\"\n",
    );
    let all = "[[fault]]\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\nkind = \"slow\"\ndelay = \"1s\"\n";
    let (exporter, slow) = slowed(&machine, &["--memory.stale-after=30s"], all, "memory");
    let running = exporter.threads();
    let later = exporter.scrape_until("every GPU is slow", |s| {
        faults(s, "memory", "slow") >= 4.0 && rounds(s, "memory") >= rounds(&slow, "memory") + 100.0
    });
    assert!((0..4).all(|gpu| up(&later, &gpu.to_string()) == Some(1.0)), "{}", later.text);
    // At most one thread of each lane for each GPU.
    assert!(exporter.threads() <= running + 8, "{running}, then {}", exporter.threads());
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
    let running = exporter.threads();
    machine.control("");
    exporter.scrape_until("the GPUs come back", |_| exporter.threads() + 4 <= running);
}

#[test]
fn a_slow_gpu_that_is_lost_is_down_and_the_other_goes_on() {
    let machine = Machine::new(SPIKY);
    let (exporter, slow) = slowed(&machine, &[NEVER_HANGS], &slow(MEMORY, "700ms"), "memory");
    machine.control(&fault("\"*\"", "kind = \"error\"\ncode = \"GPU_IS_LOST\""));
    exporter.scrape_until("the loss", |s| up(s, "0") == Some(0.0) && values(s, "0") == 0);
    assert_second_gpu_is_read(&exporter, &slow);
    comes_back(&machine, &exporter);
}

#[test]
fn slow_mig_devices_cost_the_other_gpus_no_readings() {
    let machine = Machine::built_in("mig-a100");
    let slow =
        "[[fault]]\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\ngpu = 0\nmig = 0\nkind = \"slow\"\ndelay = \"700ms\"\n";
    let (exporter, slow) = slowed(&machine, &[NEVER_HANGS], slow, "memory");
    let later = exporter.scrape_until("readings", |s| rounds(s, "memory") >= rounds(&slow, "memory") + 300.0);
    assert_eq!((up(&later, "0"), up(&later, "1")), (Some(1.0), Some(1.0)));
    assert!(later.all("gpu_mig_memory_used_bytes").count() >= 3, "{}", later.text);
}

#[test]
fn slow_lists_and_slow_telemetry_delay_those_of_no_other_gpu() {
    let calls = ["\"nvmlDeviceGetComputeRunningProcesses_v3\"", "\"nvmlDeviceGetTemperature\""];
    for call in calls {
        let machine = Machine::new(TWO);
        let flags = [NEVER_HANGS, "--process.interval=200ms", "--telemetry.interval=200ms"];
        let (exporter, slow) = slowed(&machine, &flags, &fault(call, "kind = \"hang\""), "process");
        let later = exporter.scrape_until("lists and readings of the other GPU", |s| {
            ["process", "telemetry"].iter().all(|lane| rounds(s, lane) >= rounds(&slow, lane) + 10.0)
        });
        let age = |lane| later.value("vram_exporter_sample_age_seconds", &[("gpu", "1"), ("lane", lane)]);
        assert!(age("process") < Some(30.0) && age("telemetry") < Some(30.0), "{}", later.text);
        assert!(later.value("gpu_process_memory_used_bytes", &[("pid", "42")]).is_some(), "{}", later.text);
        assert!(later.value("gpu_temperature_celsius", &[("gpu", "1")]).is_some(), "{}", later.text);
        assert_eq!((up(&later, "0"), up(&later, "1")), (Some(1.0), Some(1.0)));
        let running = exporter.threads();
        machine.control("");
        exporter.scrape_until("the GPU comes back", |_| exporter.threads() < running);
        exporter.scrape_until("its values", |s| s.value("gpu_temperature_celsius", &[("gpu", "0")]).is_some());
    }
}

#[test]
fn a_session_is_replaced_although_a_gpu_is_in_a_slow_call() {
    let machine = Machine::new(&SPIKY.replace("count = 2", "count = 3"));
    let hang = fault(MEMORY, "kind = \"hang\"");
    let flags = [NEVER_HANGS, "--telemetry.interval=100ms", "--telemetry.slow-interval=200ms"];
    let (exporter, _) = slowed(&machine, &flags, &hang, "memory");
    machine.control(&format!("{hang}[[fault]]\ngpu = 2\nkind = \"absent\"\n"));
    let replaced = exporter.scrape_until("two GPUs", |s| s.all("gpu_info").count() == 2 && values(s, "1") > 0);
    assert_second_gpu_is_read(&exporter, &replaced);
    machine.control("");
    exporter.scrape_until("three GPUs", |s| ["0", "1", "2"].iter().all(|gpu| up(s, gpu) == Some(1.0)));
    assert_eq!(faults(&exporter.scrape(), "memory", "stalled"), 0.0);
}

#[test]
fn a_slow_gpu_stays_up_while_the_session_is_replaced() {
    let machine = Machine::new(&SPIKY.replace("count = 2", "count = 3"));
    let slow_call = slow(MEMORY, "400ms");
    let often = ["--telemetry.interval=100ms", "--telemetry.slow-interval=200ms"];
    let (exporter, _) =
        slowed(&machine, &[&[NEVER_HANGS, "--memory.stale-after=1m"], &often[..]].concat(), &slow_call, "memory");
    for gpus in [2, 3, 2, 3] {
        let absent = if gpus == 2 { "[[fault]]\ngpu = 2\nkind = \"absent\"\n" } else { "" };
        machine.control(&format!("{slow_call}{absent}"));
        exporter.scrape_until("the next session", |s| {
            let used = s.value("gpu_memory_used_bytes", &[("gpu", "0")]);
            assert_eq!((up(s, "0"), used.is_some()), (Some(1.0), true), "{gpus} GPUs: {}", s.text);
            s.all("gpu_info").count() == gpus && values(s, "1") > 0
        });
    }
    let age = |s: &Scrape| s.value("vram_exporter_sample_age_seconds", &[("gpu", "0"), ("lane", "memory")]).unwrap();
    let oldest = age(&exporter.scrape());
    exporter.scrape_until("a reading of the slow GPU in the last session", |s| age(s) < oldest);
    assert_eq!(faults(&exporter.scrape(), "memory", "stalled"), 0.0);
}

#[test]
fn a_call_that_outlives_its_session_and_hangs_is_a_stall() {
    let machine = Machine::new(&SPIKY.replace("count = 2", "count = 3"));
    let hang = fault(MEMORY, "kind = \"hang\"");
    let flags = [
        "--nvml.call-timeout=5s",
        "--memory.stale-after=10m",
        "--telemetry.interval=100ms",
        "--telemetry.slow-interval=200ms",
    ];
    let (exporter, _) = slowed(&machine, &flags, &hang, "memory");
    machine.control(&format!("{hang}[[fault]]\ngpu = 2\nkind = \"absent\"\n"));
    exporter.scrape_until("two GPUs", |s| s.all("gpu_info").count() == 2 && values(s, "1") > 0);
    let stalled =
        exporter.scrape_until("the stall", |s| up(s, "0") == Some(0.0) && faults(s, "memory", "stalled") >= 1.0);
    assert_second_gpu_is_read(&exporter, &stalled);
    machine.control(&hang.replace("kind = \"hang\"", "kind = \"slow\"\ndelay = \"1ms\""));
    exporter.scrape_until("the GPU is back", |s| up(s, "0") == Some(1.0) && values(s, "0") > 0);
    exporter.scrape_until("no thread is stuck", |s| s.value("vram_exporter_stuck_threads", &[]) == Some(0.0));
}

#[test]
fn the_driver_is_released_and_the_exporter_ends_while_a_gpu_is_slow() {
    let machine = Machine::new(TWO);
    let control = slow("\"*\"", "700ms");
    let (exporter, _) = slowed(&machine, &[], &control, "memory");
    exporter.signal(Signal::SIGUSR1);
    exporter.scrape_until("the release", |s| s.value("vram_exporter_nvml_up", &[]) == Some(0.0));
    exporter.signal(Signal::SIGUSR1);
    exporter.scrape_until("both", |s| up(s, "0") == Some(1.0) && up(s, "1") == Some(1.0));
    exporter.scrape_until("the GPU is slow", |s| faults(s, "memory", "slow") >= 1.0);
    assert_eq!(exporter.terminate().code(), Some(0));
}

#[test]
fn once_shows_a_slow_gpu_too() {
    let machine = Machine::new(TWO);
    machine.control(&slow(MEMORY, "300ms"));
    let scrape = machine.once(&[]);
    assert_eq!((up(&scrape, "0"), up(&scrape, "1")), (Some(1.0), Some(1.0)));
    assert!(["0", "1"].iter().all(|gpu| scrape.value("gpu_memory_used_bytes", &[("gpu", gpu)]).is_some()));
}
