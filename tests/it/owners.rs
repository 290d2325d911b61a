//! The owners of GPU memory, on a simulated machine through the real binary: workloads in every environment, reused
//! pids, invisible processes, and hundreds of processes that start and end.

use std::time::{Duration, Instant};

use crate::faults::faults;
use crate::harness::{Exporter, Machine, Scrape, eventually, inside, pid_namespace};

const GIB: f64 = (1u64 << 30) as f64;
/// Bytes of GPU memory that a context takes.
const CONTEXT: f64 = 520.0 * (1u64 << 20) as f64;
const A: &str = "aaaaaaaaaaaa1111111111111111111111111111111111111111111111111111";
const ALLOCATION: &str = "4744f0ea-7616-ab3a-a420-8e25056e3861";
/// A YARN container.
const YARN: &str = "container_e17_1410901177871_0001_01_000005";
const B: &str = "bbbbbbbbbbbb2222222222222222222222222222222222222222222222222222";

/// A process on a machine with one H200.
fn process(pid: u32, gib: u32, more: &str) -> String {
    format!("[[process]]\npid = {pid}\nmemory = \"{gib}GiB\"\n{more}\n")
}

fn machine(processes: &[String]) -> Machine {
    Machine::new(&format!("seed = 3\n[[gpu]]\nmodel = \"H200\"\n{}", processes.concat()))
}

fn workload(scrape: &Scrape, family: &str, name: &str) -> Option<f64> {
    scrape.value(&format!("gpu_workload_{family}"), &[("workload", name)])
}

#[test]
fn each_environment_gives_its_workload_and_its_kind() {
    let user = |uid: u32, user: &str| format!("uid = {uid}\nuser = \"{user}\"\n");
    let at = |cgroup: &str| format!("cgroup = \"{cgroup}\"\n");
    let rootless = "user-1001.slice/user@1001.service/user.slice";
    let pod =
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1d5c7a0e_52f1_4b55_9f0e_6a2b8c3d4e5f.slice";
    let scrape = machine(&[
        process(11, 1, &at(&format!("0::/system.slice/docker-{A}.scope"))),
        process(12, 2, &at(&format!("0::/{pod}/cri-containerd-{B}.scope"))),
        process(13, 3, &(at("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0") + &user(1001, "ada"))),
        process(14, 4, &(at("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_1") + &user(1001, "ada"))),
        process(15, 5, &at("0::/system.slice/ollama.service")),
        process(16, 6, &(at("0::/user.slice/user-1001.slice/session-3.scope") + &user(1001, "ada"))),
        process(
            17,
            7,
            &(at("0::/user.slice/user-1001.slice/user@1001.service/app.slice/jupyter.service") + &user(1001, "ada")),
        ),
        // A rootless container: uid 1000 of the image is 100999 outside. `sudo python` of the same user.
        process(25, 1, &(at(&format!("0::/user.slice/{rootless}/libpod-{A}.scope/container")) + "uid = 100999\n")),
        process(26, 2, &(at("0::/user.slice/user-1001.slice/session-7.scope") + &user(0, "root"))),
        process(18, 1, &(at("0::/pbs_jobs.service/jobs/12345.head/child") + &user(1001, "ada"))),
        process(19, 2, &(at("0::/pbs_jobs.service/jobs/12346.head/child") + &user(1001, "ada"))),
        process(20, 3, &at("0::/system.slice/htcondor/condor_execute_slot1_2@node")),
        process(21, 4, &at(&format!("0::/nomad.slice/share.slice/{ALLOCATION}.train.scope"))),
        process(23, 6, &(at("0::/oar.slice/oar-u1001.slice/oar-u1001-j4242.slice/a.scope") + &user(1001, "ada"))),
        process(24, 7, &at(&format!("0::/hadoop-yarn/{YARN}"))),
        process(22, 5, &at("0::/system.slice/garden.service/garden/6f265890-5165-7fab-6b52-18d1")),
    ])
    .once(&[]);
    let found: Vec<_> = scrape
        .all("gpu_workload_memory_used_bytes")
        .map(|s| {
            let name = s.label("workload").unwrap();
            let processes = workload(&scrape, "processes", name).unwrap();
            (name.to_owned(), s.label("kind").unwrap().to_owned(), processes, (s.value - processes * CONTEXT) / GIB)
        })
        .collect();
    let expected = [
        ("container:6f265890-5165-7fab-6b52-18d1", "container", 1.0, 5.0),
        ("container:aaaaaaaaaaaa", "container", 1.0, 1.0),
        ("container:bbbbbbbbbbbb", "container", 1.0, 2.0),
        ("htcondor:slot1_2@node", "job", 1.0, 3.0),
        (&format!("nomad:{ALLOCATION}.train"), "job", 1.0, 4.0),
        ("oar:4242", "job", 1.0, 6.0),
        ("pbs:12345", "job", 1.0, 1.0),
        ("pbs:12346", "job", 1.0, 2.0),
        ("slurm:42", "slurm", 2.0, 7.0),
        ("unit:ollama.service", "systemd", 1.0, 5.0),
        ("user:ada", "user", 4.0, 16.0),
        (&format!("yarn:{YARN}"), "job", 1.0, 7.0),
    ];
    let expected = expected.map(|(name, kind, processes, gib)| (name.to_owned(), kind.to_owned(), processes, gib));
    assert_eq!(found, expected);
    let info = |pid: &str, label: &str| {
        let series = scrape.all("gpu_process_info").find(|s| s.label("pid") == Some(pid)).unwrap();
        series.label(label).map(str::to_owned)
    };
    assert_eq!(info("12", "pod_uid").as_deref(), Some("1d5c7a0e-52f1-4b55-9f0e-6a2b8c3d4e5f"));
    assert_eq!(info("12", "container_id").as_deref(), Some(B));
    assert_eq!(info("13", "slurm_step").as_deref(), Some("0"));
    assert_eq!((info("13", "scheduler"), info("13", "job_id")), (None, None), "Slurm has labels of its own");
    assert_eq!((info("18", "scheduler").as_deref(), info("18", "job_id").as_deref()), (Some("pbs"), Some("12345")));
    assert_eq!((info("24", "scheduler").as_deref(), info("24", "job_id").as_deref()), (Some("yarn"), Some(YARN)));
    assert_eq!(info("20", "job_id").as_deref(), Some("slot1_2@node"));
    assert_eq!(info("17", "unit").as_deref(), Some("jupyter.service"));
    assert_eq!(info("12", "pod"), None, "no API server is configured");
    let uids = [info("25", "uid"), info("26", "uid")];
    assert_eq!(uids, ["100999", "0"].map(|uid| Some(uid.to_owned())), "the processes keep their own");
}

