//! A GPU that shares the memory of the machine with the CPU, from the driver's answers to what is shown of it. No part of this
//! was tried on such a machine: the simulator answers as NVIDIA's documentation and public reports say (docs/unified-memory.md).

use serde_json::Value;

use crate::faults::faults;
use crate::harness::{Machine, Scrape, ended, eventually, eventually_or, until};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The memory of a context on the process, and the rest of it, which belongs to no process.
const CONTEXT: u64 = 520 * MIB;
const OVERHEAD: u64 = 8 * MIB;
/// All memory of the simulated GB10's machine.
const TOTAL: u64 = 119 * GIB;

/// 20 GiB are held on the CPU, and 24 GiB and a context by a server on the GPU.
const SPARK: &str = r#"
host = { used = "20GiB", swap_free = "2GiB" }
[[gpu]]
model = "GB10"
[[process]]
pid = 3400
command = ["/usr/bin/llama-server"]
cgroup = "0::/system.slice/llama.service"
memory = "24GiB"
"#;

/// A process whose memory the driver does not report.
fn unknown(cgroup: &str) -> String {
    format!("[[process]]\npid = 3401\ncommand = [\"viewer\"]\ncgroup = \"0::{cgroup}\"\nmemory = \"unknown\"\n")
}

fn bytes(scrape: &Scrape, family: &str) -> Option<u64> {
    scrape.value(family, &[]).map(|bytes| bytes as u64)
}

fn memory_label(scrape: &Scrape) -> Option<&str> {
    scrape.all("gpu_info").next().unwrap().label("memory")
}

#[test]
fn the_processes_on_the_gpu_are_its_used_memory_and_the_cpu_s_are_not() {
    let scrape = Machine::new(SPARK).once(&[]);
    assert_eq!(memory_label(&scrape), Some("unified"));
    assert_eq!(bytes(&scrape, "gpu_memory_total_bytes"), Some(TOTAL));
    let used = 24 * GIB + CONTEXT;
    for family in ["gpu_memory_used_bytes", "gpu_memory_window_peak_bytes", "gpu_memory_peak_bytes"] {
        assert_eq!(bytes(&scrape, family), Some(used), "{family}");
    }
    let available = TOTAL - used - OVERHEAD - 20 * GIB + 2 * GIB;
    assert_eq!(bytes(&scrape, "gpu_memory_available_bytes"), Some(available));
    for absent in ["free", "reserved", "unattributed", "used_at_least"] {
        assert_eq!(bytes(&scrape, &format!("gpu_memory_{absent}_bytes")), None, "{absent}");
    }
    assert_eq!(scrape.all("gpu_memory_pressure_seconds_total").count(), 7);
    assert_eq!(faults(&scrape, "memory", "not_supported"), 0.0);
}

#[test]
fn the_api_the_page_and_the_table_show_what_is_shared() {
    let (machine, exporter) = Machine::running(SPARK, &[]);
    let gpu = eventually("the memory in use", || {
        let gpu = exporter.json("/api/v1/gpus")["gpus"][0].clone();
        gpu["used_bytes"].is_u64().then_some(gpu)
    });
    let used = 24 * GIB + CONTEXT;
    assert_eq!((&gpu["total_bytes"], &gpu["used_bytes"]), (&TOTAL.into(), &used.into()), "{gpu}");
    let available = gpu["available_bytes"].as_u64().unwrap();
    assert_eq!(gpu["allocatable_bytes"], used + available, "{gpu}");
    assert!(gpu["free_bytes"].is_null() && gpu["unattributed_bytes"].is_null(), "{gpu}");
    let page = exporter.get("/").unwrap().body;
    assert!(
        page.contains("24.5 GiB of 119.0 GiB") && page.contains("shared with the CPU, 76.5 GiB available"),
        "{page}"
    );
    let table = ended(&mut machine.tool(&[])).out;
    assert!(table.contains("24.51 GiB of 119.0 GiB used (21 %)") && table.contains("76.48 GiB available"), "{table}");
}

