//! The reports about workloads, on a simulated machine: the API, the file, `vram report`, and the epilog for Slurm.

mod epilog;

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use serde_json::Value;

use crate::faults::faults;
use crate::harness::{Exporter, Machine, Scrape, bare, ended, eventually, eventually_or, tool, tool_program};
use crate::small_disk;
use crate::web_config::pki::Pki;

const IDLE: &str = "[[gpu]]\nmodel = \"H200\"\ncount = 2\n";
const GIB: u64 = 1 << 30;
/// The memory of a context.
const CONTEXT: u64 = 520 << 20;
const MOST: u64 = 150_109_880_320;
const JOB: &str = "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0";

/// A process of job 77 with this pid on a GPU.
fn trainer(pid: u32, gpu: u32, memory: &str) -> String {
    format!(
        "[[process]]\npid = {pid}\ngpu = {gpu}\ncommand = [\"python3\", \"train.py\"]\nuser = \"ada\"\n\
         cgroup = \"{JOB}\"\nmemory = [{memory}]\n"
    )
}

/// Memory that grows after two seconds.
fn growing(first: u64, then: u64) -> String {
    format!(
        "{{ kind = \"constant\", value = \"{first}GiB\", for = \"2s\" }}, {{ kind = \"constant\", value = \"{then}GiB\" }}"
    )
}

fn reports(exporter: &Exporter, query: &str) -> Vec<Value> {
    exporter.json(&format!("/api/v1/reports{query}"))["reports"].as_array().unwrap().clone()
}

/// Waits until there is exactly one report about job 77, and it meets the condition.
fn report(exporter: &Exporter, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    eventually_or(what, || match &reports(exporter, "?job=77")[..] {
        [report] if wanted(report) => Ok(report.clone()),
        other => Err(format!("{other:?}")),
    })
}

fn is_in(state: &str) -> impl Fn(&Value) -> bool {
    move |report| report["state"] == state
}

/// `vram report` with these flags: its exit status, standard output and standard error.
fn ask(url: &str, flags: &[&str]) -> (i32, String, String) {
    let ended = ended(tool(&["report", &format!("--url={url}")]).args(flags));
    (ended.status.unwrap(), ended.out, ended.err)
}

fn url(exporter: &Exporter) -> String {
    format!("http://{}", exporter.address)
}

