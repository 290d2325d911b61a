//! The readings of one GPU, and which of them it does not provide.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::reading::{self, Reading, WORK};
use super::work_until::WorkUntil;
use crate::faults::{Faults, Source};
use crate::lanes::guarded::{GuardedDevice, Unavailable};
use crate::lanes::watch::Superseded;
use crate::nvml::{Error, Severity, UtilizationSample};
use crate::snapshot::{Energy, Gpu, GpuTelemetry};

/// The work that the processes of a GPU did.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) gpu: Arc<Gpu>,
    /// `None` if the driver does not report it.
    pub(crate) samples: Option<Vec<UtilizationSample>>,
    pub(crate) asked_at: (Instant, SystemTime),
}

/// The energy of a GPU at the end of a round of fast readings.
#[derive(Debug)]
pub(crate) struct Spent {
    pub(crate) gpu: Arc<Gpu>,
    /// `None` if the power is not known.
    pub(crate) energy: Option<Energy>,
    /// Share of time during which a kernel ran, 0 to 1; `None` if it is not known.
    pub(crate) utilization: Option<f64>,
    /// Whether the driver reports the work of processes on this GPU, as far as is known. It has no samples for a GPU with MIG
    /// devices.
    pub(crate) has_samples: bool,
}

/// What a step read that the process lane needs.
#[derive(Debug)]
pub(crate) enum Told {
    Work(Work),
    Spent(Spent),
}

/// The readings of one GPU.
#[derive(Debug)]
pub(super) struct GpuReadings {
    /// [`Gpu::key`].
    pub(super) key: String,
    pub(super) shown: GpuTelemetry,
    /// Readings that this GPU does not provide; they are not tried again before [`GpuReadings::reconsider`].
    absent: Vec<&'static Reading>,
    /// Readings that nobody sees.
    unseen: Vec<&'static Reading>,
    /// The time up to which the work of processes is known.
    work_until: WorkUntil,
    /// Whether the driver has answered the latest query of the work of processes.
    tells_work: bool,
    /// Whether any reading of the current round succeeded.
    good: bool,
    /// Whether the GPU has not returned its UUID yet.
    pub(super) lacks_uuid: bool,
}

impl GpuReadings {
    /// `unseen`: families that nobody sees.
    pub(super) fn new(gpu: Arc<Gpu>, unseen: &[&'static str], lacks_uuid: bool) -> Self {
        Self {
            key: gpu.key(),
            unseen: reading::all().filter(|reading| reading.is_unseen(unseen)).collect(),
            shown: GpuTelemetry::unread(gpu),
            absent: Vec::new(),
            work_until: WorkUntil::now(SystemTime::now()),
            good: false,
            tells_work: false,
            lacks_uuid,
        }
    }

    /// Whether the GPU provides the reading, as far as is known, and anybody sees it.
    pub(super) fn gives(&self, reading: &Reading) -> bool {
        !self.absent.contains(&reading) && !self.unseen.contains(&reading)
    }

    /// Tries all readings again.
    pub(super) fn reconsider(&mut self) {
        self.absent.clear();
    }

    /// Takes one reading. Its value becomes unknown if the device is unavailable or refuses the call.
    pub(super) fn read(
        &mut self,
        reading: &'static Reading,
        device: Result<GuardedDevice<'_>, Unavailable>,
        faults: &Faults,
    ) -> Result<(), Superseded> {
        let Ok(device) = device else {
            // Without a device no driver call is made, so there is no error to report.
            let _ = (reading.take)(None, &mut self.shown);
            return Ok(());
        };
        match device.call(|gpu| (reading.take)(Some(gpu), &mut self.shown))? {
            Ok(()) => self.good = true,
            Err(error) => self.refused(reading, &device, &error, faults),
        }
        Ok(())
    }

    /// Reads what the processes have done since the last query.
    pub(super) fn read_work(&mut self, device: GuardedDevice<'_>, faults: &Faults) -> Result<Work, Superseded> {
        let since = self.work_until.since(SystemTime::now());
        match device.call(|gpu| gpu.process_utilization(since))? {
            Ok(mut samples) => {
                self.tells_work = true;
                self.work_until.take(&mut samples, SystemTime::now());
                Ok(self.work(Some(samples)))
            }
            Err(error) => {
                self.tells_work = false;
                self.refused(&WORK, &device, &error, faults);
                Ok(self.work(None))
            }
        }
    }

    /// The result for processes that have done nothing since the last query.
    pub(super) fn no_work(&self) -> Work {
        self.work(Some(Vec::new()))
    }

    fn work(&self, samples: Option<Vec<UtilizationSample>>) -> Work {
        Work { gpu: self.shown.gpu.clone(), samples, asked_at: (Instant::now(), SystemTime::now()) }
    }

    fn refused(&mut self, reading: &'static Reading, device: &GuardedDevice<'_>, error: &Error, faults: &Faults) {
        // Not a fault: this GPU does not provide the reading.
        if error.severity() == Severity::Absent {
            self.absent.push(reading);
            tracing::debug!(gpu = self.shown.gpu.index, call = error.call, "this GPU does not provide the reading");
            return;
        }
        device.raise(faults, Source::Telemetry, error);
    }

    /// The energy, with what tells whose it is.
    pub(super) fn spent(&self) -> Spent {
        let GpuTelemetry { gpu, fast, .. } = &self.shown;
        let has_samples = self.tells_work && gpu.mig_mode != Some(true);
        Spent { gpu: gpu.clone(), energy: fast.energy, utilization: fast.utilization, has_samples }
    }

    /// Ends a round. Returns the current time if anything was read in it.
    pub(super) fn end_round(&mut self) -> Option<Instant> {
        std::mem::take(&mut self.good).then(Instant::now)
    }
}
