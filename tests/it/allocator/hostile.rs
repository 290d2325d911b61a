//! A hostile process can harm its own numbers and nothing else.

use super::children::Process;
use super::*;

#[test]
fn lines_may_arrive_in_pieces_and_a_client_need_not_read() {
    let (site, exporter, uuid) = Site::with_self(4 * GIB);
    let pid = std::process::id();
    let mut slow = site.connect();
    let line = report("pytorch", &uuid, r#""allocated_bytes":5"#) + "\n";
    let (last, first) = line.as_bytes().split_last().unwrap();
    for byte in first {
        slow.write(&[*byte]);
    }
    // A client that has sent half a line does not delay any other client.
    let mut quick = Client::open(&site.socket);
    quick.send(HELLO);
    quick.send(&report("jax", &uuid, r#""allocated_bytes":6"#));
    let of = |s: &Scrape, framework: &str| s.value(ALLOCATED, &[("framework", framework)]);
    let scrape = exporter.scrape_until("the quick one", |s| of(s, "jax") == Some(6.0));
    assert_eq!(of(&scrape, "pytorch"), None);
    slow.write(&[*last]);
    exporter.scrape_until("the slow one", |s| of(s, "pytorch") == Some(5.0));
    // An unfinished line at the end is dropped.
    slow.write(report("pytorch", &uuid, r#""allocated_bytes":7"#).as_bytes());
    drop(slow);
    exporter.scrape_until("the end", |s| of(s, "pytorch").is_none() && value(s, ALLOCATED, pid) == Some(6));
    assert_eq!(exporter.scrape().value("vram_exporter_faults_total", &[("source", "allocator")]), Some(0.0));
}

#[test]
fn a_process_that_floods_and_lies_harms_its_own_numbers_only() {
    let (site, exporter, uuid) = Site::exported();
    let (mut honest, mut hostile) = (Process::start(&site), Process::start(&site));
    site.list(&[(honest.pid(), 4 * GIB), (hostile.pid(), 2 * GIB)]);
    honest.send(&report("pytorch", &uuid, &format!(r#""allocated_bytes":{GIB},"reserved_bytes":{}"#, 3 * GIB)));
    exporter.scrape_until("the honest one", |s| value(s, ALLOCATED, honest.pid()) == Some(GIB));
    let flood = report("pytorch", &uuid, r#""allocated_bytes":1,"reserved_bytes":2"#);
    // All in one write: on a busy machine, single ones may come more slowly than the limit allows.
    let flood = vec![flood; 1100].join("\n");
    until("the flood is counted", || {
        hostile.send(&flood);
        faults(&exporter, "too_many_messages") > 0
    });
    // It claims that all memory of the GPU could be released, and gives the honest process's pid.
    let pid = honest.pid();
    let mut lie = |reserved: u64| {
        hostile.send(&report(
            "pytorch",
            &uuid,
            &format!(r#""pid":{pid},"allocated_bytes":0,"reserved_bytes":{reserved}"#),
        ));
    };
    let begin = Instant::now();
    // Everything below holds in each scrape, whatever the hostile process sends in between.
    while begin.elapsed() < Duration::from_secs(3) {
        lie(1 << 50);
        lie(2 * GIB + CONTEXT + 64 * MIB);
        let scrape = exporter.scrape();
        assert_eq!(value(&scrape, ALLOCATED, pid), Some(GIB));
        assert_eq!(value(&scrape, RESERVED, pid), Some(3 * GIB));
        let outside = value(&scrape, "gpu_process_memory_outside_allocator_bytes", pid);
        assert_eq!(outside, Some(GIB + CONTEXT));
        let used = scrape.value("gpu_memory_used_bytes", &[("gpu", "0")]).unwrap() as u64;
        let needed = scrape.value("gpu_memory_needed_bytes", &[("gpu", "0")]).unwrap() as u64;
        let own = 2 * GIB + CONTEXT;
        assert!((used - 2 * GIB - own..=used - 2 * GIB).contains(&needed), "{needed} of {used}");
    }
}
