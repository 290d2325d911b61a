//! A machine with hostile names, for the exposition and the page.
//!
//! Invariant: the parts of the snapshot keep the invariants that their types document, and no others.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use gpu_readings::snapshot::{
    AddressingMode, Allocation, Allocations, BudgetSource, CgroupLocation, Claim, ClaimAllocation, Device, DeviceName,
    Driver, Ended, Gpu, GpuMemory, GpuProcesses, GpuState, GpuTelemetry, Job, MemoryFigures, MemoryPart, MigDevice,
    MigMemory, Other, Owner, PodContainer, Pods, PoolDevice, Process, ProcessKind, ProcessPart, Scheduler, Snapshot,
    TelemetryPart, Workload, WorkloadKind, WorkloadLimit, WorkloadUse,
};

use crate::choices::{Choose, Unstructured, choices};

/// Strings with a special meaning in the exposition, in HTML or on a terminal.
const MEANING: [&str; 16] = [
    "\"",
    "\\",
    "\n",
    "\r\n",
    "\0",
    "\"} 1\n# TYPE x counter\nx{a=\"",
    "\\\"",
    "\\n",
    "{",
    "}",
    ",",
    " # {trace=\"1\"} 2",
    "<script>alert(1)</script>",
    "\"'&<>`",
    "\u{202e}\u{feff}\u{85}\u{2028}",
    "\u{10ffff}é\u{1b}[2J",
];

/// The source of a machine's names.
pub(crate) enum Names<'a> {
    /// Every name is this one.
    One(String),
    /// These bytes choose the names and the rest of the machine.
    Arbitrary(Unstructured<'a>),
}

impl<'a> Names<'a> {
    pub(crate) fn of(data: &'a [u8]) -> Self {
        choices(data).map_or_else(|| Self::One(String::from_utf8_lossy(data).into_owned()), Self::Arbitrary)
    }

    fn name(&mut self) -> String {
        match self {
            Self::One(name) => name.clone(),
            Self::Arbitrary(u) => match u.below(4) {
                0 => u.pick(&MEANING).to_owned(),
                1 => u.text(20).repeat(u.below(30)),
                2 => u.pick(&MEANING).repeat(u.below(140)),
                _ => u.text(140),
            },
        }
    }

    fn known(&mut self) -> Option<String> {
        (self.below(4, 1) > 0).then(|| self.name())
    }

    fn below(&mut self, end: usize, otherwise: usize) -> usize {
        match self {
            Self::One(_) => otherwise,
            Self::Arbitrary(u) => u.below(end),
        }
    }

    fn number(&mut self) -> u64 {
        match self {
            Self::One(_) => 1 << 30,
            Self::Arbitrary(u) => u.number(),
        }
    }
}

/// Publishes a machine whose readings have the current time.
pub(crate) fn publish(names: &mut Names<'_>, snapshot: &Snapshot) {
    let gpus: Vec<_> = (0..1 + names.below(3, 0)).map(|index| gpu(names, index as u32)).collect();
    let memory = gpus.iter().map(|gpu| memory(names, gpu)).collect();
    let processes = gpus.iter().map(|gpu| Arc::new(processes(names, gpu))).collect();
    let telemetry = gpus.iter().map(|gpu| GpuTelemetry::unread(gpu.clone())).collect();
    snapshot.allocations.store(Arc::new(allocations(names)));
    let containers = (0..names.below(3, 1)).map(|_| (names.name(), pod(names))).collect();
    snapshot.pods.store(Arc::new(Pods { up: Some(true), containers: Arc::new(containers), ..Pods::default() }));
    snapshot.memory.store(Arc::new(MemoryPart { gpus: memory }));
    snapshot.processes.store(Arc::new(ProcessPart { gpus: processes }));
    snapshot.telemetry.store(Arc::new(TelemetryPart { gpus: telemetry }));
    let up = names.below(16, 0) < 15;
    snapshot.driver.store(Arc::new(Driver {
        up,
        problem: if up { None } else { names.known() },
        driver_version: names.known(),
        nvml_version: names.known(),
        cuda_version: names.known(),
        simulated: false,
        gpus,
    }));
}

