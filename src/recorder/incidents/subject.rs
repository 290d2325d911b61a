//! The workload and the tenant of an incident: which moments are repeats of one, and whose share of the kept incidents
//! it uses.

use super::trigger::Trigger;
use crate::recorder::history::{DeviceHistory, Kind};
use crate::snapshot::{Owner, WorkloadKind};

/// The workload and the tenant of a moment. Both are `None` if the moment is about the device itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) workload: Option<String>,
    /// `namespace:NAME`, `user:NAME`, or the workload.
    pub(super) tenant: Option<String>,
}

impl Subject {
    /// The subject of a moment, according to the latest process list.
    pub(super) fn of(gpu: &DeviceHistory, trigger: &Trigger) -> Self {
        let process = match (trigger.kind, trigger.process) {
            (Kind::EndedAtPeak | Kind::OutOfMemory, Some(holding)) => {
                gpu.processes().filter(|process| process.holding() == holding).max_by_key(|process| process.seen)
            }
            (Kind::NearLimit, _) => gpu.living.iter().max_by_key(|process| process.series.last()),
            _ => None,
        };
        let Some(process) = process else { return Self::default() };
        let who = process.who();
        Self { tenant: tenant(&process.owner, who.user), workload: who.workload }
    }
}

/// A user can have any number of jobs, and a namespace any number of pods. A container and a unit are counted by
/// themselves, because most of them run as root.
fn tenant(owner: &Owner, user: Option<String>) -> Option<String> {
    let user = user.map(|user| format!("user:{user}"));
    let Some(workload) = owner.workload.as_deref() else { return user };
    let own = Some(workload.name.clone());
    match workload.kind {
        WorkloadKind::Kubernetes => workload.pod.as_ref().map(|pod| format!("namespace:{}", pod.namespace)).or(own),
        WorkloadKind::Container | WorkloadKind::Systemd | WorkloadKind::User | WorkloadKind::Vgpu => own,
        WorkloadKind::Slurm | WorkloadKind::Job => user.or(own),
    }
}
