//! What the driver reports about repairs to a GPU, and the state of its PCIe link.

use crate::faults::refusals::{reacquire, release};
use crate::faults::{faults, faults_but_slow};
use crate::harness::{Machine, Scrape};

const MODELS: &str = include_str!("../fixtures/scenarios/health-models.toml");

/// The families that a GPU may lack.
const FAMILIES: [&str; 6] = [
    "gpu_recovery_action",
    "gpu_row_remap_banks",
    "gpu_pcie_link_generation",
    "gpu_pcie_link_generation_max",
    "gpu_pcie_link_width",
    "gpu_pcie_link_width_max",
];

fn shown(scrape: &Scrape, gpu: &str) -> Vec<&'static str> {
    let has = |name: &str| scrape.all(name).any(|series| series.label("gpu") == Some(gpu));
    FAMILIES.into_iter().filter(|name| has(name)).collect()
}

/// The generation and the width of the link, then the highest ones.
fn link(scrape: &Scrape, gpu: &str) -> [Option<f64>; 4] {
    let names = ["generation", "width", "generation_max", "width_max"];
    names.map(|name| scrape.value(&format!("gpu_pcie_link_{name}"), &[("gpu", gpu)]))
}

/// The action that the driver requires.
fn action<'s>(scrape: &'s Scrape, gpu: &str) -> Vec<&'s str> {
    let required = scrape.all("gpu_recovery_action").filter(|s| s.label("gpu") == Some(gpu) && s.value == 1.0);
    required.filter_map(|series| series.label("action")).collect()
}

fn banks(scrape: &Scrape, gpu: &str) -> Vec<Option<f64>> {
    let left = ["max", "high", "partial", "low", "none"];
    left.map(|left| scrape.value("gpu_row_remap_banks", &[("gpu", gpu), ("available", left)])).to_vec()
}

/// The labels `addressing_mode` and `module_id`.
fn info<'s>(scrape: &'s Scrape, gpu: &str) -> [Option<&'s str>; 2] {
    let info = scrape.all("gpu_info").find(|series| series.label("gpu") == Some(gpu)).unwrap();
    [info.label("addressing_mode"), info.label("module_id")]
}

#[test]
fn every_model_shows_what_it_has() {
    let scrape = Machine::new(MODELS).once(&[]);
    assert_eq!(shown(&scrape, "0"), FAMILIES);
    assert_eq!(action(&scrape, "0"), ["none"]);
    assert_eq!(scrape.all("gpu_recovery_action").filter(|s| s.label("gpu") == Some("0")).count(), 8);
    assert_eq!(banks(&scrape, "0"), [3072.0, 0.0, 0.0, 0.0, 0.0].map(Some));
    assert_eq!(link(&scrape, "0"), [5.0, 16.0, 5.0, 16.0].map(Some));
    assert_eq!(info(&scrape, "0"), [Some("none"), Some("1")]);

    assert_eq!(action(&scrape, "1"), ["drain_and_reset"]);
    assert_eq!(banks(&scrape, "1"), [3069.0, 1.0, 1.0, 0.0, 1.0].map(Some));
    assert_eq!(link(&scrape, "1"), [3.0, 8.0, 4.0, 16.0].map(Some));
    assert_eq!(info(&scrape, "1"), [Some("hmm"), Some("7")]);

    // A consumer board does not remap rows, is on no baseboard, and lowers its link while nothing uses it.
    let consumer: Vec<_> = FAMILIES.into_iter().filter(|name| *name != "gpu_row_remap_banks").collect();
    assert_eq!((shown(&scrape, "2"), shown(&scrape, "3")), (consumer.clone(), consumer));
    assert_eq!(link(&scrape, "2"), [1.0, 16.0, 4.0, 16.0].map(Some));
    assert_eq!(link(&scrape, "3"), [4.0, 16.0, 4.0, 16.0].map(Some));
    assert_eq!(info(&scrape, "2"), [Some("none"), None]);

    // A GPU in a system chip has no link of its own.
    assert_eq!(shown(&scrape, "4"), ["gpu_recovery_action"]);
    assert_eq!(info(&scrape, "4"), [Some("ats"), None]);
    assert_eq!(faults_but_slow(&scrape), 0.0, "that the GB10 has no memory of its own is no fault");
}

#[test]
fn the_recovery_action_begins_with_driver_565() {
    for (version, shows) in [("560.35.03", false), ("565.57.01", true), ("610.10", true)] {
        let scenario = format!("driver = {{ version = \"{version}\" }}\n[[gpu]]\nmodel = \"H200\"\n");
        let scrape = Machine::new(&scenario).once(&[]);
        assert_eq!(shown(&scrape, "0").contains(&FAMILIES[0]), shows, "{version}");
        assert_eq!(faults_but_slow(&scrape), 0.0, "{version}");
    }
}

