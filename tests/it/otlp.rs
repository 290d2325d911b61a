//! The pushes to an OTLP receiver: what is pushed, what happens when the receiver fails, secrets, and the end.

mod delivery;
mod receiver;
mod secrets;

use std::collections::BTreeSet;

use crate::harness::{Machine, Scrape, eventually_or};
use receiver::{Point, Push, Receiver};

/// Short intervals, so that a test sees several pushes.
const SOON: [&str; 2] = ["--otlp.interval=1s", "--memory.peak-window=1s"];

/// A GPU with one process.
const GPU: &str = "seed = 7\n[[gpu]]\nmodel = \"H200\"\n[[process]]\npid = 11\nmemory = \"1GiB\"\n";

/// The flags with which an exporter pushes to the receiver soon and often.
fn flags(receiver: &Receiver, more: &[&str]) -> Vec<String> {
    let mut flags = vec![receiver.flag()];
    flags.extend(SOON.iter().chain(more).map(|flag| (*flag).to_owned()));
    flags
}

/// Starts an exporter that pushes to the receiver soon and often.
fn export(machine: &Machine, receiver: &Receiver, more: &[&str]) -> crate::harness::Exporter {
    let flags = flags(receiver, more);
    machine.export(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

fn of_scrape(scrape: &Scrape) -> BTreeSet<String> {
    scrape.series.iter().map(|series| format!("{}{:?}", series.name, series.labels)).collect()
}

fn of_push(push: &Push) -> BTreeSet<String> {
    let current = push.points.iter().filter(|point| !point.gone);
    current.map(|point| format!("{}{:?}", point.name, point.labels)).collect()
}

#[test]
fn a_push_has_the_series_of_a_scrape_with_their_values() {
    for scenario in ["mig-a100", "hostile-names", "busy-h200"] {
        let (machine, receiver) = (Machine::built_in(scenario), Receiver::start(&[]));
        let exporter = export(&machine, &receiver, &[]);
        // Some series appear with the first reading of their lane, so the first pushes can lack them.
        let (push, scrape) = eventually_or("a push like a scrape", || {
            let (scrape, pushes) = (exporter.scrape(), receiver.pushes());
            let push = pushes.last().ok_or("no push")?;
            let (pushed, scraped) = (of_push(push), of_scrape(&scrape));
            let differ = pushed.symmetric_difference(&scraped).next();
            differ.map_or(Ok((push.clone(), scrape)), |series| Err(format!("{scenario}: {series}")))
        });
        assert!(push.points.len() > 100, "{}", push.points.len());
        let still = ["_total_bytes", "_info", "_limit_watts", "_reserved_bytes", "_up", "nvml_up", "_seconds_bucket"];
        let mut compared = 0;
        for series in scrape.series.iter().filter(|s| still.iter().any(|name| s.name.ends_with(name))) {
            let point = push.points.iter().find(|p| p.name == series.name && p.labels == series.labels).unwrap();
            if !series.name.ends_with("_bucket") {
                assert_eq!(point.value, Some(series.value), "{series:?}");
                compared += 1;
            }
        }
        assert!(compared > 5, "{compared}");
        let integers = ["_bytes", "_bytes_total", "_info", "_up", "_processes"];
        for point in push.points.iter().filter(|point| point.shape != "histogram" && !point.gone) {
            let is_of = |ends: &[&str]| ends.iter().any(|end| point.name.ends_with(end));
            assert!(point.is_integer || !is_of(&integers), "{point:?}");
            assert!(
                !point.is_integer || !is_of(&["_ratio", "_watts", "_seconds", "_seconds_total", "_celsius"]),
                "{point:?}"
            );
        }
    }
}

#[test]
fn units_shapes_and_times_are_those_of_the_families() {
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[]));
    let exporter = export(&machine, &receiver, &[]);
    exporter.scrape_until("the process", |s| s.all("gpu_process_memory_used_bytes").count() == 1);
    let complete = |push: &Push| {
        ["gpu_process_memory_used_bytes", "gpu_ecc_errors_total"].iter().all(|name| push.all(name, &[]).count() > 0)
    };
    let first = receiver.until("a push with everything", complete);
    let times = |push: &Push| push.points.iter().map(|point| point.time).collect::<BTreeSet<_>>();
    let at = *times(&first).first().unwrap();
    let second = receiver.until("the next push", |push| times(push).first() > Some(&at));
    for push in [&first, &second] {
        assert_eq!(times(push).len(), 1, "all points of a push have the time of its collection");
    }
    let kind = |name: &str, labels: &[(&str, &str)]| {
        let Point { unit, shape, .. } = first.one(name, labels);
        (unit, shape)
    };
    let pair = |unit: &str, shape| (unit.to_owned(), shape);
    assert_eq!(kind("gpu_memory_used_bytes", &[]), pair("By", "gauge"));
    assert_eq!(kind("gpu_temperature_celsius", &[]), pair("Cel", "gauge"));
    assert_eq!(kind("gpu_utilization_ratio", &[]), pair("1", "gauge"));
    assert_eq!(kind("gpu_up", &[]), pair("", "gauge"));
    assert_eq!(kind("gpu_info", &[]), pair("", "gauge"));
    assert_eq!(kind("gpu_memory_increase_bytes_total", &[]), pair("By", "counter"));
    assert_eq!(kind("vram_exporter_lane_duration_seconds_count", &[("lane", "memory")]), pair("s", "histogram"));
    for point in first.points.iter().filter(|point| point.shape == "gauge") {
        assert_eq!(point.start, 0, "{point:?}");
    }
    // What the exporter counts began with the exporter; when the driver began to count is unknown.
    for (name, labels) in [
        ("gpu_memory_increase_bytes_total", &[][..]),
        ("vram_exporter_faults_total", &[("source", "memory")][..]),
        ("vram_exporter_lane_duration_seconds_count", &[("lane", "memory")][..]),
    ] {
        let (one, two) = (first.one(name, labels), second.one(name, labels));
        assert!(one.start > 0 && one.start < one.time, "{one:?}");
        assert_eq!(one.start, two.start, "{name}");
    }
    assert_eq!(first.one("gpu_ecc_errors_total", &[("type", "corrected")]).start, 0);
}

