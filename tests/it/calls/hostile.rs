//! What a hostile program can do to the probes: docs/probes.md has the table.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};

use super::*;

/// A machine on which both programs hold this much, and an exporter that watches the library of the second.
fn beside(hostile: &Program, honest: &Program, flags: &[&str]) -> (Machine, Exporter) {
    let machine = Machine::new(GPU);
    hold_all(&machine, &[(hostile, 10 * GIB), (honest, 10 * GIB)]);
    let exporter = machine.export(&[&["--path.procfs=/proc"], flags].concat());
    exporter.logged(&format!("{}", honest.folder.path().join("libcuda.so.1").display()));
    (machine, exporter)
}

/// The pids of the failures in all incidents: those on one GPU within some seconds share one.
fn refused(exporter: &Exporter) -> Vec<u64> {
    let all = exporter.json("/api/v1/incidents");
    let mut pids = Vec::new();
    for incident in all["incidents"].as_array().unwrap() {
        let whole = exporter.json(&format!("/api/v1/incidents/{}", incident["id"].as_str().unwrap()));
        let events = whole["events"].as_array().unwrap();
        pids.extend(
            events.iter().filter(|event| event["kind"] == "out_of_memory").filter_map(|event| event["pid"].as_u64()),
        );
    }
    pids
}

/// That a spike of the program is seen.
fn assert_seen(exporter: &Exporter, program: &mut Program) {
    let (pid, size) = (program.pid().to_string(), 3 * GIB);
    until("the spike is seen", || {
        assert_eq!(program.call(&format!("spike {size}")), 0);
        let peak = of_program(&exporter.scrape(), &pid, "gpu_process_memory_window_peak_bytes");
        peak == Some((10 * GIB + size) as f64)
    });
}

#[test]
fn a_file_on_which_the_kernel_takes_no_probe_costs_only_its_own_probes() {
    if !has_probes() {
        return;
    }
    // A breakpoint of its own where the probe belongs, also behind the landing pad of an indirect call.
    let trap: &[u8] = if cfg!(target_arch = "x86_64") { &[0xcc; 8] } else { &[0xa0, 0x00, 0x20, 0xd4] };
    let hostile = Program::with(|library| {
        let offset = Driver::load(library).offset("cuMemAlloc_v2");
        // A file that is mapped as code cannot be written to, so it is replaced.
        let mut content = std::fs::read(library).unwrap();
        let place = usize::try_from(offset).unwrap();
        content[place..place + trap.len()].copy_from_slice(trap);
        std::fs::remove_file(library).unwrap();
        std::fs::write(library, content).unwrap();
    });
    let mut honest = Program::start();
    let (_machine, exporter) = beside(&hostile, &honest, &["--memory.probes=all"]);
    exporter.logged(&format!("{}: ", hostile.folder.path().join("libcuda.so.1").display()));
    assert_seen(&exporter, &mut honest);
    let scrape = exporter.scrape();
    assert_eq!(scrape.value("vram_exporter_probes_up", &[]), Some(1.0));
    assert_eq!(scrape.value("vram_exporter_faults_total", &[("source", "probes")]), Some(1.0));
}

#[test]
fn many_and_odd_files_of_the_name_cost_only_their_own_probes() {
    if !has_probes() {
        return;
    }
    // Its section headers lie far behind the end of the file.
    let mut hostile = Program::start();
    assert_eq!(hostile.call("copies 40"), 0);
    let odd = Program::with(|library| {
        let file = OpenOptions::new().write(true).open(library).unwrap();
        file.write_all_at(&[0xff; 8], 40).unwrap();
    });
    let mut honest = Program::start();
    let machine = Machine::new(GPU);
    hold_all(&machine, &[(&hostile, 10 * GIB), (&odd, GIB), (&honest, 10 * GIB)]);
    let exporter = machine.export(&["--path.procfs=/proc", "--memory.probes=all"]);
    exporter.logged(&format!("{}", honest.folder.path().join("libcuda.so.1").display()));
    assert_seen(&exporter, &mut honest);
    until("both are reported", || {
        exporter.scrape().value("vram_exporter_faults_total", &[("source", "probes")]) == Some(2.0)
    });
    let log = exporter.log();
    let of_hostile = hostile.folder.path().display().to_string();
    let watched = |line: &&str| line.contains(&of_hostile) && line.contains("watching");
    assert_eq!(log.lines().filter(watched).count(), 4, "{log}");
}

