//! `vram advise` against a double of Prometheus' API. `tests/judges/advise` asks a real Prometheus.

mod prometheus_double;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use serde_json::{Value, json};

use self::prometheus_double::{Double, Recorded, Reply};
use crate::harness::{ended, tool};
use crate::web_config::pki::Pki;

const END: u64 = 1_764_000_000;
const GIB: u64 = 1 << 30;

/// `vram advise` with these flags: its exit status, standard output and standard error.
fn advise(url: &str, flags: &[&str]) -> (i32, String, String) {
    let mut command = tool(&["advise", &format!("--prometheus.url={url}")]);
    if !flags.iter().any(|flag| flag.starts_with("--time=")) {
        command.arg(format!("--time={END}"));
    }
    let ended = ended(command.args(flags));
    (ended.status.unwrap(), ended.out, ended.err)
}

fn failed(url: &str, flags: &[&str]) -> String {
    let (status, out, said) = advise(url, flags);
    assert_eq!((status, out.as_str(), said.lines().count()), (1, "", 1), "{said}");
    assert!(!said.contains('\u{1b}') && !said.contains("secret"), "{said}");
    said
}

/// Answers about a workload of 16 GiB on an H200, and about another one whose clients report.
fn fleet(query: &str) -> Vec<(Value, u64)> {
    let labels =
        |workload: &str, uuid: &str| json!({"workload": workload, "kind": "slurm", "uuid": uuid, "replica": "x"});
    let (first, second) = (labels("slurm:1", "GPU-1"), labels("slurm:2", "GPU-2"));
    let process = json!({"uuid": "GPU-2", "pid": "7", "process": "train.py"});
    let with = |labels: &Value, more: Value| {
        let mut all = labels.as_object().unwrap().clone();
        all.extend(more.as_object().unwrap().clone());
        Value::Object(all)
    };
    let is = |name: &str| query.contains(name);
    match () {
        () if is("count_over_time") => vec![(first, 60), (second, 60)],
        () if is("gpu_workload_memory_window_peak_bytes") => vec![(first, 16 * GIB), (second, 100 * GIB)],
        // The question about budgets names the processes too.
        () if is("gpu_workload_memory_limit_bytes") => vec![(with(&first, json!({"source": "kai"})), 40 * GIB)],
        () if is("gpu_workload_processes") => vec![(first, 1), (second, 1)],
        () if is("gpu_process_info") => vec![(with(&process, second), 1)],
        () if is("out_of_memory") => vec![(with(&process, json!({"framework": "jax"})), 3)],
        () if is("outside_allocator") => vec![(process, GIB)],
        () if is("gpu_process_memory_window_peak_bytes") => vec![(process, 100 * GIB)],
        () if is("allocator_window_peak") => vec![(with(&process, json!({"framework": "jax"})), 10 * GIB)],
        () if is("gpu_memory_total_bytes") => ["GPU-1", "GPU-2"].map(|u| (json!({"uuid": u}), 140 * GIB)).to_vec(),
        () if is("gpu_info") => ["GPU-1", "GPU-2"].map(|u| (json!({"uuid": u, "name": "NVIDIA H200"}), 1)).to_vec(),
        () => Vec::new(),
    }
}

#[test]
fn the_number_of_requests_is_fixed() {
    let double = Double::start(|request| Reply::series(request, fleet));
    let (status, out, said) = advise(&double.url(), &["--format=json"]);
    assert_eq!((status, said.as_str()), (2, ""));
    let advice: Value = serde_json::from_str(&out).unwrap();
    let workloads = advice["workloads"].as_array().unwrap();
    assert_eq!(workloads.len(), 2);
    assert_eq!((&workloads[0]["peak_bytes"], &workloads[0]["current_bytes"]), (&(16 * GIB).into(), &(40 * GIB).into()));
    assert_eq!(workloads[0]["advice_bytes"], (16 * GIB * 115).div_ceil(100));
    assert_eq!((&workloads[1]["basis"], &workloads[1]["peak_bytes"]), (&"allocator".into(), &(11 * GIB).into()));
    assert_eq!((&workloads[1]["out_of_memory"], &workloads[1]["reason"]), (&0.into(), &"peak_plus_15_percent".into()));
    assert_eq!(workloads[1]["samples"], 1344 * 60);
    assert_eq!(advice["fleet"]["gpus_lower_bound"], 1);

    let requests = double.requests();
    let promised: usize = {
        let text = include_str!("../../docs/sizing.md").replace('\n', " ");
        let numbers = text.split("at most ").filter_map(|text| text.split_once(" requests")?.0.parse().ok());
        numbers.max().unwrap()
    };
    assert_eq!(advice["queries"], requests.len());
    assert!(
        requests.len() == promised - 4,
        "{} of {promised}: one is for a server without raw samples, three are for a shorter last interval",
        requests.len()
    );
    for request in &requests {
        assert_eq!(request.method, "POST");
        assert_eq!(request.header("content-type"), Some("application/x-www-form-urlencoded"));
        let end = request.parameter("time").or_else(|| request.parameter("end")).unwrap().parse::<u64>().unwrap();
        assert!(end <= END && END - end <= 14 * 86_400, "{request:?}");
        if request.path == "/api/v1/query_range" {
            let number = |name| request.parameter(name).unwrap().parse::<u64>().unwrap();
            assert!(number("step") == 900 && number("end") - number("start") <= 168 * 900, "{request:?}");
        }
    }
}

