//! The GPUs that Slurm has allocated to jobs: the prolog and the epilog, and what the exporter shows of the folder that they keep.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::faults::faults;
use crate::harness::{Exporter, Machine, Scrape};
use crate::scripts::Script;

const FIRST: &str = "GPU-11111111-2222-3333-4444-555555555555";
const SECOND: &str = "GPU-22222222-2222-3333-4444-555555555555";

/// A machine with two H200s. Job 900 has a process on the first.
fn machine() -> Machine {
    let gpu = |uuid: &str| format!("[[gpu]]\nmodel = \"H200\"\nuuid = \"{uuid}\"\n");
    let process = "[[process]]\npid = 41\nmemory = \"2GiB\"\n\
                   cgroup = \"0::/system.slice/slurmstepd.scope/job_900/step_batch/user/task_0\"\n";
    Machine::new(&format!("seed = 9\n{}{}{process}", gpu(FIRST), gpu(SECOND)))
}

/// The folder that the scripts keep, and the script as an operator would edit it.
struct Node {
    folder: PathBuf,
    script: Script,
}

impl Node {
    fn new(machine: &Machine) -> Self {
        let root = machine.folder.path();
        let folder = root.join("allocations");
        let kept = [("FOLDER=/run/vram-exporter-slurm\n", format!("FOLDER={}\n", folder.display()))];
        let script = Script::of("vram-exporter-allocation.sh", root, &kept);
        Self { folder, script }
    }

    /// Runs the script as slurmd does, and returns what it said in syslog.
    fn run(&self, context: &str, job: &str, variables: &[(&str, &str)]) -> String {
        self.script.run(&[&[("SLURM_SCRIPT_CONTEXT", context), ("SLURM_JOB_ID", job)][..], variables].concat())
    }

    fn prolog(&self, job: &str, devices: &str) -> String {
        self.run("prolog_slurmd", job, &[("SLURM_JOB_GPUS", "0"), ("CUDA_VISIBLE_DEVICES", devices)])
    }

    fn epilog(&self, job: &str) -> String {
        self.run("epilog_slurmd", job, &[("SLURM_JOB_GPUS", "0")])
    }

    fn export(&self, machine: &Machine) -> Exporter {
        machine.export(&[&format!("--slurm.allocations={}", self.folder.display())])
    }
}

/// The allocations, as job and GPU.
fn allocated(scrape: &Scrape) -> Vec<(String, String)> {
    let label = |series: &crate::harness::Series, name: &str| series.label(name).unwrap_or_default().to_owned();
    let mut all: Vec<_> =
        scrape.all("gpu_allocation_info").map(|series| (label(series, "workload"), label(series, "gpu"))).collect();
    all.sort();
    all
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(job, gpu)| ((*job).to_owned(), (*gpu).to_owned())).collect()
}

#[test]
fn a_job_that_does_not_use_its_gpu_is_seen_from_the_prolog_to_the_epilog() {
    let machine = machine();
    let node = Node::new(&machine);
    // Numbers, as Slurm has them without AutoDetect=nvml, and UUIDs.
    assert_eq!(node.prolog("900", "0,1"), "");
    assert_eq!(node.prolog("901", SECOND), "");
    let exporter = node.export(&machine);
    let all = pairs(&[("slurm:900", "0"), ("slurm:900", "1"), ("slurm:901", "1")]);
    let scrape = exporter.scrape_until("the allocations", |scrape| {
        allocated(scrape) == all && scrape.value("gpu_workload_processes", &[]).is_some()
    });
    let labels = [("workload", "slurm:901"), ("kind", "slurm"), ("resource", "gres/gpu"), ("uuid", SECOND)];
    assert_eq!(scrape.value("gpu_allocation_info", &labels), Some(1.0));
    // The workload of a process has the same labels, so a query finds what is not used.
    let used = [("workload", "slurm:900"), ("kind", "slurm"), ("uuid", FIRST)];
    assert_eq!(scrape.value("gpu_workload_processes", &used), Some(1.0));
    assert_eq!(scrape.value("vram_exporter_faults_total", &[("source", "slurm")]), Some(0.0));

    assert_eq!(node.epilog("901"), "");
    exporter.scrape_until("the end of the job", |scrape| {
        allocated(scrape) == pairs(&[("slurm:900", "0"), ("slurm:900", "1")])
    });
}