#[test]
fn many_processes_with_many_files_leave_a_slot_to_another_container() {
    if !has_probes() {
        return;
    }
    let (mut hostile, mut honest) = (Program::start(), Program::start());
    assert_eq!(hostile.call("copies 64"), 0);
    let machine = Machine::new(GPU);
    // A procfs in which the hostile program is 16 processes of a container, with four of its files each.
    let procfs = machine.folder.path().join("host");
    fs::create_dir_all(procfs.join("self/ns")).unwrap();
    symlink("pid:[4026531836]", procfs.join("self/ns/pid")).unwrap();
    symlink("/proc/stat", procfs.join("stat")).unwrap();
    let place = |pid: u32, program: &Program, container: &str| {
        let folder = procfs.join(pid.to_string());
        fs::create_dir(&folder).unwrap();
        for name in ["stat", "status", "map_files", "task"] {
            symlink(format!("/proc/{}/{name}", program.pid()), folder.join(name)).unwrap();
        }
        fs::write(folder.join("cgroup"), format!("0::/docker-{}.scope\n", container.repeat(64))).unwrap();
        folder.join("maps")
    };
    let maps = fs::read_to_string(format!("/proc/{}/maps", hostile.pid())).unwrap();
    let mut listed = String::new();
    for process in 0..16 {
        let is_own = |line: &&str| (0..4).any(|n| line.ends_with(&format!("/{}/libcuda.so.1", 4 * process + n)));
        let own: String = maps.lines().filter(is_own).map(|line| format!("{line}\n")).collect();
        // Pids that no process has.
        let pid = 4_194_000 + process;
        fs::write(place(pid, &hostile, "a"), own).unwrap();
        listed += &format!("[[process]]\npid = {pid}\nmemory = \"1GiB\"\n");
    }
    machine.control(&listed);
    let exporter = machine.export(&[&format!("--path.procfs={}", procfs.display()), "--memory.probes=all"]);
    let of_hostile = hostile.folder.path().display().to_string();
    let watched = || {
        let log = exporter.log();
        log.lines().filter(|line| line.contains(&of_hostile) && line.contains("watching")).count()
    };
    let others = |scrape: &Scrape| scrape.value("vram_exporter_faults_total", &[("source", "probes")]);
    exporter.scrape_until("all are looked at", |scrape| others(scrape) == Some(64.0 - watched() as f64));
    symlink(format!("/proc/{}/maps", honest.pid()), place(honest.pid(), &honest, "b")).unwrap();
    let of_honest = format!("[[process]]\npid = {}\ncontext = \"0B\"\nmemory = \"10GiB\"\n", honest.pid());
    machine.control(&(listed + &of_honest));
    assert_seen(&exporter, &mut honest);
    assert_eq!(watched(), 8, "{}", exporter.log());
}

