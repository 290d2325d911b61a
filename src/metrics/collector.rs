//! The one collector: from the latest snapshot to families, without a driver call and without a wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use super::exporter::Itself;
use super::exposition::Exposition;
use super::own_process::OwnProcess;
use super::view::Parts;
use super::{Settings, driver, exporter, families, gpu_memory, kubernetes, mig, processes, telemetry, workloads};
use crate::faults::Faults;
use crate::snapshot::Snapshot;

/// Turns the snapshot into families at each scrape. It keeps nothing between two scrapes but the count of them.
#[derive(Debug)]
pub struct MetricsCollector {
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    settings: Settings,
    scrapes: Arc<AtomicU64>,
    own_process: OwnProcess,
    descriptions: Vec<Desc>,
}

impl MetricsCollector {
    /// A collector over the snapshot. `scrapes` is counted by whoever answers scrapes.
    pub fn new(
        snapshot: Arc<Snapshot>,
        faults: Arc<Faults>,
        settings: Settings,
        scrapes: Arc<AtomicU64>,
    ) -> Result<Self, prometheus::Error> {
        let descriptions = families().map(|family| {
            let labels = family.labels.iter().map(|&label| label.to_owned()).collect();
            Desc::new(family.name.to_owned(), family.help(), labels, HashMap::new())
        });
        let descriptions = descriptions.collect::<Result<_, _>>()?;
        Ok(Self { snapshot, faults, settings, scrapes, own_process: OwnProcess::new(), descriptions })
    }
}

impl Collector for MetricsCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let parts = Parts::load(&self.snapshot);
        let gpus = parts.gpus(&self.settings);
        let itself = Itself {
            settings: &self.settings,
            vitals: &self.snapshot.vitals,
            faults: &self.faults,
            nvml_up: parts.driver.up,
            scrapes: self.scrapes.load(Ordering::Relaxed),
        };
        let mut out = Exposition::default();
        gpu_memory::collect(&gpus, &mut out);
        mig::collect(&gpus, &mut out);
        if self.settings.process_series {
            processes::collect(&gpus, parts.now, &mut out);
        }
        workloads::collect(&gpus, &mut out);
        kubernetes::collect(&parts, &self.settings, &mut out);
        telemetry::collect(&gpus, &mut out);
        driver::collect(&parts.driver, &gpus, &mut out);
        exporter::collect(&itself, &gpus, &mut out);
        self.own_process.collect(&mut out);
        out.into_families()
    }
}
