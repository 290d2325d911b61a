//! The links between GPUs: their number, their errors and their traffic, the fabric, and what a GPU without links shows.

use crate::faults::{faults, faults_but_slow};
use crate::harness::{Machine, Scrape};

const OFTEN: &str = "--telemetry.slow-interval=100ms";
const FAST: &str = "--telemetry.interval=100ms";

/// Two GPUs with links, of which the second has lost one, a GPU with NVLink 5, one whose driver adds up no errors, and one
/// without links.
const LINKED: &str = r#"
[[gpu]]
model = "H100"
nvlink = { links = 18, rate = ["512MiB", "256MiB"] }
c2c = { links = 10 }
fabric = { state = 3, clique = 7, health = 2, summary = 1 }
[[gpu]]
model = "H100"
nvlink = { links = 18, down = [4], errors = [[4, 9, 2, 5, 1], [6, 1, 1, 0, 0]] }
c2c = { links = 10, down = 2 }
fabric = { state = 3, status = 999, health = 0x529, summary = 2 }
[[gpu]]
model = "B200"
nvlink = { links = 18, fifth = true, errors = [[0, 0, 3, 0, 0]] }
[[gpu]]
model = "H100"
nvlink = { links = 2, totals = false, errors = [[0, 1, 2, 3, 4], [1, 10, 20, 30, 40]] }
[[gpu]]
model = "L4"
"#;

fn value(scrape: &Scrape, gpu: &str, family: &str, label: &[(&str, &str)]) -> Option<f64> {
    scrape.value(family, &[&[("gpu", gpu)], label].concat())
}

/// The errors of a GPU by kind, in the order of the contract.
fn errors(scrape: &Scrape, gpu: &str) -> [Option<f64>; 5] {
    ["replay", "recovery", "crc_flit", "crc_data", "ecc_data"]
        .map(|kind| value(scrape, gpu, "gpu_nvlink_errors_total", &[("kind", kind)]))
}

fn links(scrape: &Scrape, gpu: &str) -> [Option<f64>; 2] {
    ["gpu_nvlink_links", "gpu_nvlink_links_down"].map(|family| value(scrape, gpu, family, &[]))
}

/// Whether every GPU with links has been read.
fn is_read(scrape: &Scrape) -> bool {
    scrape.all("gpu_nvlink_links").count() == 4 && scrape.all("gpu_fabric_state").count() == 8
}

#[test]
fn links_errors_and_fabric_are_those_of_the_driver() {
    let (_machine, exporter) = Machine::running(LINKED, &[FAST, OFTEN]);
    let scrape = exporter.scrape_until("the links", is_read);
    assert_eq!(
        ["0", "1", "2", "3"].map(|gpu| links(&scrape, gpu)),
        [[Some(18.0), Some(0.0)], [Some(18.0), Some(1.0)], [Some(18.0), Some(0.0)], [Some(2.0), Some(0.0)]]
    );
    assert_eq!(errors(&scrape, "0"), [Some(0.0), Some(0.0), Some(0.0), Some(0.0), None]);
    assert_eq!(errors(&scrape, "1"), [Some(10.0), Some(3.0), Some(5.0), Some(1.0), None]);
    assert_eq!(errors(&scrape, "2"), [None, Some(3.0), None, None, None], "NVLink 5 counts recoveries");
    assert_eq!(errors(&scrape, "3"), [None; 5], "the driver adds up nothing");
    assert_eq!(["0", "1"].map(|gpu| value(&scrape, gpu, "gpu_c2c_links_down", &[])), [Some(0.0), Some(2.0)]);
    let state = |gpu, state| value(&scrape, gpu, "gpu_fabric_state", &[("state", state)]);
    assert_eq!(
        [state("0", "completed"), state("0", "failed"), state("1", "failed")],
        [Some(1.0), Some(0.0), Some(1.0)]
    );
    let problem = |gpu, name| value(&scrape, gpu, "gpu_fabric_problem_active", &[("problem", name)]);
    assert_eq!([problem("0", "degraded_bandwidth"), problem("0", "route_recovery")], [Some(0.0), None]);
    let bad = ["degraded_bandwidth", "route_recovery", "route_unhealthy", "incorrect_configuration"];
    assert_eq!(bad.map(|name| problem("1", name)), [Some(1.0), Some(0.0), Some(0.0), Some(1.0)]);
    // By link only on request, and nothing at all for a GPU without links.
    assert_eq!(scrape.all("gpu_nvlink_link_errors_total").count(), 0);
    let of_links = |name: &str| {
        ["nvlink_links", "nvlink_errors", "nvlink_payload", "c2c_links", "fabric"]
            .iter()
            .any(|part| name.contains(part))
    };
    let invented = scrape.series.iter().find(|series| series.label("gpu") == Some("4") && of_links(&series.name));
    assert!(invented.is_none(), "{invented:?}");
    assert_eq!(faults_but_slow(&scrape), 0.0, "a GPU without links is no fault");
}

