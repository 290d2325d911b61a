//! Whether a list is of the MIG layout that the session knows.
//!
//! When the MIG layout changes, new MIG devices get the ids of former ones, and a list gives ids only. A device with a
//! process on it cannot be removed, so the processes of a new layout have come since the last list: then the layout is read
//! before any of them is shown.

use std::time::Instant;

use super::list::{ListEntry, ProcessList, ProcessSlot};
use crate::faults::{Faults, Source};
use crate::lanes::guarded::GuardedDevice;
use crate::lanes::schedule::RETRY;
use crate::lanes::watch::Superseded;

/// What is known of a GPU's MIG layout.
#[derive(Debug, Default)]
pub(super) struct LayoutCheck {
    /// The processes on MIG devices, in order, of the last list that was of this layout.
    known: Vec<ProcessSlot>,
    /// A layout that could not be read is not asked for again before this time.
    ask_at: Option<Instant>,
}

impl LayoutCheck {
    /// Whether a list is known to be of the session's MIG layout. If not, the list is shown without MIG devices until the
    /// next session knows them.
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
            let same = match device.same_mig_layout() {
                Ok(same) => same,
                Err(error) => {
                    device.report(faults, Source::Topology, &error.refusal()?);
                    self.ask_at = Some(Instant::now() + RETRY);
                    return Ok(false);
                }
            };
            if !same {
                device.session.request_reopen("the MIG layout changed");
                self.ask_at = Some(Instant::now() + RETRY);
                return Ok(false);
            }
            self.ask_at = None;
        }
        self.known.clear();
        self.known.extend(on_mig_devices(list));
        Ok(true)
    }
}

fn on_mig_devices(list: &ProcessList) -> impl Iterator<Item = ProcessSlot> {
    list.entries.iter().map(ListEntry::slot).filter(|(_, instance)| instance.is_some())
}
