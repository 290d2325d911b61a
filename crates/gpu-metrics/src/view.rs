//! Which values of the snapshot may be shown now.
//!
//! Invariant: a [`GpuView`] holds no value that is too old. A GPU that does not respond has no values at all; for any
//! other GPU, each part is present only within its own age limit. All rules about when a value is absent are in this
//! module.

mod ladder;
mod limits;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use limits::Promises;

use super::label::Labels;
use super::settings::Settings;
use gpu_readings::snapshot::{
    Allocations, AllocatorPart, Driver, FastTelemetry, Gpu, GpuMemory, GpuProcesses, GpuState, JOBS_EVERY,
    JobAllocations, Lane, MemoryPart, MigMemory, MigProfiling, PodContainer, Pods, Process, ProcessPart,
    ProfilingFigures, ProfilingPart, RestOfEnergy, SlowTelemetry, Snapshot, TelemetryPart, WorkloadUse, XidPart,
};

pub use ladder::Reporting;

/// The parts of the snapshot at one moment.
#[derive(Debug)]
pub struct Parts {
    /// When the parts were loaded.
    pub now: Instant,
    /// The driver, or why there is none.
    pub driver: Arc<Driver>,
    memory: Arc<MemoryPart>,
    processes: Arc<ProcessPart>,
    allocator: Arc<AllocatorPart>,
    telemetry: Arc<TelemetryPart>,
    profiling: Arc<ProfilingPart>,
    xids: Arc<XidPart>,
    /// The containers, and the pods that have ended, as reported by the API server.
    pub pods: Arc<Pods>,
    /// The kubelet's last response, however old it is.
    pub allocations: Arc<Allocations>,
    jobs: Arc<JobAllocations>,
}

/// How old a list of processes, or another reading that is due once per interval, may be to be shown.
pub fn list_stale_after(stale_after: Duration, interval: Duration) -> Duration {
    stale_after.max(interval.saturating_mul(3))
}

/// One GPU, without the values that are unknown or too old.
#[derive(Debug)]
pub struct GpuView<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// Whether it responds and its last sample is recent.
    pub up: bool,
    /// The state that the memory lane last saw; `Unsampled` before its first sample.
    pub state: GpuState,
    /// Its memory. `None` if the GPU is not up.
    pub memory: Option<&'a GpuMemory>,
    /// Its processes. `None` if the GPU is not up or the list is too old.
    pub processes: Option<&'a GpuProcesses>,
    /// What its processes report about their allocators; empty if none of them does.
    pub reporting: Vec<Reporting<'a>>,
    /// Bytes of the used memory that the processes could not return to the driver. `None` if no process reports how
    /// much it could return.
    pub needed: Option<u64>,
    /// Bytes of its memory that are promised to containers and workloads. `None` if nothing is promised, if a part of the
    /// sum is unknown, or if the GPU has no processes to show.
    pub promised: Option<u64>,
    /// Fast telemetry. `None` if the GPU is not up or the readings are too old.
    pub fast: Option<&'a FastTelemetry>,
    /// Slow telemetry. `None` if the GPU is not up or the readings are too old.
    pub slow: Option<&'a SlowTelemetry>,
    /// The profiling counters. `None` if the GPU is not up or the last interval is too old.
    pub profiling: Option<&'a ProfilingFigures>,
    /// The profiling counters of the GPU instances whose last interval is recent, if the GPU is up.
    pub mig_profiling: Vec<&'a MigProfiling>,
    /// Xid errors, even if the GPU is not up. `None` if the GPU does not report them.
    pub xid_errors: Option<&'a BTreeMap<u64, u64>>,
    /// When no Xid error had been counted yet.
    pub xids_since: Option<SystemTime>,
    /// The last Xid error, even if the GPU is not up. `None` if there was none, or the GPU does not report them.
    pub last_xid: Option<u64>,
    /// The age of each lane's last good reading, in the order of [`Lane::ALL`]; `None` before the first one.
    pub ages: [Option<Duration>; Lane::ALL.len()],
    /// `gpu` and `uuid`.
    pub(super) labels: Labels,
    stale_after: Duration,
    now: Instant,
}

impl Parts {
    /// The bytes that the lists of processes and workloads use, without their owners, which later lists share.
    pub(crate) fn bytes(&self) -> usize {
        let lists = self.processes.gpus.iter().map(|list| {
            list.processes.capacity() * size_of::<Process>() + list.workloads.capacity() * size_of::<WorkloadUse>()
        });
        lists.sum()
    }

    /// Loads the current parts without waiting.
    pub fn load(snapshot: &Snapshot) -> Self {
        Self {
            driver: snapshot.driver.load_full(),
            memory: snapshot.memory.load_full(),
            processes: snapshot.processes.load_full(),
            allocator: snapshot.allocator.load_full(),
            telemetry: snapshot.telemetry.load_full(),
            profiling: snapshot.profiling.load_full(),
            xids: snapshot.xids.load_full(),
            pods: snapshot.pods.load_full(),
            allocations: snapshot.allocations.load_full(),
            jobs: snapshot.jobs.load_full(),
            // Last, so that no part is newer.
            now: Instant::now(),
        }
    }

