//! The links of a GPU to other GPUs and to its CPU, and the fabric that they form.

use crate::closed_enum::closed_enum;

closed_enum! {
    /// The errors of NVLinks that the driver counts, by the label `kind`.
    pub enum NvlinkError {
        /// A packet was sent again.
        Replay => "replay",
        /// The link was trained again.
        Recovery => "recovery",
        /// The checksum of a flow control packet was wrong.
        CrcFlit => "crc_flit",
        /// The checksum of a data packet was wrong.
        CrcData => "crc_data",
        /// Data had an ECC error.
        EccData => "ecc_data",
    }
}

/// The number of errors, by [`NvlinkError`]. `None`: the driver does not count them, or not for every link.
pub type NvlinkErrors = [Option<u64>; NvlinkError::ALL.len()];

/// The NVLinks of a GPU that has any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nvlinks {
    /// How many there are, whether they connect anything or not.
    pub links: u32,
    /// The errors of all links, as the driver adds them up.
    pub errors: NvlinkErrors,
    /// How often a link was restored, or should have been: what NVLink 5 has in place of [`NvlinkError::Recovery`].
    pub recovery_events: Option<u64>,
    /// Bytes of data that the GPU has sent over all links, without what the protocol adds.
    pub transmitted: Option<u64>,
    /// Bytes of data that it has received.
    pub received: Option<u64>,
}

impl Nvlinks {
    /// The errors of all links: as the driver adds them up, or the sum of `by_link` if it adds up none of them.
    pub fn totals(&self, by_link: &[NvlinkErrors]) -> NvlinkErrors {
        let is_silent = self.errors.iter().all(Option::is_none) && self.recovery_events.is_none();
        if is_silent { sums(by_link) } else { self.errors }
    }
}

/// The sum over all links; `None` for an error that a link does not count.
fn sums(links: &[NvlinkErrors]) -> NvlinkErrors {
    NvlinkError::ALL.map(|error| {
        links.iter().try_fold(0_u64, |sum, link| sum.checked_add(link[error as usize]?)).filter(|_| !links.is_empty())
    })
}

/// The links of a GPU to the chip beside it, of which the driver only says whether they are active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct C2cLinks {
    /// How many there are.
    pub links: u32,
    /// How many of them are not active.
    pub down: u32,
}

closed_enum! {
    /// How far the registration of a GPU with its fabric has got, by the label `state`.
    pub enum FabricState {
        /// It has not begun.
        NotStarted => "not_started",
        /// It goes on.
        InProgress => "in_progress",
        /// It succeeded.
        Completed => "completed",
        /// It ended with an error.
        Failed => "failed",
    }
}

closed_enum! {
    /// What can be wrong with a GPU's part of the fabric, by the label `problem`.
    pub enum FabricProblem {
        /// Some of its links do not carry data.
        DegradedBandwidth => "degraded_bandwidth",
        /// Its routes are being restored.
        RouteRecovery => "route_recovery",
        /// A route is not healthy.
        RouteUnhealthy => "route_unhealthy",
        /// Accesses have timed out, and it recovers.
        AccessTimeoutRecovery => "access_timeout_recovery",
        /// It is configured incorrectly, or has too few links.
        IncorrectConfiguration => "incorrect_configuration",
    }
}

/// A GPU's part of a fabric of NVSwitches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fabric {
    /// The UUID of the cluster, in the form of every UUID.
    pub cluster: String,
    /// The number of the clique within the cluster.
    pub clique: u32,
    /// The state of the registration.
    pub state: FabricState,
    /// NVML's mask of the health (`NVML_GPU_FABRIC_HEALTH_MASK_*`).
    pub health_mask: u32,
    /// NVML's summary of the health; `None` if the driver has none.
    pub health_summary: Option<u32>,
}

impl Fabric {
    /// Whether a problem is there; `None` if the driver does not say.
    pub fn has(&self, problem: FabricProblem) -> Option<bool> {
        // `NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_*` and `..._WIDTH_*`.
        let part = |shift: u32, width: u32| self.health_mask >> shift & width;
        let flag = |shift| match part(shift, 0x3) {
            1 => Some(true),
            2 => Some(false),
            _ => None,
        };
        match problem {
            FabricProblem::DegradedBandwidth => flag(0),
            FabricProblem::RouteRecovery => flag(2),
            FabricProblem::RouteUnhealthy => flag(4),
            FabricProblem::AccessTimeoutRecovery => flag(6),
            // 0 is not supported, 1 is correct, and each later number is something incorrect.
            FabricProblem::IncorrectConfiguration => match part(8, 0xF) {
                0 => None,
                part => Some(part > 1),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_of_which_a_part_is_unknown_is_unknown() {
        let link = |replay, recovery| [replay, recovery, Some(1), None, None];
        let sum = sums(&[link(Some(2), Some(3)), link(Some(5), None)]);
        assert_eq!(sum, [Some(7), None, Some(2), None, None]);
        assert_eq!(sums(&[link(Some(u64::MAX), None), link(Some(1), None)])[0], None, "no sum");
        assert_eq!(sums(&[]), NvlinkErrors::default());
    }

    #[test]
    fn a_health_mask_has_each_problem_or_its_absence_or_neither() {
        let problems = |health_mask| {
            let fabric = Fabric {
                cluster: String::new(),
                clique: 0,
                state: FabricState::Completed,
                health_mask,
                health_summary: None,
            };
            FabricProblem::ALL.map(|problem| fabric.has(problem))
        };
        assert_eq!(problems(0), [None; 5]);
        // From nvml.h: degraded bandwidth, no route recovery, a healthy route, nothing about timeouts, insufficient links.
        let mixed = 1 | 2 << 2 | 2 << 4 | 5 << 8;
        assert_eq!(problems(mixed), [Some(true), Some(false), Some(false), None, Some(true)]);
        // The partition and the global fabric manager are above these bits.
        assert_eq!(problems(1 << 8 | 1 << 12 | 2 << 14), [None, None, None, None, Some(false)]);
    }
}
