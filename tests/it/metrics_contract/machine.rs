//! Hand-built snapshots of a machine, as the lanes would publish them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpu_metrics::{Format, Metrics, Settings};
use gpu_readings::faults::{Faults, Reason, Source};
use gpu_readings::snapshot::*;
use vram_exporter::config::Config;
use vram_exporter::internals::metrics_settings;

use super::scrape::Scrape;

pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn ago(seconds: f64) -> Option<Instant> {
    Some(Instant::now().checked_sub(Duration::from_secs_f64(seconds)).unwrap())
}

pub(crate) fn gpu(index: u32) -> Arc<Gpu> {
    Arc::new(Gpu { index, uuid: format!("GPU-{index}"), ..Gpu::default() })
}

pub(crate) fn figures(used: u64) -> MemoryFigures {
    MemoryFigures {
        is_peak_of_calls: None,
        total: 80 * GIB,
        reserved: Some(GIB),
        used,
        free: Some(79 * GIB - used),
        window_peak: used + 1,
        peak: used + 2,
    }
}

pub(crate) fn memory(gpu: &Arc<Gpu>) -> GpuMemory {
    let (state, at, figures) = (GpuState::Up, ago(0.0), Some(figures(GIB)));
    GpuMemory { state, at, figures, counted_since: since(), ..GpuMemory::unsampled(gpu.clone()) }
}

/// The id of the machine's last incident.
pub(crate) const INCIDENT: &str = "20231114T221320500-gpu0-near_limit";
/// When the counters of the machine began at 0, in Unix seconds.
pub(crate) const SINCE: f64 = 1_600_000_000.25;

fn since() -> Option<SystemTime> {
    Some(UNIX_EPOCH + Duration::from_secs_f64(SINCE))
}

/// When every process of the machine started.
pub(crate) const START_TICKS: u64 = 4242;

/// What a process that started at [`START_TICKS`] reports.
pub(crate) fn reporting(pid: u32, reports: Vec<AllocatorReport>) -> ReportingProcess {
    ReportingProcess { id: ProcessId { pid, start_ticks: Some(START_TICKS) }, reports }
}

/// A report in which every value is known: a third of `reserved` is allocated.
pub(crate) fn report(device: &str, framework: &str, reserved: u64) -> AllocatorReport {
    let figures = AllocatorFigures {
        allocated: Some(reserved / 3),
        reserved: Some(reserved),
        window_peak: Some(reserved / 2),
        peak: Some(reserved),
        limit: Some(2 * reserved),
        largest_free_block: Some(reserved / 8),
        inactive_split: Some(reserved / 16),
        retries: Some(4),
        out_of_memory: Some(1),
    };
    let regions = vec![RegionPeak { name: "forward".into(), peak: reserved / 2 }];
    let heard = LastMessage::new(Instant::now());
    let site = |site: &str, role, bytes| Site { site: site.into(), role, bytes };
    let sites = AllocatorSites {
        at: Instant::now(),
        roles: [Some(reserved / 8), Some(0), None, Some(reserved / 8), None, None, Some(reserved / 16)],
        sites: vec![
            site("train.py:7 step", MemoryRole::Activations, reserved / 8),
            site("a\"b\\:1 f", MemoryRole::Parameters, 3),
        ],
        other: Some(reserved / 16),
        unrecorded: Some(reserved / 32),
        growth: None,
        modules: Vec::new(),
        other_modules: None,
    };
    let sites = Some(std::sync::Arc::new(sites));
    AllocatorReport { device: device.into(), framework: framework.into(), heard, figures, regions, sites }
}

pub(crate) fn process(pid: u32, name: &str) -> Process {
    let owner = Owner {
        name: Some(name.to_owned()),
        uid: Some(1000),
        user: Some("ada".to_owned()),
        start: Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_500)),
        start_ticks: Some(START_TICKS),
        ..Owner::default()
    };
    Process {
        used: Some(GIB),
        window_peak: Some(2 * GIB),
        peak: Some(3 * GIB),
        sm_utilization: Some(0.25),
        last_active: ago(7.0),
        ..Process::for_tests(pid, owner)
    }
}

