//! An exposition with any names: a strict reader reads it back, with each value unchanged and no series twice. In
//! OpenMetrics it has the same samples.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use ::exposition::{Family, Labels, open_metrics, read};
use gpu_metrics::{Format, LONGEST_LABEL, Metrics, Settings, families};
use gpu_readings::faults::Faults;
use gpu_readings::snapshot::{MigDevice, PodContainer, Process, Snapshot, WorkloadUse};
use vram_exporter::config::Config;
use vram_exporter::internals::metrics_settings;

use crate::machine::{Names, publish};

/// One machine for all runs, used by one run at a time.
static MACHINE: LazyLock<Mutex<(Arc<Snapshot>, Metrics)>> = LazyLock::new(|| {
    let snapshot = Snapshot::new();
    let metrics = Metrics::new(snapshot.clone(), Arc::new(Faults::default()), settings());
    Mutex::new((snapshot, metrics.expect("the table of families is sound")))
});

pub(crate) fn settings() -> Settings {
    let stale_after = Duration::from_secs(3600);
    Settings { stale_after, created_samples: true, ..metrics_settings(&Config::default(), Some(true)) }
}

/// Renders a machine whose names come from the input. True if the driver is up, so that there was something to show.
pub fn exposition(data: &[u8]) -> bool {
    let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let (snapshot, metrics) = &*machine;
    publish(&mut Names::of(data), snapshot);
    let text = metrics.encode(Format::Text).expect("any name can be written");
    let utf8 = |text| String::from_utf8(text).expect("the text is UTF-8");
    let shown = read(&utf8(text));
    assert_fits_the_table(&shown);
    // Both formats have the same samples, except for creation times and for values that change between two expositions.
    let open = utf8(metrics.encode(Format::OpenMetrics).expect("any name can be written"));
    open_metrics::assert_same(&shown, &open_metrics::read(&open), varies);
    if !snapshot.driver.load().up {
        return false;
    }
    let processes = snapshot.processes.load();
    for part in &processes.gpus {
        let base =
            Labels::from([("gpu".to_owned(), part.gpu.index.to_string()), ("uuid".to_owned(), part.gpu.uuid.clone())]);
        assert_processes(&shown, &base, &part.processes);
        assert_workloads(&shown, &base, &part.workloads);
    }
    true
}

/// Whether the values of a family change between two expositions.
pub(crate) fn varies(name: &str) -> bool {
    name.starts_with("process_") || name.ends_with("_age_seconds") || name.ends_with("_idle_seconds")
}

/// Names, types, help and labels are those in the table, and no label value is too long.
fn assert_fits_the_table(shown: &[Family]) {
    for shown in shown {
        let family = families().find(|family| family.name == shown.name).expect("every family is in the table");
        assert_eq!((shown.kind.as_str(), shown.help.as_str()), (family.kind.word(), &*family.help()));
        for (name, value) in shown.series.iter().flat_map(|series| &series.labels) {
            assert!(family.labels.contains(&name.as_str()) || name == "le", "{}: {name}", shown.name);
            assert!(!value.is_empty() && value.chars().count() <= LONGEST_LABEL && !value.contains('\0'), "{value:?}");
        }
    }
}

/// Each process has one series under its own names; its `gpu_process_info` describes a process with these names.
fn assert_processes(shown: &[Family], base: &Labels, processes: &[Process]) {
    for process in processes {
        let identity = identity(base, process);
        let known: Vec<_> = of(shown, "gpu_process_info").filter(|labels| contains(labels, &identity)).collect();
        let alike: Vec<Labels> = processes.iter().map(|process| description(base, process)).collect();
        assert!(known.iter().all(|labels| of_a_gpu(shown, labels)), "{known:?}");
        let described = known.iter().filter(|labels| alike.contains(labels)).count();
        assert!(described >= 1, "{identity:?} among {known:?}");
        let mut typed = identity;
        typed.insert("type".to_owned(), process.kind.label().to_owned());
        assert_eq!(of(shown, "gpu_process_memory_peak_bytes").filter(|labels| **labels == typed).count(), 1);
    }
}

