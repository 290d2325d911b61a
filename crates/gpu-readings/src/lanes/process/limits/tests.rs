//! Budgets from every source on a GPU with and without MIG.

use std::collections::HashMap;

use super::*;
use crate::snapshot::{
    Allocation, Budget, BudgetAmount, Claim, ClaimAllocation, Device, GpuMemory, MemoryFigures, MigMemory, PoolDevice,
    WorkloadKind,
};

const GIB: u64 = 1 << 30;

fn container(name: &str) -> PodContainer {
    PodContainer { namespace: "team".to_owned(), pod: "p".to_owned(), container: name.to_owned() }
}

fn workload(name: &str) -> Workload {
    let pod = Some(Arc::new(container(name)));
    Workload { name: format!("team/p/{name}"), kind: WorkloadKind::Kubernetes, pod }
}

fn budget(source: BudgetSource, amount: BudgetAmount, place: BudgetPlace) -> Budget {
    Budget { source, amount, place }
}

/// A GPU of 80 GiB with a MIG device of 10 GiB, whose memory has been read if `known`.
fn machine(known: bool) -> (Arc<Snapshot>, Arc<Gpu>, Arc<MigDevice>) {
    let mig = Arc::new(MigDevice { uuid: "MIG-1".to_owned(), ..MigDevice::default() });
    let gpu = Arc::new(Gpu { uuid: "GPU-1".to_owned(), mig: vec![mig.clone()], ..Gpu::default() });
    let figures = |total: u64| known.then(|| MemoryFigures { total: total * GIB, ..MemoryFigures::default() });
    let slice = MigMemory { figures: figures(10), ..MigMemory::unsampled(mig.clone()) };
    let memory = GpuMemory { figures: figures(80), mig: vec![slice], ..GpuMemory::unsampled(gpu.clone()) };
    let snapshot = Snapshot::new();
    snapshot.memory.store(Arc::new(MemoryPart { gpus: vec![memory] }));
    snapshot.driver.store(Arc::new(Driver { up: true, gpus: vec![gpu.clone()], ..Driver::default() }));
    (snapshot, gpu, mig)
}

/// `source GiB`.
fn shown(limits: Limits) -> Vec<String> {
    let known = BudgetSource::ALL.into_iter().zip(limits);
    known.filter_map(|(source, bytes)| Some(format!("{} {}", source.label(), bytes? / GIB))).collect()
}

fn declare(snapshot: &Snapshot, budgets: Vec<Budget>) {
    let budgets = Arc::new(HashMap::from([(container("main"), budgets)]));
    snapshot.pods.store(Arc::new(Pods { up: Some(true), budgets, ..Pods::default() }));
}

#[test]
fn a_budget_for_the_device_takes_precedence_over_one_for_each_gpu() {
    let (snapshot, gpu, mig) = machine(true);
    let each = budget(BudgetSource::Kai, BudgetAmount::Millionths(500_000), BudgetPlace::EachGpu);
    let here = budget(BudgetSource::Kai, BudgetAmount::Bytes(7 * GIB), BudgetPlace::Uuid("GPU-1".to_owned()));
    let elsewhere = budget(BudgetSource::Hami, BudgetAmount::Bytes(GIB), BudgetPlace::Uuid("GPU-2".to_owned()));
    declare(&snapshot, vec![here, each, elsewhere]);
    let sources = LimitSources::load(&snapshot, &gpu, Arc::default());
    assert_eq!(shown(sources.of(&workload("main"), None, None, None)), ["kai 7"]);
    assert_eq!(
        shown(sources.of(&workload("main"), Some(&mig), Some(3 * GIB), None)),
        ["environment 3", "kai 5", "mig 10"]
    );
    assert_eq!(shown(sources.of(&workload("side"), None, None, None)), Vec::<String>::new());
}

#[test]
fn a_fraction_of_an_unknown_total_is_no_limit() {
    let (snapshot, gpu, mig) = machine(false);
    declare(&snapshot, vec![budget(BudgetSource::Kai, BudgetAmount::Millionths(1), BudgetPlace::EachGpu)]);
    let sources = LimitSources::load(&snapshot, &gpu, Arc::default());
    assert_eq!(shown(sources.of(&workload("main"), Some(&mig), None, None)), Vec::<String>::new());
}

#[test]
fn bytes_are_a_limit_even_if_the_total_is_unknown() {
    let (snapshot, gpu, _) = machine(false);
    declare(&snapshot, vec![budget(BudgetSource::Annotation, BudgetAmount::Bytes(GIB), BudgetPlace::EachGpu)]);
    let sources = LimitSources::load(&snapshot, &gpu, Arc::default());
    assert_eq!(shown(sources.of(&workload("main"), None, None, None)), ["annotation 1"]);
}

