//! Processes whose list or whose files cannot be read.

use std::fs;
use std::process::Command;

use super::by_hand::ByHand;
use super::{TWO, faults, rounds, up};
use crate::harness::{Machine, Scrape};

#[test]
fn a_list_that_grows_between_two_calls_is_read_whole() {
    let (machine, exporter) = Machine::running(TWO, &[]);
    machine.control(&format!("[[fault]]\n{LIST}\nkind = \"grow\"\nby = 30\n"));
    exporter.scrape_until("the process", |s| used(s, "42").is_some());
    assert_eq!(faults(&exporter.scrape(), "process", "insufficient_size"), 0.0);
}

#[test]
fn a_lane_goes_on_when_a_list_is_refused_and_the_others_stay_fresh() {
    let (machine, exporter) = Machine::running(TWO, &[]);
    machine.control(&format!("[[fault]]\n{LIST}\ngpu = 1\nkind = \"error\"\ncode = \"UNKNOWN\"\n"));
    let refused = exporter.scrape_until("refusals", |s| faults(s, "process", "unknown") >= 2.0);
    assert_eq!((up(&refused, "0"), up(&refused, "1")), (Some(1.0), Some(1.0)));
    // After a while the last list is too old and is no longer shown.
    exporter.scrape_until("the old list is gone", |s| s.all("gpu_process_memory_used_bytes").count() == 0);
    machine.control("");
    exporter.scrape_until("the list is back", |s| s.all("gpu_process_memory_used_bytes").count() == 1);
}

pub(super) const LIST: &str = "call = \"nvmlDeviceGetComputeRunningProcesses_v3\"";

pub(super) fn used(scrape: &Scrape, pid: &str) -> Option<f64> {
    scrape.value("gpu_process_memory_used_bytes", &[("pid", pid)])
}

fn name(scrape: &Scrape, pid: &str) -> Option<String> {
    let info = scrape.all("gpu_process_info").find(|info| info.label("pid") == Some(pid))?;
    info.label("process").map(str::to_owned)
}

#[test]
fn a_process_whose_files_hang_is_shown_by_what_is_known_without_delay() {
    let machine = Machine::new(TWO);
    let by_hand = ByHand::beside(&machine);
    by_hand.add(42, "python3", "/work/train.py");
    by_hand.add(43, "python3", "/work/serve.py");
    // Opening a FIFO without a writer blocks, like the files of a process that is stuck while its memory map is locked.
    let (cmdline, fifo) = (by_hand.folder.join("42/cmdline"), machine.folder.path().join("fifo"));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    fs::rename(&cmdline, by_hand.folder.join("good")).unwrap();
    fs::hard_link(&fifo, &cmdline).unwrap();
    let exporter = machine.export(&[&by_hand.flag()]);
    let hung = exporter.scrape_until("the process", |s| used(s, "42").is_some());
    assert_eq!(name(&hung, "42").as_deref(), Some("python3"), "what the kernel calls it is known");
    let info = hung.all("gpu_process_info").next().unwrap();
    assert_eq!((info.label("unit"), info.label("uid")), (Some("train.service"), Some("1000")));
    let counted = stalled(&hung);
    assert!(counted >= 1.0);
    // The lanes keep running and a new process gets its name while the read is still hanging.
    machine.control("[[process]]\npid = 43\ngpu = 0\nmemory = \"3GiB\"\n");
    let later = exporter.scrape_until("another process with its name", |s| name(s, "43").is_some());
    assert_eq!(name(&later, "43").as_deref(), Some("serve.py"));
    let goal = rounds(&later, "process") + 5.0;
    let later = exporter.scrape_until("more lists", |s| rounds(s, "process") >= goal);
    assert_eq!(stalled(&later), counted, "one that hangs is counted once");
    assert_eq!(later.value("vram_exporter_processes_invisible", &[("gpu", "1")]), Some(0.0));
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
    // The process recovers: the read that hung returns, and the process is read again.
    fs::rename(by_hand.folder.join("good"), &cmdline).unwrap();
    drop(fs::OpenOptions::new().write(true).open(&fifo).unwrap());
    exporter.scrape_until("its name", |s| name(s, "42").as_deref() == Some("train.py"));
    assert!(exporter.terminate().success());
}

