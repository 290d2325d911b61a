//! `--demo` as a new user sees it.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::api_server::ApiServer;
use crate::harness::{
    Exporter, Scrape, Series, assert_refused, bare, ended, eventually, program, simulator, tool, tool_program,
};
use crate::kubelet::{Kubelet, List, devices, pod};

#[test]
fn a_demo_is_marked_as_simulated_and_its_numbers_move() {
    let exporter = Exporter::start(bare(&["--demo"]));
    let first = exporter.scrape_until("the first process", |s| s.all("gpu_process_memory_used_bytes").count() > 3);
    assert!(first.all("gpu_info").count() > 1);
    assert!(first.all("gpu_info").all(|info| info.label("simulated") == Some("true")));
    assert!(first.all("nvidia_driver_info").all(|info| info.label("simulated") == Some("true")));
    assert!(exporter.get("/").unwrap().body.contains("SIMULATED"));
    exporter.logged("SIMULATED");
    let used = |s: &Scrape| s.all("gpu_memory_used_bytes").map(|series| series.value).collect::<Vec<_>>();
    exporter.scrape_until("other numbers", |s| used(s) != used(&first));
    assert!(first.all("gpu_process_info").any(|info| info.label("user").is_some()));
    assert!(exporter.terminate().success());
}

#[test]
fn a_demo_logs_first_where_to_look_and_what_it_shows() {
    let exporter = Exporter::start(bare(&["--demo"]));
    exporter.logged("notebook-7");
    let log = exporter.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("demo: ")).collect();
    assert!((4..=8).contains(&lines.len()), "{log}");
    let url = format!("http://{}", exporter.address);
    assert!(lines[0].contains(&format!("{url} ")) && lines[0].contains(&format!("{url}/metrics")), "{log}");
    let compose = lines[1].split_whitespace().find(|word| word.ends_with(".yml")).unwrap();
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(compose).is_file(), "{log}");
    let introduced = log.lines().take(9).filter(|line| line.contains("demo: ")).count();
    assert_eq!(introduced, lines.len(), "not among the first lines: {log}");

    // The named processes appear at once; only kernel_tests starts later.
    let names = ["llama-13b-0", "notebook-7", "embedder.service"];
    let families = ["gpu_memory_window_peak_bytes", "gpu_process_idle_seconds", "gpu_allocation_info"];
    assert!(names.iter().chain(&families).all(|word| log.contains(word)), "{log}");
    exporter.scrape_until("what the introduction names", |scrape| {
        let has = |name: &str| scrape.series.iter().any(|s| s.labels.iter().any(|(_, value)| value == name));
        names.into_iter().all(has) && families.iter().all(|family| scrape.all(family).next().is_some())
    });
    assert!(exporter.terminate().success());
}

/// What a visitor sees within a minute: the memory of a job climbs to the limit of its GPU, where the job ends, and
/// some memory has no owner.
#[test]
fn a_demo_records_a_job_that_ends_at_its_peak() {
    let exporter = Exporter::start(bare(&["--demo"]));
    eventually("the incident", || {
        let incidents = exporter.get("/api/v1/incidents").ok()?.body;
        (incidents.contains("ended_at_peak") && incidents.contains("import.py")).then_some(())
    });
    let scrape = exporter.scrape();
    let unattributed = scrape.value("gpu_memory_unattributed_bytes", &[("gpu", "1")]).unwrap();
    assert!(unattributed >= 5.0 * (1u64 << 30) as f64, "{unattributed}");
    assert!(exporter.terminate().success());
}

#[test]
fn a_demo_has_a_cluster_whose_pods_hold_memory_or_only_a_gpu() {
    let exporter = Exporter::start(bare(&["--demo"]));
    let pod = |name: &'static str| move |s: &&Series| s.label("pod") == Some(name);
    let scrape = exporter.scrape_until("the names of pods", |s| {
        s.all("gpu_workload_memory_used_bytes").filter(pod("llama-13b-0")).count() == 2
            && s.all("gpu_allocation_info").count() > 5
            && s.all("gpu_allocatable_devices").count() == 6
    });
    let trainer = scrape.all("gpu_workload_memory_used_bytes").filter(pod("llama-13b-0")).count();
    assert_eq!(trainer, 2, "one workload on two GPUs");
    assert!(scrape.all("gpu_allocation_info").any(|s| pod("notebook-7")(&s)));
    assert!(!scrape.all("gpu_workload_processes").any(|s| pod("notebook-7")(&s)), "it holds a GPU and uses nothing");
    let whole = scrape.all("gpu_allocatable_devices").map(|s| s.value).collect::<Vec<_>>();
    assert_eq!(whole, [1.0; 6]);
}