#[test]
fn the_driver_limits_the_cgroup_of_a_workload() {
    let (snapshot, gpu, _) = machine(true);
    let cgroups = HashMap::from([(Arc::from(Path::new("/a")), 3 * GIB)]);
    let sources = LimitSources::load(&snapshot, &gpu, Arc::new(cgroups));
    let in_cgroup = |cgroup: &str| shown(sources.of(&workload("main"), None, None, Some(Path::new(cgroup))));
    assert_eq!(in_cgroup("/a"), ["driver 3"]);
    assert_eq!((in_cgroup("/a/b"), in_cgroup("/")), (Vec::new(), Vec::new()));
    assert_eq!(shown(sources.of(&workload("main"), None, None, None)), Vec::<String>::new());
}

#[test]
fn a_replica_is_a_share_of_its_device() {
    let (snapshot, gpu, mig) = machine(true);
    let device = |name: DeviceName, replica: Option<u32>| Device {
        resource: "nvidia.com/gpu".to_owned(),
        device: name,
        replica: replica.map(|replica| replica.to_string()),
    };
    let (whole, slice) = (|| DeviceName::Gpu("GPU-1".to_owned()), || DeviceName::Mig("MIG-1".to_owned()));
    let replicas = (0..4).map(|replica| device(whole(), Some(replica)));
    let allocatable: Vec<_> = replicas.chain([device(slice(), None)]).collect();
    let held = |name: &str, device: Device| Allocation { holder: Arc::new(container(name)), device };
    let allocated = vec![
        held("main", device(whole(), Some(0))),
        held("twice", device(whole(), Some(1))),
        held("twice", device(whole(), Some(2))),
        held("slice", device(slice(), None)),
    ];
    let allocations = Allocations {
        allocated: Arc::new(allocated),
        allocatable: Some(Arc::new(allocatable)),
        ..Allocations::default()
    };
    snapshot.allocations.store(Arc::new(allocations.clone()));
    let sources = LimitSources::load(&snapshot, &gpu, Arc::default());
    let on_gpu = |name: &str| shown(sources.of(&workload(name), None, None, None));
    assert_eq!(on_gpu("main"), ["time_slicing 20"]);
    assert_eq!(on_gpu("twice"), ["time_slicing 40"]);
    assert_eq!(on_gpu("slice"), Vec::<String>::new());
    assert_eq!(shown(sources.of(&workload("slice"), Some(&mig), None, None)), ["mig 10"]);
    snapshot.allocations.store(Arc::new(Allocations { allocatable: None, ..allocations }));
    let sources = LimitSources::load(&snapshot, &gpu, Arc::default());
    assert_eq!(
        shown(sources.of(&workload("main"), None, None, None)),
        Vec::<String>::new(),
        "how many shares is unknown"
    );
}

#[test]
fn a_claim_limits_each_of_its_containers_to_what_it_consumes() {
    let (snapshot, gpu, mig) = machine(true);
    let has = |name: &str, claim: &str, device: DeviceName, memory: Option<u64>| {
        let [namespace, driver, pool] = ["team", "gpu.nvidia.com", "node-1"].map(str::to_owned);
        let claim = Arc::new(Claim { namespace, name: claim.to_owned() });
        let name_in_pool = PoolDevice { driver, pool, device: "gpu-0".to_owned(), share: None };
        let (holder, memory) = (Arc::new(container(name)), memory.map(|gib| gib * GIB));
        ClaimAllocation { holder, claim, name: name_in_pool, device, memory }
    };
    let (whole, slice) = (|| DeviceName::Gpu("GPU-1".to_owned()), || DeviceName::Mig("MIG-1".to_owned()));
    let claimed = vec![
        has("first", "both", whole(), Some(20)),
        has("second", "both", whole(), Some(20)),
        has("two", "a", whole(), Some(10)),
        has("two", "b", whole(), Some(5)),
        has("two", "c", DeviceName::Gpu("GPU-9".to_owned()), None),
        has("free", "a", whole(), Some(10)),
        has("free", "d", whole(), None),
        has("slice", "s", slice(), Some(3)),
    ];
    snapshot.allocations.store(Arc::new(Allocations { claimed: Arc::new(claimed), ..Allocations::default() }));
    let sources = LimitSources::load(&snapshot, &gpu, Arc::default());
    let on_gpu = |name: &str| shown(sources.of(&workload(name), None, None, None));
    assert_eq!((on_gpu("first"), on_gpu("second")), (vec!["claim 20".to_owned()], vec!["claim 20".to_owned()]));
    assert_eq!(on_gpu("two"), ["claim 15"]);
    assert_eq!(on_gpu("free"), [""; 0], "one of its claims has no limit");
    assert_eq!((on_gpu("slice"), on_gpu("other")), (Vec::new(), Vec::new()));
    assert_eq!(shown(sources.of(&workload("slice"), Some(&mig), None, None)), ["claim 3", "mig 10"]);
}
