//! The lanes as the exporter holds them: started, released, ended.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::memory::{Link, MemoryLane};
use super::orders::{Grip, Orders};
use super::process::ProcessLane;
use super::settings::Settings;
use super::supervisor::{Duties, Supervisor};
use super::xids::XidWatch;
use crate::attribution::Attribution;
use crate::faults::Faults;
use crate::snapshot::{Lane, Snapshot};

/// The running lanes.
#[derive(Debug)]
pub struct Lanes {
    orders: Arc<Orders>,
    supervisor: JoinHandle<()>,
}

impl Lanes {
    /// Starts the supervisor, which starts everything else; returns at once, with or without a driver.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(
        settings: Settings,
        attribution: Attribution,
        snapshot: Arc<Snapshot>,
        faults: Arc<Faults>,
    ) -> std::io::Result<Self> {
        let orders = Arc::new(Orders::default());
        let link = Arc::new(Link::default());
        let memory = MemoryLane::new(settings.memory.clone(), snapshot.clone(), faults.clone(), link.clone());
        let process =
            ProcessLane::new(settings.process.clone(), attribution, snapshot.clone(), faults.clone(), link.clone());
        let telemetry = &settings.process.telemetry;
        let xids = XidWatch::new(telemetry, snapshot.clone(), faults.clone(), link.clone());
        let duties: Duties =
            [(Lane::Memory, Arc::new(memory)), (Lane::Process, Arc::new(process)), (Lane::Telemetry, Arc::new(xids))];
        let supervisor = Supervisor::new(settings, duties, link, snapshot, faults, orders.clone());
        let supervisor = thread::Builder::new().name("supervisor".into()).spawn(move || supervisor.run())?;
        orders.listen(supervisor.thread().clone());
        Ok(Self { orders, supervisor })
    }

    /// The hold of the driver.
    pub fn grip(&self) -> Grip {
        Grip::new(self.orders.clone())
    }

    /// Ends the lanes and closes the driver. Threads that hang in a driver call are left behind.
    pub fn stop(self) {
        self.orders.stop();
        if self.supervisor.join().is_err() {
            tracing::error!("the supervisor ended by a panic");
        }
    }
}
