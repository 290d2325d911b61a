//! The latest readings of the machine, as plain values, which the lanes publish and `metrics` and `http` read.
//!
//! Invariant: a part is immutable once published and is replaced as a whole. Each part has one writer. Every value that
//! can be unknown is an `Option`, every reading has the time at which it last succeeded, and no type here depends on
//! NVML or Prometheus.

mod allocator;
mod allocator_sites;
mod budget;
mod call_feed;
mod calls;
mod feed;
mod health;
mod incident_kind;
mod kubernetes;
mod links;
mod machine;
mod memory;
mod observer;
mod owner;
mod process;
mod process_id;
mod profiling;
mod pushes;
mod recorder;
mod slurm;
mod telemetry;
mod vitals;
mod xid;

use std::sync::Arc;

use arc_swap::ArcSwap;

pub use allocator::{
    AllocatorFigures, AllocatorPart, AllocatorReport, FailedAllocation, LastMessage, RESERVED_MARGIN, RegionPeak,
    ReportingProcess, STALE_AFTER,
};
pub use allocator_sites::{
    AllocatorSites, MOST_FRAMES, MOST_MODULES, MOST_SITES, MemoryRole, Module, Site, SiteGrowth,
};
pub use budget::{Budget, BudgetAmount, BudgetPlace, BudgetSource, WorkloadLimit};
pub use call_feed::{CallFeed, CallHolder, CallPeak, RecordedCallPeak};
pub use calls::{CORRECTION_BUCKETS, CallPart, CallState, GpuCalls, LostCalls, WorkloadCalls, WorkloadRequests};
pub use cgroup_owner::{Boundary, CgroupLocation, Job, Scheduler};
pub use feed::{Feed, MemorySample};
pub use health::{AddressingMode, RecoveryAction, SPARE_ROWS};
pub use incident_kind::IncidentKind;
pub use kubernetes::{Allocations, Budgets, ClaimAllocation, EndedPods, PodLabels, Pods};
pub use links::{C2cLinks, Fabric, FabricProblem, FabricState, NvlinkError, NvlinkErrors, Nvlinks};
pub use machine::{Driver, Gpu, MigDevice, UnifiedMemory};
pub use memory::{
    GpuMemory, GpuState, MemoryFigures, MemoryPart, MigMemory, NEARLY_FULL, PRESSURE_RATIOS, SharedMemory, allocatable,
};
pub use observer::{ListRead, Observer, ReadProcess};
pub use owner::{Owner, Workload, WorkloadKind};
pub use pod_resources::{Allocation, Claim, Device, DeviceName, PodContainer, PoolDevice};
pub use process::{
    Ended, EnergyShare, GpuProcesses, Held, Other, Process, ProcessKind, ProcessPart, RestOfEnergy, WorkloadUse,
    longest_gap,
};
pub use process_id::ProcessId;
pub use profiling::{GpuProfiling, MigProfiling, ProfilingFigures, ProfilingMetric, ProfilingPart, ProfilingValues};
pub use pushes::Pushes;
pub use recorder::{IncidentCount, RecorderPart, WorkloadShortage};
pub use slurm::{JOBS_EVERY, JobAllocation, JobAllocations};
pub use telemetry::{
    ClockDomain, ClockLimit, Energy, FastTelemetry, GpuTelemetry, GpuXids, SlowTelemetry, THROTTLE_REASONS,
    TelemetryPart, TemperatureThreshold, XidPart,
};
pub use vitals::{DURATION_BUCKETS, Durations, Lane, MAX_STUCK_THREADS, Vitals};
pub use xid::{XIDS, XidClass, XidGroup};

/// The shared snapshot. Reading a part never waits for a lane, and a lane never waits for a reader.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The driver and its GPUs; written when the driver is opened or lost.
    pub driver: ArcSwap<Driver>,
    /// Written by the memory lane at its rate.
    pub memory: ArcSwap<MemoryPart>,
    /// Written by the process lane.
    pub processes: ArcSwap<ProcessPart>,
    /// Written by the telemetry readings.
    pub telemetry: ArcSwap<TelemetryPart>,
    /// Written by the profiling readings.
    pub profiling: ArcSwap<ProfilingPart>,
    /// Written by the watch for Xid events.
    pub xids: ArcSwap<XidPart>,
    /// Written by the follower of the API server.
    pub pods: ArcSwap<Pods>,
    /// Written by the follower of the kubelet's pod-resources socket.
    pub allocations: ArcSwap<Allocations>,
    /// Written by the follower of the folder into which Slurm's prolog writes.
    pub jobs: ArcSwap<JobAllocations>,
    /// Written by the module `allocator`.
    pub allocator: ArcSwap<AllocatorPart>,
    /// Written by the room `calls`.
    pub calls: ArcSwap<CallPart>,
    /// What each lane reports about itself.
    pub vitals: Vitals,
    /// What became of the pushes to an OTLP receiver.
    pub pushes: Pushes,
    /// Written by the recorder.
    pub recorder: ArcSwap<RecorderPart>,
    /// Passes samples and process lists from the lanes to the recorder.
    pub feed: Feed,
    /// Passes lists from the lanes to the room `calls`, and peaks back to the lanes.
    pub call_feed: CallFeed,
    /// Sees every reading. The exporter has none.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Snapshot {
    /// An empty snapshot: no driver, nothing sampled.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// An empty snapshot with a feed for the recorder, and one for the room `calls`.
    pub fn recorded(feed: Feed, call_feed: CallFeed) -> Arc<Self> {
        Arc::new(Self { feed, call_feed, ..Self::default() })
    }

    /// An empty snapshot whose readings the observer sees, with a feed for the room `calls`.
    pub fn observed(observer: Arc<dyn Observer>, call_feed: CallFeed) -> Arc<Self> {
        Arc::new(Self { observer: Some(observer), call_feed, ..Self::default() })
    }

    /// Removes every reading that came from the driver, because once the driver is closed, none of them is valid any
    /// longer.
    pub fn clear(&self, driver: Driver) {
        self.driver.store(Arc::new(driver));
        self.memory.store(Arc::default());
        self.processes.store(Arc::default());
        self.telemetry.store(Arc::default());
        self.profiling.store(Arc::default());
        self.xids.store(Arc::default());
    }
}