/// What a server does that rounds the times of a range query down to its step, such as Thanos' query frontend.
fn rounded(request: &Recorded) -> Recorded {
    let step = request.parameter("step").map_or(1, |step| step.parse::<u64>().unwrap());
    let down = |text: &str| (text.parse::<u64>().unwrap() / step * step).to_string();
    request.clone().with("start", down).with("end", down)
}

#[test]
fn a_server_that_rounds_to_the_step_changes_nothing() {
    let time = format!("--time={}", END + 777);
    let of = |url: &str| {
        let (status, out, said) = advise(url, &["--format=json", &time]);
        assert_eq!((status, said.as_str()), (2, ""));
        let mut advice: Value = serde_json::from_str(&out).unwrap();
        advice["prometheus"].take();
        advice
    };
    let exact = Double::start(|request| Reply::series(request, fleet));
    let advice = of(&exact.url());
    assert_eq!(advice["range_seconds"], 14 * 86_400 + 777);
    let workload = &advice["workloads"][0];
    assert_eq!((&workload["samples"], &workload["intervals"]), (&(1345 * 60).into(), &1345.into()));
    assert_eq!((&workload["first"], &workload["last"]), (&(END - 1343 * 900).into(), &(END + 777).into()));
    let rounding = Double::start(|request| Reply::series(&rounded(request), fleet));
    assert_eq!(of(&rounding.url()), advice);
    for request in exact.requests().iter().filter(|request| request.path.ends_with("query_range")) {
        let number = |name| request.parameter(name).unwrap().parse::<u64>().unwrap();
        assert!(number("start") % 900 == 0 && number("end") % 900 == 0, "{request:?}");
    }
}

#[test]
fn a_value_at_another_time_is_an_error() {
    let later = |text: &str| (text.parse::<u64>().unwrap() + 1).to_string();
    let double = Double::start(move |request| Reply::series(&request.clone().with("start", later), fleet));
    let said = failed(&double.url(), &[]);
    assert!(said.contains("does not answer like a Prometheus") && said.contains("not asked for"), "{said}");
}

#[test]
fn a_server_without_a_client_or_raw_samples_is_asked_less() {
    let double = Double::start(|request| {
        Reply::series(request, |query| {
            let is_recorded = query.contains("device:gpu_workload_memory_window_peak_bytes:max1h");
            if query.contains("window_peak_bytes") && !is_recorded { Vec::new() } else { fleet(query) }
        })
    });
    let (status, out, said) = advise(&double.url(), &["--format=json"]);
    assert!(status == 2 && said.contains("no raw sample"), "{said}");
    let advice: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&advice["source"], &advice["workloads"][1]["basis"]), (&"recorded".into(), &"driver".into()));
    assert_eq!(double.requests().len(), 2 + 16 + 11);
    let empty = Double::start(|request| Reply::series(request, |_| Vec::new()));
    let said = failed(&empty.url(), &["--format=json"]);
    assert!(said.contains("is vram-exporter scraped") && said.contains("tenant"), "{said}");
    assert_eq!(empty.requests().len(), 2);
}

#[test]
fn nothing_to_change_is_status_0() {
    let double = Double::start(|request| {
        Reply::series(request, |query| {
            let found = fleet(query);
            if query.contains("memory_limit") {
                // What was advised.
                found.into_iter().map(|(labels, _)| (labels, 20 * GIB)).collect()
            } else {
                found.into_iter().filter(|(labels, _)| labels["uuid"] == "GPU-1").collect()
            }
        })
    });
    let (status, _, said) = advise(&double.url(), &["--format=json"]);
    assert_eq!((status, said.as_str()), (2, ""), "20 GiB are more than 5 % above the advice");
    let (status, out, _) = advise(&double.url(), &["--min-samples=1000000"]);
    assert!(status == 0 && out.contains("none: too few samples"), "{out}");
    let (status, out, _) = advise(&double.url(), &["--min-span=15d"]);
    assert!(status == 0 && out.contains("none: too short a history"), "{out}");
    let (status, out, _) = advise(&double.url(), &["--by=pod"]);
    assert!(status == 0 && out.contains("No workload"), "{out}");
}

