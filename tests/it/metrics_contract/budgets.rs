//! Limits of workloads and what is promised on a GPU: when they are shown, and what is counted.

use std::collections::HashMap;
use std::time::Duration;

use super::*;

const LIMIT: &str = "gpu_workload_memory_limit_bytes";
const OVER: &str = "gpu_workload_memory_over_limit_seconds_total";
const PROMISED: &str = "gpu_memory_promised_bytes";

/// Two GPUs without workloads.
fn machine() -> Machine {
    Machine::of(&[gpu(0), gpu(1)])
}

fn declare(machine: &mut Machine, of: &[(&str, Vec<Budget>)]) {
    let budgets = of.iter().map(|(pod, budgets)| ((*pod_container(pod)).clone(), budgets.clone()));
    let budgets: HashMap<_, _> = budgets.collect();
    machine.pods = Pods { up: Some(true), budgets: Arc::new(budgets), ..Pods::default() };
}

/// The kubelet allocates devices to pods.
fn allocate(machine: &mut Machine, of: &[(&str, DeviceName)]) {
    let held =
        of.iter().map(|(pod, name)| Allocation { holder: pod_container(pod), device: device(name.clone(), None) });
    let (at, allocated) = (ago(0.0), Arc::new(held.collect()));
    machine.allocations = Allocations { up: Some(true), at, allocated, ..Allocations::default() };
}

fn whole(index: u32) -> DeviceName {
    DeviceName::Gpu(format!("GPU-{index}"))
}

fn bytes(source: BudgetSource, gib: u64, place: BudgetPlace) -> Budget {
    budget(source, BudgetAmount::Bytes(gib * GIB), place)
}

/// What is promised on each GPU in GiB.
fn promised(machine: Machine) -> [Option<f64>; 2] {
    let scrape = machine.scrape();
    ["0", "1"].map(|gpu| {
        let series = scrape.of(PROMISED).find(|series| series.labels["gpu"] == gpu)?;
        Some(series.value.parse::<f64>().unwrap() / GIB as f64)
    })
}

fn with_limits(pod: &str, limits: Vec<WorkloadLimit>) -> WorkloadUse {
    WorkloadUse { limits, ..workload(of_pod(pod), GIB) }
}

#[test]
fn a_limit_has_the_labels_of_its_workload_and_its_source() {
    let mut machine = machine();
    let share = WorkloadLimit { over: None, ..limit(BudgetSource::TimeSlicing, 20 * GIB, 0.0) };
    let over = limit(BudgetSource::Annotation, GIB / 2, 1.25);
    machine.processes[0].workloads = vec![with_limits("a", vec![over, share]), workload(of_pod("b"), GIB)];
    let scrape = machine.scrape();
    assert_eq!((scrape.count(LIMIT), scrape.count(OVER)), (2, 1), "a share is not enforced");
    let labels = [("workload", "team-b/a/main"), ("kind", "kubernetes"), ("pod", "a"), ("gpu", "0")];
    let of = |source| [&labels[..], &[("source", source)]].concat();
    assert_eq!(scrape.value(LIMIT, &of("annotation")), (GIB / 2).to_string());
    assert_eq!(scrape.value(LIMIT, &of("time_slicing")), (20 * GIB).to_string());
    assert_eq!(scrape.value(OVER, &of("annotation")), "1.25");
}

#[test]
fn a_limit_that_ended_keeps_its_seconds() {
    let mut machine = machine();
    let ended = WorkloadLimit { bytes: None, ..limit(BudgetSource::Environment, 0, 3.0) };
    machine.processes[0].workloads = vec![with_limits("a", vec![ended])];
    let scrape = machine.scrape();
    assert_eq!((scrape.count(LIMIT), scrape.value(OVER, &[("source", "environment")])), (0, "3"));
}

#[test]
fn workloads_with_equal_labels_have_a_limit_only_if_it_is_the_same() {
    let mut machine = machine();
    let two = |first: u64, second: u64| {
        vec![
            with_limits("a", vec![limit(BudgetSource::Mig, first, 1.0)]),
            with_limits("a", vec![limit(BudgetSource::Mig, second, 2.0)]),
        ]
    };
    machine.processes[0].workloads = two(5, 6);
    machine.processes[1].workloads = two(7, 7);
    let scrape = machine.scrape();
    assert_eq!((scrape.count(LIMIT), scrape.value(LIMIT, &[("gpu", "1")])), (1, "7"));
    assert_eq!((scrape.count(OVER), scrape.value(OVER, &[("gpu", "0")])), (2, "2"));
}

