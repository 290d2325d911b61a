//! The guests of a vGPU host are owners of memory, and no byte counts twice. Simulated only: no real vGPU host was measured.

use crate::harness::{Machine, Scrape};

const GIB: f64 = (1u64 << 30) as f64;
const VM: &str = "a84d1c2e-0f3b-4c5d-8e9f-000000000001";

/// A machine that hosts vGPUs on its first GPU, with these processes. Two guests use 5 and 3 GiB.
fn host(processes: &str) -> Machine {
    let guest = |vm: &str, gib: u32| format!("[[vgpu]]\nvm = \"{vm}\"\nmemory = \"{gib}GiB\"\n");
    let gpus = "seed = 4\n[[gpu]]\nmodel = \"L4\"\nvgpu_host = true\n[[gpu]]\nmodel = \"L4\"\n";
    Machine::new(&format!("{gpus}{}{}{processes}", guest(VM, 5), guest("7", 3)))
}

/// The processes of NVIDIA's vGPU manager on a KVM host: one for each vGPU, with its whole frame buffer of 8 GiB.
const MANAGER: &str = "[[process]]\npid = 60\ncount = 2\ntype = [\"compute\", \"graphics\"]\ncontext = \"0B\"\nmemory = \"8GiB\"\n\
                       command = [\"vgpu\"]\ncgroup = \"0::/system.slice/nvidia-vgpu-mgr.service\"\n";

/// Memory that is in use without a process in the driver's list.
const UNLISTED: &str = "[[process]]\ntype = []\ncontext = \"0B\"\nmemory = \"16GiB\"\n";

fn held(scrape: &Scrape) -> Vec<(String, String, f64, f64)> {
    let of = |series: &crate::harness::Series| {
        let name = series.label("workload").unwrap().to_owned();
        let processes = scrape.value("gpu_workload_processes", &[("workload", &name)]).unwrap();
        (name, series.label("kind").unwrap().to_owned(), processes, series.value / GIB)
    };
    scrape.all("gpu_workload_memory_used_bytes").map(of).collect()
}

fn rows(expected: &[(&str, &str, f64, f64)]) -> Vec<(String, String, f64, f64)> {
    expected.iter().map(|&(name, kind, processes, gib)| (name.to_owned(), kind.to_owned(), processes, gib)).collect()
}

fn unattributed(scrape: &Scrape) -> f64 {
    scrape.value("gpu_memory_unattributed_bytes", &[("gpu", "0")]).unwrap() / GIB
}

#[test]
fn guests_are_workloads_and_their_memory_is_taken_out_of_the_manager_s() {
    let scrape = host(MANAGER).once(&[]);
    let vm = format!("vm:{VM}");
    let unit = "unit:nvidia-vgpu-mgr.service";
    // The manager keeps what the guests do not use.
    assert_eq!(
        held(&scrape),
        rows(&[(unit, "systemd", 2.0, 8.0), ("vm:7", "vgpu", 1.0, 3.0), (&vm, "vgpu", 1.0, 5.0)])
    );
    assert_eq!(scrape.all("gpu_process_memory_used_bytes").map(|series| series.value / GIB).sum::<f64>(), 16.0);
    let used = scrape.value("gpu_memory_used_bytes", &[("gpu", "0")]).unwrap() / GIB;
    assert_eq!(unattributed(&scrape), used - 16.0);
}

#[test]
fn without_the_manager_s_processes_guests_hold_what_no_process_does() {
    let machine = host(UNLISTED);
    let exporter = machine.export(&[]);
    let vm = format!("vm:{VM}");
    let both = rows(&[("vm:7", "vgpu", 1.0, 3.0), (&vm, "vgpu", 1.0, 5.0)]);
    let scrape = exporter.scrape_until("the guests", |scrape| held(scrape) == both);
    assert_eq!(unattributed(&scrape), 8.0);
    assert_eq!(scrape.value("gpu_memory_unattributed_bytes", &[("gpu", "1")]), Some(0.0));
    assert_eq!(scrape.value("vram_exporter_faults_total", &[("source", "process")]), Some(0.0), "GPU 1 hosts none");
    // A third guest comes and goes; its peak stays.
    machine.control("[[vgpu]]\nvm = \"8\"\nmemory = \"2GiB\"\n");
    exporter.scrape_until("the third guest", |scrape| held(scrape).len() == 3 && unattributed(scrape) == 6.0);
    machine.control("");
    let scrape = exporter.scrape_until("its end", |scrape| held(scrape) == both && unattributed(scrape) == 8.0);
    assert_eq!(scrape.value("gpu_workload_memory_peak_bytes", &[("workload", "vm:8")]), Some(2.0 * GIB));
}