#[test]
fn the_conventions_name_what_they_know_and_a_scrape_names_the_rest() {
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[]));
    let exporter = export(&machine, &receiver, &["--otlp.names=semantic-conventions"]);
    let push = receiver.until("the energy", |push| push.all("hw.energy", &[]).count() == 1);
    let scrape = exporter.scrape();
    let value = |name: &str, labels: &[(&str, &str)]| push.one(name, labels).value.unwrap();
    let (limit, usage) = (value("hw.gpu.memory.limit", &[]), value("hw.gpu.memory.usage", &[]));
    assert_eq!(Some(limit), scrape.value("gpu_memory_total_bytes", &[]));
    assert!(usage >= (1_u64 << 30) as f64 && usage < limit, "{usage}");
    assert_eq!(value("hw.gpu.memory.utilization", &[]), usage / limit);
    for (name, unit, shape, is_integer, count) in [
        ("hw.gpu.memory.limit", "By", "updown", true, 1),
        ("hw.gpu.memory.usage", "By", "updown", true, 1),
        ("hw.gpu.memory.utilization", "1", "gauge", false, 1),
        ("hw.gpu.utilization", "1", "gauge", false, 3),
        ("hw.errors", "{error}", "counter", true, 2),
        ("hw.power", "W", "gauge", false, 1),
        ("hw.energy", "J", "counter", false, 1),
        ("hw.temperature", "Cel", "gauge", false, 2),
    ] {
        let points: Vec<_> = push.all(name, &[]).collect();
        assert_eq!(points.len(), count, "{name}: {points:?}");
        assert!(points.iter().all(|point| point.unit == unit && point.shape == shape), "{points:?}");
        assert!(points.iter().all(|point| point.is_integer == is_integer), "{points:?}");
    }
    let info = scrape.all("gpu_info").next().unwrap();
    let uuid = info.label("uuid").unwrap();
    let gpu = push.one("hw.gpu.utilization", &[("hw.gpu.task", "general")]).labels;
    let driver = scrape.all("nvidia_driver_info").next().unwrap().label("driver_version").unwrap();
    for (name, expected) in [
        ("hw.id", uuid),
        ("hw.name", "GPU 0"),
        ("hw.type", "gpu"),
        ("hw.vendor", "NVIDIA"),
        ("hw.model", info.label("name").unwrap()),
        ("hw.driver_version", driver),
        ("hw.firmware_version", info.label("vbios").unwrap()),
    ] {
        assert_eq!(gpu.get(name).map(String::as_str), Some(expected), "{gpu:?}");
    }
    assert_eq!(push.one("hw.power", &[]).labels.keys().collect::<Vec<_>>(), ["hw.id", "hw.name", "hw.type"]);
    let sensor = push.one("hw.temperature", &[("hw.sensor_location", "memory")]).labels;
    assert_eq!((sensor["hw.parent"].as_str(), sensor["hw.id"].as_str()), (uuid, &*format!("{uuid}/memory")));
    assert_eq!(push.all("hw.errors", &[("error.type", "uncorrected")]).count(), 1);
    // What has a name in the conventions has no other name, and all else has the name of a scrape.
    for named in ["gpu_memory_used_bytes", "gpu_utilization_ratio", "gpu_ecc_errors_total", "gpu_power_watts"] {
        assert_eq!(push.all(named, &[]).count(), 0, "{named}");
    }
    assert_eq!(push.all("gpu_memory_free_bytes", &[]).count(), 1);
}