#[test]
fn a_pid_reused_in_another_container_never_shows_the_old_owner() {
    const SWITCHES: usize = 12;
    // One pid, used alternately by two containers, for 400 ms each.
    let turn = |start: &str, end: &str, id: &str, script: &str| {
        format!(
            "start = \"{start}\"\nend = \"{end}\"\nrepeat = \"800ms\"\ncommand = [\"python3\", \"{script}\"]\n\
             cgroup = \"0::/system.slice/docker-{id}.scope\"\n"
        )
    };
    let machine = machine(&[
        process(4242, 1, &turn("0ms", "400ms", A, "a.py")),
        process(4242, 3, &turn("400ms", "800ms", B, "b.py")),
    ]);
    let exporter = machine.export(&[]);
    let truth = [
        ("a.py", "container:aaaaaaaaaaaa", A, GIB + CONTEXT),
        ("b.py", "container:bbbbbbbbbbbb", B, 3.0 * GIB + CONTEXT),
    ];
    let mut seen: Vec<String> = Vec::new();
    let begin = Instant::now();
    while seen.len() < SWITCHES {
        assert!(begin.elapsed() < Duration::from_secs(60), "only {seen:?}");
        let scrape = exporter.scrape();
        let mut alive = Vec::new();
        for (script, name, id, bytes) in truth {
            let families = ["used_bytes", "window_peak_bytes", "peak_bytes"];
            for family in families {
                let own = scrape.value(&format!("gpu_process_memory_{family}"), &[("process", script)]);
                assert!(own.is_none_or(|own| own == bytes), "{script} {family}: {own:?}");
                let sum = workload(&scrape, &format!("memory_{family}"), name);
                assert!(sum.is_none_or(|sum| sum == bytes), "{name} {family}: {sum:?}");
            }
            let info = scrape.all("gpu_process_info").find(|s| s.label("process") == Some(script));
            assert!(info.is_none_or(|s| s.label("container_id") == Some(id)), "{info:?}");
            if scrape.value("gpu_process_memory_used_bytes", &[("process", script)]).is_some() {
                alive.push(script);
            }
        }
        assert!(alive.len() <= 1, "one pid, two living processes");
        if let [script] = alive[..]
            && seen.last().is_none_or(|last| last != script)
        {
            seen.push(script.to_owned());
        }
    }
}

