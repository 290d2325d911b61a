//! What identifies a run: a workload on a GPU or MIG device.

use super::devices::GpuKey;
use super::prometheus::Series;

/// What identifies a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RunKey {
    pub(super) cluster: Option<String>,
    /// The label of the metrics.
    pub(super) workload: String,
    pub(super) kind: String,
    pub(super) uuid: String,
    pub(super) mig_uuid: Option<String>,
}

impl RunKey {
    /// The run of a series; `None` for a series without a workload, and for the sum of the others.
    pub(super) fn of(series: &Series) -> Option<Self> {
        let owned = |name: &str| series.label(name).map(str::to_owned);
        let workload = owned("workload")?;
        let kind = owned("kind")?;
        Some(Self { cluster: owned("cluster"), workload, kind, uuid: owned("uuid")?, mig_uuid: owned("mig_uuid") })
    }

    pub(super) fn gpu(&self) -> GpuKey {
        (self.cluster.clone(), self.uuid.clone())
    }
}