pub(crate) fn processes(gpu: &Arc<Gpu>, processes: Vec<Process>) -> GpuProcesses {
    let unattributed = Some(8 << 20);
    GpuProcesses { gpu: gpu.clone(), at: ago(0.0), processes, unattributed, ..GpuProcesses::default() }
}

pub(crate) fn telemetry(gpu: &Arc<Gpu>) -> GpuTelemetry {
    let fast = FastTelemetry {
        utilization: Some(0.5),
        memory_bandwidth_utilization: Some(0.25),
        encoder_utilization: Some(0.0),
        decoder_utilization: Some(0.0),
        memory_temperature: Some(52.0),
        temperature: Some(41.0),
        power: Some(77.5),
        power_now: Some(81.25),
        energy: since().map(|counted_since| Energy { counted_since, joules: 4321.5, unmeasured: 1.25 }),
        power_limit: Some(700.0),
        clocks: [Some(345e6), Some(345e6), Some(3.201e9), None],
        throttle: Some(0x1 | 0x40),
        ecc_corrected: Some(3),
        ecc_uncorrected: Some(0),
        remapped_correctable: Some(1),
        remapped_uncorrectable: Some(2),
        remap_pending: Some(true),
        remap_failed: Some(false),
        recovery_action: Some(RecoveryAction::DrainP2p),
        performance_state: Some(8),
        pcie_generation: Some(4),
        pcie_width: Some(8),
    };
    let slow = SlowTelemetry {
        bar1_total: Some(256 * GIB),
        bar1_used: Some(4 << 20),
        pcie_replays: Some(9),
        clock_limited: [Some(1_500_000_000), Some(250_000_000), None, Some(0), None, None],
        power_limit_default: Some(650.0),
        power_limit_min: Some(200.0),
        power_limit_max: Some(700.0),
        temperature_thresholds: [Some(95.0), Some(89.0), None, Some(87.0)],
        fan_speeds: vec![0.3, 1.02],
        driver_energy: Some(1234.5),
        retired_single_bit: Some(4),
        retired_double_bit: Some(5),
        row_remap_banks: Some([3069, 2, 1, 0, 0]),
        pcie_generation_max: Some(5),
        pcie_width_max: Some(16),
        clocks_max: [Some(1.98e9), Some(1.98e9), Some(3.201e9), None],
        power_limit_requested: Some(700.0),
        ecc_corrected_lifetime: Some(6),
        ecc_uncorrected_lifetime: Some(1),
        retirement_pending: Some(false),
        fan_speed: Some(0.3),
        nvlinks: Some(Nvlinks {
            links: 18,
            errors: [Some(7), Some(2), Some(3), None, Some(0)],
            recovery_events: None,
            transmitted: Some(404 * GIB),
            received: Some(3 << 10),
        }),
        nvlinks_down: Some(1),
        nvlink_errors: vec![[Some(7), Some(2), None, None, None]],
        c2c_links: Some(C2cLinks { links: 10, down: 0 }),
        fabric: Some(Fabric {
            cluster: "00112233-4455-6677-8899-aabbccddeeff".to_owned(),
            clique: 3,
            state: FabricState::Completed,
            // Degraded bandwidth, no route recovery, and nothing about the rest.
            health_mask: 1 | 2 << 2,
            health_summary: Some(2),
        }),
    };
    GpuTelemetry { gpu: gpu.clone(), fast_at: ago(0.0), fast, slow_at: ago(0.0), slow }
}

/// Figures in which every metric is known: the share or the rate is the position in the list, in eighths.
pub(crate) fn profiling_figures() -> ProfilingFigures {
    let mut figures = ProfilingFigures { counted_since: since(), ..ProfilingFigures::default() };
    for metric in ProfilingMetric::ALL {
        figures.latest.set(metric, Some(metric as usize as f64 / 8.0));
        figures.totals.set(metric, Some(metric as usize as f64 * 100.0));
    }
    figures
}

