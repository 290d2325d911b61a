//! What the API shows of reports: the breakdown of used memory (`docs/allocators.md`), and the event and the incident of a
//! failed allocation.

use serde_json::{Value, json};

use super::*;

#[test]
fn processes_and_gpus_have_the_ladder() {
    let (site, exporter, uuid) = Site::with_self(4 * GIB);
    let mut client = site.connect();
    let before = exporter.json("/api/v1/processes");
    assert!(before["processes"][0].get("allocator_allocated_bytes").is_none(), "{before}");
    client.report(&uuid, &format!(r#""allocated_bytes":{GIB},"reserved_bytes":{}"#, 3 * GIB));
    exporter.scrape_until("the report", |s| s.all(ALLOCATED).count() == 1);
    let processes = exporter.json("/api/v1/processes");
    let process = &processes["processes"][0];
    let rung = |key: &str| process[key].as_u64();
    assert_eq!(rung("used_bytes"), Some(4 * GIB + CONTEXT));
    assert_eq!(rung("allocator_allocated_bytes"), Some(GIB));
    assert_eq!(rung("allocator_reserved_bytes"), Some(3 * GIB));
    assert_eq!(rung("outside_allocator_bytes"), Some(GIB + CONTEXT));
    let gpus = exporter.json("/api/v1/gpus");
    let (first, second) = (&gpus["gpus"][0], &gpus["gpus"][1]);
    assert_eq!(first["needed_bytes"].as_u64(), first["used_bytes"].as_u64().map(|used| used - 2 * GIB));
    assert!(second.get("needed_bytes").is_none(), "{second}");
}

#[test]
fn a_failed_allocation_is_an_event_and_an_incident_even_if_the_process_ends_at_once() {
    let (site, exporter, uuid) = Site::exported();
    let mut child = super::children::Process::start(&site);
    let pid = child.pid();
    // The process holds nearly the whole GPU, so its end alone would be an incident too.
    site.list(&[(pid, 139 * GIB)]);
    exporter.scrape_until("it is listed", |s| value(s, "gpu_process_memory_used_bytes", pid).is_some());
    child.send(&format!(
        r#"{{"type":"out_of_memory","framework":"pytorch","device":"{uuid}","requested_bytes":1099511627776,"free_bytes":149012217856,"total_bytes":150109880320,"allocated_bytes":1073741824,"reserved_bytes":2147483648,"snapshot_path":"/tmp/\u202e\"<b>.pickle"}}"#
    ));
    let listed = eventually("the incident", || {
        let all = exporter.json("/api/v1/incidents");
        all["incidents"].as_array().unwrap().iter().find(|found| found["kind"] == "out_of_memory").cloned()
    });
    drop(child);
    site.list(&[]);
    let id = listed["id"].as_str().unwrap();
    let path = format!("/api/v1/incidents/{id}");
    let incident = eventually("the complete incident", || {
        Some(exporter.json(&path)).filter(|incident| incident["complete"] == true)
    });
    let failure = &incident["out_of_memory"];
    assert_eq!(failure["pid"], pid);
    assert_eq!(failure["requested_bytes"], 1u64 << 40);
    assert_eq!(failure["free_bytes"], 149_012_217_856_u64);
    assert_eq!(failure["snapshot_path"], "/tmp/\u{202e}\"<b>.pickle");
    let summary = incident["summary"].as_str().unwrap();
    assert!(summary.contains(&format!("(pid {pid}, ")) && summary.contains("could not allocate 1024 GiB"), "{summary}");
    let text = exporter.get(&format!("{path}?format=text")).unwrap().body;
    assert!(text.contains("the framework wrote /tmp/\\u{202e}\"<b>.pickle"), "{text}");
    assert!(!text.contains('\u{202e}'));
    let trace = exporter.json(&format!("{path}?format=trace"));
    let is_failure = |event: &Value| event["name"].as_str().is_some_and(|name| name.contains("could not allocate"));
    assert!(trace["traceEvents"].as_array().unwrap().iter().any(is_failure), "{trace}");
    let events = exporter.json("/api/v1/events");
    let event = events["events"].as_array().unwrap().iter().find(|event| event["kind"] == "out_of_memory").cloned();
    assert_eq!(event.unwrap()["reserved_bytes"], 2 * GIB);
    let labels = [("kind", "out_of_memory"), ("gpu", "0")];
    let scrape = exporter.scrape_until("it is counted", |s| s.value("gpu_memory_incidents_total", &labels).is_some());
    assert_eq!(scrape.value("gpu_memory_incidents_total", &labels), Some(1.0));
    let ended = [("kind", "ended_at_peak"), ("gpu", "0")];
    assert_eq!(scrape.value("gpu_memory_incidents_total", &ended), None, "one incident for one end");
}

#[test]
fn what_the_memory_was_is_shown_only_if_it_is_asked_for_and_is_in_the_incident() {
    let look = |uuid: &str| {
        let sites = format!(r#"[{{"site":"train.py:7 \u202estep","role":"activations","bytes":{GIB}}}]"#);
        let roles = format!(r#"{{"parameters":0,"activations":{GIB},"unknown":{MIB}}}"#);
        format!(
            r#"{{"type":"sites","framework":"pytorch","device":"{uuid}","roles":{roles},"sites":{sites},"unknown_bytes":{MIB}}}"#
        )
    };
    let of = |kind: &str, uuid: &str, more: &str| {
        format!(r#"{{"type":"{kind}","framework":"pytorch","device":"{uuid}",{more}}}"#)
    };
    let grown = format!(r#"[{{"site":"train.py:9 grow","role":"activations","bytes":{}}}]"#, GIB / 2);
    let growth = |uuid: &str| of("growth", uuid, &format!(r#""seconds":12,"sites":{grown}"#));
    let modules = |uuid: &str| {
        let modules = format!(r#"[{{"module":"train.blocks.3\u202e","bytes":{GIB}}}]"#);
        of("modules", uuid, &format!(r#""modules":{modules},"other_bytes":{GIB}"#))
    };
    let site = Site::new();
    site.list(&[(std::process::id(), 4 * GIB)]);
    let failed = |uuid: &str| {
        let figures =
            format!(r#""requested_bytes":{},"allocated_bytes":{},"reserved_bytes":{}"#, 300 * GIB, 2 * GIB, 3 * GIB);
        let asked = r#""site":"train.py:12 ask","frames":["linear.py:5 train.py\u202e","train.py:12 ask"]"#;
        of("out_of_memory", uuid, &format!(r#"{figures},"largest_free_block_bytes":{MIB},{asked}"#))
    };
    for is_shown in [false, true] {
        let exporter = Exporter::start(site.command(&[&format!("--allocator.sites={is_shown}")]));
        exporter.answers("/readyz", 200);
        let uuid = super::uuid(&exporter, 0);
        let mut client = site.connect();
        client.report(&uuid, &format!(r#""allocated_bytes":{},"reserved_bytes":{}"#, 2 * GIB, 3 * GIB));
        client.send(&look(&uuid));
        let scrape = exporter.scrape_until("the report", |s| {
            s.all(ALLOCATED).count() == 1 && (!is_shown || s.all("gpu_process_allocator_role_bytes").count() > 0)
        });
        let roles: Vec<_> =
            scrape.all("gpu_process_allocator_role_bytes").map(|s| (s.label("role").unwrap(), s.value)).collect();
        let sites: Vec<_> = scrape
            .all("gpu_process_allocator_site_bytes")
            .map(|s| (s.label("site").unwrap(), s.label("role").unwrap(), s.value))
            .collect();
        client.send(&growth(&uuid));
        client.send(&modules(&uuid));
        client.send(&failed(&uuid));
        let incident = eventually("the incident", || {
            let all = exporter.json("/api/v1/incidents");
            let found =
                all["incidents"].as_array().unwrap().iter().find(|found| found["kind"] == "out_of_memory").cloned()?;
            Some(exporter.json(&format!("/api/v1/incidents/{}", found["id"].as_str().unwrap())))
        });
        let memory = &incident["out_of_memory"]["memory"];
        if !is_shown {
            // The look came before the failure, so it has been read.
            assert!(!exporter.scrape().text.contains("train.py") && !incident.to_string().contains("train."));
            assert!(roles.is_empty() && sites.is_empty() && memory.is_null(), "{}{incident}", scrape.text);
            assert_eq!(incident["out_of_memory"]["largest_free_block_bytes"], MIB, "it names no line");
            assert_eq!(incident["facts"].as_array().map(Vec::len), Some(1), "{incident}");
            continue;
        }
        let (gib, mib) = (GIB as f64, MIB as f64);
        assert_eq!(roles, [("parameters", 0.0), ("activations", gib), ("unknown", mib)]);
        assert_eq!(sites, [("train.py:7 \u{202e}step", "activations", gib), ("not recorded", "any", mib)]);
        assert_eq!(
            (&memory["roles"]["activations"], &memory["sites"][0]["bytes"]),
            (&GIB.into(), &GIB.into()),
            "{incident}"
        );
        let id = incident["id"].as_str().unwrap();
        let text = exporter.get(&format!("/api/v1/incidents/{id}?format=text")).unwrap().body;
        assert!(
            text.contains("the live memory of the framework, ")
                && text.contains("before: activations 1.00 GiB, unknown 1 MiB"),
            "{text}"
        );
        assert!(
            text.contains("1.00 GiB  activations      train.py:7 \\u{202e}step") && !text.contains('\u{202e}'),
            "{text}"
        );
        let failure = &incident["out_of_memory"];
        assert_eq!(
            (&failure["asked_by"], &failure["frames"][1]),
            (&"train.py:12 ask".into(), &"train.py:12 ask".into())
        );
        assert_eq!(failure["frames"][0], "linear.py:5 train.py\u{202e}");
        let grew =
            json!({"seconds": 12, "sites": [{"site": "train.py:9 grow", "role": "activations", "bytes": GIB / 2}]});
        assert_eq!((&memory["grew"], &memory["other_modules_bytes"]), (&grew, &GIB.into()), "{incident}");
        assert_eq!(memory["modules"], json!([{"module": "train.blocks.3\u{202e}", "bytes": GIB}]));
        let facts: Vec<_> = incident["facts"].as_array().unwrap().iter().map(|fact| fact.as_str().unwrap()).collect();
        let beginnings = [
            "train.py:12 ask asked for 300.0 GiB.",
            "The request was 300.0 GiB: 1.00 GiB of the 3.00 GiB reserved were not allocated (slack), and the largest free block had 1 MiB.",
            "1.00 GiB of the 1.00 GiB counted by role were activations",
            "train.py:9 grow (activations) grew by 512 MiB within the 12 s before the process last looked",
            "1.00 GiB of the 2.00 GiB counted by module belonged to train.blocks.3\\u{202e}",
        ];
        assert_eq!(facts.len(), beginnings.len(), "{facts:?}");
        for (fact, beginning) in facts.iter().zip(beginnings) {
            assert!(fact.starts_with(beginning), "{fact}");
            assert!(text.lines().any(|line| line == *fact), "{fact}: {text}");
        }
        for line in [
            "  linear.py:5 train.py\\u{202e}",
            "   512 MiB  activations      train.py:9 grow",
            "  1.00 GiB  other modules",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
        }
        let events = exporter.json("/api/v1/events");
        let event = events["events"].as_array().unwrap().iter().find(|event| event["kind"] == "out_of_memory").unwrap();
        assert!(event["frames"].is_null() && event["memory"]["grew"].is_null(), "{event}");
        let report = exporter.json("/api/v1/reports");
        let last = &report["reports"][0]["gpus"][0]["last_failure"];
        assert_eq!((&last["requested_bytes"], &last["asked_by"]), (&(300 * GIB).into(), &"train.py:12 ask".into()));
        assert_eq!(last["memory"]["sites"][0]["site"], "train.py:7 \u{202e}step", "{report}");
        let text = exporter.get("/api/v1/reports?format=text").unwrap().body;
        for line in ["    the last one requested 300.0 GiB", "      asked by train.py:12 ask"] {
            assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
        }
    }
}

#[test]
fn a_failure_on_a_gpu_that_the_process_does_not_use_leaves_nothing() {
    let (site, exporter, uuid) = Site::with_self(GIB);
    let other = super::uuid(&exporter, 1);
    let mut client = site.connect();
    let mut fail = |device: &str, bytes: u64| {
        client.send(&format!(
            r#"{{"type":"out_of_memory","framework":"jax","device":"{device}","requested_bytes":{bytes}}}"#
        ));
    };
    fail(&other, 1);
    fail(&uuid, 2);
    let failures = || {
        let events = exporter.json("/api/v1/events")["events"].as_array().unwrap().clone();
        events.into_iter().filter(|event| event["kind"] == "out_of_memory").collect::<Vec<_>>()
    };
    until("the event of the own GPU", || failures().len() == 1);
    assert_eq!(failures()[0]["requested_bytes"], 2);
    assert_eq!(failures()[0]["gpu"], 0);
}
