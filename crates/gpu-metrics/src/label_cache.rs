//! The label text of each process, kept from one scrape to the next.
//!
//! Invariant: cached text belongs to the very same owner and MIG device objects, which cannot change while the cache
//! holds them. Text that no longer matches is written again, and nothing that describes the state of a process is
//! cached.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use super::label::Labels;
use super::view::GpuView;
use gpu_readings::snapshot::{MigDevice, Owner, Process, ProcessKind};

/// The label text that the last scrape used, GPU by GPU.
#[derive(Debug, Default)]
pub(super) struct LabelCache(Mutex<Vec<Arc<GpuLabels>>>);

/// The label text of one GPU's processes.
#[derive(Debug)]
pub(super) struct GpuLabels {
    /// The labels of the GPU, with which the text of every process begins.
    gpu: Labels,
    processes: Vec<CachedLabels>,
    /// The text of all processes, one after another.
    text: String,
}

/// The labels of one process.
#[derive(Debug)]
struct CachedLabels {
    pid: u32,
    kind: ProcessKind,
    mig: Option<Arc<MigDevice>>,
    owner: Arc<Owner>,
    start: Option<f64>,
    /// Byte offsets into [`GpuLabels::text`]: the start of the labels, of `,type=`, of the info-only labels, and the
    /// end.
    at: [usize; 4],
}

/// A process and its label text.
#[derive(Debug, Clone, Copy)]
pub(super) struct LabeledProcess<'a> {
    pub(super) process: &'a Process,
    /// The labels of its series.
    pub(super) labels: &'a str,
    /// The same without `type`.
    pub(super) untyped: &'a str,
    /// The labels that only the info family has, including the leading comma.
    pub(super) described: &'a str,
    /// When it started, in seconds since the Unix epoch.
    pub(super) start: Option<f64>,
    /// Bytes that it holds now, including those of entries with the same labels. `None` after it has ended.
    pub(super) used: Option<u64>,
    /// A lower bound for its peaks, in bytes: what entries with the same labels held in total.
    pub(super) at_least: u64,
}

impl LabelCache {
    /// Returns the labels of these GPUs' processes, in the order of [`in_order`], and keeps them for the next scrape.
    pub(super) fn of(&self, gpus: &[GpuView<'_>], processes: &[Vec<&Process>]) -> Vec<Arc<GpuLabels>> {
        let mut labels = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        labels.truncate(gpus.len());
        for (position, (gpu, processes)) in gpus.iter().zip(processes).enumerate() {
            match labels.get_mut(position) {
                Some(known) if known.fit(&gpu.labels, processes) => {}
                Some(known) => *known = Arc::new(GpuLabels::of(&gpu.labels, processes)),
                None => labels.push(Arc::new(GpuLabels::of(&gpu.labels, processes))),
            }
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&labels);
        labels
    }
}

impl GpuLabels {
    fn of(gpu: &Labels, processes: &[&Process]) -> Self {
        let mut text = String::new();
        let processes = processes.iter().map(|process| CachedLabels::of(process, gpu, &mut text)).collect();
        text.shrink_to_fit();
        Self { gpu: gpu.clone(), processes, text }
    }

    /// Whether these are the labels of exactly these processes.
    fn fit(&self, gpu: &Labels, processes: &[&Process]) -> bool {
        self.gpu == *gpu
            && self.processes.len() == processes.len()
            && self.processes.iter().zip(processes).all(|(cached, process)| cached.fits(process))
    }