#[test]
fn nothing_is_shown_without_budgets_or_without_a_process_list() {
    assert_eq!(promised(machine()), [None, None]);
    let mut stale = machine();
    declare(&mut stale, &[("a", vec![bytes(BudgetSource::Hami, 3, BudgetPlace::Index(0))])]);
    stale.processes[0].workloads = vec![with_limits("a", vec![limit(BudgetSource::Hami, 3, 0.0)])];
    stale.processes[0].at = ago(60.0);
    let scrape = stale.scrape();
    assert_eq!([LIMIT, OVER, PROMISED].map(|family| scrape.count(family)), [0; 3]);
}

#[test]
fn a_budget_for_each_gpu_counts_where_the_kubelet_allocated_one() {
    let mut machine = machine();
    let each = bytes(BudgetSource::Annotation, 20, BudgetPlace::EachGpu);
    declare(&mut machine, &[("a", vec![each.clone()]), ("nowhere", vec![each])]);
    allocate(&mut machine, &[("a", whole(0)), ("a", whole(1)), ("without", whole(1))]);
    assert_eq!(promised(machine), [Some(20.0), Some(20.0)]);
}

#[test]
fn what_the_kubelet_has_not_said_lately_is_unknown() {
    let place = |place: BudgetPlace| {
        let mut machine = machine();
        declare(&mut machine, &[("a", vec![bytes(BudgetSource::Annotation, 20, place)])]);
        allocate(&mut machine, &[("a", whole(0))]);
        machine.allocations.at = ago(600.0);
        promised(machine)
    };
    assert_eq!(place(BudgetPlace::EachGpu), [None, None]);
    assert_eq!(place(BudgetPlace::Index(0)), [Some(20.0), None]);
}

#[test]
fn each_container_counts_once_with_what_its_scheduler_promised_or_else_with_its_own_lowest_limit() {
    let mut machine = machine();
    let here = |source, gib| bytes(source, gib, BudgetPlace::Index(0));
    declare(
        &mut machine,
        &[
            ("a", vec![here(BudgetSource::Annotation, 20), here(BudgetSource::Hami, 30)]),
            ("b", vec![here(BudgetSource::Hami, 10), bytes(BudgetSource::Kai, 1, BudgetPlace::Index(1))]),
            ("c", vec![here(BudgetSource::Hami, 9), here(BudgetSource::Kai, 4)]),
            ("d", vec![here(BudgetSource::Annotation, 3)]),
            ("huge", vec![bytes(BudgetSource::Annotation, 1 << 30, BudgetPlace::Index(1))]),
        ],
    );
    // The containers a and d run, with a still lower limit in their environment; a unit runs too.
    let unit = Arc::new(Workload { name: "unit:x.service".to_owned(), kind: WorkloadKind::Systemd, pod: None });
    let share = WorkloadLimit { over: None, ..limit(BudgetSource::TimeSlicing, GIB, 0.0) };
    machine.processes[0].workloads = vec![
        with_limits(
            "a",
            vec![limit(BudgetSource::Annotation, 20 * GIB, 0.0), limit(BudgetSource::Environment, 5 * GIB, 0.0)],
        ),
        with_limits("d", vec![limit(BudgetSource::Environment, 2 * GIB, 0.0)]),
        WorkloadUse { limits: vec![limit(BudgetSource::Environment, 2 * GIB, 0.0), share], ..workload(unit, GIB) },
        with_limits("shared", vec![share]),
        WorkloadUse { processes: 0, ..with_limits("gone", vec![limit(BudgetSource::Environment, GIB, 0.0)]) },
    ];
    assert_eq!(promised(machine), [Some(30.0 + 10.0 + 4.0 + 2.0 + 2.0), Some(1.0 + 80.0)], "at most the GPU's 80 GiB");
}

