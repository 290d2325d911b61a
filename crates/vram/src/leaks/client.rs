//! Asks the exporter over its socket for allocators.
//!
//! Invariants: the answer has a limited number of lines, each of limited length, and a limited time; what is returned was checked
//! as strictly as the exporter checks it.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gpu_readings::allocator::message::{LeakSites, Message, parse};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_with_macros::skip_serializing_none;
use text_and_sizes::text::{printable, untrusted};
use vram_exporter::subcommand::MESSAGE;

use super::arguments::Arguments;

/// How long the answer may take in addition to the time between the looks: more than the exporter waits for the process.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest line, with its line break.
const LONGEST_LINE: usize = 4097;
/// The maximum number of lines.
const MOST_LINES: usize = 64;

/// What grew on one device. All amounts are bytes.
#[skip_serializing_none]
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Device {
    pub(super) framework: String,
    /// Its UUID.
    pub(super) device: String,
    /// The time from the first look to the last one.
    pub(super) seconds: u64,
    pub(super) looks: u64,
    /// The optimizer steps in this time; `None` if no optimizer's count is readable.
    pub(super) steps: Option<u64>,
    /// The call sites, those that grew most.
    pub(super) sites: Vec<Grown>,
    /// The number of other call sites that grew; `None` if it is unknown.
    pub(super) more_sites: Option<u64>,
    /// Live memory without a recorded call site; `None` if it is unknown.
    pub(super) unrecorded_bytes: Option<u64>,
}

/// A call site that grew.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Grown {
    pub(super) site: String,
    /// From the first look to the last one.
    pub(super) bytes: u64,
    /// At the last look.
    pub(super) live_bytes: u64,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{0} cannot be connected to: {1}; --socket names the exporter's allocator.socket")]
    Unreachable(String, io::Error),
    #[error("the exporter did not answer within {} s", .0.as_secs())]
    Late(Duration),
    #[error("the exporter ended the connection without an answer; its log may say why")]
    NoAnswer,
    #[error("{0} is not the allocator socket of a vram-exporter")]
    Foreign(String),
    #[error("{0}")]
    Refused(String),
}

/// The line with which the exporter refuses the question.
#[derive(Deserialize)]
struct Refusal {
    reason: String,
    #[serde(default)]
    message: String,
}

/// What grew on each device, empty if the process has no memory on one.
///
/// # Errors
/// When there is no complete answer.
pub(super) fn ask(arguments: &Arguments) -> Result<Vec<Device>, Error> {
    let socket = printable(&arguments.socket.display().to_string());
    let unreachable = |error| Error::Unreachable(socket.clone(), error);
    let mut stream = UnixStream::connect(&arguments.socket).map_err(unreachable)?;
    let limit = arguments.time + PATIENCE;
    let deadline = Instant::now() + limit;
    stream.set_write_timeout(Some(PATIENCE)).map_err(unreachable)?;
    let (pid, seconds, looks) = (arguments.pid, arguments.time.as_secs(), arguments.looks);
    let question = json!({ "type": "leaks", "version": 2, "pid": pid, "seconds": seconds, "looks": looks });
    // If the exporter has ended the connection already, it may have said why.
    let written = stream.write_all(format!("{question}\n").as_bytes());
    let mut lines = BufReader::new(stream);
    let mut devices = Vec::new();
    for _ in 0..MOST_LINES {
        let line = match read_line(&mut lines, deadline) {
            Ok(line) if line.is_empty() => break,
            Ok(line) => line,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(Error::Late(limit));
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(Error::Foreign(socket));
            }
            Err(_) => break,
        };
        match parse(&line) {
            Ok(Message::LeakSites(part)) => devices.push(Device::from(part)),
            Ok(Message::Answered(answered)) => {
                return match answered.reason {
                    Some(reason) => Err(refused(&reason, "", arguments)),
                    None => Ok(devices),
                };
            }
            // A line of a newer exporter.
            Ok(Message::Unknown) => {
                if let Ok(Refusal { reason, message }) = serde_json::from_slice(&line) {
                    return Err(refused(&reason, &message, arguments));
                }
            }
            Ok(_) | Err(_) => return Err(Error::Foreign(socket)),
        }
    }
    written.map_err(unreachable)?;
    Err(Error::NoAnswer)
}

