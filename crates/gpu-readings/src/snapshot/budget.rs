//! How much GPU memory a container may hold, as something outside the exporter declares it.
//!
//! A budget is a statement, not an observation: nothing here says that it is enforced.

use std::time::{Duration, SystemTime};

use super::{Gpu, MigDevice};
use crate::closed_enum::closed_enum;

closed_enum! {
    /// What declares a budget, in the order of the labels `source`.
    pub enum BudgetSource {
        /// The pod's annotation `vram-exporter/gpu-memory-limit`, or the one for a single container.
        Annotation => "annotation",
        /// The memory that a claim for devices (dynamic resource allocation) consumes of a GPU that several claims share. The
        /// containers of the claim share it.
        Claim => "claim",
        /// The hard limit that the driver enforces for the workload's cgroup on a GPU without MIG devices.
        Driver => "driver",
        /// The variable `VRAM_EXPORTER_GPU_MEMORY_LIMIT` in a process's environment.
        Environment => "environment",
        /// The resources of HAMi, `nvidia.com/gpumem` and `nvidia.com/gpumem-percentage`, or the devices that HAMi assigned.
        Hami => "hami",
        /// The annotations of KAI-Scheduler: `gpu-memory`, `gpu-fraction`.
        Kai => "kai",
        /// The size of the MIG device on which the workload runs.
        Mig => "mig",
        /// The share of a GPU that the NVIDIA device plugin hands out as one of several replicas. It is neither enforced nor
        /// promised: a replica may hold all memory.
        TimeSlicing => "time_slicing",
    }
}

impl BudgetSource {
    /// Whether the source only divides a GPU and limits no workload. Memory beyond a share is not memory over a limit.
    pub fn is_share(self) -> bool {
        matches!(self, Self::TimeSlicing)
    }

    /// Whether the user of the workload writes it. It can lower a limit, but not what a scheduler has promised.
    pub fn is_users(self) -> bool {
        matches!(self, Self::Annotation | Self::Environment)
    }

    /// Whether the source promises memory of a whole GPU to each workload that it limits. A share is not promised, the memory of a
    /// MIG device is a part that the GPU has set aside, and that of a claim is promised once to all its containers.
    pub fn is_promise(self) -> bool {
        !matches!(self, Self::Claim | Self::Mig | Self::TimeSlicing)
    }
}

/// How much a budget allows on each GPU that it applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BudgetAmount {
    /// Bytes.
    Bytes(u64),
    /// Millionths of the GPU's total memory.
    Millionths(u32),
}

impl BudgetAmount {
    /// The budget in bytes on a GPU or MIG device with this much memory in total, rounded down. `None` if it is a part of a
    /// total that is not known.
    pub fn bytes(self, total: Option<u64>) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Millionths(part) => {
                let bytes = u128::from(total?) * u128::from(part) / 1_000_000;
                Some(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
        }
    }
}

/// The GPUs to which a budget applies.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BudgetPlace {
    /// Each GPU on which the container holds memory, or which was allocated to it.
    EachGpu,
    /// The GPU or MIG device with this uuid.
    Uuid(String),
    /// The GPU with this index on the node, as NVML counts.
    Index(u32),
}

impl BudgetPlace {
    /// Whether the budget names this GPU or, under MIG, this MIG device.
    pub fn is(&self, gpu: &Gpu, mig: Option<&MigDevice>) -> bool {
        match self {
            Self::EachGpu => false,
            Self::Uuid(uuid) => *uuid == gpu.device_uuid(mig),
            Self::Index(index) => mig.is_none() && *index == gpu.index,
        }
    }
}

/// How much GPU memory a container may hold on each GPU of a place.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Budget {
    /// What declares it.
    pub source: BudgetSource,
    /// How much it allows.
    pub amount: BudgetAmount,
    /// Where it applies.
    pub place: BudgetPlace,
}

/// How much a workload may hold on a GPU or MIG device according to one source, and how long it held more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadLimit {
    /// What declares the limit.
    pub source: BudgetSource,
    /// Bytes. `None` while the source declares no limit, and after the workload's last process has ended.
    pub bytes: Option<u64>,
    /// The time in which the workload's memory was above the limit, since the limit was first known. `None` for a share.
    pub over: Option<Duration>,
    /// When the limit was first known and `over` was 0.
    pub since: SystemTime,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_part_of_a_gpu_is_rounded_down() {
        let total = 143_771 << 20;
        assert_eq!(BudgetAmount::Millionths(1_000_000).bytes(Some(total)), Some(total));
        assert_eq!(BudgetAmount::Millionths(500_000).bytes(Some(total)), Some(total / 2));
        assert_eq!(BudgetAmount::Millionths(333_333).bytes(Some(10)), Some(3));
        assert_eq!(BudgetAmount::Millionths(u32::MAX).bytes(Some(u64::MAX)), Some(u64::MAX));
        assert_eq!(BudgetAmount::Bytes(7).bytes(Some(total)), Some(7));
        assert_eq!((BudgetAmount::Bytes(7).bytes(None), BudgetAmount::Millionths(1).bytes(None)), (Some(7), None));
    }

    #[test]
    fn a_budget_applies_to_its_device_alone() {
        let mig = Arc::new(MigDevice { uuid: "MIG-1".to_owned(), ..MigDevice::default() });
        let gpu = Gpu { index: 3, uuid: "GPU-1".to_owned(), mig: vec![mig.clone()], ..Gpu::default() };
        let uuid = |uuid: &str| BudgetPlace::Uuid(uuid.to_owned());
        assert!(uuid("GPU-1").is(&gpu, None) && !uuid("GPU-1").is(&gpu, Some(&mig)));
        assert!(uuid("MIG-1").is(&gpu, Some(&mig)) && !uuid("MIG-1").is(&gpu, None));
        assert!(BudgetPlace::Index(3).is(&gpu, None) && !BudgetPlace::Index(0).is(&gpu, None));
        assert!(!BudgetPlace::Index(3).is(&gpu, Some(&mig)));
        assert!(!BudgetPlace::EachGpu.is(&gpu, None));
    }

    #[test]
    fn every_source_is_listed_once_by_its_label() {
        let labels = BudgetSource::ALL.map(BudgetSource::label);
        assert!(BudgetSource::ALL.iter().enumerate().all(|(at, source)| *source as usize == at));
        assert!(labels.is_sorted() && labels.windows(2).all(|pair| pair[0] != pair[1]), "{labels:?}");
    }
}
