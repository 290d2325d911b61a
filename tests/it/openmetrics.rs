//! OpenMetrics as scrapers see it: negotiation on both listeners, the golden scrapes, the Python client's strict parser,
//! and the series that a real Prometheus stores.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use exposition::open_metrics::{assert_same, read};
use generated_files::assert_committed;
use serde_json::Value;
use workspace_skips::missing;

use crate::alerts::servers::{PROMETHEUS, Prometheus, is_there};
use crate::dcgm::Served;
use crate::golden::{SAMPLED, SCENARIOS, golden, settled};
use crate::harness::{Answer, CALM, Exporter, Machine, eventually, eventually_or, until};

/// What Prometheus 2.42 sends.
const ACCEPT: &str = "Accept: application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                      text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

fn open(exporter: &Exporter) -> String {
    let answer = exporter.get_with("/metrics", ACCEPT).unwrap();
    assert_eq!((answer.status, answer.header("content-type")), (200, OPEN_METRICS));
    assert!(answer.whole);
    answer.body
}

#[test]
fn both_listeners_send_the_format_that_is_asked_for() {
    let machine = Machine::built_in("idle-h200");
    let native = machine.export(&[]);
    let dcgm = Served::start(&[]);
    dcgm.settled();
    let get = |headers: &str| [native.get_with("/metrics", headers).unwrap(), dcgm.get_with("/metrics", headers)];
    for (headers, content_type, end) in [
        ("", TEXT, false),
        ("Accept: */*\r\n", TEXT, false),
        (ACCEPT, OPEN_METRICS, true),
        ("Accept: application/openmetrics-text;version=2.0.0,text/plain;q=0.1\r\n", TEXT, false),
    ] {
        for answer in get(headers) {
            assert_eq!((answer.status, answer.header("content-type")), (200, content_type), "{headers}");
            assert!(answer.header("vary").contains("accept"), "{}", answer.head);
            assert_eq!(answer.body.ends_with("\n# EOF\n"), end, "{headers}");
        }
    }
    let page = native.get_with("/", ACCEPT).unwrap();
    assert!(page.header("content-type").starts_with("text/html"), "only the metrics have this format");
}

/// The scenario whose scrape in OpenMetrics is kept.
const KEPT: &str = "busy-h200";

/// The lines with values that differ between two runs made equal. `--once` does not count itself as a scrape.
fn same(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix("vram_exporter_scrapes_total ") {
        Some(_) => "vram_exporter_scrapes_total <…>\n".to_owned(),
        None => format!("{line}\n"),
    };
    settled(text).lines().map(line).collect()
}

fn samples(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}

/// The names and labels of the samples.
fn names(text: &str) -> Vec<&str> {
    samples(text).into_iter().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect()
}

/// That both formats hold the same samples is a matter of the families (tests/it/metrics_contract/open_metrics.rs).
#[test]
fn a_scenario_gives_its_golden_scrape_with_the_samples_of_the_text_format() {
    let text = same(&fs::read_to_string(golden(KEPT)).unwrap());
    // Without a recorder, as with `--once`, which wrote the golden scrape in the text format.
    let exporter = Machine::built_in(KEPT).export(&[CALM, "--recorder.max-memory-mib=0"]);
    let found = eventually_or("every series", || {
        let found = same(&open(&exporter));
        let missing = names(&text).into_iter().find(|name| !names(&found).contains(name)).map(str::to_owned);
        missing.map_or(Ok(found), Err)
    });
    assert_eq!(samples(&found), samples(&text));
    // A value that differs from run to run is not a number in these texts.
    let numbers = |text: &str| text.replace("<…>", "1");
    assert_same(&exposition::read(&numbers(&text)), &read(&numbers(&found)), |_| false);
    assert_committed(&golden(KEPT).with_extension("openmetrics"), &found);
}

#[test]
fn the_families_of_dcgm_exporter_keep_their_names() {
    for naming in ["exporter-4.8", "exporter-4.9"] {
        let served = Served::start(&[&format!("--dcgm.names={naming}")]);
        let text = exposition::read(&served.settled().text);
        let open = read(&served.get_with("/metrics", ACCEPT).body);
        assert_same(&text, &open, |_| true);
        let of = |name: &str| open.iter().find(|family| family.name.starts_with(name)).map(|family| &*family.kind);
        assert_eq!(of("DCGM_FI_DEV_PCIE_REPLAY"), Some("unknown"), "a counter whose name does not end in _total");
        assert_eq!(of("DCGM_FI_DEV_FB_USED"), Some("gauge"));
        assert!(open.iter().all(|family| family.created.is_empty() && family.exemplars.is_empty()));
    }
}