/// The next line without its line break; empty at the end of the connection.
///
/// # Errors
/// `InvalidData` for a line that is too long or not complete.
fn read_line(lines: &mut BufReader<UnixStream>, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        lines.get_ref().set_read_timeout(Some(left))?;
        let available = lines.fill_buf()?;
        if available.is_empty() {
            return if line.is_empty() { Ok(line) } else { Err(io::ErrorKind::InvalidData.into()) };
        }
        let length = available.iter().position(|&byte| byte == b'\n').map_or(available.len(), |at| at + 1);
        line.extend_from_slice(&available[..length]);
        lines.consume(length);
        if line.len() > LONGEST_LINE {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    line.pop();
    Ok(line)
}

impl From<LeakSites<'_>> for Device {
    fn from(part: LeakSites<'_>) -> Self {
        let sites = part.sites.into_iter().map(|found| Grown {
            site: found.site.into_owned(),
            bytes: found.bytes,
            live_bytes: found.live_bytes,
        });
        Self {
            framework: part.framework.into_owned(),
            device: part.device.into_owned(),
            seconds: part.seconds,
            looks: part.looks,
            steps: part.steps,
            sites: sites.collect(),
            more_sites: part.more_sites,
            unrecorded_bytes: part.unrecorded_bytes,
        }
    }
}

