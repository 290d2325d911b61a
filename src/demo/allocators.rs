//! What the clients in the processes of a simulated machine would report about their allocators.
//!
//! Invariant: no real process exists in the simulated `/proc`, so no real client can report; these reports come from
//! the scenario alone, and the rules about what is shown are the same as for real ones.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::peaks::Peaks;
use crate::snapshot::{
    AllocatorFigures, AllocatorPart, AllocatorReport, GpuProcesses, LastMessage, Process, ProcessId, ProcessPart,
    ReportingProcess,
};

/// The file of a process that describes its allocator: the framework, the share of its memory that is allocated, and
/// the bytes that are outside the allocator, separated by tabs.
const FILE: &str = "allocator";

/// The allocators of a simulated machine.
#[derive(Debug)]
pub struct SimulatedAllocators {
    procfs: PathBuf,
    window: Duration,
    /// `None` for a process without a client.
    known: HashMap<ProcessId, Option<Allocator>>,
}

#[derive(Debug)]
struct Allocator {
    framework: Arc<str>,
    share: f64,
    outside: u64,
    /// By the UUID of the device.
    peaks: HashMap<String, Peaks>,
}

impl SimulatedAllocators {
    pub(super) fn new(procfs: PathBuf, window: Duration) -> Self {
        Self { procfs, window, known: HashMap::new() }
    }

    /// What the processes report at this moment.
    pub fn reports(&mut self, processes: &ProcessPart, now: Instant) -> AllocatorPart {
        let mut reporting: HashMap<ProcessId, Vec<AllocatorReport>> = HashMap::new();
        let living = processes.gpus.iter().flat_map(|list| list.processes.iter().map(move |process| (list, process)));
        for (list, process) in living.filter(|(_, process)| process.alive) {
            let id = process.id();
            if id.start_ticks.is_none() {
                continue;
            }
            let known = self.known.entry(id).or_insert_with(|| {
                let text = std::fs::read_to_string(self.procfs.join(process.pid.to_string()).join(FILE));
                text.ok().and_then(|text| Allocator::read(&text))
            });
            if let Some(report) = known.as_mut().and_then(|known| known.report(list, process, self.window, now)) {
                reporting.entry(id).or_default().push(report);
            } else {
                reporting.entry(id).or_default();
            }
        }
        self.known.retain(|id, _| reporting.contains_key(id));
        reporting.retain(|_, reports| !reports.is_empty());
        let mut processes: Vec<_> =
            reporting.into_iter().map(|(id, reports)| ReportingProcess { id, reports }).collect();
        processes.sort_unstable_by_key(|process| process.id);
        AllocatorPart { processes }
    }
}

impl Allocator {
    fn read(text: &str) -> Option<Self> {
        let mut fields = text.trim_end().split('\t');
        let framework = Arc::from(fields.next()?);
        let share = fields.next()?.parse().ok()?;
        let outside = fields.next()?.parse().ok()?;
        Some(Self { framework, share, outside, peaks: HashMap::new() })
    }

    /// `None` if the memory of the process is not known.
    fn report(
        &mut self,
        list: &GpuProcesses,
        process: &Process,
        window: Duration,
        now: Instant,
    ) -> Option<AllocatorReport> {
        let device = list.gpu.device_uuid(process.mig.as_deref());
        let reserved = process.used?.saturating_sub(self.outside);
        let allocated = (reserved as f64 * self.share) as u64;
        let peaks = self.peaks.entry(device.to_owned()).or_insert_with(|| Peaks::new(window));
        peaks.see(allocated, now);
        let figures = AllocatorFigures {
            allocated: Some(allocated),
            reserved: Some(reserved),
            window_peak: peaks.within_window(now),
            peak: Some(peaks.highest()),
            ..AllocatorFigures::default()
        };
        Some(AllocatorReport {
            device: device.into(),
            framework: self.framework.clone(),
            heard: LastMessage::new(now),
            figures,
            regions: Vec::new(),
            sites: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Gpu, Owner};

    #[test]
    fn a_process_reports_what_its_file_says_until_it_ends() {
        let procfs = tempfile::tempdir().unwrap();
        std::fs::create_dir(procfs.path().join("7")).unwrap();
        std::fs::write(procfs.path().join("7").join(FILE), "jax\t0.25\t100\n").unwrap();
        let process = |pid: u32, used| {
            let owner = Owner { start_ticks: Some(5), ..Owner::default() };
            Process { used, ..Process::for_tests(pid, owner) }
        };
        let part = |processes| {
            let gpu = Arc::new(Gpu { uuid: "GPU-a".into(), ..Gpu::default() });
            ProcessPart { gpus: vec![Arc::new(GpuProcesses { gpu, processes, ..GpuProcesses::default() })] }
        };
        let mut allocators = SimulatedAllocators::new(procfs.path().to_owned(), Duration::from_secs(60));
        let now = Instant::now();
        let shown = allocators.reports(&part(vec![process(7, Some(900)), process(8, Some(900))]), now);
        let id = ProcessId { pid: 7, start_ticks: Some(5) };
        let [report] = shown.reports(id) else { panic!("{shown:?}") };
        assert_eq!((&*report.device, &*report.framework), ("GPU-a", "jax"));
        assert_eq!((report.figures.allocated, report.figures.reserved), (Some(200), Some(800)));
        assert_eq!(shown.processes.len(), 1, "process 8 has no client");
        let lower = allocators.reports(&part(vec![process(7, Some(500))]), now);
        assert_eq!(lower.reports(id)[0].figures.peak, Some(200));
        assert_eq!(allocators.reports(&part(vec![process(7, None)]), now), AllocatorPart::default());
        assert_eq!(allocators.known.len(), 1, "a process that has ended is forgotten");
    }
}
