//! The recorder and its API, on a simulated machine: what it keeps, what it calls an incident, and what it refuses.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::faults::faults;
use crate::harness::{Answer, Exporter, Machine, Series, connect, eventually, eventually_or, until};
use crate::small_disk;

const NEIGHBOURS: &str = include_str!("../fixtures/scenarios/growing-neighbour.toml");

/// A real process on this machine that uses a simulated GPU for 15 s; then the GPU's list no longer contains it.
fn real_process(pid: u32) -> String {
    format!(
        "[[gpu]]\nmodel = \"H200\"\n\n[[process]]\ngpu = 0\npid = {pid}\nend = \"15s\"\ncommand = [\"train.py\"]\nmemory = \"1GiB\"\n"
    )
}

/// A process that holds memory, as an addition to a scenario.
fn holder(name: &str, memory: &str) -> String {
    format!("[[process]]\ngpu = 0\ncommand = [\"{name}\"]\nmemory = [{memory}]\n")
}

const IDLE: &str = "[[gpu]]\nmodel = \"H200\"\n";
const MOST: u64 = 150_109_880_320;

fn error(exporter: &Exporter, path: &str) -> (u16, String) {
    let answer = exporter.get(path).unwrap();
    let body: Value = serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{path}: {}", answer.body));
    (answer.status, body["error"].as_str().unwrap().to_owned())
}

/// The processes, once there are any: the exporter is ready before the process lane has listed anything.
fn listed(exporter: &Exporter, query: &str) -> Value {
    let is_listed = |found: &Value| found["processes"].as_array().is_some_and(|listed| !listed.is_empty());
    eventually("the processes", || Some(exporter.json(&format!("/api/v1/processes{query}"))).filter(is_listed))
}

fn incidents(exporter: &Exporter) -> Vec<Value> {
    exporter.json("/api/v1/incidents")["incidents"].as_array().unwrap().clone()
}

/// Waits for an incident of this kind, and for its completion if `complete` is true.
fn incident(exporter: &Exporter, kind: &str, complete: bool) -> Value {
    let id = eventually_or(&format!("an incident of the kind {kind}"), || {
        let found = incidents(exporter);
        let wanted = |listed: &&Value| listed["kind"] == kind && (!complete || listed["complete"] == true);
        let id = found.iter().find(wanted).map(|listed| listed["id"].as_str().unwrap().to_owned());
        id.ok_or_else(|| format!("{found:?}"))
    });
    exporter.json(&format!("/api/v1/incidents/{id}"))
}