#[test]
fn a_library_without_the_calls_shows_nothing_of_them() {
    let calls =
        ["RowRemapperHistogram", "ModuleId", "AddressingMode", "CurrPcieLinkGeneration", "MaxPcieLinkGeneration"];
    let calls = calls.map(|call| format!("nvmlDeviceGet{call}"));
    let scrape = Machine::new(MODELS).without_calls(calls.iter().map(String::as_str)).once(&[]);
    assert_eq!(shown(&scrape, "1"), ["gpu_recovery_action", "gpu_pcie_link_width", "gpu_pcie_link_width_max"]);
    assert_eq!(info(&scrape, "1"), [None, None]);
}

#[test]
fn what_cannot_be_true_is_counted_and_not_shown() {
    let scenario = "[[gpu]]\nmodel = \"H200\"\nlink = { generation = 99, width = 4294967295, max_generation = 0 }\n\
                    errors = { recovery_action = 8, remap_banks = [0, 0, 0, 0, 0] }\n\
                    [[fault]]\ncall = \"nvmlDeviceGetAddressingMode\"\nkind = \"implausible\"\n";
    let scrape = Machine::new(scenario).once(&[]);
    assert_eq!(shown(&scrape, "0"), ["gpu_pcie_link_width_max"]);
    assert_eq!(info(&scrape, "0"), [None, Some("1")]);
    let implausible = |source| faults(&scrape, source, "implausible");
    // A value of 0 means that the GPU does not have it, which is not a fault.
    assert!(implausible("telemetry") >= 3.0);
    assert_eq!(implausible("topology"), 1.0);
}

/// The time for which a reason has limited the clocks of a GPU.
fn limited(scrape: &Scrape, gpu: &str, reason: &str) -> Option<f64> {
    scrape.value("gpu_clock_limited_seconds_total", &[("gpu", gpu), ("reason", reason)])
}

#[test]
fn the_driver_s_own_counters_show_for_how_long_the_clocks_were_limited() {
    let often = ["--telemetry.interval=100ms", "--telemetry.slow-interval=100ms"];
    let exporter = Machine::built_in("throttled").export(&often);
    let begun = exporter.scrape_until("the times", |s| limited(s, "0", "power").is_some_and(|time| time > 0.0));
    let scrape = exporter.scrape_until("a second more of each", |s| {
        let grown = |gpu, reason| limited(s, gpu, reason) > limited(&begun, gpu, reason).map(|time| time + 1.0);
        grown("0", "power") && grown("1", "thermal") && grown("2", "thermal")
    });
    for (gpu, reason) in [("0", "thermal"), ("3", "power"), ("3", "thermal"), ("0", "sync_boost")] {
        assert_eq!(limited(&scrape, gpu, reason), Some(0.0), "{gpu} {reason}");
    }
    let active = |gpu, reason| scrape.value("gpu_throttle_active", &[("gpu", gpu), ("reason", reason)]);
    assert_eq!((active("0", "sw_power_cap"), active("1", "sw_thermal_slowdown")), (Some(1.0), Some(1.0)));
    assert_eq!((active("2", "hw_thermal_slowdown"), active("3", "sw_power_cap")), (Some(1.0), Some(0.0)));
}

#[test]
fn a_time_that_the_driver_does_not_count_is_absent() {
    // A GPU in a system chip counts none; the other one answers with all ones.
    let scenario = "[[gpu]]\nmodel = \"GB10\"\n[[gpu]]\nmodel = \"H200\"\n[[fault]]\ncall = \"nvmlDeviceGetFieldValues\"\n\
                    gpu = 1\nkind = \"implausible\"\nvalue = \"ones\"\n";
    let scrape = Machine::new(scenario).once(&[]);
    assert_eq!(scrape.all("gpu_clock_limited_seconds_total").count(), 0, "{}", scrape.text);
    // The other implausible answer is that about the recovery action.
    assert!(faults(&scrape, "telemetry", "implausible") >= 2.0);
}

