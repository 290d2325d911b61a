//! The driver's own maxima, where an administrator has turned its accounting on.

use super::ProcessLane;
use super::reported::ReportedReason;
use crate::faults::Source;
use crate::lanes::session::Session;
use crate::lanes::watch::{Superseded, Watch};
use crate::nvml::Severity;

/// What is known of a GPU's accounting.
#[derive(Debug, Default)]
pub(super) struct Accounting {
    on: Option<bool>,
    reported: ReportedReason,
}

impl ProcessLane {
    /// Asks the driver's accounting for its own maxima, where it is on.
    pub(super) fn account(
        &self,
        session: &Session,
        watch: &Watch,
        position: usize,
        known: &mut Accounting,
    ) -> Result<(), Superseded> {
        let Some(device) = session.driver.device(position) else { return Ok(()) };
        if known.on.is_none() {
            match watch.call(position, || device.accounting())? {
                Ok(mode) => known.on = Some(mode),
                Err(error) if error.severity() == Severity::Absent => known.on = Some(false),
                // Asked again at the next whole pass.
                Err(error) => self.failed(session, position, Source::Process, &error),
            }
        }
        let Some(gpu) = session.driver.gpus().nth(position).filter(|_| known.on == Some(true)) else { return Ok(()) };
        let pids = self.book().gpus.get(&gpu.key()).map(|book| book.table.pids()).unwrap_or_default();
        let total = self.total(session, position);
        for pid in pids {
            let answer = watch.call(position, || device.accounted_peak(pid))?;
            let peak = match answer {
                Ok(peak) => peak,
                Err(error) => {
                    if known.reported.is_new(error.reason()) || error.severity() != Severity::Absent {
                        self.failed(session, position, Source::Process, &error);
                    }
                    break;
                }
            };
            known.reported.forget();
            let Some(peak) = peak else { continue };
            if total.is_some_and(|total| peak > total) {
                self.implausible(gpu, pid);
            } else if let Some(book) = self.book().gpus.get_mut(&gpu.key()) {
                book.table.raise(pid, peak);
                for member in book.table.members().filter(|member| member.pid == pid) {
                    book.workloads.raise(&member, peak);
                }
            }
        }
        Ok(())
    }
}
