//! Process lists that are refused: one of the three, or those of one GPU.

use super::processes::{LIST, used};
use super::{TWO, faults, reopen, rounds, up};
use crate::harness::{Machine, Scrape};

/// A GPU with a process in each list.
fn in_each_list() -> Machine {
    let of = |pid: u32, kind: &str| {
        format!("[[process]]\npid = {pid}\ngpu = 0\ntype = \"{kind}\"\nmemory = \"2GiB\"\ncontext = \"0B\"\n")
    };
    let gpu = "seed = 1\n[[gpu]]\nmodel = \"H200\"\n".to_owned();
    Machine::new(&(gpu + &of(51, "compute") + &of(52, "graphics") + &of(53, "mps")))
}

#[test]
fn a_refused_graphics_or_mps_list_leaves_the_other_lists() {
    let machine = in_each_list();
    let exporter = machine.export(&["--process.interval=100ms"]);
    let pids = ["51", "52", "53"];
    let unattributed = |s: &Scrape| s.value("gpu_memory_unattributed_bytes", &[]);
    let before = exporter.scrape_until("three processes", |s| pids.iter().all(|pid| used(s, pid).is_some()));
    let whole = unattributed(&before);
    assert!(whole.is_some());
    for (call, pid) in [("Graphics", "52"), ("MPSCompute", "53")] {
        for code in ["UNKNOWN", "NO_PERMISSION", "INVALID_ARGUMENT"] {
            let call = format!("call = \"nvmlDeviceGet{call}RunningProcesses_v3\"");
            let counted = faults(&exporter.scrape(), "process", &code.to_lowercase());
            machine.control(&format!("[[fault]]\n{call}\nkind = \"error\"\ncode = \"{code}\"\n"));
            let met = exporter.scrape_until("the refusal", |s| used(s, pid).is_none());
            let goal = rounds(&met, "process") + 20.0;
            let later = exporter.scrape_until("more lists", |s| {
                for other in pids.iter().filter(|other| **other != pid) {
                    assert_eq!(used(s, other), used(&before, other), "{call} {code}: {}", s.text);
                }
                // The content of the list is unknown, so the memory is not reported as unattributed.
                assert_eq!((used(s, pid), unattributed(s)), (None, None), "{call} {code}");
                rounds(s, "process") >= goal
            });
            assert!(faults(&later, "process", &code.to_lowercase()) > counted, "{call} {code}");
            machine.control("");
            let after = exporter.scrape_until("all three", |s| pids.iter().all(|pid| used(s, pid).is_some()));
            exporter.scrape_until("the rest of memory", |s| unattributed(s) == whole);
            assert_eq!(after.all("gpu_process_memory_peak_bytes").count(), 3);
        }
    }
}

#[test]
fn a_driver_that_never_knew_the_list_of_mps_clients_is_no_less_whole() {
    let machine = in_each_list();
    let call = "call = \"nvmlDeviceGetMPSComputeRunningProcesses_v3\"";
    machine.control(&format!("[[fault]]\n{call}\nkind = \"error\"\ncode = \"INVALID_ARGUMENT\"\n"));
    let exporter = machine.export(&["--process.interval=100ms"]);
    let both = exporter.scrape_until("two processes", |s| used(s, "51").is_some() && used(s, "52").is_some());
    let goal = rounds(&both, "process") + 80.0;
    let later = exporter.scrape_until("more lists", |s| rounds(s, "process") >= goal);
    assert!(later.value("gpu_memory_unattributed_bytes", &[]).is_some());
    assert_eq!(faults(&later, "process", "invalid_argument"), 1.0, "once, as long as the driver is open");
}

#[test]
fn every_refusal_of_a_list_is_counted_when_it_begins_on_each_gpu() {
    let (machine, exporter) = Machine::running(TWO, &["--process.interval=100ms"]);
    let counted = |s: &Scrape| faults(s, "process", "no_permission");
    for (gpu, times) in [(0, 1.0), (1, 2.0), (1, 3.0), (0, 4.0)] {
        machine.control(&format!("[[fault]]\n{LIST}\ngpu = {gpu}\nkind = \"error\"\ncode = \"NO_PERMISSION\"\n"));
        let met = exporter.scrape_until("the refusal", |s| counted(s) >= times);
        let goal = rounds(&met, "process") + 5.0;
        let later = exporter.scrape_until("more lists", |s| rounds(s, "process") >= goal);
        assert_eq!(counted(&later), times, "once, while it lasts");
        machine.control("");
        let goal = rounds(&exporter.scrape(), "process");
        let after = exporter.scrape_until("lists after its end", |s| rounds(s, "process") >= goal + 5.0);
        assert_eq!(counted(&after), times);
    }
    // The refusal occurs again when the driver is next opened.
    machine.control(&format!("[[fault]]\n{LIST}\ngpu = 0\nkind = \"error\"\ncode = \"NO_PERMISSION\"\n"));
    exporter.scrape_until("the refusal", |s| counted(s) == 5.0);
    reopen(&exporter);
    exporter.scrape_until("the refusal again", |s| counted(s) == 6.0);
}

#[test]
fn the_memory_lane_idles_when_a_busy_gpu_is_gone_or_unreadable() {
    let machine = Machine::new(TWO);
    let exporter =
        machine.export(&["--telemetry.interval=100ms", "--telemetry.slow-interval=200ms", "--nvml.call-timeout=300ms"]);
    for gone in ["kind = \"absent\"", "kind = \"hang\"\ncall = \"nvmlDeviceGetMemoryInfo_v2\""] {
        exporter.scrape_until("the process", |s| used(s, "42").is_some());
        machine.control(&format!("[[fault]]\ngpu = 1\n{gone}\n"));
        exporter.scrape_until("the GPU is gone", |s| up(s, "0") == Some(1.0) && up(s, "1") != Some(1.0));
        let seen = std::cell::Cell::new((0.0, 0.0));
        exporter.scrape_until("the memory lane rests", |s| {
            let (ticks, passes) = seen.get();
            let now = (rounds(s, "memory"), rounds(s, "process"));
            if now.1 < passes + 3.0 {
                return false;
            }
            seen.set(now);
            // At its full rate the lane would tick a hundred times between two of these passes.
            now.0 - ticks < 30.0
        });
        machine.control("");
    }
}

#[test]
fn the_first_lists_after_a_call_that_hung_are_whole() {
    let machine = in_each_list();
    let exporter = machine.export(&["--process.interval=5s", "--nvml.call-timeout=300ms"]);
    let pids = ["51", "52", "53"];
    let unattributed = |s: &Scrape| s.value("gpu_memory_unattributed_bytes", &[]);
    let before = exporter.scrape_until("three processes", |s| pids.iter().all(|pid| used(s, pid).is_some()));
    let stalled = faults(&before, "process", "stalled");
    machine.control(&format!("[[fault]]\n{LIST}\nkind = \"hang\"\n"));
    exporter.scrape_until("the list hangs", |s| faults(s, "process", "stalled") > stalled && up(s, "0") == Some(0.0));
    machine.control("");
    exporter.scrape_until("the processes", |s| {
        let shown = pids.iter().filter(|pid| used(s, pid).is_some()).count();
        assert!(shown == 0 || shown == 3, "{}", s.text);
        assert!(unattributed(s).is_none_or(|bytes| Some(bytes) == unattributed(&before)), "{}", s.text);
        shown == 3
    });
}