#[test]
fn the_prolog_keeps_only_what_slurm_says_and_never_fails() {
    let machine = machine();
    let node = Node::new(&machine);
    let said = |said: String, why: &str| {
        assert!(said.starts_with("-t vram-exporter-allocation -p daemon.warning -- job "), "{said}");
        assert!(said.lines().count() == 1 && said.contains(why), "{said}");
    };
    assert_eq!(node.run("prolog_slurmd", "7", &[]), "", "a job without GPUs");
    assert_eq!(node.epilog("7"), "", "and its end");
    assert!(!node.folder.exists());
    said(node.run("prolog_slurmd", "7", &[("SLURM_JOB_GPUS", "0")]), "does not set CUDA_VISIBLE_DEVICES");
    said(node.prolog("../7", "0"), "not the name of a job");
    said(node.run("prolog_slurmctld", "7", &[]), "neither prolog_slurmd nor epilog_slurmd");
    assert_eq!(node.prolog("7", "0"), "");
    assert_eq!(node.prolog("7", "1"), "", "a job that was requeued");
    assert_eq!(fs::read_to_string(node.folder.join("7")).unwrap(), "1\n");
    let modes = [&node.folder, &node.folder.join("7")].map(|path| fs::metadata(path).unwrap().permissions().mode());
    assert_eq!(modes.map(|mode| mode & 0o777), [0o755, 0o644], "readable by the exporter's user");
    assert_eq!(node.epilog("7"), "");
    assert_eq!(fs::read_dir(&node.folder).unwrap().count(), 0);
    fs::remove_dir(&node.folder).unwrap();
    fs::write(&node.folder, "").unwrap();
    said(node.prolog("8", "0"), "its GPUs were not kept");
}

#[test]
fn a_folder_that_cannot_be_trusted_or_read_allocates_nothing() {
    let machine = machine();
    let node = Node::new(&machine);
    let exporter = node.export(&machine);
    // Before the first job there is no folder.
    let scrape = exporter.scrape_until("the first reading", |scrape| scrape.value("gpu_up", &[("gpu", "1")]).is_some());
    assert_eq!((allocated(&scrape).len(), faults(&scrape, "slurm", "malformed")), (0, 0.0));
    assert_eq!(node.prolog("900", "0"), "");
    fs::write(node.folder.join("901"), "the first one\n").unwrap();
    let scrape = exporter.scrape_until("the job", |scrape| faults(scrape, "slurm", "malformed") > 0.0);
    assert_eq!((allocated(&scrape), faults(&scrape, "slurm", "malformed")), (pairs(&[("slurm:900", "0")]), 1.0));
    exporter.logged("901 is not a list of devices");

    fs::set_permissions(&node.folder, fs::Permissions::from_mode(0o777)).unwrap();
    let scrape = exporter.scrape_until("the fault and the age", |scrape| {
        faults(scrape, "slurm", "unreadable") > 0.0 && allocated(scrape).is_empty()
    });
    assert_eq!(faults(&scrape, "slurm", "malformed"), 1.0, "a file is reported once");
    exporter.logged("others than its owner may write to it");
    fs::set_permissions(&node.folder, fs::Permissions::from_mode(0o755)).unwrap();
    exporter.scrape_until("the recovery", |scrape| allocated(scrape) == pairs(&[("slurm:900", "0")]));
}

#[test]
fn a_number_is_no_gpu_that_is_divided_into_mig_devices() {
    let machine = Machine::built_in("mig-a100");
    let node = Node::new(&machine);
    assert_eq!(node.prolog("900", "0,1"), "");
    let exporter = node.export(&machine);
    exporter.scrape_until("the undivided GPU", |scrape| allocated(scrape) == pairs(&[("slurm:900", "1")]));
}
