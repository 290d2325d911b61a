//! Checks whether a list matches the MIG layout known to the session.
//!
//! When the MIG layout changes, new MIG devices get the ids of former ones, and a list contains only ids. A device with
//! a process on it cannot be removed, so processes on a new layout are always new in the list. If a list contains new
//! processes on MIG devices, the layout is read again before any of them is shown.

use std::time::Instant;

use super::list::{ListEntry, ProcessList, ProcessSlot};
use crate::faults::{Faults, Source};
use crate::lanes::guarded::GuardedDevice;
use crate::lanes::schedule::RETRY;
use crate::lanes::watch::Superseded;

/// What is known about a GPU's MIG layout.
#[derive(Debug, Default)]
pub(super) struct LayoutCheck {
    /// The processes on MIG devices, in order, from the last list that matched this layout.
    known: Vec<ProcessSlot>,
    /// The layout is not read again before this time.
    ask_at: Option<Instant>,
}

impl LayoutCheck {
    /// Whether a list is known to match the session's MIG layout. If not, the list is shown without MIG devices until
    /// a new session has read the layout.
    pub(super) fn holds_for(
        &mut self,
        list: &ProcessList,
        device: &GuardedDevice<'_>,
        faults: &Faults,
    ) -> Result<bool, Superseded> {
        if !device.knows_mig_layout() {
            return Ok(false);
        }
        if on_mig_devices(list).any(|slot| self.known.binary_search(&slot).is_err()) {
            if self.ask_at.is_some_and(|at| Instant::now() < at) {
                return Ok(false);
            }
            match device.same_mig_layout()? {
                Ok(true) => self.ask_at = None,
                answer => {
                    match answer {
                        Ok(_) => device.session.request_reopen("the MIG layout changed"),
                        Err(error) => device.raise(faults, Source::Topology, &error),
                    }
                    self.ask_at = Some(Instant::now() + RETRY);
                    return Ok(false);
                }
            }
        }
        self.known.clear();
        self.known.extend(on_mig_devices(list));
        Ok(true)
    }
}

fn on_mig_devices(list: &ProcessList) -> impl Iterator<Item = ProcessSlot> {
    list.entries.iter().map(ListEntry::slot).filter(|(_, instance)| instance.is_some())
}
