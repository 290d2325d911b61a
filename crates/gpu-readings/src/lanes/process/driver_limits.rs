//! The memory limits that the driver itself keeps for the cgroups of workloads (NVML 13.5 and later).
//!
//! Invariant: a driver without such limits is asked once for each GPU while it is open. A limit that could not be read is
//! no limit.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::raised::RaisedReason;
use crate::faults::{Faults, Reason, Source};
use crate::lanes::guarded::GuardedDevice;
use crate::lanes::watch::Superseded;
use crate::nvml::{Error, Severity};

/// How long a limit counts as current. An administrator changes it rarely.
const RECHECK: Duration = Duration::from_secs(10);
/// The maximum number of calls in one pass; the cgroups whose limits are not known yet come first.
const MOST_CALLS: usize = 64;

/// The hard limits of cgroups on one GPU in bytes, by the path of the cgroup.
pub(super) type CgroupLimits = HashMap<Arc<Path>, u64>;

/// What the driver has answered about the cgroups on one GPU.
#[derive(Debug, Default)]
pub(super) struct DriverLimits {
    /// Whether the driver has such limits; `None` until it has answered.
    supported: Option<bool>,
    known: HashMap<Arc<Path>, Known>,
    pub(super) current: Arc<CgroupLimits>,
    /// After a refusal, nothing is asked before this time.
    ask_at: Option<Instant>,
    raised: RaisedReason,
}

#[derive(Debug)]
struct Known {
    /// `None` if the cgroup has no limit.
    bytes: Option<u64>,
    asked: Instant,
}

impl DriverLimits {
    /// Whether the GPU may have such limits. The call does not support MIG devices.
    pub(super) fn is_possible(&self, device: &GuardedDevice<'_>) -> bool {
        let gpu = device.gpu();
        self.supported != Some(false) && gpu.mig_mode != Some(true) && gpu.mig.is_empty()
    }

    /// Asks for the limits of cgroups that are new, or were asked for some time ago. `cgroups` are all cgroups of the
    /// GPU's workloads, sorted; `total` is the memory of the GPU. Returns whether a limit changed.
    pub(super) fn refresh(
        &mut self,
        cgroups: &[Arc<Path>],
        total: Option<u64>,
        device: &GuardedDevice<'_>,
        faults: &Faults,
    ) -> Result<bool, Superseded> {
        self.known.retain(|path, _| cgroups.binary_search(path).is_ok());
        let now = Instant::now();
        let mut closed = None;
        let mut answered = false;
        for path in self.due(cgroups, now) {
            if device.session.ending() {
                break;
            }
            let bytes = match device.call(|gpu| gpu.memory_limit_of(&path))? {
                Ok(bytes) => {
                    (self.supported, answered) = (Some(true), true);
                    // More than the GPU has limits nothing.
                    bytes.filter(|&bytes| total.is_none_or(|total| bytes <= total))
                }
                // The driver cannot open this cgroup: its last process has ended, or the exporter does not see it.
                Err(error) if error.reason() == Reason::NoPermission => {
                    closed = Some(error);
                    None
                }
                Err(error) => {
                    self.refuse(&error, device, faults, now);
                    break;
                }
            };
            self.known.insert(path, Known { bytes, asked: now });
        }
        match closed {
            _ if answered => self.raised.forget(),
            Some(error) if self.raised.is_new(error.reason()) => device.raise(faults, Source::Process, &error),
            _ => {}
        }
        let limits = self.known.iter().filter_map(|(path, known)| Some((path.clone(), known.bytes?)));
        let limits: CgroupLimits = limits.collect();
        let changed = limits != *self.current;
        if changed {
            self.current = Arc::new(limits);
        }
        Ok(changed)
    }

    /// The cgroups to ask for now, the longest unknown first.
    fn due(&self, cgroups: &[Arc<Path>], now: Instant) -> Vec<Arc<Path>> {
        if self.ask_at.is_some_and(|at| now < at) {
            return Vec::new();
        }
        let asked = |path: &Arc<Path>| self.known.get(path).map(|known| known.asked);
        let is_due = |path: &&Arc<Path>| asked(path).is_none_or(|at| now.saturating_duration_since(at) >= RECHECK);
        let mut due: Vec<_> = cgroups.iter().filter(is_due).cloned().collect();
        due.sort_unstable_by_key(asked);
        due.truncate(MOST_CALLS);
        due
    }

    /// The driver has refused the call itself: nothing is known, and it is asked again later, unless it has no limits.
    fn refuse(&mut self, error: &Error, device: &GuardedDevice<'_>, faults: &Faults, now: Instant) {
        self.known.clear();
        self.ask_at = Some(now + RECHECK);
        let is_absent = error.severity() == Severity::Absent;
        if is_absent && self.supported.is_none() {
            self.supported = Some(false);
        } else if self.raised.is_new(error.reason()) || !is_absent {
            device.raise(faults, Source::Process, error);
        }
    }
}