#[test]
fn the_exporter_ends_although_files_of_processes_hang() {
    let scenario = format!("{TWO}[[process]]\npid = 43\ncount = 6\nmemory = \"1GiB\"\n");
    let machine = Machine::new(&scenario);
    let by_hand = ByHand::beside(&machine);
    for pid in 42..=48 {
        by_hand.add(pid, "python3", "/work/train.py");
        by_hand.wedge(pid, "stat");
    }
    let exporter = machine.export(&[&by_hand.flag()]);
    // Five readers are abandoned; no process has a name, and all have the memory that the driver reports.
    let shown = exporter.scrape_until("five that hang", |s| faults(s, "attribution", "stalled") == 5.0);
    let goal = rounds(&shown, "process") + 5.0;
    let later = exporter.scrape_until("more lists", |s| rounds(s, "process") >= goal);
    assert_eq!(faults(&later, "attribution", "stalled"), 5.0);
    assert_eq!((42..=48).filter(|pid| used(&later, &pid.to_string()).is_some()).count(), 7);
    assert_eq!((42..=48).find_map(|pid| name(&later, &pid.to_string())), None);
    assert!(exporter.terminate().success());
}

/// Processes on the first GPU in addition to the one on the second.
fn also(pids: impl IntoIterator<Item = u32>) -> String {
    pids.into_iter().map(|pid| format!("[[process]]\npid = {pid}\ngpu = 0\nmemory = \"1GiB\"\n")).collect()
}

fn stalled(scrape: &Scrape) -> f64 {
    faults(scrape, "attribution", "stalled")
}

#[test]
fn while_many_hang_new_processes_are_known_and_reused_pids_kept_apart() {
    let machine = Machine::new(TWO);
    let by_hand = ByHand::beside(&machine);
    by_hand.add(42, "python3", "/work/train.py");
    for pid in 101..=105 {
        by_hand.add(pid, "python3", "/work/wedged.py");
        by_hand.wedge(pid, if pid == 105 { "status" } else { "cmdline" });
    }
    by_hand.begin(77, 77, ("server", "/work/new.py"), "new.service");
    let exporter = machine.export(&[&by_hand.flag(), "--process.interval=100ms"]);
    exporter.scrape_until("the process", |s| name(s, "42").as_deref() == Some("train.py"));
    machine.control(&also(101..=104));
    exporter.scrape_until("four that hang", |s| stalled(s) == 4.0);
    // The arguments of a new process are not read; everything else about it is known.
    machine.control(&also((101..=104).chain([77])));
    let came = exporter.scrape_until("a new process", |s| name(s, "77").is_some() && used(s, "77").is_some());
    let info = came.all("gpu_process_info").find(|info| info.label("pid") == Some("77")).unwrap();
    let told = ["process", "unit", "uid"].map(|label| info.label(label));
    assert_eq!(told, [Some("server"), Some("new.service"), Some("1000")]);
    machine.control(&also((101..=105).chain([77])));
    exporter.scrape_until("five that hang", |s| stalled(s) == 5.0);
    assert_eq!(exporter.log().matches("reads hang, new processes").count(), 1, "{}", exporter.log());
    // Another process now has the pid, and nothing can be known about it except that it exists.
    fs::remove_dir_all(by_hand.folder.join("42")).unwrap();
    by_hand.begin(42, 99_999, ("python3", "/work/other.py"), "other.service");
    let of_42 = |s: &Scrape| -> Vec<String> {
        let own = s.all("gpu_process_memory_used_bytes").filter(|p| p.label("pid") == Some("42"));
        own.filter_map(|p| p.label("process").map(str::to_owned)).collect()
    };
    exporter.scrape_until("the visible processes are shown", |s| of_42(s) == ["python3"]);
    let trains =
        |s: &Scrape| s.value("gpu_workload_memory_used_bytes", &[("gpu", "1"), ("workload", "unit:train.service")]);
    let begin = std::time::Instant::now();
    // Longer than it takes for a process to count as invisible.
    let later = exporter.scrape_until("some seconds", |s| {
        assert_eq!(of_42(s), ["python3"]);
        assert!(trains(s).is_none_or(|used| used == 0.0), "{:?}", trains(s));
        begin.elapsed().as_secs() >= 4
    });
    assert_eq!(stalled(&later), 5.0);
    for gpu in ["0", "1"] {
        assert_eq!(later.value("vram_exporter_processes_invisible", &[("gpu", gpu)]), Some(0.0));
    }
    assert!(exporter.terminate().success());
}