fn lines(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("reports.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The parts about GPU 0 and GPU 1, null if there is none. A report has them in the order of their first use.
fn of_both(report: &Value) -> [&Value; 2] {
    let gpus = report["gpus"].as_array().unwrap();
    [0, 1].map(|index| gpus.iter().find(|gpu| gpu["gpu"] == index).unwrap_or(&Value::Null))
}

#[test]
fn a_job_on_two_gpus_is_reported_as_the_scenario_has_it() {
    let machine = Machine::new(IDLE);
    let folder = tempfile::tempdir().unwrap();
    let path = format!("--recorder.reports-path={}", folder.path().display());
    let exporter = machine.export(&[&path, "--recorder.report-linger=1s"]);
    // A job is seen from its start if an earlier list of the GPU did not contain it.
    exporter.scrape_until("a list of each GPU", |s| s.all("gpu_memory_unattributed_bytes").count() == 2);
    machine.control(&format!("{}{}", trainer(501, 0, &growing(10, 130)), trainer(502, 1, &growing(40, 20))));
    let peak = 130 * GIB + CONTEXT;
    // Long enough that the time between a change and the list that shows it is a small part of the whole.
    let running = report(&exporter, "both GPUs have changed, and some seconds have passed", |report| {
        let [first, second] = of_both(report);
        first["peak_bytes"] == peak
            && second["last_bytes"] == 20 * GIB + CONTEXT
            && first["seconds_at_90_percent"].as_f64() > Some(4.0)
    });
    assert_eq!((&running["state"], running["end"].is_null()), (&"running".into(), true));
    machine.control("");
    let ended = report(&exporter, "the final report", is_in("ended"));
    assert_eq!(
        (&ended["workload"], &ended["kind"], &ended["job"]),
        (&"slurm:77".into(), &"slurm".into(), &"77".into())
    );
    assert_eq!((&ended["user"], &ended["processes"], &ended["simulated"]), (&"ada".into(), &2.into(), &true.into()));
    assert_eq!((&ended["seen_from_start"], &ended["exits"]), (&true.into(), &serde_json::json!([])));
    let number = |value: &Value| value.as_f64().unwrap();
    assert!((number(&ended["end"]) - number(&ended["start"]) - number(&ended["seconds"])).abs() < 0.01, "{ended}");
    let [first, second] = of_both(&ended);
    assert_eq!(ended["gpus"].as_array().unwrap().len(), 2, "{ended}");
    let truth = [(first, peak, peak, 10, 130), (second, 40 * GIB + CONTEXT, 20 * GIB + CONTEXT, 40, 20)];
    for (gpu, peak, last, early, late) in truth {
        assert_eq!((&gpu["peak_bytes"], &gpu["last_bytes"]), (&peak.into(), &last.into()), "{gpu}");
        assert_eq!((&gpu["allocatable_bytes"], &gpu["name"]), (&MOST.into(), &"NVIDIA H200".into()), "{gpu}");
        // However late a list was read: the mean lies between both levels, as far as the time at each of them says.
        let gib = (number(&gpu["mean_bytes"]) - CONTEXT as f64) / GIB as f64;
        assert!(gib > f64::from(early.min(late)) && gib < f64::from(early.max(late)), "{gpu}");
        assert!(gpu["samples"].as_u64() > Some(3), "{gpu}");
    }
    assert_eq!(
        (&second["advice_bytes"], &second["no_advice"]),
        (&(truth[1].1 * 115).div_ceil(100).into(), &Value::Null)
    );
    // The peak of the first one and its margin are more than the GPU has.
    assert!(first["advice_bytes"].is_null() && first["no_advice"].as_str().unwrap().contains("larger"), "{first}");
    // The second GPU was never nearly full, the first one from its growth on.
    let near = |gpu: &Value| [90, 95, 98].map(|level| number(&gpu[format!("seconds_at_{level}_percent")]));
    assert_eq!(near(second), [0.0; 3]);
    let (seconds, near, mean) = (number(&first["seconds"]), near(first), number(&first["mean_bytes"]));
    assert!(near[0] > 0.0 && near[0] < seconds && near[1..] == [0.0; 2], "{first}");
    let expected = (near[0] * 130.0 + (seconds - near[0]) * 10.0) * GIB as f64 / seconds + CONTEXT as f64;
    assert!((mean - expected).abs() < expected * 0.2, "{mean}, and its time near the end says {expected}: {first}");

    let written = eventually("the line in the file", || Some(lines(folder.path())).filter(|lines| !lines.is_empty()));
    assert_eq!(written, std::slice::from_ref(&ended));
    let (status, json, said) = ask(&url(&exporter), &["--job=77", "--format=json"]);
    assert_eq!((status, said.as_str(), json.lines().count()), (0, "", 1));
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), ended);
    let (status, text, _) = ask(&url(&exporter), &["--workload=slurm:77"]);
    assert_eq!(status, 0);
    for part in ["slurm:77, user ada", "SIMULATED", "2 processes", "peak 130.5 GiB of 139.8 GiB", "peak + 15 %"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert_eq!(exporter.scrape().value("vram_exporter_faults_total", &[("source", "recorder")]), Some(0.0));
}

#[test]
fn a_job_that_ends_at_the_limit_needs_more_than_its_peak_and_gets_no_number() {
    // 100 GiB of a server, 38 GiB of the job and two contexts leave 0.8 of 139.8 GiB.
    let machine = Machine::new(&format!(
        "[[gpu]]\nmodel = \"H200\"\n[[process]]\npid = 900\ngpu = 0\ncommand = [\"server\"]\nmemory = \"100GiB\"\n\
         cgroup = \"0::/system.slice/server.service\"\n{}start = \"3s\"\nend = \"12s\"\n",
        trainer(
            501,
            0,
            "{ kind = \"ramp\", from = \"1GiB\", to = \"38GiB\", for = \"5s\" }, { kind = \"constant\", value = \"38GiB\" }"
        )
    ));
    let exporter = machine.export(&[]);
    let ended = report(&exporter, "the report and its incident", |report| {
        report["state"] == "left" && report["gpus"][0]["incident"].is_string()
    });
    let gpu = &ended["gpus"][0];
    let peak = 38 * GIB + CONTEXT;
    assert_eq!((&gpu["ended_at_limit"], &gpu["needs_more_than_bytes"]), (&1.into(), &peak.into()), "{gpu}");
    let others = gpu["others_bytes"].as_u64().unwrap();
    assert!((100 * GIB + CONTEXT..100 * GIB + 2 * CONTEXT).contains(&others), "{gpu}");
    assert!(gpu["advice_bytes"].is_null() && gpu["advice_margin"].is_null(), "{gpu}");
    let id = gpu["incident"].as_str().unwrap();
    let incident = exporter.json(&format!("/api/v1/incidents/{id}"));
    assert_eq!((&incident["kind"], &incident["workload"]), (&"ended_at_peak".into(), &"slurm:77".into()), "{incident}");
    let labels = [("gpu", "0"), ("workload", "slurm:77"), ("kind", "slurm")];
    let short = |s: &Scrape| s.value("gpu_workload_memory_last_shortage_timestamp_seconds", &labels);
    let scrape = exporter.scrape_until("the shortage for other programs", |s| short(s).is_some());
    assert!((short(&scrape).unwrap() - incident["at"].as_f64().unwrap()).abs() < 0.01, "{incident}");
    let (status, text, _) = ask(&url(&exporter), &["--job=77"]);
    let sentence = format!(
        "ended at the memory limit once: needs more than 38.51 GiB; the rest of the device held 100.5 GiB; on the exporter's page: /?incident={id}"
    );
    assert!(status == 0 && text.contains(&sentence) && !text.contains("to request next time"), "{text}");
}

#[test]
fn reports_survive_the_exporter_which_says_what_it_did_not_see() {
    let machine = Machine::new(&format!("{IDLE}{}", trainer(501, 0, &growing(10, 30))));
    let folder = tempfile::tempdir().unwrap();
    let path = format!("--recorder.reports-path={}", folder.path().display());
    let first = machine.export(&[&path]);
    report(&first, "the growth", |report| report["gpus"][0]["peak_bytes"] == 30 * GIB + CONTEXT);
    assert!(first.terminate().success());
    let written = lines(folder.path());
    assert_eq!(written.len(), 1, "{written:?}");
    assert_eq!((&written[0]["state"], &written[0]["end"]), (&"exporter_stopped".into(), &Value::Null));
    let second = machine.export(&[&path]);
    let both = eventually_or("both reports", || match reports(&second, "?job=77") {
        both if both.len() == 2 => Ok(both),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(both[1], written[0]);
    assert_eq!((&both[0]["state"], &both[0]["seen_from_start"]), (&"running".into(), &false.into()));
    let (status, text, _) = ask(&url(&second), &["--job=77"]);
    assert!(status == 0 && text.contains("or earlier") && text.contains("when the exporter stopped"), "{text}");
}

#[test]
fn a_missing_reports_folder_is_a_fault_and_nothing_else() {
    let machine = Machine::new(&format!("{IDLE}{}", trainer(501, 0, &growing(10, 30))));
    let exporter = machine.export(&["--recorder.reports-path=/proc/self/none", "--recorder.report-linger=1s"]);
    assert_eq!(faults(&exporter.scrape(), "recorder", "unreadable"), 1.0);
    report(&exporter, "the job", is_in("running"));
    machine.control(
        "[[fault]]\ncall = [\"nvmlDeviceGetComputeRunningProcesses_v3\"]\nkind = \"error\"\ncode = \"UNKNOWN\"\n",
    );
    // Without lists, the report ends where the job was last seen.
    let ended = report(&exporter, "the final report", is_in("ended"));
    assert!(ended["gpus"][0]["peak_bytes"].as_u64() >= Some(10 * GIB), "{ended}");
    exporter.scrape_until("the fault", |s| faults(s, "recorder", "unwritable") >= 1.0);
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
    exporter.logged("check recorder.reports-path");
}

#[test]
fn a_full_disk_loses_reports_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(IDLE);
    let path = format!("--recorder.reports-path={}", folder.path().display());
    // The disk's only page is occupied.
    let flags = [&*path, "--recorder.report-linger=1s"];
    let Some(exporter) = small_disk::export(&machine, folder.path(), "echo >\"$0/occupied\"", &flags) else { return };
    machine.control(&trainer(501, 0, &growing(10, 30)));
    report(&exporter, "the job", is_in("running"));
    machine.control("");
    let kept = report(&exporter, "the final report", is_in("ended"));
    exporter.scrape_until("the fault", |s| faults(s, "recorder", "unwritable") >= 1.0);
    exporter.logged("No space left on device");
    let file = format!("/proc/{}/root{}/reports.jsonl", exporter.pid(), folder.path().display());
    assert_eq!(fs::read_to_string(file).unwrap(), "", "no part of a line is left");
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
    assert_eq!(reports(&exporter, "?job=77"), [kept], "it is still in memory");
}

#[test]
fn what_cannot_be_reported_is_said_with_the_way_out() {
    let exporter = Machine::built_in("idle-h200").export(&[]);
    let off = Machine::built_in("idle-h200").export(&["--recorder.max-memory-mib=0"]);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    // A server that accepts and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let [own, off, closed_url, silent] =
        [&exporter.address.to_string(), &off.address.to_string(), &closed, &silent.local_addr().unwrap().to_string()]
            .map(|address| format!("http://{address}"));
    for (url, flags, expected, words) in [
        (&own, &["--job=78"][..], 2, &["no report about job 78"][..]),
        (&closed_url, &["--job=78"], 1, &["--url", &closed]),
        // The exporter's own pages are not below this path.
        (&format!("{own}/other"), &["--job=78"], 1, &["is not a vram-exporter"]),
        (&own, &["--format=json"], 64, &["--job", "--help"]),
        (&off, &["--job=78"], 1, &["recorder.max-memory-mib is 0"]),
        (&silent, &["--job=78", "--timeout=1"], 1, &["did not answer within 1 s"]),
    ] {
        let (status, out, said) = ask(url, flags);
        assert_eq!((status, out.as_str(), said.lines().count()), (expected, "", 1), "{flags:?}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
    }
}

#[test]
fn the_energy_of_a_job_has_a_price_where_it_is_known() {
    let scenario =
        format!("{IDLE}{}utilization = 0.5\n", trainer(4300, 0, "{ kind = \"constant\", value = \"9GiB\" }"));
    let machine = Machine::new(&scenario);
    let exporter = machine.export(&["--telemetry.workload-energy=true"]);
    report(&exporter, "energy", |report| report["gpus"][0]["energy_joules"].as_f64() > Some(0.0));
    let flags = ["--job=77", "--price-per-kwh=0.30"];
    let (status, out, err) = ask(&url(&exporter), &flags);
    assert_eq!((status, err.as_str()), (0, ""));
    assert!(out.contains("kWh), by its share of SM time: an estimate\n"), "{out}");
    assert!(out.contains("  cost 0.0") && out.contains(" kWh at 0.3, by its share"), "{out}");
    let (_, out, _) = ask(&url(&exporter), &[&flags[..], &["--format=json"]].concat());
    let priced: Value = serde_json::from_str(&out).unwrap();
    let joules = priced["gpus"][0]["energy_joules"].as_f64().unwrap();
    assert_eq!(priced["energy_cost"].as_f64(), Some(joules / 3.6e6 * 0.3), "{out}");

    let without = machine.export(&[]);
    let plain = report(&without, "a report", |report| report["gpus"][0]["samples"].as_u64() > Some(1));
    assert_eq!(plain["gpus"][0].get("energy_joules"), None);
    let (status, out, _) = ask(&url(&without), &flags);
    assert!(status == 0 && out.contains("  cost unknown: ") && !out.contains("    energy "), "{out}");
}

#[test]
fn a_password_and_a_certificate_are_given_as_files() {
    let pki = Pki::new();
    let text =
        "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\nbasic_auth_users:\n  alice: '@alice@'\n";
    let flag = format!("--web.config.file={}", pki.config(text).display());
    let exporter = Exporter::start(bare(&["--nvml.library=/nonexistent/x.so.1", &flag]));
    let url = format!("https://localhost:{}", exporter.address.port());
    let with = |config: &str| {
        fs::write(pki.at("http.yml"), config).unwrap();
        ask(&url, &["--job=77", &format!("--http-config={}", pki.at("http.yml").display())])
    };
    let (status, _, said) = with("tls_config: {ca_file: ca.crt}\n");
    assert!(status == 1 && said.contains("--http-config"), "{said}");
    let user = "tls_config: {ca_file: ca.crt}\nbasic_auth: {username: alice, password_file: password}\n";
    fs::write(pki.at("password"), "wonderland\n").unwrap();
    let (status, _, said) = with(user);
    assert!(status == 2 && said.contains("no report about job 77"), "{said}");
    fs::write(pki.at("password"), "wrong\n").unwrap();
    let (status, _, said) = with(user);
    assert!(status == 1 && said.contains("password") && !said.contains("wrong"), "{said}");
    let (status, _, said) = with("tls_config: {ca_file: password}\n");
    assert!(status == 1 && said.contains("cannot be used"), "{said}");
}
