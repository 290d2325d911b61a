//! `vram leaks`: the question of the real tool, over the real exporter, to a client of version 2.

use std::os::unix::process::CommandExt as _;
use std::thread::JoinHandle;

use serde_json::{Value, json};

use super::*;
use crate::harness::{Ended, install, tool, tool_program};

const HELLO_2: &str = r#"{"type":"hello","version":2,"client":"test"}"#;

fn with_sites() -> (Site, Exporter) {
    let site = Site::new();
    let exporter = Exporter::start(site.command(&["--allocator.sites=true"]));
    exporter.answers("/readyz", 200);
    (site, exporter)
}

/// A client of version 2 in this process.
fn client(site: &Site) -> Client {
    let mut client = Client::open(&site.socket);
    client.send(HELLO_2);
    assert_eq!(client.answer()["version"], 2);
    client.keep_alive();
    client
}

/// The arguments for a question about this process.
fn arguments(site: &Site, pid: u32, more: &[&str]) -> Vec<String> {
    let (pid, socket) = (pid.to_string(), format!("--socket={}", site.socket.display()));
    ["leaks", &pid, &socket, "--seconds=1"].into_iter().chain(more.iter().copied()).map(str::to_owned).collect()
}

fn ask(site: &Site, more: &[&str]) -> JoinHandle<Ended> {
    let arguments = arguments(site, std::process::id(), more);
    std::thread::spawn(move || ended(tool(&[]).args(arguments)))
}

fn failed(ended: Ended) -> String {
    assert_eq!((ended.status, &*ended.out), (Some(1), ""), "{ended:?}");
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    ended.err
}

