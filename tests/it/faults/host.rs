//! The machine on which the exporter runs is in trouble: descriptors, disk, log.

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use super::by_hand::ByHand;
use super::{TWO, rounds, up, values};
use crate::harness::{Answer, Exporter, Killed, Machine, Scrape, bare, connect, ended, eventually, pid, until};

/// Sets the soft limit on descriptors for the running exporter.
fn limit_descriptors(exporter: &Exporter, to: u64) {
    let limit =
        Command::new("prlimit").args(["--pid", &exporter.pid().to_string(), &format!("--nofile={to}:")]).status();
    assert!(limit.unwrap().success());
}

fn descriptors(exporter: &Exporter) -> u64 {
    std::fs::read_dir(format!("/proc/{}/fd", exporter.pid())).unwrap().count() as u64
}

#[test]
fn without_a_descriptor_the_lanes_go_on_and_everything_recovers() {
    let machine = Machine::new(TWO);
    let by_hand = ByHand::beside(&machine);
    by_hand.add(42, "python3", "/work/train.py");
    let exporter = machine.export(&[&by_hand.flag()]);
    let named = |s: &Scrape, name| s.all("gpu_process_memory_used_bytes").any(|p| p.label("process") == Some(name));
    let before = exporter.scrape_until("values", |s| values(s, "1") > 0 && named(s, "train.py"));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", exporter.pid())).unwrap();
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let usual: u64 = limit.split_whitespace().next().unwrap().parse().unwrap();
    // Nothing more can be opened: neither a connection nor a file of a process.
    limit_descriptors(&exporter, 3);
    std::fs::remove_dir_all(by_hand.folder.join("42")).unwrap();
    by_hand.add(42, "python3", "/work/late.py");
    let refused = || {
        let stream = connect(exporter.address).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
        Answer::ask(stream, "GET", "/healthz", "").is_err()
    };
    assert!((0..5).all(|_| refused()), "a connection needs a descriptor");
    limit_descriptors(&exporter, usual);
    let back = exporter.scrape_until("answers, and the name of the new process", |s| named(s, "late.py"));
    // The lanes kept sampling all the while, and no descriptor has leaked.
    assert!(rounds(&back, "memory") > rounds(&before, "memory") + 5.0);
    assert_eq!((up(&back, "0"), up(&back, "1")), (Some(1.0), Some(1.0)));
    let held = descriptors(&exporter);
    until("no descriptor is lost", || descriptors(&exporter) <= held);
    assert!(exporter.terminate().success());
}

/// A port that was free a moment ago. It is needed because a test whose exporter cannot write its log cannot read the
/// port from the log.
fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn a_full_disk_under_the_log_costs_the_log_alone() {
    for format in ["logfmt", "json"] {
        let full = || Stdio::from(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        let machine = Machine::new(TWO);
        let address = free_port();
        let flags =
            [&format!("--web.listen-address={address}"), &format!("--log.format={format}"), "--log.level=trace"];
        let mut exporter = Killed(machine.command(&flags).stderr(full()).stdout(full()).spawn().unwrap());
        let scrape = |what: &str, wanted: &str| {
            let body = || Some(Answer::get(address, "/metrics").ok()?.body).filter(|body| body.contains(wanted));
            eventually(what, body)
        };
        scrape("values", "gpu_up{gpu=\"1\"");
        // Faults are written to the log. Each such line is lost, but no lane stops because of it.
        machine.control("[[fault]]\ncall = \"nvmlDeviceGetTemperature\"\nkind = \"error\"\ncode = \"UNKNOWN\"\n");
        let counted = "vram_exporter_faults_by_reason_total{source=\"telemetry\",reason=\"unknown\"} 1";
        let body = scrape("the fault is counted", counted);
        assert!(!body.contains("reason=\"panicked\""), "a lane died: {body}");
        nix::sys::signal::kill(pid(&exporter.0), Signal::SIGTERM).unwrap();
        assert!(eventually("the end", || exporter.0.try_wait().unwrap()).success());
    }
}

#[test]
fn what_once_cannot_write_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Machine::new(TWO).command(&["--once"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("could not be written"), "{said}");
}

#[test]
fn a_demo_without_room_for_its_proc_ends_and_says_why() {
    let ended = ended(bare(&["--demo", "--web.listen-address=127.0.0.1:0"]).env("TMPDIR", "/dev/full"));
    assert!(ended.status == Some(1) && ended.err.contains("needs a temporary folder"), "{ended:?}");
}

#[test]
fn a_machine_that_was_paused_goes_on_without_a_burst_or_an_old_value() {
    let exporter = Machine::new(TWO).export(&["--memory.stale-after=2s"]);
    let missed = |s: &Scrape| s.value("vram_exporter_missed_ticks_total", &[("lane", "memory"), ("gpu", "1")]).unwrap();
    let before = exporter.scrape_until("values", |s| values(s, "1") > 0);
    // All threads pause while the clock runs, as on a suspended machine or in a paused virtual one.
    exporter.signal(Signal::SIGSTOP);
    std::thread::sleep(std::time::Duration::from_secs(3));
    exporter.signal(Signal::SIGCONT);
    let after = exporter.scrape_until("it goes on", |s| {
        rounds(s, "memory") > rounds(&before, "memory") + 20.0 && up(s, "0") == Some(1.0) && up(s, "1") == Some(1.0)
    });
    assert!(missed(&after) >= missed(&before) + 100.0, "missed ticks are reported");
    for gpu in ["0", "1"] {
        let age = after.value("vram_exporter_sample_age_seconds", &[("lane", "memory"), ("gpu", gpu)]);
        assert!(age.is_some_and(|age| age < 2.0), "{}", after.text);
    }
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
}
