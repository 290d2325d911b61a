//! Starts, controls and stops the lanes for the exporter.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::bell::Bell;
use super::control::{Control, DriverLease};
use super::memory::{Link, MemoryLane};
use super::process::ProcessLane;
use super::settings::Settings;
use super::supervisor::{LaneTasks, Supervisor};
use super::xids::XidWatch;
use crate::attribution::Attribution;
use crate::faults::Faults;
use crate::snapshot::{Lane, Snapshot};

/// The running lanes.
#[derive(Debug)]
pub struct Lanes {
    control: Arc<Control>,
    supervisor: JoinHandle<()>,
}

impl Lanes {
    /// Starts the supervisor, which starts everything else. Returns at once, with or without a driver.
    ///
    /// # Errors
    /// When the system has no thread or no file descriptor left.
    pub fn start(
        settings: Settings,
        attribution: Attribution,
        snapshot: Arc<Snapshot>,
        faults: Arc<Faults>,
    ) -> std::io::Result<Self> {
        let control = Arc::new(Control::new(Bell::new()?));
        let link = Arc::new(Link::default());
        let memory = MemoryLane::new(settings.memory.clone(), snapshot.clone(), faults.clone(), link.clone());
        let process =
            ProcessLane::new(settings.process.clone(), attribution, snapshot.clone(), faults.clone(), link.clone());
        let mut tasks: LaneTasks = vec![(Lane::Memory, Arc::new(memory)), (Lane::Process, Arc::new(process))];
        if let Some(telemetry) = &settings.process.telemetry {
            let xids = XidWatch::new(telemetry, snapshot.clone(), faults.clone(), link.clone());
            tasks.push((Lane::Telemetry, Arc::new(xids)));
        }
        let supervisor = Supervisor::new(settings, tasks, link, snapshot, faults, control.clone());
        let supervisor = thread::Builder::new().name("supervisor".into()).spawn(move || supervisor.run())?;
        Ok(Self { control, supervisor })
    }

    /// Returns a handle with which to release and reacquire the driver.
    pub fn driver_lease(&self) -> DriverLease {
        DriverLease(self.control.clone())
    }

    /// Stops the lanes and closes the driver. Threads that hang in a driver call are abandoned.
    pub fn stop(self) {
        self.control.stop();
        if self.supervisor.join().is_err() {
            tracing::error!("the supervisor panicked");
        }
    }
}
