//! Which containers hold a device, and when the use of a container is known.

use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::snapshot::{
    Allocation, Allocations, Device, DeviceName, Driver, Gpu, GpuMemory, GpuState, MemoryFigures, MemoryPart, Other,
    Owner, Pods, ProcessPart, Snapshot, Workload, WorkloadUse,
};

const GPU: &str = "GPU-00000000-0000-0000-0000-000000000001";

fn container(pod: &str) -> Arc<PodContainer> {
    Arc::new(PodContainer { namespace: "team".into(), pod: pod.into(), container: "main".into() })
}

fn workload(name: &str, kind: WorkloadKind, pod: Option<&str>) -> Arc<Workload> {
    Arc::new(Workload { name: name.into(), kind, pod: pod.map(container) })
}

fn process(pid: u32, workload: Option<Arc<Workload>>, sm: Option<f64>) -> Process {
    Process { sm_utilization: sm, ..Process::for_tests(pid, Owner { workload, ..Owner::default() }) }
}

fn usage(workload: Arc<Workload>, processes: u64, used: Option<u64>) -> WorkloadUse {
    WorkloadUse {
        workload,
        mig: None,
        processes,
        used,
        at_least: None,
        window_peak: None,
        is_peak_of_calls: None,
        peak: None,
        limits: Vec::new(),
        energy: None,
    }
}

/// A GPU on which pod `a` has two processes and a user has one.
fn list() -> GpuProcesses {
    let (a, user) = (workload("a", WorkloadKind::Kubernetes, Some("a")), workload("user:u", WorkloadKind::User, None));
    GpuProcesses {
        processes: vec![
            process(1, Some(a.clone()), Some(0.25)),
            process(2, Some(a.clone()), Some(0.5)),
            process(3, Some(user.clone()), None),
        ],
        workloads: vec![usage(a, 2, Some(100)), usage(user, 1, Some(7))],
        ..GpuProcesses::default()
    }
}

/// The snapshot with this list, in which `a` and `b` share the GPU.
fn shared(list: GpuProcesses) -> Arc<Snapshot> {
    let gpu = Arc::new(Gpu { uuid: GPU.to_owned(), ..Gpu::default() });
    let now = Some(Instant::now());
    let snapshot = Snapshot::new();
    snapshot.driver.store(Arc::new(Driver { up: true, gpus: vec![gpu.clone()], ..Driver::default() }));
    let figures = Some(MemoryFigures { total: 1000, used: 107, free: Some(893), ..MemoryFigures::default() });
    let memory = GpuMemory { state: GpuState::Up, at: now, figures, ..GpuMemory::unsampled(gpu.clone()) };
    snapshot.memory.store(Arc::new(MemoryPart { gpus: vec![memory] }));
    let list = GpuProcesses { gpu, at: now, ..list };
    snapshot.processes.store(Arc::new(ProcessPart { gpus: vec![Arc::new(list)] }));
    let held = |pod: &str, share: &str| Allocation {
        holder: container(pod),
        device: Device {
            resource: "nvidia.com/gpu".into(),
            device: DeviceName::Gpu(GPU.to_owned()),
            replica: Some(share.into()),
        },
    };
    // The container `a` has two shares.
    let allocated = Arc::new(vec![held("b", "2"), held("a", "10"), held("a", "9")]);
    snapshot.allocations.store(Arc::new(Allocations { up: Some(true), at: now, allocated, ..Allocations::default() }));
    snapshot
}

fn settings() -> Settings {
    Settings::default()
}

/// What the container of a pod uses.
fn used(list: GpuProcesses, pod: &str, settings: &Settings) -> Use {
    let snapshot = shared(list);
    let parts = Parts::load(&snapshot);
    used_by(&container(pod), &parts.gpus(settings)[0], None, settings)
}

fn names(snapshot: &Snapshot) -> Vec<(String, Option<String>)> {
    let (parts, settings) = (Parts::load(snapshot), settings());
    let gpus = parts.gpus(&settings);
    let found = holders(&parts, &gpus[0], None, &settings);
    found.iter().map(|holder| (holder.container.pod.clone(), holder.replica.map(str::to_owned))).collect()
}