/// Two workloads have a GPU each to themselves. Both GPUs show full utilization, but one of them is mostly waiting.
#[test]
fn a_demo_has_a_gpu_that_is_busy_and_one_that_waits() {
    let exporter = Exporter::start(bare(&["--demo"]));
    let active = |gpu: &'static str| {
        move |s: &Scrape| {
            let sm = s.value("gpu_engine_active_seconds_total", &[("gpu", gpu), ("engine", "sm")])?;
            let kernels = s.value("gpu_engine_active_seconds_total", &[("gpu", gpu), ("engine", "graphics")])?;
            let memory = s.value("gpu_memory_bandwidth_active_seconds_total", &[("gpu", gpu)])?;
            (kernels > 1.0).then_some((sm / kernels, memory / kernels))
        }
    };
    let scrape = exporter.scrape_until("the activity", |s| active("4")(s).is_some() && active("5")(s).is_some());
    let ((waiting, idle_memory), (busy, busy_memory)) = (active("4")(&scrape).unwrap(), active("5")(&scrape).unwrap());
    assert!(waiting < 0.2 && idle_memory < 0.2, "{waiting} {idle_memory}");
    assert!(busy > 0.8 && busy_memory > 0.5, "{busy} {busy_memory}");
    for gpu in ["4", "5"] {
        assert_eq!(scrape.value("gpu_utilization_ratio", &[("gpu", gpu)]), Some(1.0), "GPU {gpu}");
        let workloads = scrape.all("gpu_workload_processes").filter(|s| s.label("gpu") == Some(gpu)).count();
        assert_eq!(workloads, 1, "GPU {gpu} is not shared");
    }
}

#[test]
fn a_demo_shows_what_its_processes_need() {
    let exporter = Exporter::start(bare(&["--demo"]));
    const NOTEBOOK_PROCESS: [(&str, &str); 2] = [("gpu", "3"), ("process", "ipykernel_launcher")];
    const OUTSIDE: &str = "gpu_process_memory_outside_allocator_bytes";
    let scrape = exporter.scrape_until("the allocators", |s| {
        let frameworks = s.all("gpu_process_allocator_reserved_bytes").filter_map(|series| series.label("framework"));
        // A process's memory outside its allocator is known with the next list of processes.
        frameworks.collect::<std::collections::BTreeSet<_>>().len() == 2
            && s.value(OUTSIDE, &NOTEBOOK_PROCESS).is_some()
            && s.value("gpu_memory_needed_bytes", &[("gpu", "3")]).is_some()
    });
    let notebook = [("gpu", "3"), ("framework", "jax")];
    let bytes = |family: &str, labels: &[(&str, &str)]| scrape.value(family, labels).unwrap();
    let reserved = bytes("gpu_process_allocator_reserved_bytes", &notebook);
    let allocated = bytes("gpu_process_allocator_allocated_bytes", &notebook);
    assert_eq!(reserved, 31.0 * f64::from(1 << 30));
    assert!(allocated < 0.05 * reserved);
    let (used, needed) = ("gpu_memory_used_bytes", "gpu_memory_needed_bytes");
    assert!(bytes(needed, &[("gpu", "3")]) <= bytes(used, &[("gpu", "3")]) - (reserved - allocated));
    let outside = bytes(OUTSIDE, &NOTEBOOK_PROCESS);
    assert_eq!(outside, 520.0 * f64::from(1 << 20), "its context");
}

#[test]
fn a_missing_scenario_ends_the_demo_and_is_named() {
    for action in ["--web.listen-address=127.0.0.1:0", "--once", "--check-config"] {
        // With the scenarios that are available.
        let words = ["--demo=nosuch does not describe a machine", "idle-h200"];
        assert_refused(&mut bare(&["--demo=nosuch", action]), &words);
    }
}

