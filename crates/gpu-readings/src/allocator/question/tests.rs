use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream as Pair;

use nix::sys::socket::{setsockopt, sockopt};

use super::super::message::{Message, parse};
use super::*;

const LIMIT: Duration = Duration::from_secs(60);
const ROOT: u32 = 0;
const ANN: u32 = 1000;
const BOB: u32 = 1001;

/// The own end of a connection, and the exporter's end, which is known to be writable.
async fn pair() -> (BufReader<Pair>, UnixStream) {
    let (own, other) = Pair::pair().unwrap();
    own.set_read_timeout(Some(LIMIT)).unwrap();
    other.set_nonblocking(true).unwrap();
    let other = UnixStream::from_std(other).unwrap();
    other.writable().await.unwrap();
    (BufReader::new(own), other)
}

fn about(pid: u32) -> Question {
    Question { version: 2, pid, seconds: 20, looks: 5 }
}

/// Adds the connection of a process with this pid; returns the process's end.
async fn connect(questions: &Mutex<Questions>, id: u64, pid: u32, uid: u32) -> BufReader<Pair> {
    let (own, other) = pair().await;
    let to = Arc::new(other.into_split().1);
    questions.lock().connect(id, ProcessId { pid, start_ticks: Some(1) }, uid, Some(to));
    own
}

fn refusal(questions: &Mutex<Questions>, pid: u32, uid: u32) -> Option<Refusal> {
    questions.lock().open(&about(pid), uid).err()
}