#[test]
fn what_is_held_at_least_is_marked_where_one_part_is_unknown() {
    let known = 24 * GIB + CONTEXT;
    let machine = Machine::new(&format!("{SPARK}{}", unknown("/system.slice/llama.service")));
    let scrape = machine.once(&[]);
    for absent in ["gpu_memory_used_bytes", "gpu_memory_peak_bytes", "gpu_workload_memory_used_bytes"] {
        assert_eq!(bytes(&scrape, absent), None, "{absent}");
    }
    assert_eq!(bytes(&scrape, "gpu_memory_used_at_least_bytes"), Some(known));
    assert_eq!(bytes(&scrape, "gpu_workload_memory_used_at_least_bytes"), Some(known));
    assert_eq!(bytes(&scrape, "gpu_memory_total_bytes"), Some(TOTAL));
    let table = ended(&mut machine.tool(&[])).out;
    assert!(table.contains("at least 24.51 GiB of 119.0 GiB used"), "{table}");

    // Where another workload is unknown, this one is known.
    let scrape = Machine::new(&format!("{SPARK}{}", unknown("/system.slice/viewer.service"))).once(&[]);
    assert_eq!(
        scrape.value("gpu_workload_memory_used_bytes", &[("workload", "unit:llama.service")]),
        Some(known as f64)
    );
    assert_eq!(scrape.all("gpu_workload_memory_used_at_least_bytes").count(), 0);
    assert_eq!(bytes(&scrape, "gpu_memory_used_at_least_bytes"), Some(known));

    // Nothing is known of the only process.
    let only = format!("[[gpu]]\nmodel = \"GB10\"\n{}", unknown("/system.slice/viewer.service"));
    let scrape = Machine::new(&only).once(&[]);
    for absent in ["gpu_memory_used_bytes", "gpu_memory_used_at_least_bytes"] {
        assert_eq!(bytes(&scrape, absent), None, "{absent}");
    }
}

#[test]
fn a_gpu_on_which_nothing_runs_uses_nothing() {
    let scrape = Machine::new("[[gpu]]\nmodel = \"Thor\"\n").once(&[]);
    assert_eq!((memory_label(&scrape), bytes(&scrape, "gpu_memory_used_bytes")), (Some("unified"), Some(0)));
}

#[test]
fn where_the_driver_gives_no_sign_nothing_is_assumed() {
    let process = "[[process]]\ncommand = [\"x\"]\nmemory = \"1GiB\"\n";
    for gpu in [
        // A driver that refuses the memory and tells nothing else.
        "model = \"H200\"\nmemory_unsupported = true\n",
        "model = \"GB10\"\naddressing_mode = \"none\"\n",
        "model = \"GB10\"\nunsupported = [\"nvmlDeviceGetAddressingMode\"]\n",
    ] {
        let machine = Machine::new(&format!("[[gpu]]\n{gpu}{process}"));
        let (scrape, table) = (machine.once(&[]), ended(&mut machine.tool(&[])).out);
        assert!(table.contains("not reported by the driver"), "{table}");
        assert_eq!(memory_label(&scrape), None, "{gpu}");
        for absent in ["total", "used", "available", "used_at_least"] {
            assert_eq!(bytes(&scrape, &format!("gpu_memory_{absent}_bytes")), None, "{absent} of {gpu}");
        }
        assert_eq!(faults(&scrape, "memory", "not_supported"), 1.0, "{gpu}");
    }
    // A GPU that shares page tables with the CPU and has memory of its own.
    let scrape = Machine::new("[[gpu]]\nmodel = \"H100\"\naddressing_mode = \"ats\"\n").once(&[]);
    assert_eq!((memory_label(&scrape), bytes(&scrape, "gpu_memory_available_bytes")), (None, None));
    assert!(bytes(&scrape, "gpu_memory_free_bytes").is_some());
    // WSL2: the driver reports the memory of the GPU, and of no process.
    let wsl2 = format!("[[gpu]]\nmodel = \"RTX 4090\"\n{}", unknown("/init.scope"));
    let scrape = Machine::new(&wsl2).once(&[]);
    assert_eq!(memory_label(&scrape), None);
    assert!(bytes(&scrape, "gpu_memory_used_bytes").is_some());
    assert_eq!(scrape.all("gpu_workload_memory_used_at_least_bytes").count(), 0);
}