fn gpu(names: &mut Names<'_>, index: u32) -> Arc<Gpu> {
    let device = |names: &mut Names<'_>, at: usize| {
        let uuid = format!("MIG-{index}-{at}");
        let instance = at as u32;
        let profile = names.known();
        Arc::new(MigDevice { index: instance, uuid, gpu_instance: instance, compute_instance: 0, profile })
    };
    Arc::new(Gpu {
        index,
        uuid: format!("GPU-{index}"),
        minor: Some(index),
        name: names.known(),
        pci_bus_id: names.known(),
        architecture: names.known(),
        vbios: names.known(),
        compute_capability: names.known(),
        brand: Some("NVIDIA"),
        serial: names.known(),
        addressing_mode: Some(AddressingMode::Ats),
        unified_memory: None,
        module_id: Some(names.number() as u32),
        mig_mode: Some(true),
        mig: (0..names.below(3, 0)).map(|at| device(names, at)).collect(),
    })
}

fn figures(names: &mut Names<'_>) -> MemoryFigures {
    let [total, used, free, window_peak, peak] = std::array::from_fn(|_| names.number());
    MemoryFigures { total, reserved: None, used, free: Some(free), window_peak, is_peak_of_calls: None, peak }
}

fn memory(names: &mut Names<'_>, gpu: &Arc<Gpu>) -> GpuMemory {
    let mig = gpu.mig.iter().map(|device| {
        let figures = Some(figures(names));
        MigMemory { at: Some(Instant::now()), figures, ..MigMemory::unsampled(device.clone()) }
    });
    let mig = mig.collect();
    let (at, figures) = (Some(Instant::now()), Some(figures(names)));
    GpuMemory { state: GpuState::Up, at, figures, mig, ..GpuMemory::unsampled(gpu.clone()) }
}

fn processes(names: &mut Names<'_>, gpu: &Arc<Gpu>) -> GpuProcesses {
    let other = Other { entries: names.number(), processes: names.number(), used: Some(names.number()) };
    GpuProcesses {
        began: None,
        gpu: gpu.clone(),
        at: Some(Instant::now()),
        processes: (0..names.below(5, 1)).map(|_| process(names, gpu)).collect(),
        other: (names.below(2, 0) == 1).then_some(other),
        workloads: (0..names.below(4, 1)).map(|_| workload_use(names, gpu)).collect(),
        other_workloads: (names.below(2, 0) == 1).then_some(other),
        invisible: names.number(),
        unattributed: Some(names.number()),
        held: None,
        mig_unattributed: Vec::new(),
        energy: None,
    }
}

fn on(names: &mut Names<'_>, gpu: &Gpu) -> Option<Arc<MigDevice>> {
    let at = names.below(gpu.mig.len() + 1, 0);
    gpu.mig.get(at).cloned()
}

fn process(names: &mut Names<'_>, gpu: &Gpu) -> Process {
    let (alive, now) = (names.below(4, 1) > 0, Instant::now());
    Process {
        is_peak_of_calls: None,
        pid: names.below(3, 1) as u32,
        kind: [ProcessKind::Compute, ProcessKind::Graphics, ProcessKind::Mps][names.below(3, 0)],
        mig: on(names, gpu),
        owner: Arc::new(owner(names)),
        alive,
        ended: (!alive).then_some(Ended { after: now, by: now }),
        used: Some(names.number()),
        window_peak: Some(names.number()),
        peak: Some(names.number()),
        sm_utilization: Some(names.number() as f64 / 3.0),
        last_active: Some(Instant::now()),
    }
}