    /// Pairs each process with its labels. `processes` must be those that the labels were written for.
    pub(super) fn on<'a>(&'a self, processes: &[&'a Process]) -> impl Iterator<Item = LabeledProcess<'a>> {
        self.processes.iter().zip(processes).map(|(cached, &process)| {
            let [begin, kind_at, more_at, end] = cached.at;
            let text = |range: Range<usize>| &self.text[range];
            LabeledProcess {
                process,
                labels: text(begin..more_at),
                untyped: text(begin..kind_at),
                described: text(more_at..end),
                start: cached.start,
                used: process.used.filter(|_| process.alive),
                at_least: 0,
            }
        })
    }
}

impl CachedLabels {
    /// Appends the label text of a process to `text`.
    fn of(process: &Process, gpu: &Labels, text: &mut String) -> Self {
        let Process { pid, kind, ref mig, ref owner, .. } = *process;
        let workload = owner.workload.as_deref();
        let home = &owner.location;
        let begin = text.len();
        let untyped = untyped(gpu, process);
        let kind_at = begin + untyped.as_str().len();
        let labels = untyped.and("type", kind.label());
        let more_at = begin + labels.as_str().len();
        let described = labels
            .and_known("user", owner.user.as_deref())
            .and_known("uid", owner.uid.map(|uid| uid.to_string()).as_deref())
            .and_known("workload", workload.map(|workload| workload.name.as_str()))
            .and_known("kind", workload.map(|workload| workload.kind.label()))
            .and_known("container_id", home.container_id.as_deref())
            .and_known("pod_uid", home.pod_uid.as_deref())
            .and_known("unit", home.unit.as_deref())
            .and_known("slurm_job", home.slurm_job.as_deref())
            .and_known("slurm_step", home.slurm_step.as_deref())
            .and_known("scheduler", home.job.as_ref().map(|job| job.scheduler.label()))
            .and_known("job_id", home.job.as_ref().map(|job| job.id.as_str()))
            .and_known("command", owner.command.as_deref());
        text.push_str(described.as_str());
        let start = owner.start.and_then(|start| Some(start.duration_since(UNIX_EPOCH).ok()?.as_secs_f64()));
        let at = [begin, kind_at, more_at, text.len()];
        Self { pid, kind, mig: mig.clone(), owner: owner.clone(), start, at }
    }

    fn fits(&self, process: &Process) -> bool {
        let same_mig = match (&self.mig, &process.mig) {
            (None, None) => true,
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            _ => false,
        };
        self.pid == process.pid && self.kind == process.kind && same_mig && Arc::ptr_eq(&self.owner, &process.owner)
    }
}

/// The labels of a process's series, built without the cache.
pub(super) fn process_labels(gpu: &Labels, process: &Process) -> Labels {
    untyped(gpu, process).and("type", process.kind.label())
}

/// The labels of a process's series without `type`.
fn untyped(gpu: &Labels, process: &Process) -> Labels {
    let workload = process.owner.workload.as_deref();
    gpu.with_room(16)
        .and_known("mig_uuid", process.mig.as_ref().map(|mig| mig.uuid.as_str()))
        .and_number("pid", process.pid)
        .and_known("process", process.owner.name.as_deref())
        .and_pod(workload.and_then(|workload| workload.pod.as_deref()))
}

/// The GPU's processes, sorted by pid. Entries that share a pid nearly always keep their order; if they do not, their
/// labels are written again.
pub(super) fn in_order<'a>(gpu: &GpuView<'a>) -> Vec<&'a Process> {
    let mut processes: Vec<_> = gpu.processes.map_or(&[][..], |part| &part.processes).iter().collect();
    let slice = |process: &Process| process.mig.as_ref().map(|mig| (mig.gpu_instance, mig.compute_instance));
    processes.sort_unstable_by(|a, b| {
        let closer = || (a.kind, slice(a), &a.owner.name).cmp(&(b.kind, slice(b), &b.owner.name));
        a.pid.cmp(&b.pid).then_with(closer)
    });
    processes
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::Settings;
    use super::super::view::Parts;
    use super::*;
    use gpu_readings::snapshot::{Driver, Gpu, GpuMemory, GpuProcesses, GpuState, MemoryPart, ProcessPart, Snapshot};