#[test]
fn one_process_that_hangs_is_read_once_however_often_it_leaves_the_list() {
    let machine = Machine::new(TWO);
    let by_hand = ByHand::beside(&machine);
    for pid in [42, 43] {
        by_hand.add(pid, "python3", "/work/train.py");
        by_hand.wedge(pid, "cmdline");
    }
    let exporter = machine.export(&[&by_hand.flag(), "--process.interval=100ms"]);
    machine.control(&also([43]));
    let counted = stalled(&exporter.scrape_until("both", |s| stalled(s) >= 2.0));
    let refused = format!("[[fault]]\n{LIST}\ngpu = 1\nkind = \"error\"\ncode = \"TIMEOUT\"\n");
    let some_lists = |s: &Scrape| {
        let goal = rounds(s, "process") + 5.0;
        exporter.scrape_until("some lists", |s| rounds(s, "process") >= goal)
    };
    for _ in 0..3 {
        // One list is refused, and the process is gone from the other.
        let refusals = faults(&exporter.scrape(), "process", "timeout");
        machine.control(&refused);
        let without = exporter.scrape_until("neither", |s| {
            faults(s, "process", "timeout") > refusals
                && s.all("gpu_process_memory_used_bytes").all(|p| p.label("pid") != Some("43"))
        });
        some_lists(&without);
        machine.control(&also([43]));
        let with = exporter.scrape_until("both again", |s| used(s, "42").is_some() && used(s, "43").is_some());
        assert_eq!(stalled(&some_lists(&with)), counted);
    }
    assert!(!exporter.log().contains("control.toml"), "{}", exporter.log());
}

#[test]
fn an_unreadable_proc_costs_names_but_no_memory_until_it_is_readable() {
    let machine = Machine::new(TWO);
    let aside = machine.folder.path().join("later");
    let exporter = machine.export(&[&format!("--path.procfs={}", aside.display())]);
    let blind = exporter.scrape_until("the process", |s| used(s, "42").is_some());
    assert_eq!(name(&blind, "42"), None);
    let invisible = |s: &Scrape| s.value("vram_exporter_processes_invisible", &[("gpu", "1")]);
    let told = exporter.scrape_until("the invisible process is reported", |s| invisible(s) == Some(1.0));
    assert!(faults(&told, "attribution", "invisible") >= 1.0);
    assert_eq!(told.value("gpu_memory_unattributed_bytes", &[("gpu", "1")]), Some(8.0 * (1u64 << 20) as f64));
    std::os::unix::fs::symlink(machine.procfs(), &aside).unwrap();
    exporter.scrape_until("its name", |s| name(s, "42").as_deref() == Some("train") && invisible(s) == Some(0.0));
}

#[test]
fn a_proc_of_another_pid_namespace_names_no_process() {
    let machine = Machine::new(TWO);
    let by_hand = ByHand::beside(&machine);
    by_hand.add(42, "python3", "/work/stranger.py");
    let own = by_hand.folder.join("self");
    std::os::unix::fs::symlink("4711", &own).unwrap();
    let exporter = machine.export(&[&by_hand.flag()]);
    exporter.logged("a different pid namespace");
    let invisible = |s: &Scrape| s.value("vram_exporter_processes_invisible", &[("gpu", "1")]);
    let told = exporter.scrape_until("the invisible process is counted", |s| invisible(s) == Some(1.0));
    assert!(used(&told, "42").is_some(), "its memory stays");
    assert_eq!(name(&told, "42"), None);
    assert_eq!(told.all("gpu_workload_processes").count(), 0);
    assert!(faults(&told, "attribution", "foreign_procfs") >= 1.0);
    // Now the right procfs is mounted.
    fs::remove_file(&own).unwrap();
    std::os::unix::fs::symlink(exporter.pid().to_string(), &own).unwrap();
    exporter.scrape_until("its name", |s| name(s, "42").as_deref() == Some("stranger.py"));
}

#[test]
fn an_unreadable_file_of_a_process_costs_its_values_and_no_more() {
    let machine = Machine::new(TWO);
    let by_hand = ByHand::beside(&machine);
    by_hand.add(42, "python3", "/work/train.py");
    let cgroup = by_hand.folder.join("42/cgroup");
    fs::remove_file(&cgroup).unwrap();
    // Reading a folder as a file is an error for root too.
    fs::create_dir(&cgroup).unwrap();
    let exporter = machine.export(&[&by_hand.flag()]);
    let shown = exporter.scrape_until("the process", |s| name(s, "42").is_some());
    assert_eq!(name(&shown, "42").as_deref(), Some("train.py"));
    assert_eq!(shown.all("gpu_workload_memory_used_bytes").count(), 0, "its cgroup is not known");
    assert!(faults(&shown, "attribution", "unreadable") >= 1.0);
    fs::remove_dir(&cgroup).unwrap();
    fs::write(&cgroup, "0::/system.slice/train.service\n").unwrap();
    exporter.scrape_until("its workload", |s| {
        s.value("gpu_workload_memory_used_bytes", &[("workload", "unit:train.service")]).is_some()
    });
}