fn owner(names: &mut Names<'_>) -> Owner {
    Owner {
        name: names.known(),
        namespace_pid: (names.below(2, 1) == 1).then(|| names.number() as u32),
        uid: (names.below(2, 1) == 1).then(|| names.number() as u32),
        user: names.known(),
        start: Some(SystemTime::now()),
        start_ticks: Some(names.number()),
        memory_limit: None,
        cgroup: None,
        command: names.known(),
        location: CgroupLocation {
            boundary: None,
            container_id: names.known(),
            pod_uid: names.known(),
            user: None,
            unit: names.known(),
            slurm_job: names.known(),
            slurm_step: names.known(),
            job: names.known().map(|id| Job { scheduler: Scheduler::Pbs, id }),
        },
        workload: (names.below(4, 1) > 0).then(|| workload(names)),
    }
}

fn workload(names: &mut Names<'_>) -> Arc<Workload> {
    const KINDS: [WorkloadKind; 7] = [
        WorkloadKind::Kubernetes,
        WorkloadKind::Container,
        WorkloadKind::Slurm,
        WorkloadKind::Job,
        WorkloadKind::Systemd,
        WorkloadKind::User,
        WorkloadKind::Vgpu,
    ];
    let kind = KINDS[names.below(KINDS.len(), 0)];
    let pod = (names.below(2, 1) == 1).then(|| pod(names));
    Arc::new(Workload { name: names.name(), kind, pod })
}

fn workload_use(names: &mut Names<'_>, gpu: &Gpu) -> WorkloadUse {
    WorkloadUse {
        is_peak_of_calls: None,
        workload: workload(names),
        mig: on(names, gpu),
        processes: names.number(),
        used: Some(names.number()),
        at_least: None,
        window_peak: Some(names.number()),
        peak: Some(names.number()),
        limits: limits(names),
        energy: None,
    }
}

fn limits(names: &mut Names<'_>) -> Vec<WorkloadLimit> {
    let limit = |source: BudgetSource, names: &mut Names<'_>| WorkloadLimit {
        source,
        bytes: (names.below(4, 1) > 0).then(|| names.number()),
        since: SystemTime::now(),
        over: (!source.is_share()).then(|| Duration::from_millis(names.number() >> 20)),
    };
    let some = BudgetSource::ALL.into_iter().filter(|_| names.below(4, 0) == 1).collect::<Vec<_>>();
    some.into_iter().map(|source| limit(source, names)).collect()
}

fn pod(names: &mut Names<'_>) -> Arc<PodContainer> {
    Arc::new(PodContainer { namespace: names.name(), pod: names.name(), container: names.name() })
}

fn allocations(names: &mut Names<'_>) -> Allocations {
    let allocated = (0..names.below(4, 1)).map(|_| Allocation { holder: pod(names), device: device(names) });
    let allocated = Arc::new(allocated.collect());
    let claimed = (0..names.below(4, 1)).map(|_| ClaimAllocation {
        holder: pod(names),
        claim: Arc::new(Claim { namespace: names.name(), name: names.name() }),
        name: PoolDevice { driver: names.name(), pool: names.name(), device: names.name(), share: None },
        device: device(names).device,
        memory: (names.below(2, 0) == 1).then(|| names.number()),
    });
    let claimed = Arc::new(claimed.collect());
    let allocatable = (0..names.below(4, 1)).map(|_| device(names)).collect();
    let (at, allocatable) = (Some(Instant::now()), Some(Arc::new(allocatable)));
    Allocations { up: Some(true), at, allocated, claimed, allocatable, ..Allocations::default() }
}

fn device(names: &mut Names<'_>) -> Device {
    let gpu = names.below(4, 0) as u32;
    let device = match names.below(6, 0) {
        0 => DeviceName::Gpu(format!("GPU-{gpu}")),
        1 => DeviceName::Gpu(names.name()),
        2 => DeviceName::Mig(format!("MIG-{gpu}-0")),
        3 => DeviceName::Minor { minor: gpu, gpu_instance: (names.below(2, 0) == 1).then_some(0) },
        4 => DeviceName::Index { gpu, mig: (names.below(2, 0) == 1).then_some(0) },
        _ => DeviceName::Instance { gpu: format!("GPU-{gpu}"), gpu_instance: 0, compute_instance: 0 },
    };
    Device { resource: names.name(), device, replica: names.known() }
}