#[test]
fn a_jetson_whose_driver_lists_no_memory_has_a_size_and_no_use() {
    let orin = format!("host = {{ used = \"5GiB\" }}\n[[gpu]]\nmodel = \"Orin\"\n{}", unknown("/init.scope"));
    let scrape = Machine::new(&orin).once(&[]);
    assert_eq!(memory_label(&scrape), Some("unified"));
    assert_eq!(bytes(&scrape, "gpu_memory_total_bytes"), Some(61 * GIB));
    assert!(bytes(&scrape, "gpu_memory_available_bytes").is_some_and(|bytes| bytes <= 56 * GIB));
    for absent in ["gpu_memory_used_bytes", "gpu_memory_used_at_least_bytes", "gpu_memory_peak_bytes"] {
        assert_eq!(bytes(&scrape, absent), None, "{absent}");
    }
}

#[test]
fn a_machine_that_does_not_report_its_memory_loses_the_figures_alone() {
    let (machine, exporter) = Machine::running(SPARK, &[]);
    let meminfo = machine.procfs().join("meminfo");
    let families = ["used", "total", "available", "peak"].map(|part| format!("gpu_memory_{part}_bytes"));
    exporter.scrape_until("the figures", |s| families.iter().all(|family| bytes(s, family).is_some()));
    // A folder, which the simulator cannot replace and the exporter cannot read.
    until("a folder", || {
        let _ = std::fs::remove_file(&meminfo);
        std::fs::create_dir(&meminfo).is_ok()
    });
    let lost = exporter.scrape_until("no figures", |s| families.iter().all(|family| bytes(s, family).is_none()));
    let counted = faults(&lost, "memory", "unreadable");
    assert!(bytes(&lost, "gpu_up") == Some(1) && counted > 0.0, "{}", lost.text);
    assert_eq!(bytes(&lost, "gpu_process_memory_used_bytes"), Some(24 * GIB + CONTEXT));
    std::fs::remove_dir(&meminfo).unwrap();
    let back = exporter.scrape_until("the figures", |s| families.iter().all(|family| bytes(s, family).is_some()));
    assert_eq!(faults(&back, "memory", "unreadable"), counted, "not at each reading");
}

#[test]
fn a_few_reserved_huge_pages_leave_what_can_be_allocated() {
    let available = |scenario: &str| bytes(&Machine::new(scenario).once(&[]), "gpu_memory_available_bytes");
    let with_pages = |pages: &str| available(&SPARK.replace("swap_free", &format!("huge_pages = {pages}, swap_free")));
    assert_eq!(with_pages("[16, 0]"), available(SPARK));
    assert_eq!(with_pages("[80000, 70000]"), Some(140_000 * MIB));
}