    /// The containers of pods whose processes are in the list of a GPU, those that ended included as long as their peaks are kept;
    /// a container once for each of its workloads.
    pub(super) fn owners(&self) -> impl Iterator<Item = &PodContainer> {
        let workloads = self.processes.gpus.iter().flat_map(|list| &list.workloads);
        workloads.filter_map(|workload| workload.workload.pod.as_deref())
    }

    /// The kubelet's allocations; `None` if its last response is too old.
    pub fn fresh_allocations(&self, settings: &Settings) -> Option<&Allocations> {
        let limit = settings.stale_after.max(settings.pod_resources_interval.saturating_mul(3));
        self.is_fresh(self.allocations.at?, limit).then_some(&*self.allocations)
    }

    /// The allocations of Slurm's jobs; `None` if the last reading is too old.
    pub(super) fn fresh_jobs(&self, settings: &Settings) -> Option<&JobAllocations> {
        let limit = settings.stale_after.max(JOBS_EVERY.saturating_mul(3));
        self.is_fresh(self.jobs.at?, limit).then_some(&*self.jobs)
    }

    fn is_fresh(&self, at: Instant, limit: Duration) -> bool {
        self.now.saturating_duration_since(at) <= limit
    }

    /// The driver's GPUs, each with the values that may be shown.
    pub fn gpus(&self, settings: &Settings) -> Vec<GpuView<'_>> {
        let promises = Promises::of(self, settings);
        self.driver.gpus.iter().map(|gpu| self.view(gpu, settings, &promises)).collect()
    }

    fn view<'a>(&'a self, gpu: &'a Gpu, settings: &Settings, promises: &Promises<'_>) -> GpuView<'a> {
        let same = |other: &Gpu| other.index == gpu.index && other.uuid == gpu.uuid;
        let memory = self.memory.gpus.iter().find(|m| same(&m.gpu));
        let processes = self.processes.gpus.iter().find(|p| same(&p.gpu)).map(|p| &**p);
        let telemetry = self.telemetry.gpus.iter().find(|t| same(&t.gpu));
        let profiling = self.profiling.gpus.iter().find(|p| same(&p.gpu));
        let xids = self.xids.gpus.iter().find(|x| same(&x.gpu));

        let age = |at: Option<Instant>| at.map(|at| self.now.saturating_duration_since(at));
        let fresh = |at, interval| age(at).is_some_and(|age| age <= list_stale_after(settings.stale_after, interval));
        let state = memory.map_or(GpuState::Unsampled, |m| m.state);
        let up = self.driver.up
            && state == GpuState::Up
            && memory.and_then(|m| age(m.at)).is_some_and(|age| age <= settings.stale_after);

        let memory_shown = memory.filter(|_| up);
        let processes_shown = processes.filter(|p| up && fresh(p.at, settings.process_interval));
        let reporting =
            processes_shown.map(|list| Reporting::all(list, gpu, &self.allocator, self.now)).unwrap_or_default();
        let figures = memory_shown.and_then(|memory| memory.figures);
        let (used, total) = (figures.map(|figures| figures.used), memory_shown.and_then(GpuMemory::total));
        let telemetry_up = telemetry.filter(|_| up);
        let profiling_up = profiling.filter(|_| up);
        let instances = profiling_up.map_or(&[][..], |p| &p.mig);
        GpuView {
            gpu,
            up,
            state,
            memory: memory_shown,
            processes: processes_shown,
            needed: used.and_then(|used| ladder::needed(used, &reporting)),
            reporting,
            promised: processes_shown.and_then(|list| promises.on(gpu, list, total)),
            fast: telemetry_up.filter(|t| fresh(t.fast_at, settings.telemetry_interval)).map(|t| &t.fast),
            slow: telemetry_up.filter(|t| fresh(t.slow_at, settings.telemetry_slow_interval)).map(|t| &t.slow),
            profiling: profiling_up.filter(|p| fresh(p.at, settings.profiling_interval)).map(|p| &p.figures),
            // After a reopening, the published part can still have instances that no longer exist.
            mig_profiling: instances
                .iter()
                .filter(|p| gpu.mig.contains(&p.device) && fresh(p.at, settings.profiling_interval))
                .collect(),
            // Xids are events, not samples, so the last Xid of a lost GPU must still be shown.
            xid_errors: xids.filter(|_| self.driver.up).and_then(|x| x.errors.as_ref()),
            xids_since: xids.and_then(|x| x.counted_since),
            last_xid: xids.filter(|_| self.driver.up).and_then(|x| x.last),
            ages: [
                age(memory.and_then(|m| m.at)),
                age(processes.and_then(|p| p.at)),
                age(telemetry.and_then(|t| t.fast_at)),
            ],
            labels: Labels::of_gpu(gpu.index, &gpu.uuid),
            stale_after: settings.stale_after,
            now: self.now,
        }
    }
}

impl GpuView<'_> {
    /// The energy that belongs to no workload. `None` if the energy of the GPU is not known now, or not apportioned.
    pub(super) fn rest_of_energy(&self) -> Option<&RestOfEnergy> {
        self.fast?.energy?;
        self.processes?.energy.as_ref()
    }

    /// The MIG devices whose last sample is recent.
    pub fn mig(&self) -> impl Iterator<Item = &MigMemory> {
        let devices = self.memory.map_or(&[][..], |m| &m.mig);
        devices
            .iter()
            .filter(|device| device.at.is_some_and(|at| self.now.saturating_duration_since(at) <= self.stale_after))
    }
}
