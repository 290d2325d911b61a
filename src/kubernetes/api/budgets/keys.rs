//! The annotations, labels and resources of a pod that concern GPU memory.

/// Our own: the limit of every container, as a quantity.
pub(in super::super) const LIMIT: &str = "vram-exporter/gpu-memory-limit";

/// KAI-Scheduler's: the share of each GPU, above 0 and at most 1.
pub(super) const KAI_FRACTION: &str = "gpu-fraction";
/// KAI-Scheduler's: the memory on each GPU in MiB.
pub(super) const KAI_MEMORY: &str = "gpu-memory";
/// KAI-Scheduler's: the container that uses the GPUs. Without it, the first container does.
pub(super) const KAI_CONTAINER: &str = "gpu-fraction-container-name";
/// KAI-Scheduler's, in a reservation pod: the reserved GPU, by its UUID or its index on the node.
pub(super) const KAI_RESERVED: &str = "run.ai/reserve_for_gpu_index";
/// KAI-Scheduler's label: the group of a pod that shares one GPU. If it shares several, there is one label
/// `runai-gpu-group/GROUP` for each.
pub(super) const KAI_GROUP: &str = "runai-gpu-group";

/// HAMi's: the devices that were assigned to the pod's containers.
pub(super) const HAMI_DEVICES: &str = "hami.io/vgpu-devices-allocated";
/// HAMi's resource: the memory on each GPU in MiB.
pub(super) const HAMI_MEMORY: &str = "nvidia.com/gpumem";
/// HAMi's resource: the share of each GPU in percent.
pub(super) const HAMI_PERCENTAGE: &str = "nvidia.com/gpumem-percentage";

/// Whether an annotation is one of our own.
pub(super) fn is_own(key: &str) -> bool {
    key.strip_prefix(LIMIT).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether an annotation concerns budgets.
pub(in super::super) fn is_annotation(key: &str) -> bool {
    is_own(key) || matches!(key, KAI_FRACTION | KAI_MEMORY | KAI_CONTAINER | KAI_RESERVED | HAMI_DEVICES)
}

/// Whether a label concerns budgets: those that name a group of KAI-Scheduler.
pub(in super::super) fn is_label(key: &str) -> bool {
    key.strip_prefix(KAI_GROUP).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a container's resource concerns budgets.
pub(in super::super) fn is_resource(key: &str) -> bool {
    matches!(key, HAMI_MEMORY | HAMI_PERCENTAGE)
}