pub(crate) fn profiling(gpu: &Arc<Gpu>) -> GpuProfiling {
    GpuProfiling { at: ago(0.0), figures: profiling_figures(), settled: true, ..GpuProfiling::unread(gpu.clone()) }
}

pub(crate) fn xids(gpu: &Arc<Gpu>) -> GpuXids {
    GpuXids {
        gpu: gpu.clone(),
        errors: Some(BTreeMap::from([(31, 2), (79, 1)])),
        counted_since: since(),
        last: Some(79),
    }
}

pub(crate) fn pod_container(pod: &str) -> Arc<PodContainer> {
    Arc::new(PodContainer { namespace: "team-b".to_owned(), pod: pod.to_owned(), container: "main".to_owned() })
}

pub(crate) fn of_pod(pod: &str) -> Arc<Workload> {
    let name = format!("team-b/{pod}/main");
    Arc::new(Workload { name, kind: WorkloadKind::Kubernetes, pod: Some(pod_container(pod)) })
}

pub(crate) fn workload(workload: Arc<Workload>, used: u64) -> WorkloadUse {
    let (window_peak, peak) = (Some(used + 1), Some(used + 2));
    WorkloadUse {
        workload,
        mig: None,
        processes: 2,
        used: Some(used),
        at_least: None,
        window_peak,
        is_peak_of_calls: None,
        peak,
        limits: Vec::new(),
        energy: since().map(|counted_since| EnergyShare { counted_since, joules: 1500.5 }),
    }
}

/// A limit of a workload, which held more for some seconds.
pub(crate) fn limit(source: BudgetSource, bytes: u64, over: f64) -> WorkloadLimit {
    let since = UNIX_EPOCH + Duration::from_secs_f64(SINCE);
    WorkloadLimit { source, bytes: Some(bytes), over: Some(Duration::from_secs_f64(over)), since }
}

pub(crate) fn budget(source: BudgetSource, amount: BudgetAmount, place: BudgetPlace) -> Budget {
    Budget { source, amount, place }
}

pub(crate) fn incidents(gpu: &Gpu) -> IncidentCount {
    let (uuid, last_id) = (gpu.uuid.clone(), Some(INCIDENT.to_owned()));
    IncidentCount { gpu: gpu.index, uuid, mig: None, kind: "near_limit", count: 2, last: 1_700_000_000.5, last_id }
}

/// Those of the first MIG device of a GPU.
pub(crate) fn mig_incidents(gpu: &Gpu) -> IncidentCount {
    let mig = gpu.mig.first().map(|device| (**device).clone());
    IncidentCount { mig, kind: "ended_at_peak", last_id: None, ..incidents(gpu) }
}

pub(crate) fn device(device: DeviceName, replica: Option<&str>) -> Device {
    Device { resource: "nvidia.com/gpu".to_owned(), device, replica: replica.map(str::to_owned) }
}

/// What Slurm has just allocated.
pub(crate) fn jobs(allocated: &[(&str, DeviceName)]) -> JobAllocations {
    let of = |(job, device): &(&str, DeviceName)| JobAllocation { job: (*job).to_owned(), device: device.clone() };
    JobAllocations { at: ago(0.0), allocated: Arc::new(allocated.iter().map(of).collect()) }
}

/// One machine under test.
pub(crate) struct Machine {
    pub(crate) driver: Driver,
    pub(crate) memory: Vec<GpuMemory>,
    pub(crate) processes: Vec<GpuProcesses>,
    pub(crate) allocator: AllocatorPart,
    pub(crate) calls: CallPart,
    pub(crate) telemetry: Vec<GpuTelemetry>,
    pub(crate) profiling: Vec<GpuProfiling>,
    pub(crate) xids: Vec<GpuXids>,
    pub(crate) pods: Pods,
    pub(crate) allocations: Allocations,
    pub(crate) jobs: JobAllocations,
    pub(crate) recorder: RecorderPart,
    pub(crate) settings: Settings,
    pub(crate) faults: Arc<Faults>,
}