#[test]
fn every_format_is_printed() {
    let double = Double::start(|request| Reply::series(request, fleet));
    for (format, part) in [
        ("table", "CURRENT → ADVISED"),
        ("table", "40.00 GiB (kai) → 18.40 GiB, lower"),
        ("json", "\"advice_bytes\": 19756849562"),
        ("yaml", "    advice_bytes: 19756849562\n"),
        ("csv", ",19756849562,"),
    ] {
        let (status, out, _) = advise(&double.url(), &[&format!("--format={format}")]);
        assert!(status == 2 && out.contains(part), "{format}: {out}");
    }
}

#[test]
fn what_the_server_answers_instead_is_said() {
    for (reply, says) in [
        (Reply::new(401, "text/plain", "who are you\u{1b}[31m"), "--http-config"),
        (Reply::new(403, "text/plain", "no"), "--http-config"),
        (Reply::new(503, "text/plain", "starting up"), "status 503: starting up"),
        (Reply::new(404, "text/html", "<html>"), "--prometheus.url"),
        (Reply::new(200, "text/html", "<html>"), "does not answer like a Prometheus"),
        (Reply::new(200, "application/json", "{\"status\":\"success\"}"), "does not answer like a Prometheus"),
        (
            Reply::new(
                422,
                "application/json",
                r#"{"status":"error","errorType":"execution","error":"too many\nsamples"}"#,
            ),
            "status 422: execution: too many samples",
        ),
        (
            Reply::new(200, "application/json", r#"{"status":"error","errorType":"timeout","error":"slow"}"#),
            "timeout: slow",
        ),
        (Reply::new(302, "text/plain", "").with("location", "https://other/\u{7f}"), "redirects"),
    ] {
        let double = Double::start(move |_| reply.clone());
        let said = failed(&double.url(), &[]);
        assert!(said.contains(says) && said.contains(&double.url()), "{said}");
        assert_eq!(double.requests().len(), 1);
    }
}

#[test]
fn a_warning_of_the_server_is_shown() {
    let double =
        Double::start(|request| Reply::series(request, fleet).warning("partial response: store\u{9b} is down"));
    let (_, out, said) = advise(&double.url(), &["--format=json"]);
    let advice: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(advice["warnings"], json!(["the server says: partial response: store\\u{9b} is down"]));
    assert_eq!(said, "vram advise: the server says: partial response: store\\u{9b} is down\n");
}

#[test]
fn a_partial_answer_of_victoriametrics_is_marked() {
    let double = Double::start(|request| Reply::series(request, fleet).partial());
    let (_, out, said) = advise(&double.url(), &["--format=json"]);
    let advice: Value = serde_json::from_str(&out).unwrap();
    assert!(advice["warnings"][0].as_str().unwrap().contains("isPartial: a part of its data is missing"), "{advice:#}");
    assert!(said.contains("isPartial"), "{said}");
}

#[test]
fn data_that_cannot_be_used_is_an_error_and_not_no_workload() {
    let without = |name: &'static str| {
        Double::start(move |request| {
            Reply::series(request, |query| {
                let mut found = fleet(query);
                found.iter_mut().for_each(|(labels, _)| drop(labels.as_object_mut().unwrap().remove(name)));
                found
            })
        })
    };
    assert!(failed(&without("uuid").url(), &[]).contains("none can be used: 2 without the label uuid"));
    assert!(failed(&without("kind").url(), &[]).contains("2 without the labels workload and kind"));
    for value in ["NaN", "+Inf", "-1"] {
        let body = format!(
            r#"{{"status":"success","data":{{"result":[{{"metric":{{"workload":"a","kind":"slurm","uuid":"G"}},"value":[1,"{value}"]}}]}}}}"#
        );
        let double = Double::start(move |request| {
            if request.path.ends_with("query") {
                Reply::new(200, "application/json", &body)
            } else {
                Reply::series(request, |_| Vec::new())
            }
        });
        let said = failed(&double.url(), &[]);
        assert!(said.contains("1 with a value that is no amount"), "{value}: {said}");
    }
    // One unusable series beside others is left out, and that is said.
    let double = Double::start(|request| {
        Reply::series(request, |query| {
            let mut found = fleet(query);
            if query.contains("gpu_workload_memory_window_peak_bytes") && !query.contains("count_over_time") {
                found.push((json!({"workload": "x", "kind": "slurm"}), 1));
            }
            found
        })
    });
    let (status, _, said) = advise(&double.url(), &["--format=json"]);
    assert!(status == 2 && said.contains("1 of 3 series of peaks cannot be used: 1 without the label uuid"), "{said}");
}

/// The resident memory of the process at its highest, in bytes, as last read before its end.
fn highest_resident(child: &mut std::process::Child) -> u64 {
    let status = format!("/proc/{}/status", child.id());
    let mut highest = 0;
    while child.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(&status).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        highest = line.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(highest);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    highest << 10
}