/// Why the question was refused, and the way out.
fn refused(reason: &str, message: &str, arguments: &Arguments) -> Error {
    let process = format!("process {}", arguments.pid);
    let socket = printable(&arguments.socket.display().to_string());
    Error::Refused(match reason {
        "sites_off" => format!(
            "the exporter at {socket} takes in no call sites: set allocator.sites=true for it; if {socket} is the socket of \
             `vram run`, name the exporter's with --socket"
        ),
        "not_reporting" => format!(
            "{process} does not report to the exporter: start it with `vram-run --sites`; it reports once PyTorch uses a GPU. In \
             a container, the pid is that of the host"
        ),
        "not_permitted" => {
            format!("only root and the user of {process} may ask: run this command as root or as that user")
        }
        "not_supported" => format!(
            "{process} does not look for call sites, or its client is too old: start it with `vram-run --sites` of the version \
             of this command"
        ),
        "busy" => format!("{process} is answering another question: ask again when that has ended"),
        "too_many_questions" => "too many questions are open: ask again later".to_owned(),
        "not_reading" => format!("{process} does not read its connection: it may be stopped"),
        "ended" => format!("{process} ended its connection before it answered: it may have ended"),
        "no_answer" => {
            format!("{process} did not answer in time: it may be stopped, or a call of its framework takes long")
        }
        "not_initialised" => format!("{process} uses no GPU with PyTorch yet: ask again when it does"),
        "not_available" => format!(
            "{process} cannot record call sites: that needs PyTorch 2.1 or newer, on an NVIDIA GPU, with PyTorch's own allocator, \
             and looks that take less than two seconds"
        ),
        "history_ended" => format!("{process} switched its memory history off while it was looked at: ask again"),
        "failed" => {
            format!("the client in {process} failed while it looked: PyTorch may be of a version that it does not know")
        }
        "unsupported_version" => {
            format!("the exporter at {socket} is older than this question: it needs the version of this command")
        }
        "unknown_process" => format!(
            "the exporter at {socket} does not see this command in its pid namespace and path.procfs: run it on the host; if \
             {socket} is the socket of `vram run`, name the exporter's with --socket"
        ),
        other => {
            let why = if message.is_empty() { String::new() } else { format!(": {}", untrusted(message, MESSAGE)) };
            format!("the question was refused with {}{why}", untrusted(other, MESSAGE))
        }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::format::Format;

    /// What the command makes of these bytes from the other end.
    fn answered(bytes: &[u8]) -> Result<Vec<Device>, String> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let bytes = bytes.to_vec();
        let exporter = std::thread::spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let mut question = String::new();
            stream.read_line(&mut question).unwrap();
            // The command does not read to the end what is wrong.
            let _ = stream.get_mut().write_all(&bytes);
            question
        });
        let time = Duration::from_secs(20);
        let found = ask(&Arguments { pid: 7, socket, time, looks: 5, format: Format::Text });
        let question = exporter.join().unwrap();
        let asked = json!({ "type": "leaks", "version": 2, "pid": 7, "seconds": 20, "looks": 5 });
        assert_eq!(serde_json::from_str::<serde_json::Value>(&question).unwrap(), asked);
        found.map_err(|error| error.to_string())
    }

    const PART: &str = concat!(
        r#"{"type":"leak_sites","id":1,"framework":"pytorch","device":"GPU-1","seconds":20,"looks":5,"#,
        r#""sites":[{"site":"a.py:1 f","bytes":1,"live_bytes":2}],"unrecorded_bytes":0}"#,
        "\n"
    );

    #[test]
    fn an_answer_is_complete_or_an_error() {
        let grown = Grown { site: "a.py:1 f".to_owned(), bytes: 1, live_bytes: 2 };
        let device = Device {
            framework: "pytorch".to_owned(),
            device: "GPU-1".to_owned(),
            seconds: 20,
            looks: 5,
            steps: None,
            sites: vec![grown],
            more_sites: None,
            unrecorded_bytes: Some(0),
        };
        let end = "{\"type\":\"answered\",\"id\":1}\n";
        assert_eq!(answered(format!("{PART}{{\"type\":\"news\"}}\n{end}").as_bytes()), Ok(vec![device]));
        assert_eq!(answered(end.as_bytes()), Ok(Vec::new()));
        assert!(answered(PART.as_bytes()).unwrap_err().contains("without an answer"));
        assert!(answered(b"").unwrap_err().contains("without an answer"));
    }

    #[test]
    fn what_no_exporter_sends_is_refused() {
        for bytes in [&b"HTTP/1.1 400\r\n"[..], b"{\"type\":\"answered\"", &[b'x'; 5000], &[b'x'; 1 << 20], b"\xff\n"] {
            assert!(answered(bytes).unwrap_err().contains("is not the allocator socket"), "{} bytes", bytes.len());
        }
        assert!(answered(PART.replace("a.py", "a\\u001b").as_bytes()).unwrap_err().contains("is not the allocator"));
        assert!(answered(PART.repeat(65).as_bytes()).unwrap_err().contains("without an answer"), "too many lines");
    }

    #[test]
    fn a_refusal_names_the_way_out() {
        let refused = |reason: &str| {
            answered(
                format!("{{\"type\":\"error\",\"version\":2,\"reason\":\"{reason}\",\"message\":\"m\"}}\n").as_bytes(),
            )
            .unwrap_err()
        };
        for (reason, way) in [
            ("sites_off", "set allocator.sites=true"),
            ("not_reporting", "vram-run --sites"),
            ("not_permitted", "as root or as that user"),
            ("not_supported", "vram-run --sites"),
            ("busy", "ask again"),
            ("unknown_process", "--socket"),
            ("unsupported_version", "older"),
        ] {
            assert!(refused(reason).contains(way), "{}", refused(reason));
        }
        assert_eq!(refused("a\\u001b\\u202eb"), "the question was refused with a\\u{1b}\\u{202e}b: m");
        let of_process = answered(b"{\"type\":\"answered\",\"id\":1,\"reason\":\"not_initialised\"}\n").unwrap_err();
        assert!(of_process.contains("ask again when it does"), "{of_process}");
    }

    #[test]
    fn a_socket_that_is_not_there_is_named() {
        let socket = "/nonexistent/a\u{1b}".into();
        let error = ask(&Arguments { pid: 7, socket, time: Duration::from_secs(1), looks: 3, format: Format::Text });
        let told = error.unwrap_err().to_string();
        assert!(
            told.starts_with("/nonexistent/a\\u{1b} cannot be connected to: ") && told.contains("--socket"),
            "{told}"
        );
    }
}
