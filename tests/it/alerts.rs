//! From GPU to pager: simulated machines in trouble, the exporter on each, a real Prometheus with the shipped scrape
//! configuration and rules, a real Alertmanager, and a receiver. Every fault raises the intended alert, with the labels
//! that locate the fault, and the end of the alert is reported too. A healthy machine next to them raises no alert.
//!
//! The clock of the shipped files runs [`FACTOR`] times as fast (`alerts/scale.rs`), and so do the exporter's own
//! intervals ([`FAST`]). Memory is still sampled 100 times a second.

mod cases;
mod outline;
mod promql;
mod receiver;
mod scale;
pub(crate) mod servers;
pub(crate) mod shipped;
mod tokens;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use workspace_skips::missing;

use crate::harness::Machine;
use cases::{BUSY, Case, STARVED, STEADY};
use receiver::Receiver;
use servers::{ALERTMANAGER, Alertmanager, PROMETHEUS, Prometheus, is_there};
use shipped::{rules, rules_of, shipped};

/// A minute in the shipped files is two seconds here. The exporter's shortest peak window, 1 s, would allow twice the
/// factor; but then each scrape would have to finish within 250 ms, and on a heavily overloaded machine most would not.
const FACTOR: u32 = 30;

/// The exporter's own intervals, shortened as far as its limits allow.
const FAST: [&str; 6] = [
    "--memory.peak-window=2s",
    "--memory.idle-rate=30",
    "--process.interval=100ms",
    "--process.linger=10s",
    "--telemetry.interval=100ms",
    "--telemetry.slow-interval=250ms",
];

/// The configuration that Prometheus needs in addition to the shipped one; the address of an Alertmanager follows.
const ALERTING: &str = "
rule_files:
  - rules/*.yml
alerting:
  alertmanagers:
    - static_configs:
        - targets:
            - ";

/// How long it may take for all alerts to be raised and to end. Generous, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(600);

/// Waits until the condition holds. On failure, prints the notices received so far.
fn wait(what: &str, begin: Instant, receiver: &Receiver, prometheus: &Prometheus, mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        let late = begin.elapsed() > PATIENCE;
        assert!(!late, "not within {PATIENCE:?}: {what}\n{:#?}\n{}", receiver.notices(), prometheus.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Causes a peak right after a scrape, so that the peak is over before the next scrape, and checks that no scrape
/// coincided with the peak, which means that only the recorded window peak shows it. Tries again if the machine was too
/// busy for that.
fn peak_between_two_scrapes(case: &Case, prometheus: &Prometheus) {
    let samples = |family: &str| {
        prometheus.samples(&format!("{family}{{instance=\"{}\",gpu=\"{}\"}}[5s]", case.instance(), case.gpu))
    };
    let newest = || samples("gpu_up").last().map_or(0.0, |(at, _)| *at);
    let high = 0.97 * 150_109_880_320.0;
    for _ in 0..5 {
        let (before, begin) = (newest(), Instant::now());
        while newest() <= before && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        case.machine.control(case.trouble);
        std::thread::sleep(Duration::from_millis(1000));
        let is_seen = |family| samples(family).iter().any(|(_, value)| *value >= high);
        if is_seen("gpu_memory_window_peak_bytes") && !is_seen("gpu_memory_used_bytes") {
            return;
        }
        // The next attempt starts once all samples from this one are more than 5 seconds old.
        case.machine.control("");
        std::thread::sleep(Duration::from_millis(7500));
    }
    panic!("no peak between two scrapes: {:?}", samples("gpu_memory_window_peak_bytes"));
}

#[test]
fn every_trouble_arrives_as_its_alert_and_a_healthy_machine_raises_none() {
    if missing(PROMETHEUS, is_there(PROMETHEUS)) || missing(ALERTMANAGER, is_there(ALERTMANAGER)) {
        return;
    }
    let begin = Instant::now();
    let healthy_machine = Machine::new(&format!("{STEADY}{BUSY}"));
    let healthy = healthy_machine.export(&FAST);
    let cases = cases::all();
    let receiver = Receiver::start();
    let alertmanager = Alertmanager::start(receiver.address);
    let targets: Vec<_> = cases.iter().map(|case| case.exporter.address).chain([healthy.address]).collect();
    let scrape = std::fs::read_to_string(shipped("scrape.yml")).unwrap();
    let scrape = scale::scale_scrape(&scrape, &targets, FACTOR);
    let config = format!("{scrape}{}{}\n", ALERTING, alertmanager.address());
    let prometheus = Prometheus::start(&config, &scale::scale_rules(&rules(), FACTOR), FACTOR);
    let ratio = |target: &SocketAddr| {
        !prometheus.samples(&format!("gpu:gpu_memory_used:ratio{{instance=\"{target}\",gpu=\"0\"}}[6s]")).is_empty()
    };
    wait("every machine's rules", begin, &receiver, &prometheus, || targets.iter().all(ratio));
    assert_eq!(receiver.notices(), [], "before any trouble");

    let [peak, others @ ..] = &cases;
    others.iter().for_each(|case| case.machine.control(case.trouble));
    peak_between_two_scrapes(peak, &prometheus);
    // The peak is long over; every other fault lasts until its alert has arrived.
    let mut lasting: Vec<&Case> = others.iter().collect();
    wait("the alerts of every trouble", begin, &receiver, &prometheus, || {
        let notices = receiver.notices();
        lasting.retain(|case| {
            let known = case.has_fired(&notices);
            if known {
                case.machine.control("");
            }
            !known
        });
        lasting.is_empty() && peak.has_fired(&notices)
    });
    wait("the end of every alert", begin, &receiver, &prometheus, || {
        let notices = receiver.notices();
        cases.iter().all(|case| case.is_over(&notices))
    });

    wait("the healthy machine is still watched", begin, &receiver, &prometheus, || ratio(&healthy.address));
    let notices = receiver.notices();
    cases.iter().for_each(|case| case.check(&notices));
    let known: BTreeSet<String> = cases.iter().map(Case::instance).collect();
    let others: Vec<_> =
        notices.iter().filter(|n| !known.contains(n.label("instance")) && n.name() != STARVED).collect();
    assert!(others.is_empty(), "alerts of a machine without trouble: {others:#?}");
    for (group, _, rule) in rules_of(&prometheus.groups()) {
        assert_eq!(rule["health"], "ok", "{group}: {rule}");
    }
}