#[test]
fn a_flood_of_series_is_refused_in_bounded_memory() {
    // The smallest series: what is kept of each is many times its text.
    let one = r#"{"metric":{"a":""},"value":[1,"1"]}"#;
    let body = format!(
        "{{\"status\":\"success\",\"data\":{{\"result\":[{}]}}}}",
        vec![one; (60 << 20) / (one.len() + 1)].join(",")
    );
    assert!((59 << 20..64 << 20).contains(&body.len()));
    let double = Double::start(move |_| Reply::new(200, "application/json", &body));
    let mut command = tool(&["advise", &format!("--prometheus.url={}", double.url()), "--timeout=10m"]);
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let highest = highest_resident(&mut child);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("536870912 bytes of memory") && said.contains("--range"), "{said}");
    // 512 MiB of series, the answer of 64 MiB twice while its parts are joined, and the program itself.
    assert!(highest > 64 << 20 && highest < 704 << 20, "{} MiB", highest >> 20);
}

#[test]
fn a_server_that_is_silent_or_endless_does_not_hold_the_command() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let said = failed(&format!("http://{}", silent.local_addr().unwrap()), &["--timeout=1s"]);
    assert!(said.contains("within 1 s") && said.contains("--range"), "{said}");
    drop(silent);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(failed(&format!("http://{closed}"), &[]).contains("--prometheus.url"));

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        let mut sent = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n");
        while sent.is_ok() {
            sent = stream.write_all(&[b' '; 1 << 20]);
        }
    });
    assert!(failed(&format!("http://{address}"), &[]).contains("more than 67108864 bytes"));
    server.join().unwrap();
}

#[test]
fn the_config_gives_headers_certificates_and_a_name() {
    let pki = Pki::new();
    fs::write(pki.at("password"), "secret\n").unwrap();
    let config = |text: &str| {
        fs::write(pki.at("http.yml"), text).unwrap();
        format!("--http-config={}", pki.at("http.yml").display())
    };
    let double = Double::start(|request| Reply::series(request, fleet));
    let flag = config(
        "basic_auth: {username: ada, password_file: password}\nhttp_headers: {X-Scope-OrgID: {values: [team-a]}}\n",
    );
    let (status, ..) = advise(&format!("{}/prometheus/", double.url()), &[&flag]);
    assert_eq!(status, 2);
    for request in double.requests() {
        assert!(request.path.starts_with("/prometheus/api/v1/query"), "{request:?}");
        assert_eq!(request.header("authorization"), Some("Basic YWRhOnNlY3JldA=="));
        assert_eq!(request.header("x-scope-orgid"), Some("team-a"));
    }

    let secured = Double::start_with_tls(&pki, |request| Reply::series(request, fleet));
    let trusted = "tls_config: {ca_file: ca.crt, cert_file: client.crt, key_file: client.key}\n";
    let (status, _, said) = advise(&secured.url(), &[&config(trusted)]);
    assert_eq!((status, said.as_str()), (2, ""));
    // The server demands the client's certificate.
    let said = failed(&secured.url(), &[&config("tls_config: {ca_file: ca.crt}\n")]);
    assert!(said.to_lowercase().contains("certificate") || said.contains("reset"), "{said}");
    let said = failed(&secured.url(), &[&config("basic_auth: {username: ada}\n")]);
    assert!(said.contains("cannot be asked") || said.contains("certificate"), "{said}");
    let other =
        "tls_config: {ca_file: ca.crt, cert_file: client.crt, key_file: client.key, server_name: other.example}\n";
    assert!(failed(&secured.url(), &[&config(other)]).contains("other.example"));
    for (text, says) in [
        ("tls_config: {ca_file: none.crt}\n", "none.crt cannot be used"),
        ("tls_config: {ca_file: ca.crt, cert_file: client.crt, key_file: password}\n", "password cannot be used"),
        ("oauth2: {client_secret: secret}\n", "oauth2"),
    ] {
        let said = failed(&secured.url(), &[&config(text)]);
        assert!(said.contains(says), "{said}");
    }
    let missing = format!("--http-config={}", pki.at("none.yml").display());
    assert!(failed(&double.url(), &[&missing]).contains("none.yml cannot be used"));
}

#[test]
fn wrong_arguments_are_status_64() {
    let (status, out, said) = advise("http://p:9090", &["--format=xml"]);
    assert!(status == 64 && out.is_empty() && said.contains("yaml") && said.lines().count() == 1, "{said}");
    let help = ended(&mut tool(&["advise", "--help"]));
    let text = help.out;
    assert!(help.status == Some(0) && text.contains("--prometheus.url") && text.contains("exit status"), "{text}");
}