fn kinds_of_events(exporter: &Exporter) -> Vec<String> {
    let events = exporter.json("/api/v1/events");
    events["events"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_training_that_ends_beside_a_growing_neighbour_is_an_incident_that_names_both() {
    let exporter = Machine::new(NEIGHBOURS).export(&[]);
    let incident = incident(&exporter, "ended_at_peak", true);
    let gib = |value: &Value| value.as_u64().unwrap() as f64 / f64::from(1 << 30);
    let processes = incident["processes"].as_array().unwrap();
    let names: Vec<_> = processes.iter().map(|process| process["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["train.py", "serve.py"]);
    // Each process also holds its context.
    assert!((78.0..79.0).contains(&gib(&processes[0]["used_bytes"])), "{incident}");
    assert!((60.0..61.0).contains(&gib(&processes[1]["used_bytes"])), "{incident}");
    assert_eq!(processes[0]["workload"], "slurm:77");
    assert_eq!(processes[0]["namespace_pid"], 7, "{incident}");
    assert!(processes[1]["namespace_pid"].is_null(), "it has only the pid that the exporter sees: {incident}");
    assert!(processes[0]["ended"]["by"].as_f64() > processes[0]["ended"]["after"].as_f64());
    assert_eq!(incident["grew_most"], serde_json::json!([processes[1]["pid"]]), "{incident}");
    let peak = &incident["peak"];
    let (used, left) = (peak["used_bytes"].as_u64().unwrap(), peak["left_bytes"].as_u64().unwrap());
    assert_eq!(used + left, MOST);
    assert!(used >= peak["listed_bytes"].as_u64().unwrap());
    let summary = incident["summary"].as_str().unwrap();
    assert!(summary.starts_with("train.py (pid ") && summary.contains("refused"), "{summary}");
    assert_eq!(incident["simulated"], true);

    let path = format!("/api/v1/incidents/{}", incident["id"].as_str().unwrap());
    let text = exporter.get(&format!("{path}?format=text")).unwrap();
    assert!(text.body.starts_with(summary) && text.body.contains("SIMULATED"), "{}", text.body);
    let trace = exporter.json(&format!("{path}?format=trace"));
    let traced = trace["traceEvents"].as_array().unwrap();
    let phases = |phase: &str| traced.iter().filter(|event| event["ph"] == phase).count();
    assert!(phases("C") > 10 && phases("i") > 2 && phases("M") == 7, "{trace}");
    for event in traced {
        assert!(event["ts"].as_f64().is_some_and(|ts| ts >= 0.0) && event["pid"].is_u64(), "{event}");
    }

    // The log and the metrics report the incident too.
    let log = exporter.log();
    assert!(log.contains("incident: train.py (pid "), "{log}");
    let left = |line: &str| line.contains("process left the GPU") && line.contains("workload=slurm:77");
    assert!(log.lines().any(left), "{log}");
    let scrape = exporter.scrape_until("the metric", |scrape| {
        scrape.value("gpu_memory_incidents_total", &[("gpu", "0"), ("kind", "ended_at_peak")]) == Some(1.0)
    });
    assert!(scrape.value("gpu_memory_last_incident_timestamp_seconds", &[("kind", "ended_at_peak")]).unwrap() > 1.7e9);
    let bytes = scrape.value("vram_exporter_recorder_bytes", &[]).unwrap();
    assert!(bytes > 0.0 && bytes < 16.0 * 1048576.0, "{bytes}");
    let expected = ["exporter_started", "driver_opened", "process_started", "process_ended", "incident", "reached"];
    let kinds = kinds_of_events(&exporter);
    assert!(expected.iter().all(|kind| kinds.iter().any(|seen| seen == kind)), "{kinds:?}");
}

const REUSED: &str = include_str!("../fixtures/scenarios/reused-pid.toml");

#[test]
fn an_incident_of_a_reused_pid_names_the_process_that_ended() {
    let exporter = Machine::new(REUSED).export(&[]);
    let incident = incident(&exporter, "ended_at_peak", true);
    let summary = incident["summary"].as_str().unwrap();
    assert!(summary.starts_with("attacker.py (pid 500, "), "{summary}");
    assert!(summary.contains("highest memory use, 19.51 GiB") && !summary.contains("victim.py"), "{summary}");
    let of_pid = |value: &Value| value["pid"] == 500;
    let names: Vec<_> = incident["processes"].as_array().unwrap().iter().filter(|holder| of_pid(holder)).collect();
    assert_eq!(names.len(), 2, "both are listed: {incident}");
    let history = exporter.json("/api/v1/history?of=processes");
    let started: Vec<_> = (history["series"].as_array().unwrap().iter())
        .filter(|series| of_pid(&series["process"]))
        .map(|series| series["started_at"].as_f64().unwrap())
        .collect();
    assert!(started.len() == 2 && started[0] != started[1], "{started:?}");
}

/// Seven full GPU instances of 10 GiB, whose jobs end one after the other.
fn full_instances() -> String {
    let devices = ["\"1g.10gb\""; 7].join(", ");
    let job = |n: u32| {
        let (pid, end) = (900 + n, 9_000 + 400 * n);
        format!(
            "[[process]]\npid = {pid}\nmig = {n}\nstart = \"2s\"\nend = \"{end}ms\"\ncommand = [\"t{n}\"]\n\
             memory = [{{ kind = \"ramp\", from = \"1GiB\", to = \"9450MiB\", for = \"3s\" }}, \
             {{ kind = \"constant\", value = \"9450MiB\" }}]\n"
        )
    };
    let jobs: String = (0..7).map(job).collect();
    format!("[[gpu]]\nmodel = \"H100\"\nmig = [{devices}]\n{jobs}")
}

#[test]
fn the_ends_of_jobs_on_seven_full_mig_devices_are_seven_incidents() {
    let exporter = Machine::new(&full_instances()).export(&[]);
    let ended = eventually_or("seven incidents", || {
        let all = incidents(&exporter);
        let ended: Vec<_> = all.iter().filter(|listed| listed["kind"] == "ended_at_peak").cloned().collect();
        if ended.len() == 7 { Ok(ended) } else { Err(format!("{all:?}")) }
    });
    let devices: std::collections::BTreeSet<_> =
        ended.iter().map(|listed| listed["mig_uuid"].as_str().unwrap().to_owned()).collect();
    assert_eq!(devices.len(), 7, "{ended:?}");
    let of_ends = |sample: &&Series| sample.label("kind") == Some("ended_at_peak");
    let scrape =
        exporter.scrape_until("seven counters", |s| s.all("gpu_memory_incidents_total").filter(of_ends).count() == 7);
    for uuid in devices {
        let labels = [("mig_uuid", uuid.as_str()), ("kind", "ended_at_peak"), ("profile", "1g.10gb")];
        assert_eq!(scrape.value("gpu_memory_incidents_total", &labels), Some(1.0), "{uuid}");
        let full = [("mig_uuid", uuid.as_str()), ("ratio", "0.95")];
        let seconds = scrape.value("gpu_mig_memory_pressure_seconds_total", &full);
        assert!(seconds.is_some_and(|seconds| seconds > 0.0), "{uuid}: {seconds:?}");
    }
}

const HALVES: &str = include_str!("../fixtures/scenarios/full-mig-halves.toml");

#[test]
fn an_incident_on_a_mig_device_does_not_show_the_neighbour() {
    let exporter = Machine::new(HALVES).export(&[]);
    let incident = incident(&exporter, "ended_at_peak", true);
    let summary = incident["summary"].as_str().unwrap();
    assert!(summary.contains("; MIG device 3g.40gb (GPU instance "), "{summary}");
    assert!(summary.starts_with("tenant.py (pid 101, ") && !summary.contains("neighbour.py"), "{summary}");
    let names: Vec<_> = incident["processes"].as_array().unwrap().iter().map(|holder| &holder["name"]).collect();
    assert_eq!(names, ["tenant.py"]);
    let allocatable = incident["gpu"]["allocatable_bytes"].as_u64().unwrap();
    assert!(allocatable < 40 << 30 && incident["peak"]["used_bytes"].as_u64().unwrap() <= allocatable, "{incident}");
}

#[test]
fn a_spike_of_a_few_milliseconds_is_in_the_history() {
    let spike = r#"{ kind = "spike", base = "20GiB", peak = "100GiB", hold = "30ms", every = "500ms" }"#;
    let exporter = Machine::new(&format!("{IDLE}{}", holder("spiky", spike))).export(&[]);
    eventually_or("both levels in one part of the history", || {
        let history = exporter.json("/api/v1/history?step=60");
        let points = history["series"][0]["memory"]["points"].as_array().cloned().unwrap_or_default();
        let is_band = |point: &&Value| point[1].as_u64() < Some(30 << 30) && point[2].as_u64() > Some(99 << 30);
        points.iter().find(is_band).map(drop).ok_or_else(|| format!("{points:?}"))
    });
    let fine = exporter.json("/api/v1/history?of=gpus&step=0.01");
    assert!(fine["series"][0]["memory"]["points"].as_array().unwrap().len() <= 2001);
    assert_eq!(fine["series"][0]["allocatable_bytes"], MOST);
    let processes = exporter.json("/api/v1/history?of=processes");
    assert_eq!(processes["series"][0]["process"]["name"], "spiky");
    let workloads = exporter.json("/api/v1/history?of=workloads");
    assert_eq!(workloads["series"].as_array().unwrap().len(), 1);
    let all = exporter.json("/api/v1/history?of=all");
    let kind = |series: &Value| match (&series["process"], &series["workload"]) {
        (Value::Null, Value::Null) => "gpu",
        (_, Value::Null) => "process",
        _ => "workload",
    };
    assert_eq!(all["series"].as_array().unwrap().iter().map(kind).collect::<Vec<_>>(), ["gpu", "process", "workload"]);
    assert_eq!((&all["more_series"], &all["more_workloads"]), (&0.into(), &0.into()));
    let other = exporter.json("/api/v1/history?uuid=GPU-none");
    assert_eq!(other["series"], serde_json::json!([]));
}

#[test]
fn the_machine_is_described_with_units_and_without_what_is_unknown() {
    let exporter = Machine::built_in("mig-h100").export(&[]);
    let gpus = exporter.json("/api/v1/gpus");
    assert_eq!((gpus["version"].as_u64(), gpus["simulated"].as_bool()), (Some(1), Some(true)));
    assert!(gpus["gpus"][0]["mig_devices"].as_array().unwrap().len() == 7, "{gpus}");
    assert!(gpus["gpus"][0]["mig_devices"][0]["used_bytes"].is_u64());
    // The ids are those of the labels, and the history names each device with the same ones.
    let labels: Vec<Value> = exporter
        .scrape()
        .all("gpu_mig_memory_used_bytes")
        .map(|sample| {
            let of = |name| sample.label(name).unwrap();
            let id = |name| of(name).parse::<u64>().unwrap();
            serde_json::json!([of("mig_uuid"), id("gpu_instance"), id("compute_instance"), of("profile")])
        })
        .collect();
    assert_eq!(labels.len(), 7);
    let ids =
        |uuid: &Value, of: &Value| serde_json::json!([uuid, of["gpu_instance"], of["compute_instance"], of["profile"]]);
    let devices = gpus["gpus"][0]["mig_devices"].as_array().unwrap();
    let recorded = eventually("the history of each device", || {
        let history = exporter.json("/api/v1/history?of=gpus");
        let all = history["series"].as_array().unwrap().iter();
        let found: Vec<Value> = all.filter(|series| series["mig_uuid"].is_string()).cloned().collect();
        (found.len() == 7).then_some(found)
    });
    for (position, label) in labels.iter().enumerate() {
        assert!(devices.iter().any(|device| ids(&device["uuid"], device) == *label), "{position}: {label} in {gpus}");
        assert!(recorded.iter().any(|series| ids(&series["mig_uuid"], series) == *label), "{label} in {recorded:?}");
    }
    let processes = listed(&exporter, "?limit=1");
    assert_eq!(processes["processes"].as_array().unwrap().len(), 1);
    assert!(processes["more_processes"].as_u64() > Some(0));
    until("the workloads", || !exporter.json("/api/v1/workloads")["workloads"].as_array().unwrap().is_empty());
    let none = Exporter::start(crate::harness::bare(&["--nvml.library=/nowhere/libnvidia-ml.so.1"]));
    let gpus = eventually("the problem", || {
        Some(none.json("/api/v1/gpus")).filter(|gpus| gpus["driver"]["problem"].is_string())
    });
    assert_eq!((gpus["driver"]["up"].as_bool(), gpus["gpus"].as_array().map(Vec::len)), (Some(false), Some(0)));
    assert_eq!(incidents(&none), Vec::<Value>::new());
}

#[test]
fn a_lost_gpu_and_a_memory_xid_are_incidents_and_the_return_is_an_event() {
    let machine = Machine::new(&format!("{IDLE}{}", holder("job", r#"{ kind = "constant", value = "20GiB" }"#)));
    let exporter = machine.export(&["--memory.stale-after=2s"]);
    machine.control("[[xid]]\ngpu = 0\nat = \"0s\"\nevery = \"100ms\"\ncode = 48\n");
    let xid = incident(&exporter, "memory_xid", false);
    assert!(xid["summary"].as_str().unwrap().contains("Xid 48 (memory error"), "{xid}");
    machine.control("[[fault]]\ncall = \"*\"\ngpu = 0\nkind = \"error\"\ncode = \"GPU_IS_LOST\"\n");
    let lost = incident(&exporter, "gpu_lost", false);
    assert!(lost["summary"].as_str().unwrap().contains("stopped responding"), "{lost}");
    machine.control("");
    eventually_or("the event of the return", || {
        let kinds = kinds_of_events(&exporter);
        kinds.iter().any(|kind| kind == "gpu_back").then_some(()).ok_or_else(|| format!("{kinds:?}"))
    });
}

#[test]
fn wrong_parameters_are_refused_with_the_way_out() {
    let exporter = Machine::built_in("idle-h200").export(&[]);
    for (path, says) in [
        ("/api/v1/history?of=cards", "of: must be gpus, processes, workloads or all"),
        ("/api/v1/history?from=yesterday", "from: must be a number from 0"),
        ("/api/v1/history?from=nan", "from: must be a number"),
        ("/api/v1/history?step=0", "step: must be a number from 0.01 to 3600"),
        ("/api/v1/history?from=20&to=10", "from: must be before to"),
        ("/api/v1/history?begin=1", "unknown parameter; known parameters: of, from, to, step, uuid"),
        ("/api/v1/history?step=1&step=2", "a parameter is given twice"),
        ("/api/v1/events?limit=0", "limit: must be a number from 1 to 4096"),
        ("/api/v1/gpus?limit=1", "this path has no parameters"),
        (&format!("/api/v1/gpus?{}", "x".repeat(2000)), "at most 1024 bytes"),
    ] {
        let (status, why) = error(&exporter, path);
        assert_eq!(status, 400, "{path}");
        assert!(why.contains(says), "{path}: {why}");
    }
    let (status, why) = error(&exporter, "/api/v1/incidents/..%2f..%2fetc%2fpasswd");
    assert!(status == 404 && why.contains("/api/v1/incidents"), "{why}");
    until("the first sample", || exporter.json("/api/v1/history")["series"][0].is_object());
    // Requests for times without records, or for times far out of range, succeed too.
    for range in ["from=0&to=1", "from=1e10&to=2e10", "from=0&to=1e11", "to=0.5"] {
        let history = exporter.json(&format!("/api/v1/history?{range}"));
        assert!(history["series"][0]["memory"]["points"].as_array().unwrap().len() <= 2001, "{range}");
    }
}

/// Sends a POST with these header lines, and returns the status and the body.
fn post(exporter: &Exporter, head: &str) -> (u16, String) {
    let answer = Answer::ask(connect(exporter.address).unwrap(), "POST", "/api/v1/incidents", head).unwrap();
    (answer.status, answer.body)
}

#[test]
fn an_incident_is_recorded_on_request_only_for_those_who_authenticate() {
    let open = Machine::built_in("busy-h200").export(&[]);
    let (status, body) = post(&open, "");
    assert!(status == 403 && body.contains("web.config-file"), "{body}");
    let machine = Machine::built_in("busy-h200");
    let file = machine.folder.path().join("web-config.yml");
    fs::write(&file, format!("basic_auth_users:\n  alice: {}\n", bcrypt::hash("wonderland", 4).unwrap())).unwrap();
    let exporter = Exporter::start(machine.command(&[&format!("--web.config-file={}", file.display())]));
    // alice:wonderland
    let alice = "Authorization: Basic YWxpY2U6d29uZGVybGFuZA==\r\n";
    assert_eq!(post(&exporter, "").0, 401);
    assert_eq!(post(&exporter, "Authorization: Basic YWxpY2U6d3Jvbmc=\r\n").0, 401);
    let (status, body) = post(&exporter, &format!("{alice}Sec-Fetch-Site: cross-site\r\n"));
    assert!(status == 403 && body.contains("another site"), "{body}");
    let body = eventually("the first sample", || Some(post(&exporter, alice)).filter(|(status, _)| *status == 201)).1;
    let recorded: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((recorded["kind"].as_str(), recorded["complete"].as_bool()), (Some("on_demand"), Some(false)));
    let again: Value = serde_json::from_str(&post(&exporter, alice).1).unwrap();
    assert_eq!(again["id"], recorded["id"], "within ten seconds it is the same incident");
}

#[test]
fn without_a_recorder_there_is_no_history_and_no_metric_of_it() {
    let exporter = Machine::built_in("busy-h200").export(&["--recorder.max-memory-mib=0"]);
    for path in ["history", "events", "incidents", "incidents/x"] {
        let (status, why) = error(&exporter, &format!("/api/v1/{path}"));
        assert!(status == 404 && why.contains("recorder.max-memory-mib is 0"), "{path}: {why}");
    }
    listed(&exporter, "");
    assert!(exporter.scrape().names().iter().all(|name| !name.contains("recorder") && !name.contains("incident")));
}

#[test]
fn incidents_survive_the_exporter_and_its_crash() {
    let machine = Machine::new(NEIGHBOURS);
    let folder = tempfile::tempdir().unwrap();
    let path = format!("--recorder.path={}", folder.path().display());
    let exporter = machine.export(&[&path]);
    let before = incident(&exporter, "ended_at_peak", false);
    // The file is written as soon as the incident is known, and again when the incident is complete.
    let files = || fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    until("the file", || files().any(|name| name.to_string_lossy().contains("ended_at_peak")));
    exporter.signal(nix::sys::signal::Signal::SIGKILL);
    drop(exporter);
    fs::write(folder.path().join("incident-cut.json.partial"), "{\"version\"").unwrap();
    let after = Machine::built_in("idle-h200").export(&[&path]);
    let restored = after.json(&format!("/api/v1/incidents/{}", before["id"].as_str().unwrap()));
    let summary = restored["summary"].as_str().unwrap();
    assert!(summary.starts_with(before["summary"].as_str().unwrap()), "{summary}");
    assert_eq!(restored["processes"][0]["pid"], before["processes"][0]["pid"]);
    // If it was killed within the ten seconds, the incident says so, and is not shown as if it were still recorded.
    let is_cut = restored["interrupted"] == true;
    assert_eq!((&restored["complete"], summary.contains("The exporter ended")), (&true.into(), is_cut));
    assert!(!folder.path().join("incident-cut.json.partial").exists());
    assert_eq!(after.scrape().value("vram_exporter_faults_total", &[("source", "recorder")]), Some(0.0));
}

/// A process that swings between 94 and 99 % of its own GPU, beside a GPU that is lost.
#[test]
fn a_swinging_process_leaves_the_incident_of_another_gpu_alone() {
    let swings = r#"{ kind = "spike", base = "130GiB", peak = "138GiB", hold = "1s", every = "2s" }"#;
    let machine = Machine::new(&format!("[[gpu]]\nmodel = \"H200\"\ncount = 2\n{}", holder("swing.py", swings)));
    let folder = tempfile::tempdir().unwrap();
    let exporter = machine.export(&[&format!("--recorder.path={}", folder.path().display())]);
    incident(&exporter, "near_limit", true);
    machine.control("[[fault]]\ncall = \"*\"\ngpu = 1\nkind = \"error\"\ncode = \"GPU_IS_LOST\"\n");
    let lost = incident(&exporter, "gpu_lost", false);
    eventually_or("a repeat", || {
        let found = incidents(&exporter);
        let repeated = |of: &Value| of["count"].as_u64() > Some(1) && of["last_at"].as_f64() > of["at"].as_f64();
        found.iter().any(repeated).then_some(()).ok_or(format!("{found:?}"))
    });
    let found = incidents(&exporter);
    assert_eq!(found.iter().filter(|listed| listed["kind"] == "near_limit").count(), 1, "{found:?}");
    assert!(found.iter().any(|listed| listed["id"] == lost["id"]), "{found:?}");
    exporter.scrape_until("each moment is counted", |scrape| {
        scrape.value("gpu_memory_incidents_total", &[("gpu", "0"), ("kind", "near_limit")]) >= Some(2.0)
    });
}

/// Waits until an incident could not be written, for a reason that the log names.
fn assert_unwritable(exporter: &Exporter, why: &str) {
    exporter.scrape_until("the fault", |scrape| faults(scrape, "recorder", "unwritable") >= 1.0);
    exporter.logged(why);
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
}

#[test]
fn a_folder_that_cannot_be_written_is_a_fault_and_nothing_else() {
    let exporter = Machine::new(NEIGHBOURS).export(&["--recorder.path=/proc/self/no-such-folder"]);
    incident(&exporter, "ended_at_peak", false);
    assert_unwritable(&exporter, "check recorder.path");
}

#[test]
fn a_full_disk_loses_incidents_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(NEIGHBOURS);
    let path = format!("--recorder.path={}", folder.path().display());
    // The disk is too small for any incident.
    let Some(exporter) = small_disk::export(&machine, folder.path(), ":", &[&path]) else { return };
    let kept = incident(&exporter, "ended_at_peak", true);
    assert_unwritable(&exporter, "No space left on device");
    assert!(kept.to_string().len() > 4096, "it would have fitted");
    let seen_inside = format!("/proc/{}/root{}", exporter.pid(), folder.path().display());
    let files = || -> Vec<_> { fs::read_dir(&seen_inside).unwrap().map(|entry| entry.unwrap().file_name()).collect() };
    eventually_or("nothing is left of it", || if files().is_empty() { Ok(()) } else { Err(format!("{:?}", files())) });
    assert_eq!(incident(&exporter, "ended_at_peak", true)["id"], kept["id"], "it is still in memory");
}

#[test]
fn hostile_names_reach_the_log_and_the_text_without_control_characters() {
    let machine = Machine::built_in("hostile-names");
    let exporter = machine.export(&[]);
    until("the processes", || exporter.json("/api/v1/processes")["processes"].as_array().unwrap().len() > 3);
    let answer = exporter.get("/api/v1/processes").unwrap();
    assert!(!answer.body.contains('\u{1b}'), "JSON escapes them");
    let log = exporter.log();
    assert!(!log.contains('\u{1b}') && !log.contains('\u{202E}'), "{log:?}");
}

#[test]
fn the_end_of_a_process_says_how_it_ended() {
    let mut child = Command::new("sh").args(["-c", "read line; exit 7"]).stdin(Stdio::piped()).spawn().unwrap();
    let exporter = Machine::new(&real_process(child.id())).export(&["--path.procfs=/proc"]);
    let ended = || exporter.json("/api/v1/processes")["processes"].as_array().unwrap()[..].first().cloned();
    eventually("the process is listed", || ended().filter(|process| process["first_seen_at"].is_number()));
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(7));
    eventually("the process has left the GPU", || ended().filter(|process| process["alive"] == false));
    exporter.logged("process left the GPU");
    let (process, events) = (ended().unwrap(), exporter.json("/api/v1/events"));
    let event = events["events"].as_array().unwrap().iter().find(|event| event["kind"] == "process_ended").unwrap();
    if process["exit_status"].is_null() {
        workspace_skips::skipped("this kernel does not report how a process ended");
        assert!(event["exit_status"].is_null() && !exporter.log().contains("exit_status"), "{event}");
        return;
    }
    assert_eq!((&process["exit_status"], &event["exit_status"]), (&7.into(), &7.into()));
    assert!(process["peak_at"].as_f64() >= process["first_seen_at"].as_f64(), "{process}");
    exporter.logged("exit_status=7");
}