/// Reads expositions with the strict parsers. Each is preceded by its format and the number of its bytes.
const PARSE: &str = "
import sys
from prometheus_client import parser
from prometheus_client.openmetrics import parser as open_metrics_parser
source, read = sys.stdin.buffer, 0
while head := source.readline().split():
    of_format = {b'text': parser, b'open': open_metrics_parser}[head[0]]
    seen = set()
    for family in of_format.text_string_to_metric_families(source.read(int(head[1])).decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in seen, key
            seen.add(key)
    assert len(seen) > (50 if head[0] == b'text' else 20), len(seen)
    read += 1
print(read)
";

#[test]
fn the_python_clients_strict_parser_reads_every_scrape() {
    let python = |code: &str| Command::new("python3").args(["-c", code]).stdin(Stdio::null()).output();
    let there = python("import prometheus_client.parser, prometheus_client.openmetrics.parser");
    let there = there.is_ok_and(|output| output.status.success());
    if missing("python3 with prometheus-client", there) {
        return;
    }
    let mut texts = Vec::new();
    for scenario in SCENARIOS {
        let machine = Machine::built_in(scenario);
        texts.push(("text", machine.once(&[CALM]).text));
        for flags in [&[][..], &["--web.openmetrics-created"]] {
            texts.push(("open", open(&machine.export(flags))));
        }
    }
    let served = Served::start(&[]);
    served.settled();
    texts.push(("open", served.get_with("/metrics", ACCEPT).body));
    let mut parser =
        Command::new("python3").args(["-c", PARSE]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = parser.stdin.take().unwrap();
    for (format, text) in &texts {
        write!(input, "{format} {}\n{text}", text.len()).unwrap();
    }
    drop(input);
    let output = parser.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), texts.len().to_string());
}

/// A GPU whose memory fills up three seconds after the start.
const FILLS_UP: &str = "
[[gpu]]
model = \"H200\"

[[process]]
pid = 4100
command = [\"train\"]
memory = [{ kind = \"constant\", value = \"1GiB\", for = \"3s\" }, { kind = \"constant\", value = \"139GiB\" }]
";

#[test]
fn an_incident_is_named_by_an_id_that_the_api_knows() {
    let exporter = Machine::new(FILLS_UP).export(&[]);
    let exemplar = eventually("an incident", || {
        let families = read(&open(&exporter));
        families.into_iter().find_map(|family| family.exemplars.into_iter().next())
    });
    assert_eq!(exemplar.of["kind"], "near_limit");
    let id = &exemplar.labels["incident_id"];
    let incident = exporter.json(&format!("/api/v1/incidents/{id}"));
    let at: f64 = exemplar.at.parse().unwrap();
    assert!((incident["at"].as_f64().unwrap() - at).abs() < 1.0, "{incident} {at}");
    assert_eq!(incident["gpu"]["uuid"].as_str(), Some(exemplar.of["uuid"].as_str()));
}

/// Forwards scrapes to an address without their headers, so that the response is in the text format.
fn plain(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let head = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            head.for_each(drop);
            let Ok(answer) = Answer::get(to, "/metrics") else { continue };
            assert_eq!(answer.header("content-type"), TEXT);
            let length = answer.body.len();
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Type: {TEXT}\r\nContent-Length: {length}\r\nConnection: close");
            let _ = write!(&stream, "{head}\r\n\r\n{}", answer.body);
        }
    });
    address
}

/// The series of a job, without the labels that name the target.
fn series(prometheus: &Prometheus, job: &str) -> BTreeSet<String> {
    let found = prometheus.api(&format!("/api/v1/series?match[]=%7Bjob=%22{job}%22%7D"));
    let names = found.as_array().unwrap().iter().map(|labels| {
        let mut labels = labels.as_object().unwrap().clone();
        labels.retain(|name, _| name != "job" && name != "instance");
        Value::Object(labels).to_string()
    });
    names.filter(|name| !name.contains(SAMPLED)).collect()
}

#[test]
fn prometheus_stores_the_same_series_in_both_formats() {
    if missing(PROMETHEUS, is_there(PROMETHEUS)) {
        return;
    }
    let machine = Machine::built_in("busy-h200");
    let native = machine.export(&[CALM, "--dcgm.listen-address=127.0.0.1:0"]);
    let created = machine.export(&[CALM, "--web.openmetrics-created"]);
    let dcgm = native.listener("listening for scrapes of dcgm-exporter");
    let jobs = [
        ("open", native.address),
        ("text", plain(native.address)),
        ("dcgm-open", dcgm),
        ("dcgm-text", plain(dcgm)),
        ("created", created.address),
    ];
    let jobs_of = |(job, address): &(&str, SocketAddr)| {
        format!("  - job_name: {job}\n    static_configs:\n      - targets: [\"{address}\"]\n")
    };
    let config: String = jobs.iter().map(jobs_of).collect();
    let config = format!("global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\nscrape_configs:\n{config}");
    let prometheus = Prometheus::start(&config, &[]);
    for (job, _) in jobs {
        // All series have been stored after the second good scrape.
        let good =
            || prometheus.samples(&format!("up{{job=\"{job}\"}}[1h]")).iter().filter(|(_, up)| *up == 1.0).count();
        until("two good scrapes", || good() >= 2);
    }
    let unit = prometheus.api("/api/v1/targets/metadata?metric=gpu_memory_pressure_seconds");
    assert_eq!((&unit[0]["type"], &unit[0]["unit"]), (&"counter".into(), &"seconds".into()), "OpenMetrics was scraped");
    let [open, text, dcgm_open, dcgm_text, created] = jobs.map(|(job, _)| series(&prometheus, job));
    assert!(open.len() > 200 && dcgm_open.len() > 20, "{} {}", open.len(), dcgm_open.len());
    assert_eq!(open, text);
    assert_eq!(dcgm_open, dcgm_text);
    assert_eq!(text.difference(&created).count(), 0, "{:?}", text.difference(&created).collect::<Vec<_>>());
    let more: Vec<_> = created.difference(&text).collect();
    assert!(more.len() > 20, "{more:?}");
    for series in more {
        let counters = ["_total\"", "_count\""].map(|suffix| series.replacen("_created\"", suffix, 1));
        assert!(series.contains("_created\"") && counters.iter().any(|name| text.contains(name)), "{series}");
    }
}