fn read_line(from: &mut BufReader<Pair>) -> serde_json::Value {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn take(questions: &Mutex<Questions>, client: u64, line: &str) -> Result<(), Reason> {
    match parse(line.as_bytes()).unwrap() {
        Message::LeakSites(part) => questions.lock().take(client, &part),
        Message::Answered(answered) => {
            questions.lock().finish(client, &answered);
            Ok(())
        }
        other => panic!("{other:?}"),
    }
}

fn part(number: u64, site: &str) -> String {
    let rest = r#""framework":"pytorch","device":"GPU-1","seconds":20,"looks":5,"secret":"x""#;
    format!(r#"{{"type":"leak_sites","id":{number},{rest},"sites":[{{"site":"{site}","bytes":1,"live_bytes":2}}]}}"#)
}

fn end(number: u64) -> String {
    format!(r#"{{"type":"answered","id":{number}}}"#)
}

/// Asks about process 7 in a task. Returns the asker's end, and what the task returns.
async fn ask(questions: &Arc<Mutex<Questions>>) -> (BufReader<Pair>, Task) {
    let (own, other) = pair().await;
    (own, ask_on(other, questions, LIMIT))
}

type Task = tokio::task::JoinHandle<Result<(), Refusal>>;

fn ask_on(other: UnixStream, questions: &Arc<Mutex<Questions>>, limit: Duration) -> Task {
    let questions = questions.clone();
    tokio::spawn(async move {
        let (mut from, to) = other.into_split();
        super::ask(&questions, &about(7), ANN, &mut from, to.as_ref(), limit).await
    })
}

#[tokio::test]
async fn only_root_and_the_user_of_the_process_may_ask() {
    let questions = Mutex::new(Questions::default());
    assert_eq!(refusal(&questions, 7, ROOT), Some(Refusal::NotReporting));
    let mut process = connect(&questions, 1, 7, ANN).await;
    let _unknown = connect(&questions, 2, 8, UNKNOWN_USER).await;
    assert_eq!(refusal(&questions, 7, BOB), Some(Refusal::NotPermitted));
    assert_eq!(refusal(&questions, 8, UNKNOWN_USER), Some(Refusal::NotPermitted), "it may be several users");
    assert_eq!(refusal(&questions, 7, ANN), None);
    let asked = serde_json::json!({ "type": "leaks", "id": 1, "seconds": 20, "looks": 5 });
    assert_eq!(read_line(&mut process), asked, "who was refused asked nothing");
    questions.lock().close(1);
    assert_eq!(read_line(&mut process), serde_json::json!({ "type": "stop", "id": 1 }));
    assert_eq!((refusal(&questions, 7, ROOT), refusal(&questions, 8, ROOT)), (None, None));
}

#[tokio::test]
async fn the_latest_connection_of_a_process_that_can_be_asked_is_asked() {
    let questions = Mutex::new(Questions::default());
    let process = |start| ProcessId { pid: 7, start_ticks: Some(start) };
    questions.lock().connect(1, process(1), ANN, None);
    assert_eq!(refusal(&questions, 7, ANN), Some(Refusal::NotSupported));
    let mut asked = connect(&questions, 2, 7, ANN).await;
    questions.lock().connect(3, process(1), ANN, None);
    assert_eq!(refusal(&questions, 7, ANN), None);
    assert_eq!(read_line(&mut asked)["type"], "leaks");
    questions.lock().disconnect(2);
    assert!(questions.lock().open.is_empty(), "the question ends with the connection");
    // Another process with the same pid has connected since.
    let _former = connect(&questions, 4, 7, ANN).await;
    questions.lock().connect(5, process(2), BOB, None);
    assert_eq!(refusal(&questions, 7, ANN), Some(Refusal::NotPermitted));
    assert_eq!(refusal(&questions, 7, BOB), Some(Refusal::NotSupported));
}

#[tokio::test]
async fn questions_are_limited() {
    let questions = Mutex::new(Questions::default());
    let mut processes = Vec::new();
    for id in 1..=20 {
        processes.push(connect(&questions, id, id as u32, ANN).await);
    }
    assert_eq!(
        [1, 1, 2, 3].map(|pid| refusal(&questions, pid, ANN)),
        [None, Some(Refusal::Busy), None, Some(Refusal::TooMany)]
    );
    assert_eq!(refusal(&questions, 1, ROOT), Some(Refusal::Busy), "one of a process, from any asker");
    for (number, uid) in [(3, BOB), (4, BOB), (5, BOB + 1), (6, BOB + 1), (7, BOB + 2), (8, BOB + 2)] {
        questions.lock().clients.values_mut().for_each(|client| client.uid = uid);
        assert_eq!(refusal(&questions, number, uid), None);
    }
    assert_eq!(refusal(&questions, 9, ROOT), Some(Refusal::TooMany), "eight in all");
    questions.lock().close(1);
    assert_eq!(refusal(&questions, 9, ROOT), None);
}

#[tokio::test]
async fn a_process_that_reads_nothing_is_not_waited_for() {
    let questions = Mutex::new(Questions::default());
    let (_own, other) = pair().await;
    while other.try_write(&[b' '; 4096]).is_ok() {}
    let to = Arc::new(other.into_split().1);
    questions.lock().connect(1, ProcessId { pid: 7, start_ticks: Some(1) }, ANN, Some(to));
    assert_eq!(refusal(&questions, 7, ANN), Some(Refusal::NotReading));
    assert!(questions.lock().open.is_empty());
}

#[tokio::test]
async fn an_answer_is_passed_on_as_it_was_understood() {
    let questions = Arc::new(Mutex::new(Questions::default()));
    let mut process = connect(&questions, 1, 7, ANN).await;
    let (mut asker, task) = ask(&questions).await;
    let number = tokio::task::spawn_blocking(move || read_line(&mut process)["id"].as_u64().unwrap()).await.unwrap();
    // What another process says about the question, and what answers another question, changes nothing.
    assert_eq!(take(&questions, 2, &part(number, "forged")), Ok(()));
    assert_eq!(take(&questions, 2, &end(number)), Ok(()));
    assert_eq!(take(&questions, 1, &part(number + 1, "late")), Ok(()));
    for _ in 0..limits::PARTS {
        assert_eq!(take(&questions, 1, &part(number, "a.py:1 f")), Ok(()));
    }
    assert_eq!(take(&questions, 1, &part(number, "a.py:1 f")), Err(Reason::TooManyKeys));
    assert_eq!(take(&questions, 1, &end(number)), Ok(()));
    assert_eq!(take(&questions, 1, &part(number, "after the end")), Ok(()));
    assert_eq!(task.await.unwrap(), Ok(()));
    let mut answer = String::new();
    asker.read_to_string(&mut answer).unwrap();
    let lines: Vec<_> = answer.lines().collect();
    let line = r#"{"type":"leak_sites","id":1,"framework":"pytorch","device":"GPU-1","seconds":20,"looks":5,"sites":[{"site":"a.py:1 f","bytes":1,"live_bytes":2}]}"#;
    assert_eq!(lines, [&[line; limits::PARTS][..], &[r#"{"type":"answered","id":1}"#]].concat());
    assert!(questions.lock().open.is_empty());
}

#[tokio::test]
async fn a_part_that_becomes_too_long_is_refused() {
    let questions = Mutex::new(Questions::default());
    let _process = connect(&questions, 1, 7, ANN).await;
    let (_, mut lines) = questions.lock().open(&about(7), ANN).unwrap();
    let short = vec![format!(r#"["{}",1,2]"#, "\u{10ffff}".repeat(97)); 10].join(",");
    let rest = r#""framework":"pytorch","device":"GPU-1","seconds":20,"looks":5"#;
    let line = format!(r#"{{"type":"leak_sites","id":1,{rest},"sites":[{short}]}}"#);
    assert!(line.len() > 4000 && line.len() <= LONGEST_LINE, "{}", line.len());
    assert_eq!(take(&questions, 1, &line), Err(Reason::MessageTooLong));
    assert!(lines.try_recv().is_err());
}

#[tokio::test]
async fn a_question_ends_when_the_process_leaves() {
    let questions = Arc::new(Mutex::new(Questions::default()));
    let mut process = connect(&questions, 1, 7, ANN).await;
    let (_asker, task) = ask(&questions).await;
    tokio::task::spawn_blocking(move || read_line(&mut process)).await.unwrap();
    questions.lock().disconnect(1);
    assert_eq!(task.await.unwrap(), Err(Refusal::Ended));
}

#[tokio::test]
async fn an_asker_that_leaves_frees_its_place_and_the_process() {
    let questions = Arc::new(Mutex::new(Questions::default()));
    let mut process = connect(&questions, 1, 7, ANN).await;
    let (asker, task) = ask(&questions).await;
    let mut process = tokio::task::spawn_blocking(move || {
        read_line(&mut process);
        process
    })
    .await
    .unwrap();
    drop(asker);
    assert_eq!(task.await.unwrap(), Ok(()));
    assert_eq!(read_line(&mut process)["type"], "stop");
    assert!(questions.lock().open.is_empty());
}

#[tokio::test]
async fn an_asker_that_sends_more_is_refused() {
    let questions = Arc::new(Mutex::new(Questions::default()));
    let _process = connect(&questions, 1, 7, ANN).await;
    let (mut asker, task) = ask(&questions).await;
    asker.get_mut().write_all(b"x").unwrap();
    assert_eq!(task.await.unwrap(), Err(Refusal::SecondMessage));
}

#[tokio::test]
async fn an_asker_that_reads_nothing_delays_no_process_and_is_not_waited_for_for_ever() {
    let questions = Arc::new(Mutex::new(Questions::default()));
    let _process = connect(&questions, 1, 7, ANN).await;
    let (_asker, other) = pair().await;
    // A socket of the usual size has room for the whole answer.
    setsockopt(&other, sockopt::SndBuf, &4096).unwrap();
    let task = ask_on(other, &questions, Duration::from_millis(200));
    while questions.lock().open.is_empty() {
        assert!(!task.is_finished());
        tokio::task::yield_now().await;
    }
    let site = "\u{fc}".repeat(128);
    for _ in 0..limits::PARTS {
        assert_eq!(take(&questions, 1, &part(1, &site)), Ok(()));
    }
    assert_eq!(task.await.unwrap(), Err(Refusal::NoAnswer));
    assert!(questions.lock().open.is_empty());
}