#[test]
fn energy_is_integrated_from_the_power_and_the_driver_s_own_counter_is_apart() {
    let machine = Machine::new("[[gpu]]\nmodel = \"H200\"\npower = 300\n");
    let (own, of_driver, unmeasured) =
        ("gpu_energy_joules_total", "gpu_driver_energy_joules_total", "gpu_energy_unmeasured_seconds_total");
    let began = std::time::Instant::now();
    let exporter = machine.export(&["--telemetry.interval=100ms"]);
    let scrape = exporter.scrape_until("two seconds", |s| s.value(own, &[]).is_some_and(|joules| joules > 600.0));
    assert!(scrape.value(own, &[]).unwrap() <= 300.0 * began.elapsed().as_secs_f64(), "{}", scrape.text);
    assert_eq!((scrape.value(of_driver, &[]), scrape.value(unmeasured, &[]).is_some()), (None, true));
    // While the driver is closed, no power is read: the sum goes on afterwards, and the gap is counted. Readings up to one and a
    // half intervals apart follow each other, so it is closed for longer.
    let before = scrape.value(unmeasured, &[]).unwrap();
    release(&exporter);
    std::thread::sleep(std::time::Duration::from_millis(300));
    reacquire(&exporter);
    let after = exporter.scrape_until("a gap", |s| s.value(unmeasured, &[]).is_some_and(|time| time > before));
    assert!(after.value(own, &[]) >= scrape.value(own, &[]), "{}", after.text);
    let asked = machine.once(&["--telemetry.energy=true"]);
    assert!(asked.value(of_driver, &[]).is_some());
}

const OF_WORKLOAD: &str = "gpu_workload_energy_joules_total";
const IDLE: &str = "gpu_idle_energy_joules_total";
const APPORTIONED: &str = "--telemetry.workload-energy=true";

/// Two units on one GPU; the first one ends after some seconds.
const SHARING: &str = r#"
[[gpu]]
model = "H200"
power = 400
[[process]]
pid = 3500
command = ["first"]
cgroup = "0::/system.slice/first.service"
memory = "2GiB"
utilization = 0.25
end = "8s"
[[process]]
pid = 3501
command = ["second"]
cgroup = "0::/system.slice/second.service"
memory = "1GiB"
utilization = 0.5
"#;

fn joules(scrape: &Scrape, workload: &str) -> Option<f64> {
    scrape.value(OF_WORKLOAD, &[("workload", workload)])
}

/// Whether the parts of the energy of the only GPU sum to the whole.
fn adds_up(scrape: &Scrape) -> bool {
    let parts: f64 = scrape.all(OF_WORKLOAD).chain(scrape.all(IDLE)).map(|series| series.value).sum();
    scrape.value("gpu_energy_joules_total", &[]).is_some_and(|whole| (parts - whole).abs() < 1e-3)
}

#[test]
fn energy_is_apportioned_by_sm_time_and_the_parts_sum_to_the_whole() {
    let (_machine, exporter) = Machine::running(SHARING, &[APPORTIONED, "--process.interval=200ms"]);
    let both = |s: &Scrape| {
        ["unit:first.service", "unit:second.service"].iter().all(|name| joules(s, name) > Some(0.0)) && adds_up(s)
    };
    let scrape = exporter.scrape_until("the energy of both", both);
    let [first, second] = ["unit:first.service", "unit:second.service"].map(|name| joules(&scrape, name).unwrap());
    assert!((second / first - 2.0).abs() < 1e-6, "{}", scrape.text);
    assert!(scrape.value(IDLE, &[]) > Some(0.0) && joules(&scrape, "other").is_some(), "{}", scrape.text);
    // The first one has ended: its energy stays, and that of the other one grows.
    let gone = exporter.scrape_until("the end of one", |s| {
        let ended = s.value("gpu_workload_processes", &[("workload", "unit:first.service")]).is_none();
        ended && joules(s, "unit:second.service") > Some(2.0 * second) && adds_up(s)
    });
    let kept = joules(&gone, "unit:first.service").unwrap();
    let after = exporter
        .scrape_until("more energy", |s| joules(s, "unit:second.service") > joules(&gone, "unit:second.service"));
    assert!(kept >= first && joules(&after, "unit:first.service") == Some(kept), "{}", after.text);
}

#[test]
fn energy_is_not_apportioned_unless_asked_or_where_the_driver_has_no_samples() {
    let mig = "[[gpu]]\nmodel = \"H200\"\nmig = [\"1g.18gb\"]\n";
    let machines = [
        (Machine::new(SHARING), "--telemetry.workload-energy=false"),
        (Machine::new(SHARING).without_calls(["nvmlDeviceGetProcessUtilization"]), APPORTIONED),
        (Machine::new(mig), APPORTIONED),
    ];
    for (machine, flag) in machines {
        let exporter = machine.export(&[flag]);
        let scrape = exporter
            .scrape_until("energy", |s| s.value("gpu_energy_joules_total", &[]).is_some_and(|joules| joules > 0.0));
        assert_eq!(scrape.all(OF_WORKLOAD).chain(scrape.all(IDLE)).count(), 0, "{}", scrape.text);
    }
}