#[test]
fn an_invisible_process_is_distinguished_from_one_that_ended() {
    let machine = machine(&[process(31, 1, ""), process(32, 2, "")]);
    // No process has a folder in this procfs, as if all were in another pid namespace.
    let exporter = machine.export(&["--path.procfs=/nonexistent"]);
    let hidden = |s: &Scrape| s.value("vram_exporter_processes_invisible", &[("gpu", "0")]);
    let scrape = exporter.scrape_until("both are counted as invisible", |s| hidden(s) == Some(2.0));
    assert_eq!(scrape.value("gpu_process_memory_used_bytes", &[("pid", "31")]), Some(GIB + CONTEXT));
    assert!(scrape.all("gpu_process_memory_used_bytes").all(|s| s.label("process").is_none()));
    assert_eq!(scrape.all("gpu_workload_processes").count(), 0, "they have no workload");
    let logged = || exporter.log().matches("invisible").count();
    exporter.logged("invisible");
    machine.control(&process(33, 1, ""));
    exporter.scrape_until("a third", |s| hidden(s) == Some(3.0));
    assert_eq!(logged(), 1, "once, not for each process: {}", exporter.log());
    exporter.logged("pid namespace");

    let ended = machine.export(&[]);
    ended.scrape_until("all are seen", |s| s.all("gpu_workload_processes").map(|s| s.value).sum::<f64>() == 3.0);
    machine.control("");
    let scrape =
        ended.scrape_until("one ended", |s| s.all("gpu_workload_processes").map(|s| s.value).sum::<f64>() == 2.0);
    assert_eq!(hidden(&scrape), Some(0.0));
    assert!(scrape.value("gpu_process_memory_peak_bytes", &[("pid", "33")]).is_some(), "it lingers");
}

#[test]
fn in_a_pid_namespace_the_hosts_proc_identifies_no_process() {
    let Some(namespace) = pid_namespace() else { return };
    // In the exporter's namespace this pid does not exist; in the machine's procfs it is this test.
    let stranger = std::process::id();
    let machine = machine(&[process(stranger, 11, "")]);
    let exporter = Exporter::start(inside(namespace, &machine.command(&["--path.procfs=/proc"])));
    let hidden = |s: &Scrape| s.value("vram_exporter_processes_invisible", &[("gpu", "0")]);
    let scrape = exporter.scrape_until("it is invisible", |s| hidden(s) == Some(1.0));
    let pid = stranger.to_string();
    assert_eq!(scrape.value("gpu_process_memory_used_bytes", &[("pid", &pid)]), Some(11.0 * GIB + CONTEXT));
    assert!(scrape.all("gpu_process_info").all(|s| s.label("process").is_none() && s.label("user").is_none()));
    assert_eq!(scrape.all("gpu_workload_processes").count(), 0);
    assert!(faults(&scrape, "attribution", "foreign_procfs") >= 1.0);
    exporter.logged("a different pid namespace");

    let outside = machine.export(&["--path.procfs=/proc"]);
    outside.scrape_until("its name", |s| {
        s.all("gpu_process_info").any(|s| s.label("pid") == Some(&pid) && s.label("process").is_some())
    });
}

#[test]
fn hundreds_of_short_processes_leave_a_bounded_number_of_series() {
    const LIMIT: usize = 12;
    // 20 at a time, each with its own pid, for 100 ms each: 200 a second.
    let short = "[[process]]\ncount = 20\nstart = \"0s\"\nend = \"100ms\"\nrepeat = \"101ms\"\nmemory = \"64MiB\"\n\
                 cgroup = \"0::/system.slice/job-{n}.service\"\n";
    let machine = machine(&[short.to_owned()]);
    let exporter = machine.export(&[&format!("--process.series-limit={LIMIT}"), "--process.linger=10m"]);
    let mut pids = std::collections::HashSet::new();
    eventually("300 processes have started and ended", || {
        let scrape = exporter.scrape();
        pids.extend(scrape.all("gpu_process_memory_used_bytes").filter_map(|s| s.label("pid").map(str::to_owned)));
        for family in ["gpu_process_memory_peak_bytes", "gpu_process_info", "gpu_workload_memory_peak_bytes"] {
            assert!(scrape.all(family).count() <= LIMIT, "{family}");
        }
        (pids.len() >= 300).then_some(())
    });
    let without = machine.export(&["--process.series=false"]);
    let scrape = without.scrape_until("workloads", |s| s.all("gpu_workload_memory_peak_bytes").count() > 0);
    assert!(scrape.series.iter().all(|s| s.label("pid").is_none() && !s.name.starts_with("gpu_process_")));
}
