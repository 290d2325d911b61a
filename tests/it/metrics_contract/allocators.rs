//! When the reports of processes are shown: the rules of the view, one by one.

use super::*;

const ALLOCATED: &str = "gpu_process_allocator_allocated_bytes";
const OUTSIDE: &str = "gpu_process_memory_outside_allocator_bytes";
const NEEDED: &str = "gpu_memory_needed_bytes";

/// One GPU with process 100, which uses 1 GiB and reports half of it as reserved.
fn machine() -> Machine {
    let mut machine = Machine::one();
    machine.allocator.processes = vec![reporting(100, vec![report("GPU-0", "pytorch", GIB / 2)])];
    machine
}

/// What is shown of the reports, by family.
fn shown(machine: Machine) -> Vec<String> {
    let scrape = machine.scrape();
    let is_reported = |name: &str| name.contains("_allocator_") || name == NEEDED;
    let names: BTreeSet<_> =
        scrape.series().map(|series| series.name.clone()).filter(|name| is_reported(name)).collect();
    names.into_iter().collect()
}

#[test]
fn a_process_is_recognized_by_pid_start_time_and_device() {
    assert!(shown(machine()).len() > 10, "it is shown");
    type Harm = fn(&mut Machine);
    let harms: [(&str, Harm); 6] = [
        ("another pid", |m| m.allocator.processes[0].id.pid = 101),
        ("another process with the same pid", |m| m.allocator.processes[0].id.start_ticks = Some(1)),
        ("another device", |m| m.allocator.processes[0].reports[0].device = "GPU-1".into()),
        ("a process that /proc does not show", |m| m.processes[0].processes[0].owner = Arc::default()),
        ("a process that has ended", |m| m.processes[0].processes[0].alive = false),
        ("more reserved than used", |m| {
            m.allocator.processes[0].reports[0].figures.reserved = Some(GIB + RESERVED_MARGIN + 1);
        }),
    ];
    for (name, harm) in harms {
        let mut machine = machine();
        harm(&mut machine);
        assert_eq!(shown(machine), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn on_a_mig_device_the_device_is_the_mig_device() {
    let mut machine = everything();
    machine.allocator.processes[1].reports[0].device = "GPU-1".into();
    let scrape = machine.scrape();
    assert_eq!(scrape.count(ALLOCATED), 1, "only the process on the whole GPU");
    let scrape = everything().scrape();
    let labels = [("pid", "300"), ("mig_uuid", "MIG-a"), ("framework", "jax"), ("type", "compute"), ("pod", "vllm")];
    assert_eq!(scrape.value(ALLOCATED, &labels), (GIB / 4 / 3).to_string());
    // The parent's needed memory counts the processes on its MIG devices.
    let used = scrape.value("gpu_memory_used_bytes", &[("gpu", "1")]).parse::<u64>().unwrap();
    assert_eq!(scrape.value(NEEDED, &[("gpu", "1")]), (used - (GIB / 4 - GIB / 4 / 3)).to_string());
}

#[test]
fn without_the_drivers_figure_the_reports_are_shown_but_nothing_is_computed() {
    let mut machine = machine();
    machine.processes[0].processes[0].used = None;
    let shown = shown(machine);
    assert!(shown.contains(&ALLOCATED.to_owned()));
    assert!(!shown.contains(&OUTSIDE.to_owned()) && !shown.contains(&NEEDED.to_owned()), "{shown:?}");
}

#[test]
fn a_framework_that_does_not_tell_what_it_reserved_makes_the_rest_unknown() {
    let mut machine = machine();
    let mut second = report("GPU-0", "tensorflow", 300);
    second.figures.reserved = None;
    machine.allocator.processes[0].reports.push(second);
    let scrape = machine.scrape();
    assert_eq!(scrape.count(ALLOCATED), 2);
    assert_eq!(scrape.count(OUTSIDE), 0);
    let used = scrape.value("gpu_memory_used_bytes", &[("gpu", "0")]).parse::<u64>().unwrap();
    assert_eq!(scrape.value(NEEDED, &[("gpu", "0")]), (used - (GIB / 2 - GIB / 2 / 3)).to_string());
}

#[test]
fn entries_of_one_process_are_one_rung() {
    let mut machine = machine();
    // The same process is listed a second time, as happens while its MIG device is unknown.
    machine.processes[0].processes.push(process(100, "train.py"));
    let scrape = machine.scrape();
    assert_eq!(scrape.value("gpu_process_memory_used_bytes", &[("pid", "100")]), (2 * GIB).to_string());
    assert_eq!(scrape.value(OUTSIDE, &[("pid", "100")]), (2 * GIB - GIB / 2).to_string());
    assert_eq!(scrape.count(ALLOCATED), 1);
}

#[test]
fn a_workload_is_the_sum_of_its_processes_that_report() {
    let mut machine = Machine::one();
    let in_pod = |pid| {
        let mut process = process(pid, "train.py");
        process.owner = Arc::new(Owner { workload: Some(of_pod("trainer")), ..(*process.owner).clone() });
        process
    };
    machine.processes[0].processes = vec![in_pod(1), in_pod(2), in_pod(3)];
    machine.allocator.processes = [1, 2].map(|pid| reporting(pid, vec![report("GPU-0", "jax", 3000)])).into();
    let scrape = machine.scrape();
    let sum =
        |family: &str| scrape.value(family, &[("workload", "team-b/trainer/main"), ("kind", "kubernetes")]).to_owned();
    assert_eq!(sum("gpu_workload_allocator_allocated_bytes"), "2000");
    assert_eq!(sum("gpu_workload_allocator_reserved_bytes"), "6000");
}
