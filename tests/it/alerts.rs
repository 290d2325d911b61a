//! From GPU to pager: simulated machines in trouble, the exporter on each, a real Prometheus with the shipped scrape
//! configuration, a real Alertmanager, and a receiver. The rules are two that need no time; the shipped ones are judged
//! with promtool (`tests/judges/rules`), which needs no clock.

mod receiver;
pub(crate) mod servers;
pub(crate) mod shipped;

use std::net::SocketAddr;

use workspace_skips::missing;

use crate::harness::{Exporter, Machine, eventually, eventually_or};
use receiver::{Notice, Receiver};
use servers::{ALERTMANAGER, Alertmanager, PROMETHEUS, Prometheus, is_there};
use shipped::shipped;

const RULES: &str = r#"
groups:
  - name: test
    interval: 500ms
    rules:
      - alert: Lost
        expr: gpu_up == 0
        labels: { severity: critical }
        annotations: { summary: "GPU {{ $labels.gpu }} of {{ $labels.instance }} is lost" }
      - alert: Peak
        expr: gpu_memory_window_peak_bytes / gpu_memory_total_bytes > 0.9
        labels: { severity: warning }
        annotations: { summary: "GPU {{ $labels.gpu }} of {{ $labels.instance }} reached {{ $value | humanizePercentage }}" }
"#;

const TWO: &str = "seed = 1\n[[gpu]]\nmodel = \"H200\"\ncount = 2\n";

const LOST: &str = "[[fault]]\ncall = \"*\"\ngpu = 1\nkind = \"error\"\ncode = \"GPU_IS_LOST\"\n";

/// A peak that lasts 400 ms; scrapes are a second apart.
const PEAK: &str = r#"
[[process]]
pid = 777
gpu = 0
command = ["burst"]
memory = [{ kind = "spike", base = "0B", peak = "135GiB", hold = "400ms", after = "10ms" }]
"#;

/// The shipped configuration, with these targets and a shorter interval.
fn configuration(targets: &[SocketAddr], alertmanager: SocketAddr) -> String {
    let scrape = std::fs::read_to_string(shipped("scrape.yml")).unwrap();
    let mut replaced = scrape.clone();
    let list = targets.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n          - ");
    for (from, to) in [("15s", "1s"), ("scrape_timeout: 5s", "scrape_timeout: 1s"), ("localhost:9836", &*list)] {
        assert!(replaced.contains(from), "{from} in {scrape}");
        replaced = replaced.replace(from, to);
    }
    format!(
        "{replaced}\nrule_files: [rules/*.yml]\nalerting:\n  alertmanagers:\n    - static_configs:\n        - targets: [\"{alertmanager}\"]\n"
    )
}

/// Waits until the last notice of an alert of this exporter is, or is not, about an alert that fires.
fn await_alert(name: &str, exporter: &Exporter, firing: bool, receiver: &Receiver) -> Notice {
    let instance = exporter.address.to_string();
    eventually_or(&format!("{name} of {instance}, firing {firing}"), || {
        let notices = receiver.notices();
        let of = |notice: &&Notice| notice.name() == name && notice.label("instance") == instance;
        let last = notices.iter().rfind(of).filter(|notice| notice.firing == firing).cloned();
        last.ok_or_else(|| format!("{notices:#?}"))
    })
}

/// Makes a peak that no scrape sees, on one of several machines: on a busy one, a scrape may last longer than the peak.
fn peak_between_two_scrapes<'m>(machines: &'m [(Machine, Exporter)], prometheus: &Prometheus) -> &'m Exporter {
    let hidden = machines.iter().find(|(machine, exporter)| {
        let samples =
            |family: &str| prometheus.samples(&format!("{family}{{instance=\"{}\",gpu=\"0\"}}[1h]", exporter.address));
        // The peak begins just after a scrape and ends well before the next one, and is long enough to be seen on a busy machine.
        let scrapes = || samples("gpu_memory_used_bytes").len();
        let before = scrapes();
        eventually("a scrape", || (scrapes() > before).then_some(()));
        machine.control(PEAK);
        let high = |family: &str| samples(family).iter().any(|&(_, bytes)| bytes > f64::from(1 << 30) * 120.0);
        let peak = |exporter: &Exporter| exporter.scrape().value("gpu_memory_peak_bytes", &[("gpu", "0")]);
        eventually_or("the peak in the series", || {
            high("gpu_memory_window_peak_bytes").then_some(()).ok_or_else(|| format!("{:?}", peak(exporter)))
        });
        let seen = scrapes();
        eventually("two more scrapes", || (scrapes() >= seen + 2).then_some(()));
        !high("gpu_memory_used_bytes")
    });
    &hidden.expect("a peak between two scrapes").1
}

#[test]
fn a_lost_gpu_and_a_peak_between_two_scrapes_arrive_as_alerts() {
    if missing(PROMETHEUS, is_there(PROMETHEUS)) || missing(ALERTMANAGER, is_there(ALERTMANAGER)) {
        return;
    }
    let machines: Vec<(Machine, Exporter)> = std::iter::repeat_with(|| {
        let (machine, exporter) = Machine::running(TWO, &["--memory.peak-window=10m", "--memory.idle-rate=100"]);
        (machine, exporter)
    })
    .take(5)
    .collect();
    let [(_, healthy), (lost_machine, lost), peaks @ ..] = &machines[..] else { unreachable!("five machines") };
    let receiver = Receiver::start();
    let alertmanager = Alertmanager::start(&receiver.url());
    let targets: Vec<SocketAddr> = machines.iter().map(|(_, exporter)| exporter.address).collect();
    let rules = ("test.yml".to_owned(), RULES.to_owned());
    let prometheus = Prometheus::start(&configuration(&targets, alertmanager.address()), &[rules]);

    let peak = peak_between_two_scrapes(peaks, &prometheus);
    lost_machine.control(LOST);
    for (name, exporter, gpu, severity) in [("Peak", peak, "0", "warning"), ("Lost", lost, "1", "critical")] {
        let notice = await_alert(name, exporter, true, &receiver);
        let labels = ["gpu", "severity", "job"].map(|label| notice.label(label));
        assert_eq!(labels, [gpu, severity, "vram-exporter"], "{notice:?}");
        let uuid = exporter.scrape().all("gpu_info").find(|info| info.label("gpu") == Some(gpu)).unwrap().clone();
        assert_eq!(Some(notice.label("uuid")), uuid.label("uuid"), "{notice:?}");
        let summary = &notice.annotations["summary"];
        assert!(summary.starts_with(&format!("GPU {gpu} of {}", exporter.address)), "{notice:?}");
    }
    lost_machine.control("");
    await_alert("Lost", lost, false, &receiver);

    let scraped =
        || !prometheus.samples(&format!("gpu_up{{instance=\"{}\",gpu=\"0\"}}[1h]", healthy.address)).is_empty();
    assert!(scraped(), "the healthy machine is watched");
    let healthy = healthy.address.to_string();
    let notices = receiver.notices();
    assert!(notices.iter().all(|notice| notice.label("instance") != healthy), "{notices:#?}");
}