impl Machine {
    pub(crate) fn of(gpus: &[Arc<Gpu>]) -> Self {
        Self {
            driver: Driver { up: true, gpus: gpus.to_vec(), ..Driver::default() },
            memory: gpus.iter().map(memory).collect(),
            processes: gpus.iter().map(|gpu| processes(gpu, vec![process(100 + gpu.index, "train.py")])).collect(),
            allocator: AllocatorPart::default(),
            calls: CallPart::default(),
            telemetry: gpus.iter().map(telemetry).collect(),
            profiling: gpus.iter().map(profiling).collect(),
            xids: gpus.iter().map(xids).collect(),
            pods: Pods::default(),
            allocations: Allocations::default(),
            jobs: JobAllocations::default(),
            recorder: RecorderPart::default(),
            settings: Settings {
                stale_after: Duration::from_secs(2),
                ..metrics_settings(&Config::default(), Some(true))
            },
            faults: Arc::default(),
        }
    }

    pub(crate) fn one() -> Self {
        Self::of(&[gpu(0)])
    }

    pub(crate) fn metrics(self) -> Metrics {
        let snapshot = Snapshot::new();
        snapshot.driver.store(Arc::new(self.driver));
        snapshot.memory.store(Arc::new(MemoryPart { gpus: self.memory }));
        snapshot.processes.store(Arc::new(ProcessPart { gpus: self.processes.into_iter().map(Arc::new).collect() }));
        snapshot.allocator.store(Arc::new(self.allocator));
        snapshot.calls.store(Arc::new(self.calls));
        snapshot.telemetry.store(Arc::new(TelemetryPart { gpus: self.telemetry }));
        snapshot.profiling.store(Arc::new(ProfilingPart { gpus: self.profiling }));
        snapshot.xids.store(Arc::new(XidPart { gpus: self.xids }));
        snapshot.pods.store(Arc::new(self.pods));
        snapshot.allocations.store(Arc::new(self.allocations));
        snapshot.jobs.store(Arc::new(self.jobs));
        snapshot.recorder.store(Arc::new(self.recorder));
        snapshot.vitals.observe(Lane::Memory, Duration::from_micros(7));
        snapshot.vitals.observe(Lane::Memory, Duration::from_secs(9));
        snapshot.vitals.add_missed(Lane::Process, 0, 5);
        snapshot.pushes.delivered(UNIX_EPOCH + Duration::from_millis(1_700_000_000_500), 2);
        Metrics::new(snapshot, self.faults, self.settings).unwrap()
    }

    pub(crate) fn text(self) -> String {
        String::from_utf8(self.metrics().encode(Format::Text).unwrap()).unwrap()
    }

    pub(crate) fn open_metrics(mut self, created: bool) -> String {
        self.settings.created_samples = created;
        String::from_utf8(self.metrics().encode(Format::OpenMetrics).unwrap()).unwrap()
    }

    pub(crate) fn scrape(self) -> Scrape {
        Scrape::parse(&self.text())
    }
}

/// The same without probes. What they have counted stays, whether or not a GPU answers.
pub(crate) fn without_calls() -> Machine {
    Machine { calls: CallPart::default(), ..everything() }
}

/// What probes have seen: on a GPU, on a MIG device, and on one that is not known.
pub(crate) fn calls(gpus: &[Arc<Gpu>], mig: Option<&Arc<MigDevice>>) -> CallPart {
    let since = since().unwrap();
    let request = |gpu: Option<usize>, mig: Option<&Arc<MigDevice>>, refused| WorkloadRequests {
        workload: of_pod("vllm"),
        gpu: gpu.map(|gpu| gpus[gpu].clone()),
        mig: mig.cloned(),
        since,
        refused,
        retried: 1,
    };
    let mut of_gpu = GpuCalls::new(gpus[0].clone());
    (of_gpu.refused, of_gpu.corrections, of_gpu.corrected) = (3, [4, 3, 0, 0, 0, 0, 0, 0, 0, 1], 9 * GIB);
    CallPart {
        state: CallState::Up,
        sees_all: true,
        counted_since: Some(since),
        lost: [1, 2, 3, 4],
        gpus: vec![of_gpu],
        requests: vec![request(Some(0), None, 5), request(Some(1), mig, 6), request(None, None, 7)],
        workloads: vec![WorkloadCalls {
            workload: of_pod("vllm"),
            since,
            calls: 40,
            time: Duration::from_millis(1_500),
        }],
    }
}