#[test]
fn a_storm_of_refusals_is_counted_and_hides_no_other_refusal() {
    if !has_probes() {
        return;
    }
    let (mut hostile, mut honest) = (Program::start(), Program::start());
    let (_machine, exporter) = beside(&hostile, &honest, &["--memory.probes=refusals"]);
    exporter.logged(&format!("{}", hostile.folder.path().join("libcuda.so.1").display()));
    let mut asked = 0.0;
    // What the honest program is refused can be lost in a storm, and is counted then.
    let pids = eventually("the failure of the honest program", || {
        assert_eq!(hostile.call("storm 20000"), OUT_OF_MEMORY);
        assert_eq!([1, 2].map(|_| honest.call(&format!("take {}", CAPACITY + GIB))), [OUT_OF_MEMORY; 2]);
        asked += 1.0;
        Some(refused(&exporter)).filter(|pids| pids.contains(&honest.pid().into()))
    });
    // The others became no incident.
    assert!(pids.len() < 100, "{pids:?}");
    // Each call is counted once: as a refusal, or as one that was lost.
    let counted = |scrape: &Scrape| {
        let lost = sum(scrape, "vram_exporter_probe_events_lost_total");
        scrape.value("gpu_memory_refused_requests_total", &[]).unwrap() + lost
    };
    let scrape = exporter.scrape_until("all are counted", |scrape| counted(scrape) > 20_000.0 * asked);
    assert!(counted(&scrape) <= 20_002.0 * asked, "{}", scrape.text);
}

#[test]
fn a_size_that_is_forged_counts_only_within_what_can_be_allocated_and_for_the_window() {
    if !has_probes() {
        return;
    }
    let (mut hostile, mut honest) = (Program::start(), Program::start());
    let (_machine, exporter) = beside(&hostile, &honest, &["--memory.probes=all", "--memory.peak-window=2s"]);
    let pid = hostile.pid().to_string();
    let before = exporter.scrape();
    let used = before.value("gpu_memory_used_bytes", &[]).unwrap();
    assert_eq!(hostile.call(&format!("grants {}", u64::MAX)), 0);
    for size in [u64::MAX, 1 << 63, 1 << 40] {
        assert_eq!(hostile.call(&format!("spike {size}")), 0);
    }
    assert_seen(&exporter, &mut honest);
    let scrape = exporter.scrape();
    assert_eq!(of_program(&scrape, &pid, "gpu_process_memory_peak_bytes"), Some(10.0 * GIB as f64));
    // What could be true counts, is marked, and goes with the window. The reading stays what it is.
    let is_marked = |scrape: &Scrape| {
        assert_eq!(scrape.value("gpu_memory_used_bytes", &[]), Some(used));
        assert_eq!(of_program(scrape, &pid, "gpu_process_memory_used_bytes"), Some(10.0 * GIB as f64));
        let peak = scrape.value("gpu_memory_window_peak_bytes", &[]).unwrap();
        (scrape.value("gpu_memory_window_peak_from_calls", &[]) == Some(1.0)).then_some(peak)
    };
    let claimed = eventually("the claim counts", || {
        assert_eq!(hostile.call(&format!("spike {}", 60 * GIB)), 0);
        is_marked(&exporter.scrape()).filter(|peak| *peak >= used + 60.0 * GIB as f64)
    });
    assert_eq!(claimed, used + 60.0 * GIB as f64);
    until("the window has passed", || is_marked(&exporter.scrape()).is_none());
    assert_eq!(exporter.scrape().value("gpu_memory_window_peak_bytes", &[]), Some(used));
}

#[test]
fn a_flood_of_calls_loses_none_without_a_count_and_readings_stay() {
    if !has_probes() {
        return;
    }
    let (mut hostile, mut honest) = (Program::start(), Program::start());
    let (_machine, exporter) = beside(&hostile, &honest, &["--memory.probes=all"]);
    until("both libraries are watched", || {
        exporter.log().lines().filter(|line| line.contains("libcuda.so.1")).count() >= 2
    });
    for _ in 0..20 {
        assert_eq!(hostile.call("crumbs 65536"), 0);
    }
    let scrape = exporter.scrape_until("all calls are counted", |scrape| {
        let lost = sum(scrape, "vram_exporter_probe_events_lost_total");
        sum(scrape, "gpu_workload_memory_calls_total") + lost >= 400_000.0
    });
    assert_eq!(
        of_program(&scrape, &hostile.pid().to_string(), "gpu_process_memory_used_bytes"),
        Some(10.0 * GIB as f64)
    );
    assert_seen(&exporter, &mut honest);
}
