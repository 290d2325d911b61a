//! Whether a list is of the MIG layout that the session knows.
//!
//! The ids of MIG devices are given again when the MIG layout changes, and a list tells ids. A device with a process on it cannot
//! be taken away, so the processes of a new layout have come since the last list: then the layout is read before any of
//! them is shown.

use std::time::Instant;

use super::ProcessLane;
use super::list_cache::{ListEntry, ProcessList};
use crate::faults::Source;
use crate::lanes::memory::RETRY;
use crate::lanes::session::Session;
use crate::lanes::watch::{Superseded, Watch};

/// What is known of a GPU's MIG layout.
#[derive(Debug, Default)]
pub(super) struct LayoutCheck {
    /// The processes on MIG devices, in order, of the last list that was of this layout.
    placed: Vec<(u32, Option<(u32, u32)>)>,
    /// Before then a layout that could not be read is not asked for.
    ask_at: Option<Instant>,
}

impl LayoutCheck {
    /// Takes a list that is of this layout.
    fn take(&mut self, listing: &ProcessList) {
        self.placed.clear();
        self.placed.extend(on_mig_devices(listing));
    }
}

fn on_mig_devices(listing: &ProcessList) -> impl Iterator<Item = (u32, Option<(u32, u32)>)> {
    listing.entries.iter().map(ListEntry::slot).filter(|(_, instance)| instance.is_some())
}

impl ProcessLane {
    /// Whether a list is known to be of the session's MIG layout. Where it is not, the list is shown without MIG devices
    /// until the next session knows them.
    pub(super) fn layout_stands(
        &self,
        session: &Session,
        watch: &Watch,
        position: usize,
        known: &mut LayoutCheck,
        listing: &ProcessList,
    ) -> Result<bool, Superseded> {
        if !session.driver.knows_mig_layout(position) {
            return Ok(false);
        }
        if on_mig_devices(listing).any(|place| known.placed.binary_search(&place).is_err()) {
            if known.ask_at.is_some_and(|at| Instant::now() < at) {
                return Ok(false);
            }
            match watch.call(position, || session.driver.same_mig_layout(position))? {
                Ok(true) => known.ask_at = None,
                Ok(false) => {
                    session.request_reopen("the MIG layout changed");
                    known.ask_at = Some(Instant::now() + RETRY);
                    return Ok(false);
                }
                Err(error) => {
                    self.failed(session, position, Source::Topology, &error);
                    known.ask_at = Some(Instant::now() + RETRY);
                    return Ok(false);
                }
            }
        }
        known.take(listing);
        Ok(true)
    }
}