/// The kubelet lists these claims: (pod, claim, GPU, consumed GiB).
fn claim(machine: &mut Machine, of: &[(&str, &str, DeviceName, Option<u64>)]) {
    let claimed = of.iter().map(|(pod, claim, device, memory)| {
        let [namespace, driver, pool, device_name] = ["team-b", "gpu.nvidia.com", "node-1", "gpu-0"].map(str::to_owned);
        ClaimAllocation {
            holder: pod_container(pod),
            claim: Arc::new(Claim { namespace, name: (*claim).to_owned() }),
            name: PoolDevice { driver, pool, device: device_name, share: None },
            device: device.clone(),
            memory: memory.map(|gib| gib * GIB),
        }
    });
    let (at, claimed) = (ago(0.0), Arc::new(claimed.collect()));
    machine.allocations = Allocations { up: Some(true), at, claimed, ..Allocations::default() };
}

#[test]
fn what_a_claim_consumes_is_promised_once_whoever_uses_it() {
    let consuming = |machine: &mut Machine| {
        claim(
            machine,
            &[
                ("a", "both", whole(0), Some(20)),
                ("b", "both", whole(0), Some(20)),
                ("c", "own", whole(0), Some(10)),
                ("d", "free", whole(0), None),
                ("e", "huge", whole(1), Some(1 << 20)),
                ("f", "mig", DeviceName::Mig("MIG-1".to_owned()), Some(5)),
            ],
        );
    };
    let mut machine = machine();
    consuming(&mut machine);
    // Two of the containers run; of one and of the one without a limit their users have said something.
    let lower = bytes(BudgetSource::Annotation, 3, BudgetPlace::EachGpu);
    declare(&mut machine, &[("c", vec![lower.clone()]), ("d", vec![lower])]);
    machine.processes[0].workloads = ["a", "b"]
        .map(|pod| {
            with_limits(
                pod,
                vec![limit(BudgetSource::Claim, 20 * GIB, 0.0), limit(BudgetSource::Environment, GIB, 0.0)],
            )
        })
        .to_vec();
    assert_eq!(promised(machine), [Some(20.0 + 10.0 + 3.0), Some(80.0)]);

    let mut ended = self::machine();
    consuming(&mut ended);
    let pods = HashMap::from([("team-b".to_owned(), ["a".to_owned(), "c".to_owned()].into())]);
    ended.pods = Pods { up: Some(true), ended: Arc::new(pods), ..Pods::default() };
    assert_eq!(promised(ended), [Some(20.0), Some(80.0)], "the other pod of the claim");

    // A workload whose claim the kubelet lists no longer.
    let mut gone = self::machine();
    gone.processes[0].workloads = vec![with_limits("a", vec![limit(BudgetSource::Claim, 20 * GIB, 0.0)])];
    assert_eq!(promised(gone), [None, None]);

    for unknown in [|of: &mut Allocations| of.pending = true, |of: &mut Allocations| of.at = ago(600.0)] {
        let mut machine = self::machine();
        consuming(&mut machine);
        unknown(&mut machine.allocations);
        assert_eq!(promised(machine), [None, None]);
    }
}

#[test]
fn mig_devices_promise_nothing_and_an_unknown_total_is_no_sum() {
    let mut machine = everything();
    machine.pods.budgets = Arc::default();
    assert_eq!(machine.scrape().count(PROMISED), 0, "the workload on the MIG device");
    let mut machine = self::machine();
    let part = |index| budget(BudgetSource::Kai, BudgetAmount::Millionths(125_000), BudgetPlace::Index(index));
    declare(
        &mut machine,
        &[("a", vec![part(0), bytes(BudgetSource::Hami, 1, BudgetPlace::Index(0))]), ("b", vec![part(1)])],
    );
    machine.memory[0].figures = None;
    assert_eq!(promised(machine), [None, Some(10.0)]);
}

#[test]
fn a_limit_in_openmetrics_ends_in_total_and_seconds_are_exact() {
    let mut machine = machine();
    let long = WorkloadLimit { over: Some(Duration::from_millis(90_061_001)), ..limit(BudgetSource::Kai, 1, 0.0) };
    machine.processes[0].workloads = vec![with_limits("a", vec![long])];
    let text = machine.open_metrics(false);
    assert!(text.contains("# TYPE gpu_workload_memory_over_limit_seconds counter\n"), "{text}");
    assert!(text.contains("source=\"kai\"} 90061.001\n"), "{text}");
}
