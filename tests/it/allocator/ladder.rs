//! What is shown: the breakdown of used memory (`docs/allocators.md`), peaks, workloads, and when values disappear.

use super::*;

#[test]
fn the_rungs_add_up_to_the_used_memory_to_the_byte() {
    let (site, exporter, uuid) = Site::with_self(6 * GIB);
    let mut client = site.connect();
    let pid = std::process::id();
    assert_eq!(reported(&exporter.scrape()), Vec::<&str>::new(), "nothing is shown before a report");
    client.report(&uuid, &format!(r#""allocated_bytes":{},"reserved_bytes":{}"#, GIB + 17, 3 * GIB + 4096));
    client.send(&report("jax", &uuid, &format!(r#""allocated_bytes":{},"reserved_bytes":{}"#, 5, 2 * GIB)));
    let of = |scrape: &Scrape, family: &str, framework: &str| {
        scrape.value(family, &[("pid", &pid.to_string()), ("framework", framework)]).map(|value| value as u64)
    };
    let scrape = exporter.scrape_until("both frameworks", |s| of(s, RESERVED, "jax").is_some());
    let used = value(&scrape, "gpu_process_memory_used_bytes", pid).unwrap();
    let outside = value(&scrape, "gpu_process_memory_outside_allocator_bytes", pid).unwrap();
    let rungs = ["pytorch", "jax"].map(|framework| {
        let (reserved, allocated) = (of(&scrape, RESERVED, framework), of(&scrape, ALLOCATED, framework));
        (reserved.unwrap() - allocated.unwrap(), allocated.unwrap())
    });
    assert_eq!(used, 6 * GIB + CONTEXT);
    assert_eq!(rungs, [(2 * GIB + 4096 - 17, GIB + 17), (2 * GIB - 5, 5)]);
    assert_eq!(used, outside + rungs.iter().map(|(slack, allocated)| slack + allocated).sum::<u64>());

    let gpu = scrape.value("gpu_memory_used_bytes", &[("gpu", "0")]).unwrap() as u64;
    let needed = scrape.value("gpu_memory_needed_bytes", &[("gpu", "0")]).unwrap() as u64;
    assert_eq!(needed, gpu - rungs.iter().map(|(slack, _)| slack).sum::<u64>());
    assert_eq!(scrape.value("gpu_memory_needed_bytes", &[("gpu", "1")]), None, "no process reports there");

    let labels = |name: &str| scrape.all(name).next().unwrap().labels.clone();
    let mut process = labels("gpu_process_memory_used_bytes");
    assert_eq!(labels("gpu_process_memory_outside_allocator_bytes"), process);
    process.insert("framework".to_owned(), "jax".to_owned());
    assert_eq!(labels(ALLOCATED), process);
    let workload = labels("gpu_workload_memory_used_bytes");
    assert_eq!(labels("gpu_workload_allocator_allocated_bytes"), workload);
    let sum = |family: &str| scrape.value(family, &[]).unwrap() as u64;
    assert_eq!(sum("gpu_workload_allocator_allocated_bytes"), GIB + 17 + 5);
    assert_eq!(sum("gpu_workload_allocator_reserved_bytes"), 5 * GIB + 4096);
}

#[test]
fn what_a_framework_does_not_tell_is_absent() {
    let (site, exporter, uuid) = Site::with_self(4 * GIB);
    let mut client = site.connect();
    client.send(&report("tensorflow", &uuid, r#""allocated_bytes":700"#));
    let scrape = exporter.scrape_until("allocated", |s| s.all(ALLOCATED).count() == 1);
    let absent = [
        RESERVED,
        "gpu_process_memory_outside_allocator_bytes",
        "gpu_memory_needed_bytes",
        "gpu_workload_allocator_reserved_bytes",
        "gpu_process_allocator_limit_bytes",
        "gpu_process_allocator_retries_total",
        "gpu_process_allocator_largest_free_block_bytes",
    ];
    absent.iter().for_each(|family| assert_eq!(scrape.all(family).count(), 0, "{family}"));
    client.send(&report(
        "tensorflow",
        &uuid,
        r#""reserved_bytes":900,"high_bytes":800,"peak_bytes":900,"limit_bytes":5000,"largest_free_block_bytes":100,"inactive_split_bytes":50,"retries":3,"out_of_memory":2"#,
    ));
    let scrape = exporter.scrape_until("everything", |s| s.all(RESERVED).count() == 1);
    let own = |family: &str| value(&scrape, &format!("gpu_process_allocator_{family}"), std::process::id());
    assert_eq!((own("limit_bytes"), own("window_peak_bytes"), own("peak_bytes")), (Some(5000), Some(800), Some(900)));
    assert_eq!((own("largest_free_block_bytes"), own("inactive_split_bytes")), (Some(100), Some(50)));
    assert_eq!((own("retries_total"), own("out_of_memory_total")), (Some(3), Some(2)));
    client.send(&format!(
        r#"{{"type":"measurement","framework":"tensorflow","device":"{uuid}","name":"forward","peak_bytes":1234,"peak_reserved_bytes":2000,"exact":true,"seconds":0.5}}"#
    ));
    let region = |s: &Scrape| s.value("gpu_process_allocator_region_peak_bytes", &[("region", "forward")]);
    exporter.scrape_until("the region", |s| region(s) == Some(1234.0));
    client.send(&report("tensorflow", &uuid, r#""reserved_bytes":null"#));
    exporter.scrape_until("no longer known", |s| s.all(RESERVED).count() == 0 && s.all(ALLOCATED).count() == 1);
}

#[test]
fn while_more_is_reserved_than_used_nothing_is_shown_and_it_is_counted() {
    let (site, exporter, uuid) = Site::with_self(4 * GIB);
    let mut client = site.connect();
    let pid = std::process::id();
    let reserve = |bytes: u64| format!(r#""allocated_bytes":100,"reserved_bytes":{bytes}"#);
    client.report(&uuid, &reserve(4 * GIB + CONTEXT + 64 * MIB));
    let scrape = exporter.scrape_until("within the margin", |s| value(s, RESERVED, pid).is_some());
    assert_eq!(scrape.all("gpu_process_memory_outside_allocator_bytes").count(), 0, "it would be negative");
    let gpu = scrape.value("gpu_memory_used_bytes", &[("gpu", "0")]).unwrap();
    let needed = scrape.value("gpu_memory_needed_bytes", &[("gpu", "0")]).unwrap();
    assert_eq!(gpu - needed, (4 * GIB + CONTEXT) as f64, "no more than the process uses");
    client.report(&uuid, &reserve(4 * GIB + CONTEXT + 64 * MIB + 1));
    exporter.scrape_until("beyond the margin", |s| reported(s).is_empty());
    until("it is counted", || faults(&exporter, "inconsistent") == 1);
    client.report(&uuid, &reserve(GIB));
    exporter.scrape_until("right again", |s| value(s, RESERVED, pid) == Some(GIB));
}

#[test]
fn a_device_that_the_process_does_not_use_is_not_shown_and_is_counted() {
    let (site, exporter, uuid) = Site::with_self(4 * GIB);
    let mut client = site.connect();
    let other = super::uuid(&exporter, 1);
    client.report(&uuid, r#""allocated_bytes":1"#);
    client.report(&other, r#""allocated_bytes":2,"reserved_bytes":3"#);
    client.report("GPU-00000000-0000-0000-0000-000000000000", r#""allocated_bytes":4,"reserved_bytes":5"#);
    until("both are counted", || faults(&exporter, "foreign_device") == 2);
    let scrape = exporter.scrape();
    let shown: Vec<_> = scrape.all(ALLOCATED).map(|series| (series.label("gpu").unwrap(), series.value)).collect();
    assert_eq!(shown, [("0", 1.0)]);
    assert_eq!(scrape.all("gpu_memory_needed_bytes").count(), 0);
}