#[test]
fn a_burst_on_the_gpu_is_a_peak_and_one_on_the_cpu_is_not() {
    // Every 400 ms another process takes 40 GiB of the CPU's memory for 200 ms.
    let burst = r#"used = [{ kind = "spike", base = "20GiB", peak = "60GiB", hold = "200ms", every = "400ms" }]"#;
    let (machine, exporter) = Machine::running(&SPARK.replace("used = \"20GiB\"", burst), &["--process.interval=1m"]);
    let quiet = exporter.scrape_until("the memory in use", |scrape| bytes(scrape, "gpu_memory_used_bytes").is_some());
    let used = 24 * GIB + CONTEXT;
    assert_eq!(bytes(&quiet, "gpu_memory_used_bytes"), Some(used));
    machine.control(
        r#"
        [[process]]
        pid = 777
        command = ["burst"]
        memory = [{ kind = "spike", base = "0B", peak = "30GiB", hold = "200ms", every = "600ms" }]
        "#,
    );
    // No list is due within the minute: the machine's memory tells that there is something to list.
    let peak = used + 30 * GIB + CONTEXT;
    let scrape = exporter.scrape_until("the peak", |scrape| bytes(scrape, "gpu_memory_peak_bytes") == Some(peak));
    assert_eq!(bytes(&scrape, "gpu_memory_window_peak_bytes"), Some(peak));
    assert!(bytes(&scrape, "gpu_memory_increase_bytes_total").is_some_and(|bytes| bytes >= 30 * GIB));
}

#[test]
fn a_process_that_ends_where_the_cpu_left_no_more_is_an_incident() {
    let scenario = r#"
host = { used = "80GiB" }
[[gpu]]
model = "GB10"
[[process]]
start = "-10m"
end = "8s"
command = ["python3", "train.py"]
memory = [
  { kind = "constant", value = "20GiB", for = "10m4s" },
  { kind = "ramp", from = "20GiB", to = "38700MiB", for = "1s" },
  { kind = "constant", value = "38700MiB" },
]
"#;
    let exporter = Machine::new(scenario).export(&[]);
    let listed = eventually_or("an incident", || {
        let incidents = exporter.json("/api/v1/incidents")["incidents"].clone();
        let found = incidents.as_array().unwrap().iter().find(|incident| incident["kind"] == "ended_at_peak").cloned();
        found.ok_or_else(|| incidents.to_string())
    });
    let incident = exporter.json(&format!("/api/v1/incidents/{}", listed["id"].as_str().unwrap()));
    let [peak, allocatable] = [&incident["peak"]["used_bytes"], &incident["gpu"]["allocatable_bytes"]];
    let [peak, allocatable] = [peak, allocatable].map(|bytes| bytes.as_u64().unwrap());
    // A third of the machine's memory, and nearly all that the CPU leaves.
    assert!((38 * GIB..39 * GIB).contains(&peak) && (38 * GIB..=39 * GIB).contains(&allocatable), "{incident:#}");
}

#[test]
fn a_run_reports_the_peak_and_the_least_that_could_be_allocated() {
    let machine = Machine::new("host = { used = \"20GiB\" }\n[[gpu]]\nmodel = \"GB10\"\n");
    let body = r#"
        place() { cat > "$NVML_SIM_CONTROL.new"; mv "$NVML_SIM_CONTROL.new" "$NVML_SIM_CONTROL"; }
        await() { while [ ! -e "$1" ]; do sleep 0.01; done; }
        printf '[[process]]\npid = %s\nmemory = "10GiB"\n' $$ | place
        await "$NVML_SIM_PROCFS/$$"
        { cat "$NVML_SIM_CONTROL"; printf '[[process]]\npid = 3000001\ncontext = "0B"\n'; } | place
        await "$NVML_SIM_PROCFS/3000001"
        sleep 1"#;
    let ended = ended(&mut machine.run(&["--format=json"], body));
    let report: Value = serde_json::from_str(&ended.err).unwrap_or_else(|error| panic!("{error}: {}", ended.err));
    let gpu = &report["gpus"][0];
    let peak = 10 * GIB + CONTEXT;
    assert_eq!(
        (&report["together"]["peak_bytes"], &gpu["used_peak_bytes"]),
        (&peak.into(), &peak.into()),
        "{report:#}"
    );
    assert_eq!(gpu["allocatable_bytes"], TOTAL, "{report:#}");
    let least = gpu["least_free_bytes"].as_u64().unwrap();
    assert!(least <= 119 * GIB - 20 * GIB - peak, "{report:#}");
}