/// A machine that has everything: MIG, an owner with a command, a cap, all versions.
pub(crate) fn everything() -> Machine {
    let mig = Arc::new(MigDevice {
        index: 0,
        uuid: "MIG-a".to_owned(),
        gpu_instance: 7,
        compute_instance: 0,
        profile: Some("1g.10gb".to_owned()),
    });
    let sliced = Arc::new(Gpu {
        index: 1,
        uuid: "GPU-1".to_owned(),
        minor: Some(3),
        brand: Some("NVIDIA"),
        serial: Some("1654321000001".to_owned()),
        name: Some("NVIDIA H200".to_owned()),
        pci_bus_id: Some("00000000:1B:00.0".to_owned()),
        architecture: Some("Hopper".to_owned()),
        vbios: Some("96.00".to_owned()),
        compute_capability: Some("9.0".to_owned()),
        addressing_mode: Some(AddressingMode::Hmm),
        unified_memory: Some(UnifiedMemory::Listed),
        module_id: Some(4),
        mig_mode: Some(true),
        mig: vec![mig.clone()],
    });
    let mut machine = Machine::of(&[gpu(0), sliced]);
    machine.recorder = RecorderPart {
        on: true,
        counted_since: since(),
        bytes: 4096,
        dropped: 3,
        incidents: vec![incidents(&machine.driver.gpus[0]), mig_incidents(&machine.driver.gpus[1])],
        ..RecorderPart::default()
    };
    machine.driver.driver_version = Some("580.159.04".to_owned());
    machine.driver.cuda_version = Some("13.0".to_owned());
    machine.driver.nvml_version = Some("13.580.159.04".to_owned());
    machine.driver.simulated = true;
    machine.memory[1].mig = vec![MigMemory {
        at: ago(0.0),
        figures: Some(figures(5)),
        counted_since: since(),
        ..MigMemory::unsampled(mig.clone())
    }];
    machine.memory[1].shared = Some(SharedMemory { total: 80 * GIB, available: 9 * GIB });
    machine.processes[1].held = Some(Held { bytes: 7 * GIB, is_lower_bound: true });
    machine.profiling[1].mig = vec![MigProfiling { device: mig.clone(), at: ago(0.0), figures: profiling_figures() }];
    machine.processes[1].mig_unattributed = vec![(mig.clone(), 3 << 20)];
    let mut inside = process(300, "vllm");
    inside.mig = Some(mig);
    let location = CgroupLocation {
        boundary: Some(Boundary::Pod),
        container_id: Some("c0ffee".to_owned()),
        pod_uid: Some("1d5c7a0e".to_owned()),
        user: None,
        unit: Some("a.service".to_owned()),
        slurm_job: Some("42".to_owned()),
        slurm_step: Some("0".to_owned()),
        job: Some(Job { scheduler: Scheduler::Pbs, id: "12345".to_owned() }),
    };
    let command = Some("vllm serve".to_owned());
    inside.owner = Arc::new(Owner { command, location, workload: Some(of_pod("vllm")), ..(*inside.owner).clone() });
    let mig = inside.mig.clone();
    let short = |gpu: usize, mig: Option<Arc<MigDevice>>| WorkloadShortage {
        gpu: machine.driver.gpus[gpu].clone(),
        mig,
        workload: of_pod("vllm"),
        last: 1_760_000_000.25,
    };
    machine.recorder.shortages = vec![short(0, None), short(1, mig.clone())];
    machine.processes[1].processes.push(inside);
    machine.allocator.processes = vec![
        reporting(100, vec![report("GPU-0", "pytorch", GIB / 2)]),
        reporting(300, vec![report("MIG-a", "jax", GIB / 4)]),
    ];
    machine.processes[0].energy =
        since().map(|counted_since| RestOfEnergy { counted_since, idle: 1000.25, other: 20.5 });
    // Of a workload that has ended long ago, nothing else is left.
    machine.processes[0].workloads.push(WorkloadUse {
        processes: 0,
        used: None,
        window_peak: None,
        peak: None,
        ..workload(of_pod("ended"), 0)
    });
    // The driver has no samples for MIG devices.
    machine.processes[1].workloads =
        vec![WorkloadUse { mig: mig.clone(), energy: None, ..workload(of_pod("vllm"), GIB) }];
    let unknown = WorkloadUse { used: None, at_least: Some(GIB), ..machine.processes[1].workloads[0].clone() };
    machine.processes[1].workloads.push(WorkloadUse { workload: of_pod("viewer"), ..unknown });
    machine.processes[1].workloads[0].limits = vec![limit(BudgetSource::Mig, 10 * GIB, 1.5)];
    machine.processes[0].other = Some(Other { entries: 12, processes: 11, used: Some(13 * GIB) });
    machine.processes[0].other_workloads = Some(Other { entries: 3, processes: 4, used: Some(5 * GIB) });
    let pods = HashMap::from([("c0ffee".to_owned(), pod_container("vllm"))]);
    let budget = budget(BudgetSource::Kai, BudgetAmount::Millionths(500_000), BudgetPlace::EachGpu);
    let budgets = HashMap::from([((*pod_container("idle")).clone(), vec![budget])]);
    let labels = vec![("label_team".into(), "research".to_owned())];
    let labels = PodLabels { namespace: "team-b".into(), pod: pod_container("vllm").pod.clone(), labels };
    let (containers, budgets, labels) = (Arc::new(pods), Arc::new(budgets), Arc::new(vec![labels]));
    machine.pods = Pods { up: Some(true), containers, budgets, labels, ..Pods::default() };
    let slice = device(DeviceName::Mig("MIG-a".to_owned()), Some("3"));
    let whole = device(DeviceName::Gpu("GPU-0".to_owned()), None);
    let held = vec![
        Allocation { holder: pod_container("vllm"), device: slice.clone() },
        Allocation { holder: pod_container("idle"), device: whole.clone() },
    ];
    machine.calls = calls(&machine.driver.gpus, mig.as_ref());
    machine.memory[0].figures = Some(MemoryFigures { is_peak_of_calls: Some(true), ..figures(GIB) });
    machine.processes.iter_mut().flat_map(|list| &mut list.processes).for_each(|of| of.is_peak_of_calls = Some(true));
    machine.processes.iter_mut().flat_map(|list| &mut list.workloads).for_each(|of| of.is_peak_of_calls = Some(true));
    machine.settings.otlp = true;
    machine.faults.raise(Source::Http, Reason::Timeout, None, &std::io::Error::other("slow"));
    let allocatable = Some(Arc::new(vec![slice, whole]));
    let claim = Arc::new(Claim { namespace: "team".to_owned(), name: "serve-gpu-x2k4f".to_owned() });
    let [driver, pool, name] = ["gpu.nvidia.com", "node-1", "gpu-1"].map(str::to_owned);
    let name = PoolDevice { driver, pool, device: name, share: None };
    let device = DeviceName::Gpu("GPU-1".to_owned());
    let claimed = Arc::new(vec![ClaimAllocation { holder: pod_container("serve"), claim, name, device, memory: None }]);
    let (at, allocated) = (ago(0.0), Arc::new(held));
    machine.allocations = Allocations { up: Some(true), at, allocated, claimed, allocatable, ..Allocations::default() };
    machine.jobs = jobs(&[("900", DeviceName::Gpu("GPU-0".to_owned()))]);
    machine
}