#[test]
fn a_container_holds_a_device_once_with_its_first_share() {
    let expected = [("a".to_owned(), Some("9".to_owned())), ("b".to_owned(), Some("2".to_owned()))];
    assert_eq!(names(&shared(list())), expected);
}

#[test]
fn a_pod_that_has_ended_holds_nothing() {
    let snapshot = shared(list());
    let ended = Arc::new([("team".to_owned(), ["b".to_owned()].into())].into());
    snapshot.pods.store(Arc::new(Pods { up: Some(true), ended, ..Pods::default() }));
    assert_eq!(names(&snapshot).len(), 1);
}

#[test]
fn without_a_kubelet_the_containers_with_processes_hold_the_device() {
    let snapshot = shared(list());
    snapshot.allocations.store(Arc::default());
    assert_eq!(names(&snapshot), [("a".to_owned(), None)]);
    // A kubelet that does not answer is not the same as no kubelet.
    snapshot.allocations.store(Arc::new(Allocations { up: Some(false), ..Allocations::default() }));
    assert!(names(&snapshot).is_empty());
}

#[test]
fn the_use_of_a_container_is_the_sum_of_its_processes() {
    assert_eq!(used(list(), "a", &settings()), Use { memory: Some(100), utilization: Some(0.75) });
    assert_eq!(used(list(), "b", &settings()), Use { memory: Some(0), utilization: Some(0.0) }, "it has no process");
    let unsampled = GpuProcesses {
        processes: list().processes.into_iter().map(|p| Process { sm_utilization: None, ..p }).collect(),
        ..list()
    };
    assert_eq!(used(unsampled, "a", &settings()), Use { memory: Some(100), utilization: None });
}

#[test]
fn a_use_that_could_be_larger_is_unknown() {
    let unknown = workload("a", WorkloadKind::Kubernetes, Some("a"));
    let one = GpuProcesses { workloads: vec![usage(unknown, 2, None)], ..list() };
    assert_eq!(used(one, "a", &settings()).memory, None, "the memory of a process is unknown");

    let nameless = workload("container:0123456789ab", WorkloadKind::Container, None);
    let some = Other { entries: 1, processes: 1, used: Some(1) };
    let with = |process: Process| GpuProcesses { processes: vec![process], workloads: Vec::new(), ..list() };
    for (list, settings, why) in [
        (with(process(9, Some(nameless), None)), settings(), "a container has no name yet"),
        (with(process(9, None, None)), settings(), "a process has no owner"),
        (GpuProcesses { invisible: 1, ..list() }, settings(), "a process is invisible"),
        (GpuProcesses { other: Some(some), ..list() }, settings(), "there are more processes than are listed"),
        (
            GpuProcesses { other_workloads: Some(some), ..list() },
            settings(),
            "there are more workloads than are listed",
        ),
        (list(), Settings { host_pid_namespace: Some(false), ..settings() }, "the processes are hidden"),
    ] {
        assert_eq!(used(list, "b", &settings), Use::default(), "{why}");
    }
    let (invisible, hidden) =
        (GpuProcesses { invisible: 1, ..list() }, Settings { host_pid_namespace: Some(false), ..settings() });
    assert_eq!(used(invisible, "a", &settings()), Use::default(), "the invisible process could be its own");
    assert_eq!(used(list(), "a", &hidden), Use::default(), "a hidden process could be its own");
    let mut sampled = list();
    sampled.processes[0].sm_utilization = None;
    assert_eq!(used(sampled, "a", &settings()), Use { memory: Some(100), utilization: None }, "one sample is missing");
    let stale = shared(list());
    stale.processes.store(Arc::default());
    let (parts, settings) = (Parts::load(&stale), settings());
    assert_eq!(used_by(&container("a"), &parts.gpus(&settings)[0], None, &settings), Use::default());
}