fn part(number: &Value, more: &str) -> String {
    let head = format!(r#""type":"leak_sites","id":{number},"framework":"pytorch","device":"GPU-1""#);
    format!(r#"{{{head},"seconds":20,"looks":5,"steps":10,{more},"unrecorded_bytes":0}}"#)
}

fn end(number: &Value) -> String {
    format!(r#"{{"type":"answered","id":{number}}}"#)
}

#[test]
fn the_lines_that_grow_are_shown() {
    let (site, exporter) = with_sites();
    let mut client = client(&site);
    let sites = r#""sites":[{"site":"train.py:9 step","bytes":10485760,"live_bytes":20971520}],"more_sites":0"#;
    for format in ["text", "json"] {
        let asked = ask(&site, &["--looks=4", &format!("--format={format}")]);
        let question = client.answer();
        assert_eq!(question, json!({ "type": "leaks", "id": question["id"], "seconds": 1, "looks": 4 }));
        client.send(&part(&question["id"], sites));
        client.send(&end(&question["id"]));
        let ended = asked.join().unwrap();
        assert_eq!((ended.status, &*ended.err), (Some(0), ""), "{ended:?}");
        if format == "text" {
            let expected = "pytorch on GPU-1\n  GROWTH  PER STEP    LIVE  CALL SITE\n  10 MiB     1 MiB  20 MiB  train.py:9 step\n  \
                            5 looks in 20 s; 10 optimizer steps; all live memory has a recorded call site\n";
            assert_eq!(ended.out, expected);
            continue;
        }
        let sites = [json!({ "site": "train.py:9 step", "bytes": 10 * MIB, "live_bytes": 20 * MIB })];
        let device = json!({
            "framework": "pytorch", "device": "GPU-1", "seconds": 20, "looks": 5, "steps": 10, "sites": sites, "more_sites": 0,
            "unrecorded_bytes": 0
        });
        let expected = json!({ "version": 1, "pid": std::process::id(), "devices": [device] });
        assert_eq!(serde_json::from_str::<Value>(&ended.out).unwrap(), expected);
    }
    assert_eq!(exporter.scrape().value("vram_exporter_faults_total", &[("source", "allocator")]), Some(0.0));
}

#[test]
fn a_question_without_an_answer_is_an_error_that_names_the_way_out() {
    let (site, exporter) = with_sites();
    assert!(failed(ask(&site, &[]).join().unwrap()).contains("vram-run --sites"), "it does not report");
    let old = site.connect();
    assert!(failed(ask(&site, &[]).join().unwrap()).contains("vram-run --sites"), "it speaks version 1");
    drop(old);
    let mut client = client(&site);
    let asked = ask(&site, &[]);
    let number = client.answer()["id"].clone();
    assert!(failed(ask(&site, &[]).join().unwrap()).contains("ask again when that has ended"));
    client.send(&format!(r#"{{"type":"answered","id":{number},"reason":"not_initialised"}}"#));
    assert!(failed(asked.join().unwrap()).contains("uses no GPU with PyTorch yet"));
    // The client leaves without an answer.
    let asked = ask(&site, &[]);
    client.answer();
    drop(client);
    assert!(failed(asked.join().unwrap()).contains("ended its connection"));
    drop(exporter);
    let exporter = site.export();
    assert!(failed(ask(&site, &[]).join().unwrap()).contains("set allocator.sites=true"));
    drop(exporter);
    assert!(failed(ask(&site, &[]).join().unwrap()).contains("cannot be connected to"));
}

#[test]
fn a_hostile_answer_ends_the_connection_and_nothing_of_it_is_shown() {
    let (site, exporter) = with_sites();
    let mut client = client(&site);
    let asked = ask(&site, &[]);
    let number = client.answer()["id"].clone();
    client.send(&part(&number, r#""sites":[{"site":"a\u001b[31m","bytes":1,"live_bytes":1}]"#));
    assert!(failed(asked.join().unwrap()).contains("ended its connection"));
    assert_eq!(faults(&exporter, "invalid_message"), 1);
    // More parts than there may be: the first ones count.
    let mut client = self::client(&site);
    let asked = ask(&site, &["--format=json"]);
    let number = client.answer()["id"].clone();
    for _ in 0..40 {
        client.send(&part(&number, r#""sites":[]"#));
    }
    client.send(&end(&number));
    let answer: Value = serde_json::from_str(&asked.join().unwrap().out).unwrap();
    assert_eq!(answer["devices"].as_array().unwrap().len(), 32);
    assert_eq!(faults(&exporter, "too_many_keys"), 8);
}

#[test]
fn an_asker_that_is_killed_ends_the_looks() {
    let (site, _exporter) = with_sites();
    let mut client = client(&site);
    let mut asker = Killed(tool(&[]).args(arguments(&site, std::process::id(), &[])).spawn().unwrap());
    let number = client.answer()["id"].clone();
    asker.0.kill().unwrap();
    assert_eq!(client.answer(), json!({ "type": "stop", "id": number }));
}

#[test]
fn another_user_may_not_ask() {
    let (site, exporter) = with_sites();
    let _client = client(&site);
    // Every user can run the copy, whatever the permissions of the build folder are.
    let copy = site.machine.folder.path().join("tool");
    install(&tool_program(), &copy);
    std::fs::set_permissions(site.machine.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let stranger = || {
        let mut command = Command::new(&copy);
        command.uid(65_533).gid(65_533);
        command
    };
    let works = stranger().arg("--version").output().is_ok_and(|output| output.status.success());
    if missing("the right to run a process as another user", works) {
        return;
    }
    let refused = ended(stranger().args(arguments(&site, std::process::id(), &[])));
    assert!(failed(refused).contains("as root or as that user"));
    assert_eq!(exporter.scrape().value("vram_exporter_faults_total", &[("source", "allocator")]), Some(0.0));
}

#[test]
fn the_socket_of_run_answers_no_question() {
    let machine = Machine::new("seed = 3\n[[gpu]]\nmodel = \"H200\"\n");
    let asked = ended(&mut machine.run(&[], &format!("exec {} leaks $$", tool_program().display())));
    assert_eq!(asked.status, Some(1), "{asked:?}");
    assert!(asked.err.contains("name the exporter's with --socket"), "{}", asked.err);
}