#[test]
fn a_process_gone_from_proc_keeps_its_name_while_the_driver_lists_it() {
    let machine = Machine::new(TWO);
    let by_hand = ByHand::beside(&machine);
    by_hand.add(42, "python3", "/work/train.py");
    let exporter = machine.export(&[&by_hand.flag()]);
    let before = exporter.scrape_until("the process", |s| name(s, "42").is_some());
    let files = faults(&before, "attribution", "unreadable");
    fs::remove_dir_all(by_hand.folder.join("42")).unwrap();
    let goal = rounds(&before, "process") + 3.0;
    let after = exporter.scrape_until("more lists", |s| rounds(s, "process") >= goal);
    assert_eq!((name(&after, "42").as_deref(), used(&after, "42")), (Some("train.py"), used(&before, "42")));
    assert_eq!(faults(&after, "attribution", "unreadable"), files, "the end of a process is not a fault");
    // Another process has the pid now: it inherits nothing from the previous one.
    by_hand.add(42, "python3", "/work/other.py");
    exporter.scrape_until("the next holder of the pid", |s| {
        s.all("gpu_process_memory_used_bytes").all(|p| p.label("process") == Some("other.py"))
    });
}

#[test]
fn more_memory_for_a_process_than_the_gpu_has_is_unknown_and_counted() {
    let (machine, exporter) = Machine::running(TWO, &[]);
    let before = exporter.scrape_until("the process", |s| used(s, "42").is_some());
    for (value, counted) in [("above", true), ("ones", false)] {
        let earlier = faults(&exporter.scrape(), "process", "implausible");
        machine.control(&format!("[[fault]]\n{LIST}\ngpu = 1\nkind = \"implausible\"\nvalue = \"{value}\"\n"));
        let unknown = exporter.scrape_until("memory that is not known", |s| {
            assert!(used(s, "42").is_none_or(|bytes| Some(bytes) == used(&before, "42")));
            used(s, "42").is_none() && faults(s, "process", "implausible") > earlier
                || (!counted && used(s, "42").is_none())
        });
        assert_eq!(unknown.value("gpu_memory_unattributed_bytes", &[("gpu", "1")]), None);
        assert_eq!(name(&unknown, "42").as_deref(), Some("train"));
        machine.control("");
        exporter.scrape_until("its memory", |s| used(s, "42") == used(&before, "42"));
    }
    let peak = exporter.scrape().value("gpu_process_memory_peak_bytes", &[("pid", "42")]);
    assert_eq!(peak, used(&before, "42"), "no implausible value is in a peak");
}

#[test]
fn where_the_list_of_a_sliced_gpu_is_refused_those_of_its_slices_are_read() {
    let scenario = "seed = 1\n[[gpu]]\nmodel = \"A100-80GB\"\nmig = [\"3g.40gb\", \"\", \"2g.20gb\"]\n";
    let process =
        |pid, slot| format!("[[process]]\npid = {pid}\nmig = {slot}\nmemory = \"2GiB\"\ncommand = [\"p{pid}\"]\n");
    let (machine, exporter) = Machine::running(&(scenario.to_owned() + &process(31, 0) + &process(32, 2)), &[]);
    let held = |s: &Scrape| {
        let mut held: Vec<_> = s
            .all("gpu_process_memory_used_bytes")
            .map(|p| (p.label("pid").unwrap().to_owned(), p.label("mig_uuid").map(str::to_owned), p.value))
            .collect();
        held.sort_by(|a, b| a.0.cmp(&b.0));
        held
    };
    let before = exporter.scrape_until("both processes", |s| held(s).len() == 2);
    assert!(held(&before).iter().all(|(_, mig, _)| mig.is_some()));
    machine.control(&format!("[[fault]]\n{LIST}\nkind = \"error\"\ncode = \"NO_PERMISSION\"\nskip_mig = true\n"));
    let goal = rounds(&before, "process") + 8.0;
    let after = exporter.scrape_until("more lists", |s| {
        assert_eq!(held(s), held(&before));
        rounds(s, "process") >= goal
    });
    assert_eq!(faults(&after, "process", "no_permission"), 0.0);
}