#[test]
fn both_names_are_pushed_with_one_value_if_both_are_asked_for() {
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[]));
    let _exporter = export(&machine, &receiver, &["--otlp.names=both"]);
    let push = receiver.until("telemetry", |push| push.all("hw.power", &[]).count() == 1);
    for (own, named) in [
        ("gpu_memory_used_bytes", "hw.gpu.memory.usage"),
        ("gpu_memory_total_bytes", "hw.gpu.memory.limit"),
        ("gpu_power_watts", "hw.power"),
    ] {
        assert_eq!(push.one(own, &[]).value, push.one(named, &[]).value);
    }
}

#[test]
fn the_resource_names_the_exporter_the_machine_and_a_simulation() {
    let (machine, receiver) = (Machine::new(GPU), Receiver::start(&[]));
    let mut command = machine.command(&["--kubernetes.node-name=node-1"]);
    command.args(flags(&receiver, &[]));
    command.env("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=prod,service.instance.id=a%20b");
    let _exporter = crate::harness::Exporter::start(command);
    let push = receiver.until("the driver is open", |push| push.resource.contains_key("vram_exporter.simulated"));
    let expected = [
        ("host.name", "node-1"),
        ("k8s.cluster.name", "prod"),
        ("k8s.node.name", "node-1"),
        ("os.type", "linux"),
        ("service.instance.id", "a b"),
        ("service.name", "vram-exporter"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("vram_exporter.simulated", "true"),
    ];
    assert_eq!(push.resource, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
}

#[test]
fn a_series_that_ends_is_pushed_once_more_without_a_value() {
    let (machine, receiver) = (Machine::new("[[gpu]]\nmodel = \"H200\"\n"), Receiver::start(&[]));
    machine.control("[[process]]\npid = 7\nmemory = \"2GiB\"\n");
    let _exporter = export(&machine, &receiver, &["--process.linger=0s", "--otlp.names=scrape"]);
    let (name, own) = ("gpu_process_memory_used_bytes", [("pid", "7")]);
    let has = |push: &Push, gone: bool| push.all(name, &own).any(|point| point.gone == gone);
    let shown = receiver.until("the process", |push| has(push, false));
    machine.control("");
    receiver.until("its end", |push| has(push, true));
    let gone = receiver.pushes().into_iter().find(|push| has(push, true)).unwrap().one(name, &own);
    assert_eq!((gone.value, &gone.labels), (None, &shown.one(name, &own).labels));
    let later = receiver.pushes().len() + 1;
    let pushes = crate::harness::eventually("two more pushes", || Some(receiver.pushes()).filter(|p| p.len() > later));
    assert_eq!(pushes.iter().filter(|push| has(push, true)).count(), 1);
    assert_eq!(pushes.last().unwrap().all(name, &own).count(), 0);
}
