//! The time to write a scrape, for machines of several sizes, and the time to copy the same number of bytes in the
//! same run.
//!
//! `cargo bench --bench exposition`. It needs no driver: the readings are made up. `-- GPUS EACH ROUNDS` measures a
//! single machine, for a profiler.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints its figures and stops when it cannot go on"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use gpu_metrics::{Format, Metrics, Settings};
use gpu_readings::faults::Faults;
use gpu_readings::snapshot::{
    CgroupLocation, Driver, Gpu, GpuMemory, GpuProcesses, GpuState, MemoryFigures, MemoryPart, Owner, Process,
    ProcessKind, ProcessPart, Snapshot, Workload, WorkloadKind, WorkloadUse,
};
use vram_exporter::config::Config;
use vram_exporter::internals::metrics_settings;

const ROUNDS: usize = 41;
/// The number of GPUs, and of processes on each.
const SIZES: [(u32, u32); 5] = [(1, 16), (8, 0), (8, 64), (16, 128), (16, 512)];

fn gpu(index: u32) -> Arc<Gpu> {
    let uuid = format!("GPU-{index:08x}-1bd4-4303-1312-266e9ca79058");
    Arc::new(Gpu { index, uuid, name: Some("NVIDIA H200".to_owned()), ..Gpu::default() })
}

fn memory(gpu: &Arc<Gpu>) -> GpuMemory {
    let figures = MemoryFigures {
        is_peak_of_calls: None,
        total: 150_754_820_096,
        reserved: Some(644_939_776),
        used: 13_822_918_656,
        free: Some(136_286_961_664),
        window_peak: 13_822_918_656,
        peak: 20_000_000_000,
    };
    let at = Some(Instant::now());
    GpuMemory { state: GpuState::Up, at, figures: Some(figures), ..GpuMemory::unsampled(gpu.clone()) }
}

fn process(pid: u32) -> Process {
    let id = format!("{pid:064x}");
    let name = format!("container:{}", &id[52..]);
    let owner = Owner {
        name: Some("train.py".to_owned()),
        uid: Some(1000),
        user: Some("ada".to_owned()),
        start: Some(SystemTime::now() - Duration::from_millis(3_600_250)),
        location: CgroupLocation { container_id: Some(id), ..CgroupLocation::default() },
        workload: Some(Arc::new(Workload { name, kind: WorkloadKind::Container, pod: None })),
        ..Owner::default()
    };
    let used = 545_259_520 + u64::from(pid) * 4096;
    Process {
        is_peak_of_calls: None,
        pid,
        kind: ProcessKind::Compute,
        mig: None,
        owner: Arc::new(owner),
        alive: true,
        ended: None,
        used: Some(used),
        window_peak: Some(used),
        peak: Some(used + 4096),
        sm_utilization: Some(0.25),
        last_active: Some(Instant::now()),
    }
}

fn workload(process: &Process) -> WorkloadUse {
    let workload = process.owner.workload.clone().unwrap();
    let Process { used, window_peak, peak, .. } = *process;
    WorkloadUse {
        workload,
        mig: None,
        processes: 1,
        used,
        at_least: None,
        window_peak,
        is_peak_of_calls: None,
        peak,
        limits: Vec::new(),
        energy: None,
    }
}

fn processes(gpu: &Arc<Gpu>, count: u32) -> GpuProcesses {
    let processes: Vec<_> = (0..count).map(|n| process(10_000 + gpu.index * count + n)).collect();
    let workloads = processes.iter().map(workload).collect();
    let at = Some(Instant::now());
    GpuProcesses { gpu: gpu.clone(), at, processes, workloads, unattributed: Some(0), ..GpuProcesses::default() }
}

fn metrics(gpus: u32, each: u32) -> Metrics {
    let snapshot = Snapshot::new();
    let gpus: Vec<_> = (0..gpus).map(gpu).collect();
    let read = gpus.iter().map(|gpu| Arc::new(processes(gpu, each))).collect();
    snapshot.memory.store(Arc::new(MemoryPart { gpus: gpus.iter().map(memory).collect() }));
    snapshot.processes.store(Arc::new(ProcessPart { gpus: read }));
    snapshot.driver.store(Arc::new(Driver { up: true, gpus, ..Driver::default() }));
    let settings =
        Settings { stale_after: Duration::from_secs(3600), ..metrics_settings(&Config::default(), Some(true)) };
    Metrics::new(snapshot, Arc::new(Faults::default()), settings).unwrap()
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let begin = Instant::now();
    let made = work();
    (begin.elapsed(), made)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn main() {
    println!(
        "{:>12} {:>10} {:>12} {:>10} {:>12} {:>8}",
        "GPUs x each", "bytes", "write", "per series", "copy", "ratio"
    );
    let asked: Vec<u32> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    let (sizes, rounds) = match asked[..] {
        [gpus, each, rounds] => (vec![(gpus, each)], rounds as usize),
        _ => (SIZES.to_vec(), ROUNDS),
    };
    for (gpus, each) in sizes {
        let metrics = metrics(gpus, each);
        let text = metrics.encode(Format::Text).unwrap();
        let series = text.split(|&byte| byte == b'\n').filter(|line| line.first().is_some_and(|&b| b != b'#')).count();
        let (mut written, mut copied) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            written.push(timed(|| black_box(metrics.encode(Format::Text).unwrap())).0);
            copied.push(timed(|| black_box(text.clone())).0);
        }
        let (write, copy) = (median(written), median(copied));
        let each_series = write * 1e3 / series as f64;
        println!(
            "{:>12} {:>10} {write:>9.1} us {each_series:>7.0} ns {copy:>9.1} us {:>8.2}",
            format!("{gpus} x {each}"),
            text.len(),
            write / copy
        );
    }
}