    fn process(pid: u32, name: &str) -> Process {
        let start = Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_250));
        let owner = Owner { name: Some(name.to_owned()), uid: Some(1000), start, ..Owner::default() };
        Process { used: Some(5), window_peak: Some(5), peak: Some(5), ..Process::for_tests(pid, owner) }
    }

    fn slice(uuid: &str) -> Option<Arc<MigDevice>> {
        Some(Arc::new(MigDevice { uuid: uuid.to_owned(), ..MigDevice::default() }))
    }

    /// The labels of the processes on one GPU.
    fn labeled(cache: &LabelCache, uuid: &str, processes: &[Process]) -> Arc<GpuLabels> {
        let gpu = Arc::new(Gpu { uuid: uuid.to_owned(), ..Gpu::default() });
        let memory = GpuMemory { state: GpuState::Up, at: Some(Instant::now()), ..GpuMemory::unsampled(gpu.clone()) };
        let part = GpuProcesses {
            gpu: gpu.clone(),
            at: Some(Instant::now()),
            processes: processes.to_vec(),
            ..GpuProcesses::default()
        };
        let snapshot = Snapshot::new();
        snapshot.memory.store(Arc::new(MemoryPart { gpus: vec![memory] }));
        snapshot.processes.store(Arc::new(ProcessPart { gpus: vec![Arc::new(part)] }));
        snapshot.driver.store(Arc::new(Driver { up: true, gpus: vec![gpu], ..Driver::default() }));
        let parts = Parts::load(&snapshot);
        let settings = Settings { stale_after: Duration::from_secs(3600), ..Settings::default() };
        let gpus = parts.gpus(&settings);
        let processes: Vec<_> = gpus.iter().map(in_order).collect();
        assert!(!processes[0].is_empty());
        cache.of(&gpus, &processes).remove(0)
    }

    #[test]
    fn cached_labels_are_those_of_the_series_and_of_the_info() {
        let trainer = process(7, "train.py");
        let labels = labeled(&LabelCache::default(), "GPU-a", std::slice::from_ref(&trainer));
        let shown = labels.on(&[&trainer]).next().unwrap();
        assert_eq!(shown.labels, r#"gpu="0",uuid="GPU-a",pid="7",process="train.py",type="compute""#);
        assert_eq!(shown.untyped, r#"gpu="0",uuid="GPU-a",pid="7",process="train.py""#);
        assert_eq!((shown.described, shown.start), (r#",uid="1000""#, Some(1_700_000_000.25)));
    }

    #[test]
    fn labels_are_kept_while_the_owners_stay_the_same() {
        let (cache, processes) = (LabelCache::default(), [process(7, "train.py"), process(3, "serve.py")]);
        let first = labeled(&cache, "GPU-a", &processes);
        let [mut seven, mut three] = processes;
        (seven.used, seven.alive, three.peak) = (None, false, Some(9));
        // The order may differ, since the list is sorted by memory.
        assert!(Arc::ptr_eq(&first, &labeled(&cache, "GPU-a", &[three, seven])));
    }

    #[test]
    fn a_change_of_any_label_writes_the_text_again() {
        let known = [process(3, "serve.py"), Process { mig: slice("MIG-a"), ..process(7, "train.py") }];
        let changed = |change: fn(&mut Process)| {
            let mut processes = known.clone();
            change(&mut processes[1]);
            processes.to_vec()
        };
        let others: [(&str, Vec<Process>); 8] = [
            ("GPU-b", known.to_vec()),
            ("GPU-a", changed(|p| p.pid = 8)),
            ("GPU-a", changed(|p| p.kind = ProcessKind::Mps)),
            ("GPU-a", changed(|p| p.mig = slice("MIG-b"))),
            ("GPU-a", changed(|p| p.mig = None)),
            // Another process with the same pid, even if its labels are the same.
            ("GPU-a", changed(|p| p.owner = Arc::new((*p.owner).clone()))),
            ("GPU-a", known[..1].to_vec()),
            ("GPU-a", [&known[..], &[process(9, "more.py")]].concat()),
        ];
        for (uuid, other) in others {
            let cache = LabelCache::default();
            let before = labeled(&cache, "GPU-a", &known);
            let after = labeled(&cache, uuid, &other);
            assert!(!Arc::ptr_eq(&before, &after), "{uuid} {other:?}");
            assert_eq!(after.text, labeled(&LabelCache::default(), uuid, &other).text);
        }
    }

    #[test]
    fn gpus_that_are_gone_leave_no_labels() {
        let cache = LabelCache::default();
        labeled(&cache, "GPU-a", &[process(7, "train.py")]);
        assert!(cache.of(&[], &[]).is_empty() && cache.0.lock().unwrap().is_empty());
    }
}