#[test]
fn the_program_alone_in_a_folder_is_enough_for_a_demo() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("vram-exporter");
    // Copied with `cp`, because a child of another test could inherit a file that this process holds open for writing,
    // and the copy could then not be executed.
    assert!(Command::new("cp").arg(program()).arg(&copy).status().unwrap().success());
    let mut once = Command::new(&copy);
    let ended = ended(once.args(["--demo", "--once"]).env_clear().env("TMPDIR", folder.path()));
    assert!(ended.status == Some(0) && ended.out.contains(r#"simulated="true""#), "{ended:?}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["vram-exporter"], "a demo leaves nothing behind");
}

/// The demo must also work if the temporary folder is mounted `noexec`, or if a service manager forbids memory that is
/// writable and executable.
#[test]
fn a_demo_executes_nothing_that_it_wrote() {
    let exporter = Exporter::start(bare(&["--demo"]));
    exporter.scrape_until("the simulated GPUs", |s| s.all("gpu_info").count() > 1);
    let maps = fs::read_to_string(format!("/proc/{}/maps", exporter.pid())).unwrap();
    let library: Vec<&str> = maps.lines().filter(|line| line.contains("libnvml_sim.so")).collect();
    assert!(!library.is_empty(), "{maps}");
    assert!(library.iter().all(|line| !line.split(' ').nth(1).unwrap().contains('x')), "{library:#?}");
}

#[test]
fn a_closed_stdout_is_no_error_but_a_full_disk_is() {
    for flags in [
        &["--demo", "--once"][..],
        &["--help"],
        &["--print-config"],
        &["--check-config"],
        &["scenarios"],
        &["completions", "zsh"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert!(bare(flags).stdout(writer).output().unwrap().status.success(), "{flags:?}");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = bare(flags).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{flags:?}: {said}");
        assert!(said.contains("standard output could not be written"), "{flags:?}: {said}");
    }
}

#[test]
fn a_scenario_file_with_a_wrong_key_is_named_with_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    fs::write(&path, "[[gpu]]\nmodel = \"H200\"\nmemmory = 1\n").unwrap();
    assert_refused(&mut bare(&[&format!("--demo={}", path.display()), "--once"]), &["memmory", "mine.toml"]);
}

/// If the program exported NVML functions, a real driver's library would resolve its own calls to them.
#[test]
fn the_programs_export_no_function_of_a_driver() {
    let exported = |file: &Path| {
        let named = ended(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(file));
        assert_eq!(named.status, Some(0), "{}", named.err);
        named.out.matches(" nvml").count()
    };
    assert!(exported(&simulator()) > 100);
    assert_eq!((exported(&program()), exported(&tool_program())), (0, 0));
}

/// Starts a demo of a scenario that the test provides.
fn demo_of(folder: &Path, scenario: &str) -> Exporter {
    let path = folder.join("scenario.toml");
    fs::write(&path, scenario).unwrap();
    Exporter::start(bare(&[&format!("--demo={}", path.display())]))
}

/// A simulated driver is reopened beside the open session, like a real one.
#[test]
fn a_demo_shows_mig_devices_that_replace_others() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = "[[gpu]]\nmodel = \"H100\"\nmig = [\"3g.40gb\", \"3g.40gb\"]\n\
        [[process]]\npid = 950\nmig = 0\ncommand = [\"python\", \"m.py\"]\nmemory = \"10GiB\"\n\
        [[fault]]\ngpu = 0\nkind = \"recut\"\nfrom = \"10s\"\n";
    let exporter = demo_of(folder.path(), scenario);
    let devices = |scrape: &Scrape| {
        let shown = scrape.all("gpu_mig_memory_used_bytes").map(|series| series.label("mig_uuid").unwrap().to_owned());
        shown.collect::<std::collections::BTreeSet<_>>()
    };
    let before = devices(&exporter.scrape_until("both MIG devices", |s| devices(s).len() == 2));
    exporter.scrape_until("the MIG devices that replace them", |s| {
        devices(s).len() == 2 && devices(s).is_disjoint(&before)
    });
    assert!(!exporter.log().contains("refused the scenario"), "{}", exporter.log());
    assert!(exporter.terminate().success());
}

#[test]
fn a_demo_shows_a_lost_gpu_again_when_it_answers() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = "[[gpu]]\nmodel = \"H100\"\ncount = 2\n\
        [[fault]]\ngpu = 1\ncall = \"*\"\nkind = \"error\"\ncode = \"GPU_IS_LOST\"\nfrom = \"2s\"\nuntil = \"14s\"\n";
    let exporter = demo_of(folder.path(), scenario);
    let up = |scrape: &Scrape| scrape.value("gpu_up", &[("gpu", "1")]);
    exporter.scrape_until("the loss of GPU 1", |s| up(s) == Some(0.0));
    exporter.scrape_until("its return", |s| up(s) == Some(1.0));
    exporter.logged("reopening the driver");
    assert!(!exporter.log().contains("refused the scenario"), "{}", exporter.log());
    assert!(exporter.terminate().success());
}

/// A key that a simulated machine overrules would have no effect, so it is refused wherever it is set.
#[test]
fn a_demo_refuses_the_keys_that_its_machine_overrules() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    fs::write(&file, "path.passwd = \"/etc/passwd\"\n").unwrap();
    let file = format!("--config.file={}", file.display());
    let cases: [(&[&str], Option<&str>, &str, &str); 5] = [
        (&["--nvml.library=/elsewhere"], None, "nvml.library", "flag --nvml.library"),
        (&["--path.procfs=/host/proc"], None, "path.procfs", "flag --path.procfs"),
        (&[&file], None, "path.passwd", "config.toml"),
        (&["--allocator.socket=/elsewhere"], None, "allocator.socket", "flag --allocator.socket"),
        (&[], Some("VRAM_EXPORTER_NVML_LIBRARY"), "nvml.library", "VRAM_EXPORTER_NVML_LIBRARY"),
    ];
    for (flags, variable, key, origin) in cases {
        for action in ["--check-config", "--once"] {
            let mut command = bare(flags);
            command.args(["--demo=idle-h200", action]).envs(variable.map(|name| (name, "/elsewhere")));
            assert_refused(&mut command, &[key, origin, "--demo", "remove"]);
        }
    }
    let mut run = tool(&["run", "--demo", "--path.passwd=/etc/passwd", "--", "true"]);
    assert_refused(&mut run, &["path.passwd", "--demo"]);
}