#[test]
fn the_payload_grows_by_what_the_links_carry() {
    let (_machine, exporter) = Machine::running(LINKED, &[FAST, OFTEN]);
    let first = exporter.scrape_until("the links", is_read);
    let read = |scrape: &Scrape| {
        ["transmitted", "received"]
            .map(|direction| value(scrape, "0", &format!("gpu_nvlink_payload_{direction}_bytes_total"), &[]))
    };
    let [Some(sent), Some(received)] = read(&first) else { panic!("{:?}", read(&first)) };
    let later = exporter.scrape_until("traffic", |s| read(s)[0].is_some_and(|now| now > sent + 1e8));
    let [Some(now), Some(got)] = read(&later) else { panic!("{:?}", read(&later)) };
    // Both were read by one call: 512 and 256 MiB a second, in whole KiB.
    assert!(((now - sent) - 2.0 * (got - received)).abs() <= 4096.0, "{sent} to {now}, {received} to {got}");
    assert_eq!((now % 1024.0, got % 1024.0), (0.0, 0.0));
}

#[test]
fn each_link_has_its_own_errors_on_request() {
    let (_machine, exporter) = Machine::running(LINKED, &[FAST, OFTEN, "--telemetry.nvlink-errors-by-link"]);
    let scrape =
        exporter.scrape_until("the links", |s| is_read(s) && s.all("gpu_nvlink_link_errors_total").count() > 0);
    let of = |link, kind| value(&scrape, "1", "gpu_nvlink_link_errors_total", &[("link", link), ("kind", kind)]);
    assert_eq!(
        [of("4", "replay"), of("4", "recovery"), of("6", "replay"), of("0", "replay")],
        [Some(9.0), Some(2.0), Some(1.0), Some(0.0)]
    );
    assert_eq!(of("18", "replay"), None);
    assert_eq!(errors(&scrape, "3"), [Some(11.0), Some(22.0), Some(33.0), Some(44.0), None], "summed over the links");
    assert_eq!(errors(&scrape, "1")[0], Some(10.0), "the driver adds these up");
}

#[test]
fn an_older_driver_tells_the_fabric_by_the_second_version_of_its_struct() {
    let older = format!("[driver]\nversion = \"550.54.15\"\n{LINKED}");
    let (_machine, exporter) = Machine::running(&older, &[FAST, OFTEN]);
    let scrape = exporter.scrape_until("the links", is_read);
    assert_eq!(value(&scrape, "0", "gpu_fabric_state", &[("state", "completed")]), Some(1.0));
    assert_eq!(value(&scrape, "1", "gpu_fabric_problem_active", &[("problem", "degraded_bandwidth")]), Some(1.0));
}

#[test]
fn numbers_of_links_that_cannot_be_true_are_faults_and_not_shown() {
    let (machine, exporter) = Machine::running(LINKED, &[FAST, OFTEN]);
    exporter.scrape_until("the links", is_read);
    let broken = ["nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuFabricInfoV"]
        .map(|call| format!("[[fault]]\ncall = \"{call}\"\ngpu = 0\nkind = \"implausible\"\nvalue = \"ones\"\n"));
    machine.control(&broken.concat());
    let scrape = exporter.scrape_until("the fault", |s| {
        links(s, "0") == [None, None] && value(s, "0", "gpu_fabric_state", &[("state", "completed")]).is_none()
    });
    assert_eq!(links(&scrape, "1"), [Some(18.0), Some(1.0)], "the other GPU keeps its values");
    assert!(faults(&scrape, "telemetry", "implausible") >= 2.0);
    machine.control("");
    exporter.scrape_until("the links again", is_read);
}

#[test]
fn an_error_counter_that_a_link_refuses_leaves_no_sum() {
    let (machine, exporter) = Machine::running(LINKED, &[FAST, OFTEN, "--telemetry.nvlink-errors-by-link"]);
    exporter.scrape_until("the sum", |s| errors(s, "3")[0] == Some(11.0));
    machine.control(
        "[[fault]]\ncall = \"nvmlDeviceGetNvLinkErrorCounter\"\ngpu = 3\nkind = \"error\"\ncode = \"NOT_SUPPORTED\"\n",
    );
    let scrape = exporter.scrape_until("no sum", |s| errors(s, "3") == [None; 5]);
    assert_eq!(links(&scrape, "3"), [Some(2.0), Some(0.0)], "the links are there all the same");
    assert_eq!(errors(&scrape, "1")[0], Some(10.0), "the driver adds these up");
}
