//! Peaks, owners and unattributed memory, on a simulated machine through the real binary and the real nvml-wrapper.

use crate::harness::{Machine, Scrape};

const GIB: f64 = (1u64 << 30) as f64;
const MIB: f64 = (1u64 << 20) as f64;
/// The GPU memory that a context takes, in addition to what its process allocates.
const CONTEXT: f64 = 520.0 * MIB;

/// One H200 and a process that holds 2 GiB.
const ONE: &str = r#"
seed = 1
[[gpu]]
model = "H200"
[[process]]
pid = 4242
gpu = 0
user = "ada"
uid = 1001
command = ["/usr/bin/python3", "-u", "/home/ada/train.py", "--token=secret"]
memory = "2GiB"
utilization = 0.5
"#;

fn process(scrape: &Scrape, family: &str, pid: &str) -> Option<f64> {
    scrape.value(family, &[("pid", pid)])
}

#[test]
fn a_process_has_its_name_user_and_memory_and_its_arguments_only_if_asked_for() {
    let machine = Machine::new(ONE);
    let with_arguments = machine.once(&["--process.command-line"]);
    let command = with_arguments.all("gpu_process_info").next().unwrap().label("command");
    assert_eq!(command, Some("/usr/bin/python3 -u /home/ada/train.py --token=secret"));
    let scrape = machine.once(&[]);
    assert_eq!(process(&scrape, "gpu_process_memory_used_bytes", "4242"), Some(2.0 * GIB + CONTEXT));
    let info = scrape.all("gpu_process_info").next().unwrap();
    assert_eq!(info.label("process"), Some("train.py"));
    assert_eq!((info.label("user"), info.label("uid")), (Some("ada"), Some("1001")));
    assert!(!scrape.text.contains("secret"));
    assert_eq!(scrape.value("gpu_memory_unattributed_bytes", &[]), Some(8.0 * MIB));
}

#[test]
fn a_peak_between_two_scrapes_is_in_every_scrape_after_it() {
    let (machine, exporter) = Machine::running(ONE, &[]);
    let before =
        exporter.scrape_until("the process", |s| process(s, "gpu_process_memory_used_bytes", "4242").is_some());
    let base = before.value("gpu_memory_used_bytes", &[]).unwrap();
    // Another process takes 50 GiB for 60 ms, once, and falls back to 0.
    machine.control(
        r#"
        [[process]]
        pid = 777
        gpu = 0
        command = ["burst"]
        memory = [{ kind = "spike", base = "0B", peak = "50GiB", hold = "60ms", every = "400ms" }]
        "#,
    );
    let peak = |scrape: &Scrape| process(scrape, "gpu_process_memory_peak_bytes", "777");
    let want = 50.0 * GIB + CONTEXT;
    exporter.scrape_until("the burst in both peaks", |s| {
        peak(s) == Some(want) && s.value("gpu_memory_peak_bytes", &[]) == Some(base + want + 8.0 * MIB)
    });
    machine.control("");
    // Each lane sees the end separately.
    exporter.scrape_until("the burst is over", |s| {
        let held = process(s, "gpu_process_memory_used_bytes", "777");
        s.value("gpu_memory_used_bytes", &[]) == Some(base) && held.is_none()
    });
    for scrape in [exporter.scrape(), exporter.scrape(), exporter.scrape()] {
        let top = scrape.value("gpu_memory_window_peak_bytes", &[]).unwrap();
        assert_eq!(top, base + want + 8.0 * MIB);
        assert_eq!(scrape.value("gpu_memory_peak_bytes", &[]), Some(top));
        assert_eq!(peak(&scrape), Some(want));
        assert_eq!(process(&scrape, "gpu_process_memory_window_peak_bytes", "777"), Some(want));
    }
}

#[test]
fn a_peak_leaves_the_window_when_the_window_has_slid_past_it() {
    let machine = Machine::new(ONE);
    machine.control("[[process]]\npid = 9\ngpu = 0\ncommand = [\"short\"]\nmemory = \"3GiB\"\n");
    let exporter = machine.export(&["--memory.peak-window=1s"]);
    exporter.scrape_until("the process", |s| process(s, "gpu_process_memory_used_bytes", "9").is_some());
    machine.control("");
    let base = 2.0 * GIB + CONTEXT + 8.0 * MIB;
    let slid = exporter.scrape_until("the window has slid", |s| {
        s.value("gpu_memory_window_peak_bytes", &[]) == Some(base)
            && process(s, "gpu_process_memory_window_peak_bytes", "9") == Some(0.0)
    });
    assert_eq!(slid.value("gpu_memory_peak_bytes", &[]), Some(base + 3.0 * GIB + CONTEXT + 8.0 * MIB));
}

#[test]
fn the_drivers_own_maximum_is_used_where_accounting_is_on() {
    let scenario = ONE.replace("model = \"H200\"", "model = \"H200\"\naccounting = true").replace(
        "memory = \"2GiB\"",
        // 70 GiB for 2 ms: over before the exporter starts, and not repeated within the test.
        "memory = [{ kind = \"spike\", base = \"2GiB\", peak = \"70GiB\", hold = \"2ms\" }]",
    );
    let machine = Machine::new(&scenario);
    std::thread::sleep(std::time::Duration::from_millis(50));
    let exporter = machine.export(&[]);
    let accounted = 70.0 * GIB + CONTEXT;
    exporter.scrape_until("the driver's maximum", |s| {
        process(s, "gpu_process_memory_peak_bytes", "4242") == Some(accounted)
    });
}

#[test]
fn once_waits_for_the_systems_own_user_names() {
    // Here the name comes from the machine's own passwd, not the simulated one: another thread reads it a little later.
    let scrape =
        Machine::new(&ONE.replace("uid = 1001", "uid = 0").replace("user = \"ada\"\n", "")).once(&["--path.passwd="]);
    assert_eq!(scrape.all("gpu_process_info").next().unwrap().label("user"), Some("root"));
}