fn of_a_gpu(shown: &[Family], labels: &Labels) -> bool {
    of(shown, "gpu_up").any(|gpu| gpu.get("gpu") == labels.get("gpu") && gpu.get("uuid") == labels.get("uuid"))
}

fn assert_workloads(shown: &[Family], base: &Labels, workloads: &[WorkloadUse]) {
    for used in workloads {
        let mut labels = base.clone();
        put_mig(&mut labels, used.mig.as_deref());
        put(&mut labels, "workload", Some(&used.workload.name));
        put(&mut labels, "kind", Some(used.workload.kind.label()));
        put_pod(&mut labels, used.workload.pod.as_deref());
        let shown = of(shown, "gpu_workload_memory_peak_bytes").filter(|shown| **shown == labels).count();
        assert_eq!(shown, 1, "{labels:?}");
    }
}

fn of<'a>(shown: &'a [Family], family: &str) -> impl Iterator<Item = &'a Labels> {
    shown
        .iter()
        .find(|shown| shown.name == family)
        .into_iter()
        .flat_map(|shown| &shown.series)
        .map(|series| &series.labels)
}

fn contains(labels: &Labels, part: &Labels) -> bool {
    part.iter().all(|(name, value)| labels.get(name) == Some(value))
}

fn identity(base: &Labels, process: &Process) -> Labels {
    let mut labels = base.clone();
    put_mig(&mut labels, process.mig.as_deref());
    put(&mut labels, "pid", Some(&process.pid.to_string()));
    put(&mut labels, "process", process.owner.name.as_deref());
    put_pod(&mut labels, process.owner.workload.as_ref().and_then(|workload| workload.pod.as_deref()));
    labels
}

fn description(base: &Labels, process: &Process) -> Labels {
    let (owner, home) = (&process.owner, &process.owner.location);
    let mut labels = identity(base, process);
    put(&mut labels, "user", owner.user.as_deref());
    put(&mut labels, "uid", owner.uid.map(|uid| uid.to_string()).as_deref());
    put(&mut labels, "workload", owner.workload.as_ref().map(|workload| workload.name.as_str()));
    put(&mut labels, "kind", owner.workload.as_ref().map(|workload| workload.kind.label()));
    put(&mut labels, "container_id", home.container_id.as_deref());
    put(&mut labels, "pod_uid", home.pod_uid.as_deref());
    put(&mut labels, "unit", home.unit.as_deref());
    put(&mut labels, "slurm_job", home.slurm_job.as_deref());
    put(&mut labels, "slurm_step", home.slurm_step.as_deref());
    put(&mut labels, "scheduler", home.job.as_ref().map(|job| job.scheduler.label()));
    put(&mut labels, "job_id", home.job.as_ref().map(|job| job.id.as_str()));
    put(&mut labels, "command", owner.command.as_deref());
    labels
}

fn put_mig(labels: &mut Labels, mig: Option<&MigDevice>) {
    put(labels, "mig_uuid", mig.map(|mig| mig.uuid.as_str()));
}

fn put_pod(labels: &mut Labels, pod: Option<&PodContainer>) {
    put(labels, "namespace", pod.map(|pod| pod.namespace.as_str()));
    put(labels, "pod", pod.map(|pod| pod.pod.as_str()));
    put(labels, "container", pod.map(|pod| pod.container.as_str()));
}

/// Adds a value as it has to be read back: a digest replaces the end of a value that is too long, and U+FFFD replaces
/// each NUL.
fn put(labels: &mut Labels, name: &str, value: Option<&str>) {
    let value = value.unwrap_or_default();
    let mut kept = value.replace('\0', "\u{FFFD}");
    if kept.chars().count() > LONGEST_LABEL {
        let digest = ring::digest::digest(&ring::digest::SHA256, value.as_bytes());
        let digits: String = digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        kept = kept.chars().take(LONGEST_LABEL - 17).chain(['~']).collect::<String>() + &digits;
    }
    if !kept.is_empty() {
        labels.insert(name.to_owned(), kept);
    }
}