fn has_pod(scrape: &Scrape, family: &str, name: &str) -> bool {
    scrape.all(family).any(|series| series.label("pod") == Some(name))
}

/// The default scenario has a cluster. A source that the user names takes the place of the simulated one; the other
/// source stays simulated.
#[test]
fn a_demo_asks_the_kubelet_that_a_flag_names() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kubelet.sock");
    let gpus = Scrape::parse(&ended(&mut bare(&["--demo", "--once"])).out);
    let uuid = gpus.all("gpu_info").find_map(|info| info.label("uuid")).unwrap();
    let held = pod("real", "from-the-kubelet", vec![devices("nvidia.com/gpu", &[uuid])]);
    let _kubelet = Kubelet::start(&socket, &List { pod_resources: vec![held] });
    let exporter = Exporter::start(bare(&["--demo", &format!("--kubernetes.pod-resources={}", socket.display())]));
    let scrape = exporter.scrape_until("both sources", |s| {
        has_pod(s, "gpu_allocation_info", "from-the-kubelet") && has_pod(s, "gpu_workload_processes", "llama-13b-0")
    });
    assert!(!has_pod(&scrape, "gpu_allocation_info", "llama-13b-0"), "the simulated kubelet is not asked");
    assert!(exporter.terminate().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demo_asks_the_api_server_that_a_flag_names() {
    let server = ApiServer::start().await;
    let url = format!("--kubernetes.api-server={}", server.url());
    let exporter = Exporter::start(bare(&["--demo", &url, "--kubernetes.node-name=node-1"]));
    let scrape = exporter.scrape_until("both sources", |s| {
        !server.lists().is_empty() && has_pod(s, "gpu_allocation_info", "llama-13b-0")
    });
    assert!(!has_pod(&scrape, "gpu_workload_processes", "llama-13b-0"), "the simulated API server is not asked");
    assert!(exporter.terminate().success());
}

/// The GPUs of pods with claims: one whole, one of two containers, one in parts, one that nobody uses, and a pod that monitors all.
#[test]
fn the_demo_of_claims_has_allocations_budgets_and_a_pod_that_holds_nothing() {
    let exporter = Exporter::start(bare(&["--demo=dra"]));
    let (limit, over) = ("gpu_workload_memory_limit_bytes", "gpu_workload_memory_over_limit_seconds_total");
    let scrape = exporter.scrape_until("the time above a budget", |s| {
        s.value(over, &[("pod", "notebook-8"), ("source", "claim")]).is_some_and(|seconds| seconds > 0.0)
    });
    let line = |series: &Series| {
        ["gpu", "pod", "container", "claim", "device"].map(|name| series.label(name).unwrap().to_owned()).join(" ")
    };
    let mut held: Vec<_> = scrape.all("gpu_allocation_info").map(line).collect();
    held.sort();
    let expected = [
        "0 pretrain-0 trainer pretrain-0-gpu-x2k4f gpu-0",
        "1 chat-6c9d7 reranker chat-6c9d7-gpu-8rt2p gpu-1",
        "1 chat-6c9d7 server chat-6c9d7-gpu-8rt2p gpu-1",
        "2 notebook-3 jupyter notebook-3-part-m4n7q gpu-2",
        "2 notebook-8 jupyter notebook-8-part-w9z5c gpu-2",
        "3 debug-0 shell debug-0-gpu-k6v2h gpu-3",
    ];
    assert_eq!(held, expected);
    let gib = |gib: u64| Some((gib << 30) as f64);
    assert_eq!(["notebook-3", "notebook-8"].map(|pod| scrape.value(limit, &[("pod", pod)])), [gib(40), gib(20)]);
    assert_eq!((scrape.all(limit).count(), scrape.value(over, &[("pod", "notebook-3")])), (2, Some(0.0)));
    assert_eq!(scrape.value("gpu_memory_promised_bytes", &[("gpu", "2")]), gib(60));
    assert_eq!(scrape.all("gpu_memory_promised_bytes").count(), 1);
    let processes =
        |pod| scrape.all("gpu_workload_processes").filter(|series| series.label("pod") == Some(pod)).count();
    assert_eq!((processes("chat-6c9d7"), processes("debug-0"), processes("gpu-watch-zx7lq")), (2, 0, 0));
    assert!(exporter.terminate().success());
}
