//! How much GPU memory a container may hold, as something outside the exporter declares it.
//!
//! A budget is a statement, not an observation: nothing here says that anybody enforces it.

/// What declares a budget. Each has a value of the `source` label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BudgetSource {
    /// The pod's annotation `vram-exporter/gpu-memory-limit`, or the one for a single container.
    Annotation,
    /// The annotations of KAI-Scheduler: `gpu-memory`, `gpu-fraction`.
    Kai,
    /// The resources of HAMi, `nvidia.com/gpumem` and `nvidia.com/gpumem-percentage`, or the devices that it assigned.
    Hami,
    /// The size of the MIG device on which the workload runs.
    Mig,
    /// The share of a GPU that the NVIDIA device plugin hands out as one of several replicas. Nobody enforces or promises
    /// it: a replica may hold all memory.
    TimeSlicing,
    /// The shards of a Slurm job.
    Slurm,
    /// The variable `VRAM_EXPORTER_GPU_MEMORY_LIMIT` in a process's environment.
    Environment,
}

impl BudgetSource {
    /// Every source, in the order of their labels.
    pub const ALL: [Self; 7] =
        [Self::Annotation, Self::Environment, Self::Hami, Self::Kai, Self::Mig, Self::Slurm, Self::TimeSlicing];

    /// The value of the `source` label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Annotation => "annotation",
            Self::Kai => "kai",
            Self::Hami => "hami",
            Self::Mig => "mig",
            Self::TimeSlicing => "time_slicing",
            Self::Slurm => "slurm",
            Self::Environment => "environment",
        }
    }

    /// Whether the source only divides a GPU and limits nobody. Memory beyond a share is not memory over a limit.
    pub fn is_share(self) -> bool {
        matches!(self, Self::TimeSlicing)
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
    /// The budget in bytes on a GPU or MIG device with this much memory in total, rounded down.
    pub fn bytes(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Millionths(part) => {
                u64::try_from(u128::from(total) * u128::from(part) / 1_000_000).unwrap_or(u64::MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_gpu_is_rounded_down() {
        let total = 143_771 << 20;
        assert_eq!(BudgetAmount::Millionths(1_000_000).bytes(total), total);
        assert_eq!(BudgetAmount::Millionths(500_000).bytes(total), total / 2);
        assert_eq!(BudgetAmount::Millionths(333_333).bytes(10), 3);
        assert_eq!(BudgetAmount::Millionths(u32::MAX).bytes(u64::MAX), u64::MAX);
        assert_eq!(BudgetAmount::Bytes(7).bytes(total), 7);
    }

    #[test]
    fn every_source_is_listed_once_by_its_label() {
        let labels = BudgetSource::ALL.map(BudgetSource::label);
        assert!(labels.is_sorted() && labels.windows(2).all(|pair| pair[0] != pair[1]), "{labels:?}");
    }
}
